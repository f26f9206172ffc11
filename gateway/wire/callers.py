"""Names the translations of each dialect of callers: its requests as neutral conversations, and
neutral answer events as its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.domain.operation import Operation
from gateway.domain.request.request import RequestBody
from gateway.wire.anthropic.translation.caller_request import read_messages_request
from gateway.wire.anthropic.translation.caller_writer import MessagesWriter
from gateway.wire.dialect import UpstreamRequest
from gateway.wire.openai.chat_translation.request_reader import read_chat_request
from gateway.wire.openai.chat_translation.writer import ChatWriter
from gateway.wire.openai.responses_translation.request_reader import read_responses_request
from gateway.wire.openai.responses_translation.writer import ResponsesWriter
from gateway.wire.translation.answer_events import AnswerWriter, Started, own_start
from gateway.wire.translation.conversation import Conversation

_READERS: Mapping[Operation, Callable[[RequestBody], Conversation]] = {
    Operation.CHAT: read_chat_request,
    Operation.RESPONSES: read_responses_request,
    Operation.MESSAGES: read_messages_request,
}
_WRITERS: Mapping[Operation, Callable[[RequestBody, Started], AnswerWriter]] = {
    Operation.CHAT: ChatWriter,
    Operation.RESPONSES: ResponsesWriter,
    Operation.MESSAGES: MessagesWriter,
}
WRITTEN = frozenset(_WRITERS)


def conversation_of(read: RequestBody) -> Conversation:
    """Return a caller's request as a neutral conversation.

    Raises `InvalidRequest` for one that means nothing in the caller's own dialect.
    """
    return _READERS[read.facts.operation](read)


def writer_for(read: RequestBody, call: UpstreamRequest) -> AnswerWriter:
    """Return the writer of the caller's answer to a request that `call` carried."""
    return _WRITERS[read.facts.operation](read, own_start(call))
