"""Drives the official Anthropic library for Python."""

from anthropic import Anthropic
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

client = Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
TOOL = {"name": "get_weather", "description": DESCRIPTION, "input_schema": SCHEMA}


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def chat():
    made = client.messages.create(
        model=MODEL, max_tokens=200, messages=[{"role": "user", "content": PROMPT}]
    )
    return answer(text_of(made), output_tokens=made.usage.output_tokens)


def stream():
    messages = [{"role": "user", "content": PROMPT}]
    with client.messages.stream(model=MODEL, max_tokens=200, messages=messages) as streamed:
        text = "".join(streamed.text_stream)
        made = streamed.get_final_message()
    return answer(text, output_tokens=made.usage.output_tokens)


def tools():
    messages = [{"role": "user", "content": TOOL_PROMPT}]
    asked = {"model": MODEL, "max_tokens": 200, "tools": [TOOL]}
    with client.messages.stream(**asked, messages=messages) as streamed:
        first = streamed.get_final_message()
    calls = [block for block in first.content if block.type == "tool_use"]
    blocks = [block.model_dump(exclude_none=True) for block in first.content]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT} for call in calls]
    messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    made = client.messages.create(**asked, messages=messages)
    return answer(
        text_of(made),
        tools=[(call.name, call.input) for call in calls],
        output_tokens=made.usage.output_tokens,
    )


serve({("messages", "chat"): chat, ("messages", "stream"): stream, ("messages", "tools"): tools})
