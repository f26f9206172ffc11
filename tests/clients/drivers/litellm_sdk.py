"""Drives litellm's library, as a client of the OpenAI and of the Anthropic dialect."""

import json

import litellm
from protocol import (
    BASE,
    DESCRIPTION,
    DIALECT,
    KEY,
    MODEL,
    PROMPT,
    RESULT,
    SCHEMA,
    TOOL_PROMPT,
    answer,
    serve,
)

litellm.telemetry = False
TARGET = {
    "chat": {"model": f"openai/{MODEL}", "api_base": f"{BASE}/v1"},
    "messages": {"model": f"anthropic/{MODEL}", "api_base": BASE, "max_tokens": 200},
}[DIALECT]
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA},
}


def complete(messages, **more):
    return litellm.completion(messages=messages, api_key=KEY, num_retries=0, **TARGET, **more)


def chat():
    made = complete([{"role": "user", "content": PROMPT}])
    return answer(made.choices[0].message.content, output_tokens=made.usage.completion_tokens)


def stream():
    messages = [{"role": "user", "content": PROMPT}]
    chunks = list(complete(messages, stream=True, stream_options={"include_usage": True}))
    made = litellm.stream_chunk_builder(chunks, messages=messages)
    return answer(made.choices[0].message.content, output_tokens=made.usage.completion_tokens)


def tools():
    messages = [{"role": "user", "content": TOOL_PROMPT}]
    chunks = list(complete(messages, tools=[TOOL], stream=True))
    message = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
    calls = [
        (call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls
    ]
    messages.append(message.model_dump(include={"role", "content", "tool_calls"}))
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in message.tool_calls
    ]
    made = complete(messages, tools=[TOOL])
    return answer(
        made.choices[0].message.content, tools=calls, output_tokens=made.usage.completion_tokens
    )


serve({(DIALECT, "chat"): chat, (DIALECT, "stream"): stream, (DIALECT, "tools"): tools})
