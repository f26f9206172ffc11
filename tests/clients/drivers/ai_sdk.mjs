// Drives Vercel's AI SDK through its provider packages, one for each dialect.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { answer, base, description, dialect, key, model, prompt, result, serve, toolPrompt } from "./protocol.mjs";

const makers = {
  chat: () => createOpenAICompatible({ name: "tollgate", baseURL: `${base}/v1`, apiKey: key, includeUsage: true })(model),
  responses: () => createOpenAI({ baseURL: `${base}/v1`, apiKey: key })(model),
  messages: () => createAnthropic({ baseURL: `${base}/v1`, apiKey: key })(model),
};
const asked = { model: makers[dialect](), maxRetries: 0 };
const tools = {
  get_weather: tool({
    description,
    inputSchema: z.object({ city: z.string() }),
    execute: async () => result,
  }),
};

await serve({
  [dialect]: {
    async chat() {
      const made = await generateText({ ...asked, prompt });
      return answer(made.text, made.usage.outputTokens);
    },
    async stream() {
      let failure;
      const made = streamText({ ...asked, prompt, onError: ({ error }) => (failure = error) });
      const text = await made.text.catch((error) => { throw failure ?? error; });
      return answer(text, (await made.usage).outputTokens);
    },
    async tools() {
      let failure;
      const made = streamText({
        ...asked,
        prompt: toolPrompt,
        tools,
        stopWhen: stepCountIs(3),
        onError: ({ error }) => (failure = error),
      });
      const text = await made.text.catch((error) => { throw failure ?? error; });
      const steps = await made.steps;
      const calls = steps.flatMap((step) => step.toolCalls);
      return answer(text, null, calls.map((call) => ({ name: call.toolName, arguments: call.input })));
    },
  },
});
