"""Drives the official OpenAI library for Python."""

import json

from openai import OpenAI
from protocol import (
    BASE,
    DESCRIPTION,
    KEY,
    MODEL,
    PROMPT,
    RESULT,
    SCHEMA,
    TOOL_PROMPT,
    answer,
    serve,
)

client = OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA},
}
RESPONSES_TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": DESCRIPTION,
    "parameters": SCHEMA,
    "strict": False,
}


def chat():
    messages = [{"role": "user", "content": PROMPT}]
    made = client.chat.completions.create(model=MODEL, messages=messages)
    return answer(made.choices[0].message.content, output_tokens=made.usage.completion_tokens)


def chat_stream():
    messages = [{"role": "user", "content": PROMPT}]
    text, used = "", None
    for chunk in client.chat.completions.create(
        model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        used = chunk.usage.completion_tokens if chunk.usage else used
    return answer(text, output_tokens=used)


def chat_tools():
    messages = [{"role": "user", "content": TOOL_PROMPT}]
    with client.chat.completions.stream(
        model=MODEL, messages=messages, tools=[CHAT_TOOL]
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    calls = [
        (call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls
    ]
    messages.append(message.model_dump(include={"role", "content", "tool_calls"}))
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in message.tool_calls
    ]
    made = client.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL])
    return answer(
        made.choices[0].message.content, tools=calls, output_tokens=made.usage.completion_tokens
    )


def responses():
    made = client.responses.create(model=MODEL, input=PROMPT)
    return answer(made.output_text, output_tokens=made.usage.output_tokens)


def responses_stream():
    with client.responses.stream(model=MODEL, input=PROMPT) as stream:
        made = stream.get_final_response()
    return answer(made.output_text, output_tokens=made.usage.output_tokens)


def responses_tools():
    items = [{"role": "user", "content": TOOL_PROMPT}]
    with client.responses.stream(model=MODEL, input=items, tools=[RESPONSES_TOOL]) as stream:
        first = stream.get_final_response()
    found = [item for item in first.output if item.type == "function_call"]
    for item in found:
        items.append(item.model_dump(include={"type", "call_id", "name", "arguments"}))
        items.append({"type": "function_call_output", "call_id": item.call_id, "output": RESULT})
    made = client.responses.create(model=MODEL, input=items, tools=[RESPONSES_TOOL])
    calls = [(item.name, json.loads(item.arguments)) for item in found]
    return answer(made.output_text, tools=calls, output_tokens=made.usage.output_tokens)


serve(
    {
        ("chat", "chat"): chat,
        ("chat", "stream"): chat_stream,
        ("chat", "tools"): chat_tools,
        ("responses", "chat"): responses,
        ("responses", "stream"): responses_stream,
        ("responses", "tools"): responses_tools,
    }
)
