"""Prints a calibration for people: the weights with intervals, the tests, and each window."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.calibration.cost_model import KINDS
from engine.calibration.experiment import KNOWN_VERSIONS
from engine.plan.text import table

ENGINE_WAITS = 0.9
"""Below this share of the requests that run, the report names the queue."""
HEADS = ("streams", "requests", "input", "cached", "output", "measured s", "predicted s", "error")


def as_text(result: Mapping[str, Any]) -> str:
    """Return a calibration's report."""
    parts = [
        table(["token", "tokens/s", "95 % interval", "µs each"], _rates(result)),
        _summary(result),
        "Windows of the fit:\n" + _windows(result["residuals"]),
        "Held-out windows, drawn after the fit:\n" + _windows(result["held_out"]),
    ]
    return "\n\n".join((*parts, *result["refused"]))


def _rates(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row of the table for each kind of token."""
    rows: list[tuple[str, ...]] = []
    for kind in KINDS:
        rate = result[f"{kind}_tok_per_s"]
        if rate is None:
            rows.append((kind, "not measured: no cached token was reported", "", ""))
            continue
        low, high = result["intervals"][f"{kind}_tok_per_s"]
        upper = "no end" if high is None else f"{high:,.0f}"
        rows.append((kind, f"{rate:,.0f}", f"{low:,.0f} to {upper}", f"{1e6 / rate:,.2f}"))
    return rows


def _summary(result: Mapping[str, Any]) -> str:
    """Return the load that the weights hold for, and how well they do."""
    check = result["cross_check"] or {}
    ratios = [
        f"{name[:-10]} {ratio:.3f}" for name, ratio in check.get("ratios", {}).items() if ratio
    ]
    lines = [
        f"These hold at {result['concurrency']} requests at once, for prompts up to "
        f"{result['longest_prompt']} and answers up to {result['longest_answer']} tokens.",
        f"R² {result['r_squared']:.4f}. Error on held-out load: {result['held_out_error']:.1%}; "
        f"of one flat price for all tokens: {result['flat_price_error']:.1%}.",
        "Bends: "
        + ", ".join(
            f"{one['curve']} squared {one['share']:.1%} (p = {one['p_value']:.2g})"
            for one in result["bends"]
        )
        + ".",
    ]
    if ratios:
        lines.append(
            f"The client's clock gives, as a ratio to the engine's: {', '.join(ratios)}. Requests "
            f"were at work in the engine for {check['engine_share']:.1%} of the client's time."
        )
    elif result["clock"] == "client":
        lines.append(
            "Timed by the client alone: the engine reports no times of its requests, or its "
            f"version is none whose times are known (vLLM {', '.join(KNOWN_VERSIONS)})."
        )
    if result["running"] < ENGINE_WAITS * result["concurrency"]:
        lines.append(
            f"Of the {result['concurrency']} requests {result['running']:.1f} ran at once; the "
            "others waited in the engine's queue (max_num_seqs, or the memory of its KV cache), or "
            "outside of it, in a slow server or network."
        )
    return "\n".join(lines)


def _windows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of windows."""
    return table(
        HEADS,
        [
            (
                *(f"{value:,}" for value in list(row.values())[:5]),
                f"{row['measured_s']:.3f}",
                f"{row['predicted_s']:.3f}",
                f"{row['error']:+.1%}",
            )
            for row in rows
        ],
    )
