"""Leaves members, parts of members and betas out of a request that a deployment is not sent; all
other bytes stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from gateway.domain.request.request import MemberPlace, Request, RequestBody
from gateway.wire import members

BETA_HEADER = "anthropic-beta"
BETA_MARK = f"{BETA_HEADER}: "


def without(request: Request, names: Collection[str]) -> Request:
    """Return a request without the named members (`best_of_n`), parts (`stream_options.x`,
    `reasoning.mode=pro`) and betas (`anthropic-beta: x`).

    Without its type an object says nothing, so one of an unlisted type leaves whole.
    """
    headers = tuple(_headers_without(request, names))
    body = _body_without(request.body, names)
    return replace(request, body=body, dialect_headers=headers)


def _body_without(read: RequestBody, names: Collection[str]) -> RequestBody:
    """Return a request body without the named members and parts, with the positions of the rest."""
    dropped: dict[str, MemberPlace] = {}
    inner: dict[str, list[str]] = {}
    for name in names:
        top, _, part = name.partition("=")[0].partition(".")
        if name in read.members or (part in ("", "type") and top in read.members):
            top = name if name in read.members else top
            dropped[top] = read.members[top]
        elif top in read.members:
            inner.setdefault(top, []).append(part)
    splices = []
    for top, parts in inner.items():
        if top not in dropped:
            place = read.members[top]
            value = _value_without(read.body[place.start : place.end], parts)
            splices.append((place, b"", value))
    if not (dropped or splices):
        return read
    body = members.replace(read.body, list(splices), dropped.values())
    return RequestBody(read.facts, body, members.locate(body))


def _value_without(value: bytes, parts: Collection[str]) -> bytes:
    """Return a JSON object without some of its members."""
    places = members.locate(value)
    return members.replace(value, [], [places[part] for part in parts if part in places])


def _headers_without(request: Request, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the request's own headers without the named betas."""
    gone = {name.removeprefix(BETA_MARK) for name in names if name.startswith(BETA_MARK)}
    for header, value in request.dialect_headers:
        if header != BETA_HEADER or not gone:
            yield header, value
        elif kept := [one for one in map(str.strip, value.split(",")) if one and one not in gone]:
            yield header, ",".join(kept)
