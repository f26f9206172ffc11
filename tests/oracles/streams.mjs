// Reads the streams of seeds with the official libraries for TypeScript: `node streams.mjs FOLDER ADDRESS COUNT`,
// with the folder of their `node_modules`. Prints one line for each seed and dialect.
import { createRequire } from "node:module";

const [folder, baseURL, count] = process.argv.slice(2);
const from = createRequire(`${folder}/`);
const Anthropic = from("@anthropic-ai/sdk");
const OpenAI = from("openai");
const anthropic = new Anthropic({ baseURL, apiKey: "k", maxRetries: 0 });
const openai = new OpenAI({ baseURL, apiKey: "k", maxRetries: 0 });

for (let seed = 0; seed < Number(count); seed += 1) {
  const asked = { model: String(seed), max_tokens: 50, messages: [{ role: "user", content: "Hi" }] };
  const blocks = [];
  const message = anthropic.messages.stream(asked).on("contentBlock", (block) => blocks.push(structuredClone(block)));
  const final = await message.finalMessage();
  const plain = await anthropic.messages.create(asked);
  console.log(JSON.stringify({ seed, dialect: "messages", shown: blocks, final: final.content, plain: plain.content }));

  const input = { model: String(seed), input: "Hi" };
  const items = [];
  const stream = openai.responses.stream(input);
  stream.on("response.output_item.done", (event) => items.push(structuredClone(event.item)));
  const response = await stream.finalResponse();
  const whole = await openai.responses.create(input);
  console.log(JSON.stringify({ seed, dialect: "responses", shown: items, final: response.output, plain: whole.output }));
}
