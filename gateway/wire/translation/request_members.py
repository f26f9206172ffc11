"""Reads the members of a caller's JSON objects one by one, by name and type; keeps the members that
were not read by their path in the body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from gateway.errors import InvalidRequest
from gateway.wire.members import MalformedJson, decode_members
from gateway.wire.translation.conversation import NO_JSON

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_decode_text = msgspec.json.Decoder(str).decode
_decode_number = msgspec.json.Decoder(float).decode
_decode_whole = msgspec.json.Decoder(Count).decode
_decode_flag = msgspec.json.Decoder(bool).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode


class RequestMembers:
    """The members of one object in a caller's body. A member is absent too if it is null.

    `path` is the object's place in the body. Members that are left go to `others` by their path.
    Every method that reads a value raises `InvalidRequest` if it has another type.
    """

    __slots__ = ("_members", "_raw", "others", "path")

    def __init__(self, raw: bytes | msgspec.Raw, *, path: str, others: dict[str, msgspec.Raw]):
        """Decode the object's members, with their values still encoded."""
        self.path, self.others, self._raw = path, others, raw
        try:
            self._members = decode_members(bytes(raw))
        except MalformedJson as broken:
            raise wrong_type(path or "the body", str(broken)) from None

    def path_of(self, name: str) -> str:
        """Return a member's place in the body."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """Return True if a member that was not read yet is present and not null."""
        return bytes(self._members.get(name, b"null")) != b"null"

    def raw(self, name: str) -> msgspec.Raw:
        """Take a value as it was sent; `NO_JSON` if it is absent."""
        value = self._members.pop(name, NO_JSON)
        return NO_JSON if bytes(value) in (b"", b"null") else value

    def text(self, name: str) -> str | None:
        """Take a text."""
        return self._read(name, _decode_text)

    def flag(self, name: str) -> bool | None:
        """Take a truth value."""
        return self._read(name, _decode_flag)

    def whole(self, name: str) -> int | None:
        """Take a whole number of 64 bits."""
        return self._read(name, _decode_whole)

    def number(self, name: str) -> float | None:
        """Take a number that has a finite value."""
        return self._read(name, _decode_number)

    def texts(self, name: str) -> tuple[str, ...]:
        """Take a text or a list of texts; empty if it is absent."""
        if self.is_text(name):
            return (self.text(name) or "",)
        return tuple(self._read(name, _decode_texts) or ())

    def is_text(self, name: str) -> bool:
        """Return True if a member's value is a text."""
        return bytes(self._members.get(name, b""))[:1] == b'"'

    def peek_text(self, name: str) -> str:
        """Return a text and leave it in its place; empty if it is absent."""
        return self._peek(name, self.text) or ""

    def peek_texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts and leave it in its place; empty if it is absent."""
        return self._peek(name, self.texts)

    def is_object(self, name: str) -> bool:
        """Return True if a member's value is an object."""
        return bytes(self._members.get(name, b""))[:1] == b"{"

    def drop_if(self, name: str, *without_meaning: bytes) -> None:
        """Take a member away if its value means the same as its absence."""
        if bytes(self._members.get(name, b"")) in without_meaning:
            del self._members[name]

    def items(self, name: str) -> list[msgspec.Raw]:
        """Take a list of values as they were sent; empty if it is absent."""
        return self._read(name, _decode_list) or []

    def child(self, name: str) -> RequestMembers | None:
        """Take an object."""
        value = self.raw(name)
        if value is NO_JSON:
            return None
        return RequestMembers(value, path=self.path_of(name), others=self.others)

    def children(self, name: str) -> list[RequestMembers]:
        """Take a list of objects; empty if it is absent."""
        path = self.path_of(name)
        return [
            RequestMembers(raw, path=f"{path}[{at}]", others=self.others)
            for at, raw in enumerate(self.items(name))
        ]

    def leave(self, name: str) -> None:
        """Keep a member as one that no neutral value carries."""
        if (value := self.raw(name)) is not NO_JSON:
            self.others[self.path_of(name)] = value

    def leave_rest(self) -> None:
        """Keep every member that was not read."""
        for name in tuple(self._members):
            self.leave(name)

    def leave_whole(self) -> None:
        """Keep the object itself, as it was sent, as one that no neutral value carries."""
        self._members.clear()
        self.others[self.path] = msgspec.Raw(bytes(self._raw))

    def _peek(self, name: str, take: Callable[[str], T]) -> T:
        """Return the value that a method takes, and put it back."""
        raw = self._members.get(name)
        value = take(name)
        if raw is not None:
            self._members[name] = raw
        return value

    def _read(self, name: str, decode: Callable[[Any], T]) -> T | None:
        """Take a member's decoded value, None if it is absent."""
        raw = self.raw(name)
        if raw is NO_JSON:
            return None
        try:
            return decode(raw)
        except (msgspec.DecodeError, RecursionError, ValueError) as broken:
            raise wrong_type(self.path_of(name), str(broken)) from None


def wrong_type(path: str, reason: str) -> InvalidRequest:
    """Return the error for a member of the wrong type or of a value without meaning."""
    reason = reason.replace("`", "")
    return InvalidRequest(f"'{path}' cannot be read: {reason}. Nothing was sent.", param=path)
