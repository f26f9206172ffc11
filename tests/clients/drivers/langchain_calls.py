"""The calls of LangChain's chat models, the same for each provider's package."""

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from protocol import DIALECT, PROMPT, RESULT, TOOL_PROMPT, answer, serve


@tool
def get_weather(city: str) -> str:
    """Return the weather of a city"""
    return RESULT


def joined(chunks):
    """Return streamed chunks as one message."""
    first, *others = chunks
    for chunk in others:
        first = first + chunk
    return first


def shown(message, calls=()):
    """Return a message as an answer."""
    used = message.usage_metadata
    return answer(message.text, tools=calls, output_tokens=used and used["output_tokens"])


def serve_model(model):
    """Make the calls with a chat model."""
    offering = model.bind_tools([get_weather])

    def tools():
        messages = [HumanMessage(TOOL_PROMPT)]
        first = joined(offering.stream(messages))
        messages.append(first)
        messages += [ToolMessage(RESULT, tool_call_id=call["id"]) for call in first.tool_calls]
        calls = [(call["name"], call["args"]) for call in first.tool_calls]
        return shown(offering.invoke(messages), calls)

    serve(
        {
            (DIALECT, "chat"): lambda: shown(model.invoke(PROMPT)),
            (DIALECT, "stream"): lambda: shown(joined(model.stream(PROMPT))),
            (DIALECT, "tools"): tools,
        }
    )
