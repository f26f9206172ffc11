"""Security F15: `event:`, `id:`, `retry:` and comments of an upstream reach the caller.

Refuted: this is intended.

DESIGN §10.20 requires that events are forwarded unchanged. None of these fields can begin another
event or a header, because each ends with its own event.
"""

from __future__ import annotations

from tests.answers import chat_stream


def test_fields_of_an_event_pass_as_they_came() -> None:
    """A client of future fields must work today; a proxy that drops fields breaks a client that
    resumes by `id`.
    """
    stream = chat_stream(
        model="m-1",
        cost=lambda _: None,
        wants_usage=True,
        wants_running_usage=True,
        asked_running_usage=False,
    )
    event = b': ping\nevent: message\nid: 7\nretry: 10\ndata: {"model":"m-1","choices":[]}\n\n'
    assert stream.feed(event) == event
