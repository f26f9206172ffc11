"""Reads JSON that an upstream sent, whatever it is: a value of plain types, or None; never raises.

The readers of dialects that are translated use it. They look at single members, each of which may
be missing or of another type.

An upstream may answer with millions of values, and each takes up to a microsecond on the event
loop. Skipping a value takes a hundredth of that. So values are counted on their bytes before
decoding.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.served_tier import UNKNOWN_TIER
from gateway.wire.observed import Observed
from gateway.wire.surrogates import without_halves

SMALL_BYTES = 16 * 1024  # fewer bytes take a few milliseconds, whatever they contain
MAX_DECODED_BYTES = 2**20
MAX_DECODED_VALUES = 20_000  # objects and arrays; members of objects count separately
MAX_WHOLE_BYTES = 32 * 2**20  # parsing takes up to 3 ms for each MiB
MAX_SHORT_CHARS = 256  # of an id or a word
MAX_SEARCHED_OBJECTS = 64  # of an answer of no known shape, for a usage
MAX_SEARCHED_LEVELS = 4  # of it: each one is encoded once more
_MOST = 2**63 - 1  # a longer number is not a count and fits in no column
# Of bounded length, so that the arithmetic is too.
_NUMBER = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?")
_FIGURE = re.compile(rb"[1-9]")
_NOTHING = re.compile(rb"\[\s*\]|0|false|\"\"")
# Of a cut text: no error nests deeper, and so many take less than a tenth of a second.
MOST_OPEN, MOST_TOKENS = 64, 50_000
MOST_READINGS = 16  # of a body with a name several times
MAX_USAGE_BYTES = 64 * 1024  # vLLM's longest usage has 600
MOST_SHAPE_BYTES = 1024  # of a usage whose shape is remembered
_NO_NUMBER = re.compile(rb":\s*[-+.eE]*(?=\s*[,}])")  # a number without its digits
_DIGITS = b"0123456789"
_SPELT = re.compile(rb"\\u00[4-7]")  # a letter or `_` as an escape, which may spell a name
# A text may end at the cut, also within an escape: each text is found at its first byte, once.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[{}\[\]:]', re.DOTALL)
_STARTS, _ENDS = (b"{", b"["), (b"}", b"]")
# A member that may state how much was used, and any member.
STATES_USAGE = re.compile(
    rb'"[^"\\]{0,40}(?:usage|token|eval_count)[^"\\]{0,40}"\s*:', re.IGNORECASE
)
_MEMBER = re.compile(r'"\s*:')
_check = msgspec.json.Decoder(msgspec.Raw).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
# `RecursionError`: deep nesting. `ValueError`: a number of thousands of digits.
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError)


def value_of(payload: bytes, *, most_bytes: int = MAX_DECODED_BYTES) -> Any:
    """Return the value of a JSON text; None for `null`, and for one that is too large, nests too
    deep or is malformed.
    """
    if not is_quick(payload, most_bytes=most_bytes):
        return None
    try:
        return msgspec.json.decode(without_halves(payload))
    except _UNREADABLE:
        return None


def object_of(payload: bytes, *, most_bytes: int = MAX_DECODED_BYTES) -> dict[str, Any] | None:
    """Return the members of a JSON object; None for any other text, as `value_of`."""
    value = value_of(payload, most_bytes=most_bytes)
    return value if isinstance(value, dict) else None


def object_in(holder: Any, name: str) -> dict[str, Any]:
    """Return a member that is an object; an empty one if it is absent or of another type."""
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}


def arguments_in(holder: dict[str, Any], name: str) -> str:
    """Return a call's arguments as JSON text. Some servers send an object's text in place of the
    object; any other value stays as it is, so that none is lost.
    """
    value = holder.get(name)
    if isinstance(value, str):
        read = object_of(value.encode("utf-8", "replace"), most_bytes=MAX_WHOLE_BYTES)
        if value.strip() and read is None:
            return value
        value = read
    return msgspec.json.encode({} if value is None else value).decode()


def objects_in(holder: Any, name: str) -> list[dict[str, Any]]:
    """Return the objects in a member that is a list; none if it is absent or of another type."""
    value = holder.get(name) if isinstance(holder, dict) else None
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text_in(holder: Any, name: str) -> str:
    """Return a member that is a text; an empty one if it is absent or of another type."""
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, str) else ""


def short_text_in(holder: Any, name: str) -> str:
    """Return a member that is an id or a word; an empty text if it is longer than any.

    Each piece of a translated answer repeats the id.
    """
    value = text_in(holder, name)
    return value if len(value) <= MAX_SHORT_CHARS else ""


def count_in(holder: Any, name: str) -> int | None:
    """Return a member that is a whole number of 64 bits; None if it is absent or anything else.

    `500.0`, `5e2` and `"500"` are 500 as well: Google's JSON writes large integers as texts.
    """
    value: Any = holder.get(name) if isinstance(holder, dict) else None
    if isinstance(value, str):
        return whole_number(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_count = type(value) is int and -_MOST - 1 <= value <= _MOST
    return value if is_count else None


def is_error(value: Any) -> bool:
    """Return True if the value of a member `error` is one: a text or an object that is not empty.

    Some servers send `null`, `false`, `""` or an empty object beside every answer.
    """
    return (
        bool(value.strip()) if isinstance(value, str) else isinstance(value, dict) and value != {}
    )


def is_raw_error(raw: msgspec.Raw) -> bool:
    """Return True if an undecoded member `error` is an error, as `is_error`."""
    text = bytes(raw)
    return text[:1] in (b"{", b'"') and bool(text[1:-1].strip())


def is_unread(holder: Any, *names: str) -> bool:
    """Return True if one of these members is there and is no count: no whole number from 0 on."""
    counts = [
        count_in(holder, name)
        for name in names
        if isinstance(holder, dict) and holder.get(name) is not None
    ]
    return any(count is None or count < 0 for count in counts)


def names_in(text: str) -> frozenset[str]:
    """Return the names in a text that separates them by spaces."""
    return frozenset(text.split())


def has_others(members: dict[str, Any], known: frozenset[str]) -> bool:
    """Return True if an object has a text, a list or an object that is not empty, in a member of
    another name than these: it may be a part of an answer.
    """
    return any(
        bool(value) and isinstance(value, str | list | dict) and name not in known
        for name, value in members.items()
    )


def only_object(value: msgspec.Raw | bytes) -> bytes:
    """Return the only item of a list, or the object that a text is; any other JSON value as it
    is.
    """
    text = bytes(value)
    if not text.startswith((b"[", b'"{')):
        return text
    try:
        if text.startswith(b'"'):
            return _decode_text(text).encode()
        items = _decode_items(text)
    except _UNREADABLE:
        return text
    return bytes(items[0]) if len(items) == 1 else text


def has_figure(value: bytes) -> bool:
    """Return True if a JSON value that is no object has a digit in it that is not 0."""
    return not value.startswith(b"{") and _FIGURE.search(value) is not None


def figures_in(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a usage in a member: an object, the only one of a list, or one in a text. Any other
    value with a figure in it has a count that no table names.
    """
    value = holder.get(name)
    if isinstance(value, dict):
        return value
    text = only_object(msgspec.json.encode(value)) if value else b""
    return {"unknownTokenCount": 1} if has_figure(text) else object_of(text) or {}


def is_nothing(value: bytes) -> bool:
    """Return True if a JSON value in the place of an object has nothing in it: so some servers
    write an empty object.
    """
    return _NOTHING.fullmatch(value) is not None


def whole_number(text: str) -> int | None:
    """Return the whole number of 64 bits that a text is in any notation of JSON (`700`, `700.0`,
    `7e2`); None for any other text.
    """
    if _NUMBER.fullmatch(text) is None:
        return None
    number = Decimal(text)
    is_count = -_MOST - 1 <= number <= _MOST and number == number.to_integral_value()
    return int(number) if is_count else None


def count_from_json(value: bytes) -> int | None:
    """Return the whole number of 64 bits that a JSON value is, as a number or as a text; None for
    any other value.
    """
    is_text = len(value) > 1 and value.startswith(b'"')
    return whole_number((value[1:-1] if is_text else value).decode("latin-1"))


def time_in(holder: Any, name: str) -> int:
    """Return a member that is a time in ISO 8601, in seconds since 1970; 0 for anything else."""
    try:
        return int(datetime.fromisoformat(text_in(holder, name)).timestamp())
    except (ValueError, OverflowError):
        return 0


def is_quick(value: msgspec.Raw | bytes, *, most_bytes: int = MAX_DECODED_BYTES) -> bool:
    """Return True if a JSON value has few enough bytes, objects, lists and members to be decoded
    into objects within about 20 ms for each MiB.

    They are counted on the bytes, so text that looks like one counts too.
    """
    size = memoryview(value).nbytes
    if size < SMALL_BYTES:
        return True
    if size > most_bytes:
        return False
    encoded = bytes(value)
    return (
        encoded.count(b"{") + encoded.count(b"[") <= MAX_DECODED_VALUES
        and encoded.count(b'":') <= MAX_DECODED_VALUES
    )


def note_unknown(
    observed: Observed, body: bytes, usage_in: Callable[[bytes], TokenUsage | None]
) -> None:
    """Record an answer of an unknown shape, and each usage inside it; `usage_in` reads that of one
    object of the dialect. If it has to be translated, it is refused then.
    """
    observed.note_unread()
    for usage in usages_within(body, usage_in):
        observed.note_final(usage)


# Members whose objects a model or a caller wrote, in the dialects of this program.
_WRITTEN = names_in(
    "content parts input arguments args parsed document documents metadata tools text prompt "
    "instructions"
)


def note_least(
    observed: Observed, body: bytes, usage_in: Callable[[bytes], TokenUsage | None]
) -> None:
    """Record each usage in an answer that has none in its place, as its least. The objects that a
    model or a caller wrote have none.
    """
    for usage in usages_within(body, usage_in, without=_WRITTEN):
        observed.note_least(usage)


def note_first_reading(
    observed: Observed,
    raw: msgspec.Raw | bytes,
    read: Callable[[bytes], TokenUsage | None],
) -> None:
    """Record the other reading of a final usage that has a name twice."""
    first = first_reading(raw)
    if first is not None and (usage := read(first)) is not None:
        observed.note_other_reading(usage)


@lru_cache(maxsize=256)
def may_name_twice(shape: bytes) -> bool:
    """Return True if a usage without its digits may have a name twice."""
    return b"\\" in shape or _with_first_values(_NO_NUMBER.sub(b":0", shape)) is not None


def first_reading(raw: msgspec.Raw | bytes) -> bytes | None:
    """Return a usage with the first value of each name that one of its objects has twice, which the
    decoder leaves out; None if there is no such name. Never raises.
    """
    text = bytes(raw)
    size = len(text)
    if size > MAX_USAGE_BYTES:
        return None
    is_possible = size > MOST_SHAPE_BYTES or may_name_twice(text.translate(None, _DIGITS))
    return _with_first_values(text) if is_possible else None


def _with_first_values(text: bytes) -> bytes | None:
    """Return JSON with the first value of each name that an object has twice; None if there is no
    such name, or if it cannot be read.
    """
    reading, values = _reading(text, 0)
    return reading if values > 1 else None


def _reading(text: bytes, place: int) -> tuple[bytes, int]:
    """Return JSON with the value at this place of each name that an object has several times, the
    last one if it has fewer; and the most values that a name has, 0 if it cannot be read.
    """
    most = 1

    def one_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal most
        found = dict(pairs)
        if len(found) < len(pairs):
            values: dict[str, list[Any]] = {}
            for name, value in pairs:
                values.setdefault(name, []).append(value)
            most = max(most, *map(len, values.values()))
            found = {name: of[min(place, len(of) - 1)] for name, of in values.items()}
        return found

    try:
        return json.dumps(json.loads(text, object_pairs_hook=one_of_each)).encode(), most
    except (ValueError, RecursionError):
        return b"", 0


def may_repeat(body: bytes, *names: bytes) -> bool:
    """Return True if one of these members, each in its quotes, may stand in a body twice."""
    for name in names:
        at = body.find(name)
        if at >= 0 and body.find(name, at + 1) >= 0:
            return True
    return body.find(b"\\") >= 0 and _SPELT.search(body) is not None


def readings_of(body: bytes) -> Sequence[bytes]:
    """Return the readings of a body with a name twice in an object, one for each of its values, at
    most `MOST_READINGS` and the last values at the end; empty for any other body.
    """
    if not is_quick(body, most_bytes=MAX_WHOLE_BYTES):
        return ()
    first, values = _reading(body, 0)
    if values < 2:
        return ()
    return (first, *(_reading(body, place)[0] for place in range(1, min(values, MOST_READINGS))))


def note_readings(
    observed: Observed, body: bytes, read: Callable[[bytes, Observed], object]
) -> bool:
    """Record each reading of a whole answer that has a name twice, as `read` records an answer;
    return True if one of them can be read. The dearer of their figures is charged, and flagged.
    """
    readings = readings_of(body)
    _note_most(observed, readings)
    for text in reversed(readings):
        found = Observed(is_whole=True)
        with suppress(ValueError):  # one that is no answer may still state a usage
            read(text, found)
        observed.note_reading(found)
    return len(readings) > 0 and observed.is_done


def _note_most(observed: Observed, readings: Sequence[bytes]) -> None:
    """Record that the tier is not known if a name has more values than are read: the attempt is
    held.
    """
    if len(readings) == MOST_READINGS:
        observed.note_tier(UNKNOWN_TIER)


def note_piece_readings(
    observed: Observed,
    payload: bytes,
    read: Callable[[bytes], tuple[TokenUsage | None, str | None]],
) -> None:
    """Record the usage and the tier in each reading of a stream's piece that has a name twice."""
    readings = readings_of(payload)
    _note_most(observed, readings)
    *others, last = readings or (b"",)
    kept = read(last)[0] if others else None
    for text in others:
        usage, tier = read(text)
        observed.note_tier(tier)
        if usage is not None and usage != kept:
            observed.note_least(usage)
            observed.impossible = usage


def usages_within(
    body: bytes,
    usage_in: Callable[[bytes], TokenUsage | None],
    *,
    without: frozenset[str] = frozenset(),
) -> Iterator[TokenUsage]:
    """Yield the usages of the outermost objects in a body that report one; none of a body that is
    too large to be decoded at once. Members of the names in `without` are not searched.
    """
    todo: deque[tuple[Any, int]] = deque([(object_of(body), MAX_SEARCHED_LEVELS)])
    left = MAX_SEARCHED_OBJECTS
    while todo and left:
        value, levels = todo.popleft()
        if isinstance(value, dict):
            left -= 1
            usage = usage_in(msgspec.json.encode(value))
            if usage is not None:
                yield usage
                continue
        inner: Iterable[Any] = ()
        if isinstance(value, dict):
            inner = (value[name] for name in value if name not in without)
        elif isinstance(value, list):
            inner = value[:MAX_SEARCHED_OBJECTS]
        if levels:
            todo.extend((one, levels - 1) for one in inner if isinstance(one, dict | list))


def repaired(text: bytes) -> bytes | None:
    """Return the object in a text that is no strict JSON, as JSON: its character set is another
    one, it has `NaN` or raw control characters, or a prefix or a page stands around it.

    None if there is no object, if other members stand beside it, or if a name stands in it twice:
    then it is not certain which figure counts.
    """
    if not is_quick(text, most_bytes=MAX_WHOLE_BYTES):
        return None
    decoded = text.decode("utf-8", "replace")
    start = decoded.find("{")
    if start < 0:
        return None
    try:
        value, end = _lenient.raw_decode(decoded, start)
        return None if _MEMBER.search(decoded, end) else json.dumps(value).encode()
    except (ValueError, RecursionError):
        return None


def _without_doubles(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises `ValueError` if a name stands in it twice."""
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("a name twice")
    return found


_lenient = json.JSONDecoder(
    strict=False, parse_constant=lambda _: None, object_pairs_hook=_without_doubles
)


class _Open:
    """An object or a list of a cut text that is not closed yet, with its members that are."""

    __slots__ = ("begin", "end", "is_object", "members", "name", "start")

    def __init__(self, begin: bytes, start: int) -> None:
        """Start at the position of its bracket."""
        self.is_object = begin == b"{"
        self.begin, self.end = (b"{", b"}") if self.is_object else (b"[", b"]")
        self.start, self.name = start, b""
        self.members: list[bytes] = []

    def keep(self, value: bytes) -> None:
        """Keep a closed member, under the name that came last."""
        self.members.append(self.name + b":" + value if self.is_object else value)


def closed_json(text: bytes) -> bytes | None:
    """Return the closed objects and lists of a JSON text that was cut, as a JSON text; empty if
    there are none or too many, None for a text that was not cut and for one that is no JSON.

    A number or a text beside the cut may lack its neighbours: half a usage is no usage. So of each
    object that is still open at the cut, only the objects and lists that were closed are kept.
    """
    text = text.strip()
    if not text.startswith(_STARTS) or _is_json(text):
        return None
    return _closed(text)


def _is_json(text: bytes) -> bool:
    """Return True if a text is one whole JSON value."""
    try:
        _check(without_halves(text))
    except _UNREADABLE:
        return False
    return True


def _closed(text: bytes) -> bytes | None:
    """Return the closed values of a text that begins as JSON; None if nothing is open at its
    end.
    """
    still_open: list[_Open] = []
    last = b""
    for count, found in enumerate(_TOKENS.finditer(text)):
        token = found[0]
        if count == MOST_TOKENS or len(still_open) > MOST_OPEN:
            return b""
        if token in _STARTS:
            still_open.append(_Open(token, found.start()))
        elif not still_open:
            continue
        elif token in _ENDS:
            done = still_open.pop()
            if still_open:
                still_open[-1].keep(text[done.start : found.end()])
        elif token == b":":
            still_open[-1].name = last
        else:
            last = token
    if not still_open:
        return None
    for inner, outer in zip(reversed(still_open[1:]), reversed(still_open[:-1]), strict=True):
        outer.keep(inner.begin + b",".join(inner.members) + inner.end)
    top = still_open[0]
    return top.begin + b",".join(top.members) + top.end
