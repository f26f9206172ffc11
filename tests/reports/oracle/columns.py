"""The columns of each report of sums, each with its value for the parts of a row: written from the
reference of finance, not from the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from functools import partial

from tests.reports.oracle.expected import NONE, Part, amount, counted, known, total
from tests.reports.oracle.raw_ledger import TIMES
from tests.reports.oracle.waiting_times import Between, percentile

# Exact amounts are fractions of nano-units; a share is a decimal of six digits.
Value = int | Fraction | Decimal | Between | None
Of = Callable[[Sequence[Part]], Value]
_WIDE = Context(prec=60)


def share(
    part: Fraction | int | None, whole: Fraction | int | None, rounding: str = ROUND_HALF_EVEN
) -> Decimal | None:
    """Return a part of a whole to six decimals; None without either."""
    if part is None or not whole:
        return None
    exact = Fraction(part) / Fraction(whole)
    return _WIDE.divide(Decimal(exact.numerator), Decimal(exact.denominator)).quantize(
        Decimal("0.000001"), rounding, context=_WIDE
    )


def _counts(*names: str) -> dict[str, Of]:
    return {name: partial(counted, name=name) for name in names}


def _tokens(*names: str) -> dict[str, Of]:
    return {name: partial(counted, name=name, is_reported=True) for name in names}


def _amounts(*names: str) -> dict[str, Of]:
    return {name: partial(amount, name=name) for name in names}


def _of_attempts(name: str, whole: str = "attempts") -> Of:
    # Postgres rounds a half up.
    return lambda parts: share(counted(parts, name), counted(parts, whole), ROUND_HALF_UP)


def _percentiles(*times: str) -> dict[str, Of]:
    return {
        f"{time}_p{each}_s": partial(percentile, name=time, share=Fraction(each, 100))
        for time in times
        for each in (50, 95, 99)
    }


def _tightest_bound(parts: Sequence[Part]) -> Value:
    found = [p.fact.seconds["ttft_bound"] for p in parts if _is_bound(p)]
    return Between.around(Fraction(min(found))) if found else None


def _is_bound(part: Part) -> bool:
    return part.times > 0 and "ttft_bound" in part.fact.seconds


def _of_destination(place: str, name: str) -> Of:
    def value(parts: Sequence[Part]) -> Value:
        return known([p for p in parts if p.fact.names.get("destination") == place], name)

    return value


def _expected_attempts(_: Sequence[Part]) -> Value:
    return 0  # no hold expires in the oracle's ledgers


def _teams(parts: Sequence[Part]) -> Value:
    return len({p.fact.names["team"] for p in parts if "team" in p.fact.names and p.money > 0})


SPENT: Mapping[str, Of] = {
    "cost_usd": known,
    **_amounts("adjustments_usd"),
    "total_usd": total,
    **_amounts("held_usd"),
}
SHARES: Mapping[str, Of] = {
    "unknown_share": _of_attempts("unknown_attempts"),
    "derived_share": _of_attempts("derived_attempts"),
}
TOKENS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")
COLUMNS: Mapping[str, Mapping[str, Of | None]] = {
    "spend": {
        **_counts("attempts"),
        **_tokens(*TOKENS),
        **SPENT,
        **_counts("unknown_attempts", "derived_attempts"),
        **SHARES,
        **_amounts("idle_usd"),
    },
    "overview": {
        **_counts(
            "attempts", "requests", "failed_attempts", "unknown_attempts", "derived_attempts"
        ),
        **SPENT,
        "self_hosted_cost_usd": _of_destination("self-hosted", "self_hosted_cost_usd"),
        "external_cost_usd": _of_destination("external", "external_cost_usd"),
        **_tokens(*TOKENS),
        "teams": _teams,
    },
    "tokens": {
        **_counts("attempts"),
        **_tokens(
            "uncached_input_tokens",
            "cached_input_tokens",
            "cache_write_tokens",
            "plain_output_tokens",
            "reasoning_tokens",
        ),
        **_counts("unreported_attempts"),
        **SPENT,
    },
    "retries": {
        **_counts("attempts", "retry_attempts"),
        **_amounts("retry_usd"),
        **_counts("failed_attempts"),
        **_amounts("failed_usd"),
        "wasted_share": lambda parts: share(
            amount(parts, "failed_usd") if _any_failed(parts) else None,
            amount(parts, "cost_usd"),
            ROUND_HALF_UP,
        ),
        **SPENT,
    },
    "meter-quality": {
        **_counts(
            "attempts",
            "final_attempts",
            "running_attempts",
            "estimated_attempts",
            "unreported_usage_attempts",
            "unknown_attempts",
        ),
        **SHARES,
        **_amounts("final_usd", "derived_usd"),
        "expected_attempts": _expected_attempts,
        **SPENT,
    },
    "savings": {
        **_counts("attempts"),
        **_tokens("input_tokens", "cached_input_tokens", "cache_write_tokens"),
        "cached_share": _of_attempts("cached_input_tokens", "split_input_tokens"),
        "cache_saving_usd": partial(known, name="cache_saving_usd"),
        **_counts("unknown_saving_attempts"),
        **SPENT,
    },
    "latency": {
        **_counts("attempts"),
        "error_share": _of_attempts("error_attempts"),
        "degraded_share": _of_attempts("degraded_attempts"),
        **_percentiles("ttft"),
        "ttft_bound_s": _tightest_bound,
        **_counts("ttft_missed"),
        "ttft_missed_share": _of_attempts("ttft_missed", "ttft_bound_attempts"),
        **_counts("cost_missed"),
        "cost_missed_share": _of_attempts("cost_missed", "cost_bound_attempts"),
        **_percentiles(*[time for time in TIMES if time != "ttft"]),
        **_counts("ttft_measured", "ttft_not_measured"),
    },
    "movers": {**_counts("attempts"), "total_usd": total},
    "unit-costs": {
        **_counts("attempts", "requests", "answers"),
        **_tokens("total_tokens"),
        **dict.fromkeys(("end_users", "tasks", "sessions"), None),
        **dict.fromkeys(
            f"usd_per_{unit}"
            for unit in ("request", "answer", "1k_tokens", "end_user", "task", "session")
        ),
        **dict.fromkeys(("end_user_usd", "task_usd", "session_usd"), None),
        **_counts("unknown_attempts"),
        **SPENT,
    },
}
RATIOS = {name for columns in COLUMNS.values() for name in columns if name.endswith("_share")}
# Their rows do not add up: one owner, or one team, may be in several.
NOT_SUMS = {"end_user_usd", "task_usd", "session_usd"}


def _any_failed(parts: Sequence[Part]) -> bool:
    return any("failed_usd" in part.fact.nusd for part in parts)


def figures(report: str, parts: Sequence[Part], names: Mapping[str, str]) -> dict[str, Value]:
    """Return a row's figures by column. A difference of other rows has no ratios."""
    is_difference = names.get("tag") == NONE
    return {
        name: None if is_difference and name in RATIOS else of(parts)
        for name, of in COLUMNS[report].items()
        if of is not None
    }


def _owner(part: Part, name: str) -> str | None:
    """Return the end user of a fact, or the value of its tag `task` or `session`."""
    fact = part.fact
    return fact.names.get("end_user") if name == "end_user" else fact.tags.get(name)


def unit_costs(
    row: Mapping[str, Value], overlapping: Sequence[Part], names: Mapping[str, str]
) -> dict[str, Value]:
    """Return the columns of `unit-costs` that divide, from a row's sums and its own facts."""
    found: dict[str, Value] = {}
    for name in ("end_user", "task", "session"):
        owned = [part for part in overlapping if _owner(part, name) is not None]
        seen = {_owner(p, name) for p in owned if p.fact.kind == "event" and p.times}
        found |= {f"{name}s": len(seen), f"{name}_usd": total(owned)}
    units = {
        "request": (row["total_usd"], row["requests"], 1),
        "answer": (row["total_usd"], row["answers"], 1),
        "1k_tokens": (row["total_usd"], row["total_tokens"], 1000),
        **{
            name: (found[f"{name}_usd"], found[f"{name}s"], 1)
            for name in ("end_user", "task", "session")
        },
    }
    for unit, (amount_nusd, count, per) in units.items():
        is_known = isinstance(amount_nusd, Fraction) and isinstance(count, int) and count > 0
        found[f"usd_per_{unit}"] = (
            _quotient(Fraction(amount_nusd) * per / Fraction(count))  # type: ignore[arg-type]
            if is_known and names.get("tag") != NONE
            else None
        )
    return found


def _quotient(nusd: Fraction) -> Decimal:
    """Return an amount in USD to twelve decimals, half-even."""
    usd = nusd / 10**9
    return _WIDE.divide(Decimal(usd.numerator), Decimal(usd.denominator)).quantize(
        Decimal("1e-12"), ROUND_HALF_EVEN, context=_WIDE
    )
