"""Reads an engine's load from the header `endpoint-load-metrics` of vLLM's plain answers, and names
the header that requests it.

    JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}
    TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec

LOAD_HEADER = "endpoint-load-metrics"
ASK_HEADER, ASK_FORMAT = "endpoint-load-metrics-format", "JSON"
_MOST_CHARS = 4096
_PREFIX = "named_metrics."


class LoadHeader(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The load in one header; a field is None if the header lacks it."""

    waiting: float | None = None
    kv_use: float | None = None


class _Report(msgspec.Struct):
    named_metrics: dict[str, Any] = {}


_decode = msgspec.json.Decoder(_Report).decode


def read_load(value: str) -> LoadHeader | None:
    """Return the load in the header's value; None if it contains none that is understood."""
    form, _, report = value[:_MOST_CHARS].strip().partition(" ")
    read = _FORMATS.get(form.upper())
    named = {} if read is None else read(report)
    noted = LoadHeader(
        waiting=_amount(named.get("num_requests_waiting")),
        kv_use=_share(named.get("kv_cache_usage_perc")),
    )
    return None if noted == LoadHeader() else noted


def _of_json(report: str) -> Mapping[str, Any]:
    """Return the metrics of a load report in JSON by name, empty if it cannot be read."""
    try:
        return _decode(report.encode("utf-8", "replace")).named_metrics
    except (msgspec.DecodeError, RecursionError):
        return {}


def _of_text(report: str) -> Mapping[str, Any]:
    """Return the metrics of a load report in text by name; one without a number is left out."""
    pairs = (part.strip().removeprefix(_PREFIX).partition("=") for part in report.split(","))
    return {
        name.strip(): number for name, _, value in pairs if (number := _float(value)) is not None
    }


_FORMATS = {"JSON": _of_json, "TEXT": _of_text}


def _float(text: str) -> float | None:
    """Return the number that a text states, None if it states none."""
    try:
        return float(text)
    except ValueError:
        return None


def _amount(value: object) -> float | None:
    """Return a reported amount, None for a value that no engine can mean. `true` is not a
    number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        amount = float(value)
    except OverflowError:  # JSON has integers of any size
        return None
    return amount if isfinite(amount) and amount >= 0 else None


def _share(value: object) -> float | None:
    """Return a reported share; None for a value that is no number from 0 to 1."""
    amount = _amount(value)
    return amount if amount is not None and amount <= 1 else None
