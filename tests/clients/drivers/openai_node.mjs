// Drives the official OpenAI library for Node.
import OpenAI from "openai";
import { answer, base, description, key, model, prompt, result, schema, serve, toolPrompt } from "./protocol.mjs";

const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: key, maxRetries: 0 });
const chatTools = [{ type: "function", function: { name: "get_weather", description, parameters: schema } }];
const responsesTools = [{ type: "function", name: "get_weather", description, parameters: schema, strict: false }];

const chat = {
  async chat() {
    const made = await client.chat.completions.create({ model, messages: [{ role: "user", content: prompt }] });
    return answer(made.choices[0].message.content, made.usage.completion_tokens);
  },
  async stream() {
    const stream = client.chat.completions.stream({
      model,
      messages: [{ role: "user", content: prompt }],
      stream_options: { include_usage: true },
    });
    const made = await stream.finalChatCompletion();
    return answer(made.choices[0].message.content, made.usage?.completion_tokens);
  },
  async tools() {
    const messages = [{ role: "user", content: toolPrompt }];
    const stream = client.chat.completions.stream({ model, messages, tools: chatTools });
    const { message } = (await stream.finalChatCompletion()).choices[0];
    const { role, content, tool_calls: calls } = message;
    messages.push({ role, content, tool_calls: calls });
    for (const call of calls) messages.push({ role: "tool", tool_call_id: call.id, content: result });
    const made = await client.chat.completions.create({ model, messages, tools: chatTools });
    return answer(
      made.choices[0].message.content,
      made.usage.completion_tokens,
      calls.map((call) => ({ name: call.function.name, arguments: JSON.parse(call.function.arguments) })),
    );
  },
};

const responses = {
  async chat() {
    const made = await client.responses.create({ model, input: prompt });
    return answer(made.output_text, made.usage.output_tokens);
  },
  async stream() {
    const made = await client.responses.stream({ model, input: prompt }).finalResponse();
    return answer(made.output_text, made.usage.output_tokens);
  },
  async tools() {
    const input = [{ role: "user", content: toolPrompt }];
    const first = await client.responses.stream({ model, input, tools: responsesTools }).finalResponse();
    const calls = first.output.filter((item) => item.type === "function_call");
    for (const { call_id: id, name, arguments: sent } of calls) {
      input.push({ type: "function_call", call_id: id, name, arguments: sent });
      input.push({ type: "function_call_output", call_id: id, output: result });
    }
    const made = await client.responses.create({ model, input, tools: responsesTools });
    return answer(
      made.output_text,
      made.usage.output_tokens,
      calls.map((call) => ({ name: call.name, arguments: JSON.parse(call.arguments) })),
    );
  },
};

await serve({ chat, responses });
