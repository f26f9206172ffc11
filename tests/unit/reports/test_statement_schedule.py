"""The receiver of a schedule is read strictly, and its message is the same at every try."""

from __future__ import annotations

from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from gateway.domain.alerts.composed_mail import compose
from gateway.domain.alerts.delivery import AttachedFile
from gateway.domain.reports.schedule import (
    MOST_PATH,
    DueStatement,
    Receiver,
    ReceiverKind,
    file_name,
    message_of,
    new_schedule,
    receiver_of,
)
from gateway.errors import BadUsage

FILE = AttachedFile(name="statement.pdf", media_type="application/pdf", content=b"%PDF-")
DUE = DueStatement(
    delivery_id=UUID(int=7),
    opened_at=datetime(2026, 11, 4, tzinfo=UTC),
    schedule="books",
    cost_centre=None,
    receiver=Receiver(kind=ReceiverKind.EMAIL, place="ana@example.com"),
    month=date(2026, 10, 1),
    version=2,
    tries=0,
)


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("folder:/srv/statements/", ReceiverKind.FOLDER, "folder:/srv/statements"),
        ("folder:/", ReceiverKind.FOLDER, "folder:/"),
        ("mailto:a@b.example,c@d.example", ReceiverKind.EMAIL, "mailto:a@b.example,c@d.example"),
        ("https://erp.example/in/TOKEN", ReceiverKind.WEBHOOK, "https://erp.example/…"),
        ("http://10.0.0.7:8080", ReceiverKind.WEBHOOK, "http://10.0.0.7:8080"),
    ],
)
def test_a_receiver_is_read_back_from_its_stored_text(
    text: str, kind: ReceiverKind, shown: str
) -> None:
    """The gateway reads it again at each try. The path of a webhook may hold a token."""
    receiver = receiver_of(text)
    assert (receiver.kind, receiver.shown) == (kind, shown)
    assert receiver_of(receiver.stored) == receiver
    assert receiver.addresses[0] in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/srv/statements",
        "folder:relative",
        "folder:/srv/../etc",
        "folder:/srv/\x1b",
        "folder:/" + "x" * MOST_PATH,
        "mailto:",
        "mailto:ana",
        "mailto:a@b.example\r\nBcc: c@d.example",
        "http://public.example/x",
        "https://user:password@erp.example/x",
        "https://erp.example/x?token=1",
        "ftp://erp.example/x",
    ],
)
def test_any_other_receiver_is_refused_by_name(text: str) -> None:
    """It would be found out only when the month is closed."""
    with pytest.raises(BadUsage, match="--to"):
        receiver_of(text)


def test_a_schedule_mails_to_a_bounded_number_of_people() -> None:
    """A statement is no newsletter."""
    with pytest.raises(BadUsage, match="at most 20 addresses"):
        receiver_of("mailto:" + ",".join(["a@b.example"] * 21))


def test_a_schedule_has_a_name_a_cost_centre_and_a_month() -> None:
    """Unknown words are refused at once."""
    given = {"name": "books", "cost_centre": "all", "every": "month", "to": "folder:/srv"}
    assert new_schedule(**given).cost_centre is None
    assert new_schedule(**given | {"cost_centre": " CC-1 "}).cost_centre == "CC-1"
    for name, value in (
        ("name", "a name"),
        ("every", "week"),
        ("cost_centre", " "),
    ):
        with pytest.raises(BadUsage):
            new_schedule(**given | {name: value})


def test_two_cost_centres_never_share_a_file() -> None:
    """The second would replace the first."""
    month = date(2026, 10, 1)

    def named(cost_centre: str) -> str:
        return file_name(cost_centre, month=month, version=1, suffix=".pdf")

    assert named("CC-1207") == "statement-CC-1207-2026-10-v1.pdf"
    names = {named(one) for one in ("a/b", "a_b", "a.b", "../x", "x" * 300, "x" * 301, "支払い")}
    assert len(names) == 7
    assert all("/" not in name and len(name) < 120 for name in names)
    assert len(named("\U00020000" * 100).encode()) < 240  # a file's name has at most 255 bytes


def test_the_message_is_the_same_at_every_try() -> None:
    """A receiver can tell a repeated one by its id and its bytes."""
    message = message_of(DUE, [FILE, FILE])
    mails = [
        compose(message, sender="t@example.com", recipients=DUE.receiver.addresses).as_bytes()
        for _ in range(2)
    ]
    assert mails[0] == mails[1]
    assert mails[0].count(b"statement.pdf") == 2
    assert "2 statements of each cost centre for 2026-10, as its version 2" in message.text
    assert message.payload["cost_centre"] == "all"
    assert [one["content_base64"] for one in message.payload["files"]] == ["JVBERi0="] * 2
    one = message_of(DUE, [FILE])
    assert "the statement of each" in one.text
