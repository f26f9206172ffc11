// Drives the official Anthropic library for TypeScript.
import Anthropic from "@anthropic-ai/sdk";
import { answer, base, description, key, model, prompt, result, schema, serve, toolPrompt } from "./protocol.mjs";

const client = new Anthropic({ baseURL: base, apiKey: key, maxRetries: 0 });
const asked = { model, max_tokens: 200 };
const tools = [{ name: "get_weather", description, input_schema: schema }];
const textOf = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");

await serve({
  messages: {
    async chat() {
      const made = await client.messages.create({ ...asked, messages: [{ role: "user", content: prompt }] });
      return answer(textOf(made), made.usage.output_tokens);
    },
    async stream() {
      const stream = client.messages.stream({ ...asked, messages: [{ role: "user", content: prompt }] });
      const made = await stream.finalMessage();
      return answer(textOf(made), made.usage.output_tokens);
    },
    async tools() {
      const messages = [{ role: "user", content: toolPrompt }];
      const first = await client.messages.stream({ ...asked, tools, messages }).finalMessage();
      const calls = first.content.filter((block) => block.type === "tool_use");
      messages.push({ role: "assistant", content: first.content });
      messages.push({
        role: "user",
        content: calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: result })),
      });
      const made = await client.messages.create({ ...asked, tools, messages });
      return answer(
        textOf(made),
        made.usage.output_tokens,
        calls.map((call) => ({ name: call.name, arguments: call.input })),
      );
    },
  },
});
