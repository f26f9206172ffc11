"""Drives LlamaIndex's class for OpenAI-like servers."""

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from protocol import BASE, KEY, MODEL, PROMPT, RESULT, TOOL_PROMPT, answer, serve

llm = OpenAILike(
    model=MODEL,
    api_base=f"{BASE}/v1",
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    max_retries=0,
)


def get_weather(city: str) -> str:
    """Return the weather of a city"""
    return RESULT


TOOLS = [FunctionTool.from_defaults(fn=get_weather)]


def chat():
    made = llm.chat([ChatMessage(role=MessageRole.USER, content=PROMPT)])
    return answer(made.message.content, output_tokens=made.raw.usage.completion_tokens)


def stream():
    *_, last = llm.stream_chat([ChatMessage(role=MessageRole.USER, content=PROMPT)])
    return answer(last.message.content)


def tools():
    history = [ChatMessage(role=MessageRole.USER, content=TOOL_PROMPT)]
    *_, first = llm.stream_chat_with_tools(tools=TOOLS, chat_history=history)
    calls = llm.get_tool_calls_from_response(first)
    history.append(first.message)
    history += [
        ChatMessage(
            role=MessageRole.TOOL,
            content=RESULT,
            additional_kwargs={"tool_call_id": call.tool_id},
        )
        for call in calls
    ]
    made = llm.chat_with_tools(tools=TOOLS, chat_history=history)
    return answer(
        made.message.content,
        tools=[(call.tool_name, call.tool_kwargs) for call in calls],
        output_tokens=made.raw.usage.completion_tokens,
    )


serve({("chat", "chat"): chat, ("chat", "stream"): stream, ("chat", "tools"): tools})
