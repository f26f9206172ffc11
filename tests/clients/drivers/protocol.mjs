// The common part of the Node drivers; the Python drivers' protocol.py says how they talk.
import { createInterface } from "node:readline";

export const { base, key, model, dialect, prompt, tool_prompt: toolPrompt } = JSON.parse(
  process.env.TOLLGATE_CALL,
);
export const schema = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
};
export const description = "Return the weather of a city";
export const result = "sunny";

export const answer = (text, outputTokens, tools = []) => ({
  text,
  tools,
  output_tokens: outputTokens ?? null,
});

// Make each call that standard input names; `calls` has a function for each call of each dialect.
export async function serve(calls) {
  for await (const line of createInterface({ input: process.stdin })) {
    let made;
    try {
      made = await calls[dialect][line.trim()]();
    } catch (error) {
      made = { error: `${error?.name}: ${error?.message} ${error?.responseBody ?? ""}`.slice(0, 2000) };
    }
    console.log(`ANSWER ${JSON.stringify(made)}`);
  }
}
