"""Drives an agent of pydantic-ai, in each of the three dialects."""

import asyncio

from protocol import BASE, DIALECT, KEY, MODEL, PROMPT, RESULT, TOOL_PROMPT, answer, serve
from pydantic_ai import Agent
from pydantic_ai.messages import ToolCallPart


def chat_model():
    """Return the model object of the dialect."""
    if DIALECT == "messages":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel(MODEL, provider=AnthropicProvider(base_url=BASE, api_key=KEY))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if DIALECT == "responses" else OpenAIChatModel
    return kind(MODEL, provider=OpenAIProvider(base_url=f"{BASE}/v1", api_key=KEY))


def get_weather(city: str) -> str:
    """Return the weather of a city"""
    return RESULT


agent = Agent(chat_model())
agent_with_tool = Agent(chat_model(), tools=[get_weather])


def used(result):
    """Return the output tokens of a run; a property in some versions, a method in others."""
    usage = result.usage() if callable(result.usage) else result.usage
    return usage.output_tokens


async def chat():
    made = await agent.run(PROMPT)
    return answer(made.output, output_tokens=used(made))


async def stream():
    async with agent.run_stream(PROMPT) as streamed:
        text = await streamed.get_output()
        return answer(text, output_tokens=used(streamed))


async def tools():
    made = await agent_with_tool.run(TOOL_PROMPT)
    calls = [
        (part.tool_name, part.args_as_dict())
        for message in made.all_messages()
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    return answer(made.output, tools=calls)


with asyncio.Runner() as runner:
    serve(
        {
            (DIALECT, "chat"): lambda: runner.run(chat()),
            (DIALECT, "stream"): lambda: runner.run(stream()),
            (DIALECT, "tools"): lambda: runner.run(tools()),
        }
    )
