"""Reads project, tags, data labels, request id, trace context, session and idempotency key from
request headers; `authenticate.py` reads the api key.

A bad project, tag, label or idempotency key is refused with a clear error. A bad request id or
trace context is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from gateway.domain.names import PROJECT
from gateway.domain.policy.policy import DataClass, Team
from gateway.domain.request.request import RequestFacts
from gateway.errors import InvalidRequest

MAX_TAGS = 16
MOST_NAMES = 10  # names of a team's projects in a message
DATA_CLASS = b"x-tollgate-data-class"
# The names of a session: the first that is sent counts. Codex and Claude Code send their own.
SESSION_HEADERS = ("x-session-id", "session-id", "x-claude-code-session-id")
# Every header that is read here.
HEADERS = frozenset(
    {
        b"x-tollgate-project",
        b"x-tollgate-tags",
        DATA_CLASS,
        b"x-request-id",
        b"x-client-request-id",
        b"traceparent",
        b"idempotency-key",
        *(name.encode() for name in SESSION_HEADERS),
    }
)
LISTS = frozenset({DATA_CLASS, b"content-type", b"content-encoding"})
# If one of these came twice, a proxy and a caller could disagree about which one counts.
ONCE = frozenset({b"x-tollgate-project", b"x-tollgate-tags", b"idempotency-key"})
_NAME = re.compile(PROJECT)
_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,200}")
_IDEMPOTENCY_KEY = re.compile(r"[\x20-\x7e]{1,255}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def read(fields: Iterable[tuple[bytes, bytes]], names: Mapping[bytes, str]) -> dict[str, str]:
    """Return the named attribution headers as text. Raises `InvalidRequest` if one of `ONCE` is
    sent twice.

    A header of `LISTS` that is sent twice forms one list, so neither can hide the other. Of other
    headers the last one counts.
    """
    headers: dict[str, str] = {}
    for field, value in fields:
        name = names.get(field)
        if name is None:
            continue
        text = value.decode("latin-1")
        if name in headers:
            if field in ONCE:
                raise InvalidRequest(
                    f"The header {name} is sent more than once. Send it once.", param=name
                )
            if field in LISTS:
                text = f"{headers[name]},{text}"
        headers[name] = text
    return headers


def project(
    headers: Mapping[str, str], key_project: str | None, team: Team | None = None
) -> str | None:
    """Return the request's project: from the header, else from the key.

    A key bound to a project cannot leave it.

    If the team has a hard project budget, the header may name only its declared projects.
    """
    sent = headers.get("x-tollgate-project")
    if sent is None or sent == key_project:
        return key_project
    if key_project is not None:
        raise InvalidRequest(
            f"This key belongs to project '{key_project}'; x-tollgate-project says "
            f"'{_printable(sent)}'."
        )
    if not _NAME.fullmatch(sent):
        raise InvalidRequest(
            "x-tollgate-project: write up to 64 letters, digits, blanks or . _ : / @ + - (start "
            "with a letter or digit)."
        )
    if team is not None and sent not in team.projects and team.declares_projects:
        names = ", ".join(sorted(team.projects)[:MOST_NAMES]) or "none"
        raise InvalidRequest(
            f"x-tollgate-project: team {team.name} has hard project budgets and no project "
            f"'{_printable(sent)}'. Its projects: {names}. Name one, leave the header out, or ask "
            "an admin to declare it in the policy.",
            param="x-tollgate-project",
        )
    return sent


def tags(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the name and value pairs of the header `x-tollgate-tags: a=b,c=d`."""
    sent = headers.get("x-tollgate-tags")
    if sent is None:
        return ()
    pairs = [part.strip().partition("=") for part in sent.split(",") if part.strip()]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if len(found) > MAX_TAGS or len(found) != len(pairs):
        raise InvalidRequest(
            f"x-tollgate-tags: write at most {MAX_TAGS} different pairs, as in "
            "team=search,env=prod."
        )
    for name, value in found.items():
        if not _NAME.fullmatch(name) or not _NAME.fullmatch(value):
            raise InvalidRequest(
                "x-tollgate-tags: write pairs like env=prod, each side up to 64 letters, digits, "
                "blanks or . _ : / @ + - (start with a letter or digit)."
            )
    return tuple(sorted(found.items()))


def data_labels(
    headers: Mapping[str, str], team: Team, *, declared_tags: Collection[str]
) -> tuple[DataClass, str, frozenset[str]]:
    """Return the request's data class, the origin of the class (`team` or `header`) and its data
    tags, from its team and `x-tollgate-data-class: restricted, phi`.

    A header may raise the team's class, never lower it. It may add tags to the team's, never remove
    one.
    """
    sent = headers.get("x-tollgate-data-class")
    if sent is None:
        return team.data_class, "team", team.data_tags
    words = {word.strip() for word in sent.split(",")} - {""}
    classes = {word.upper() for word in words} & DataClass.__members__.keys()
    tags = frozenset(word for word in words if word.upper() not in classes)
    if unknown := sorted(tags.difference(declared_tags)):
        raise _unlabelled(f"'{_printable(unknown[0])}' is not known", declared_tags)
    if len(classes) > 1:
        raise _unlabelled(f"{' and '.join(sorted(classes)).lower()} are two classes", declared_tags)
    if not words:
        raise _unlabelled("nothing is in it", declared_tags)
    asked = max((DataClass[name] for name in classes), default=team.data_class)
    is_raised = asked > team.data_class
    return max(asked, team.data_class), "header" if is_raised else "team", team.data_tags | tags


def _unlabelled(problem: str, declared_tags: Collection[str]) -> InvalidRequest:
    """Return the error for a wrong `x-tollgate-data-class` header, with the accepted classes and
    tags.
    """
    classes, tags = ", ".join(known.label for known in DataClass), ", ".join(sorted(declared_tags))
    return InvalidRequest(
        f"x-tollgate-data-class: {problem}. Write at most one of {classes}, and any of the "
        f"policy's data tags: {tags or 'it declares none'}."
    )


def client_request_id(headers: Mapping[str, str]) -> str | None:
    """Return the caller's own request id, None if it is absent, long or unprintable; it is recorded
    beside ours and replaces nothing.
    """
    sent = headers.get("x-request-id") or headers.get("x-client-request-id")
    return sent if sent and _CLIENT_ID.fullmatch(sent) else None


def idempotency_key(headers: Mapping[str, str]) -> str | None:
    """Return the caller's idempotency key, None if it sent none.

    The key is taken exactly as sent, because two different keys must stay different. Raises
    `InvalidRequest` without repeating the key.
    """
    sent = headers.get("idempotency-key")
    if sent is not None and not _IDEMPOTENCY_KEY.fullmatch(sent):
        raise InvalidRequest(
            "Idempotency-Key: write 1 to 255 printable ASCII characters, for example a UUID. "
            "Nothing was sent.",
            param="Idempotency-Key",
        )
    return sent


def session(headers: Mapping[str, str], facts: RequestFacts) -> str | None:
    """Return the caller's session: `x-session-id`, else Codex's or Claude Code's own header, else
    the body's `prompt_cache_key` or user; None if none.

    A bad value is not refused, because clients send that header to other services too.
    `affinity.session_of` makes a short name of it.
    """
    own, codex, claude_code = SESSION_HEADERS
    return (
        headers.get(own)
        or headers.get(codex)
        or headers.get(claude_code)
        or facts.cache_key
        or facts.end_user
    )


def traceparent(headers: Mapping[str, str]) -> str | None:
    """Return the caller's W3C trace context header, None if it is absent or malformed."""
    sent = headers.get("traceparent")
    return sent if sent and _TRACEPARENT.fullmatch(sent) else None


def _printable(text: str) -> str:
    """Return the printable letters among the first 64 of a header's text, to quote it in an error
    message.
    """
    return "".join(letter for letter in text[:64] if letter.isprintable())
