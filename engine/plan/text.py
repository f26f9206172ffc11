"""Prints a plan: the table for people, CSV of its rows, and the lists of GPUs and models."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from engine.plan.architecture import count
from engine.plan.config import read_config, shipped_models
from engine.plan.gpus import gpu_table
from engine.plan.report import COLUMNS

Rows = Sequence[Sequence[str]]
GPU_BLOCK = (
    "For the gpu block of a policy, take a row with the batch of your busy hours:"
    " input_tok_per_s = prompt / TTFT, output_tok_per_s = batch / TPOT, both in seconds."
    " tok/s and USD/Mtok include the time for the prompts."
)
TTFT = (
    "TTFT is that of one prompt alone, in each row: under load a prompt waits for others as well."
)


def table(heads: Sequence[str], rows: Rows) -> str:
    """Return columns aligned by their widest cell; figures to the right."""
    lines = [tuple(heads), *(tuple(row) for row in rows)]
    wide = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if _is_figure(rows, column) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, wide, strict=True))
        ).rstrip()
        for line in lines
    )


def _is_figure(rows: Rows, column: int) -> bool:
    """Return True if a column holds figures."""
    return all(row[column][:1] in "0123456789-~" for row in rows)


def as_text(document: dict[str, Any], *, usd_per_hour: float | None = None) -> str:
    """Return a plan as text for people; `usd_per_hour` is the price asked for, None for the
    table's.
    """
    model = document["model"]
    parts = [
        f"{model['name']}: {model['parameters'] / 1e9:.2f} B parameters,"
        f" {model['active_parameters'] / 1e9:.2f} B active; weights"
        f" {model['weight_bytes'] / 1e9:.2f} GB; KV cache {model['kv_bytes_per_token']:,} bytes a"
        f" token, {model['kv_bytes_per_sequence'] / 1e9:.3f} GB a sequence"
    ]
    fitting = [row for row in document["rows"] if row["fits"]]
    if fitting:
        heads = [
            "gpu",
            "gpus",
            "layout",
            "KV tokens",
            "sequences",
            "batch",
            "TTFT",
            "TPOT",
            "tok/s",
            "USD/Mtok",
        ]
        parts.append(table(heads, [_row(row) for row in fitting]))
        parts.append(f"{TTFT}\n{_prices(fitting, usd_per_hour)}")
    parts += [
        f"{row['gpu']}: {row['reason']}" for row in document["rows"] if row["reason"] is not None
    ]
    if document["levers"]:
        rows = [
            (one["lever"], one["value"], f"{one['factor']:.2f}", one["reason"])
            for one in document["levers"]
        ]
        parts.append(
            f"Levers on {fitting[0]['gpu']}, each alone:\n"
            + table(["lever", "value", "×", "reason"], rows)
        )
    if document["months"]:
        rows5 = [
            (
                one["month"],
                f"{one['tokens']:,}",
                str(one["replicas"]),
                str(one["gpus"]),
                _usd(one["usd"], 0),
            )
            for one in document["months"]
        ]
        parts.append(table(["month", "tokens", "replicas", "gpus", "USD"], rows5))
    if fitting:
        parts.append(GPU_BLOCK)
    parts.append(
        "Predicted from data sheets, not measured: docs/engine-plan.md has the errors against"
        " published figures."
    )
    return "\n\n".join(parts)


def _prices(fitting: Sequence[dict[str, Any]], usd_per_hour: float | None) -> str:
    """Return the price of a GPU's hour behind each USD figure, and whether they compare."""
    if usd_per_hour is not None:
        return f"USD at {usd_per_hour:g} for an hour of one GPU, as given."
    gpus = [gpu_table()[name] for name in dict.fromkeys(row["gpu"] for row in fitting)]
    lines = [
        f"{gpu.name}: {gpu.middle_usd_per_hour:.2f} USD an hour, the middle of"
        f" {gpu.usd_per_hour[0]:.2f} to {gpu.usd_per_hour[1]:.2f}, {gpu.price_kind}"
        f" ({gpu.price_source})."
        for gpu in gpus
        if gpu.usd_per_hour
    ]
    if len({gpu.price_kind for gpu in gpus if gpu.usd_per_hour}) > 1:
        lines.append(
            "These prices are of different sorts, so do not rank the GPUs by USD: give"
            " --gpu-usd-per-hour."
        )
    return "\n".join(lines)


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of one row."""
    return (
        row["gpu"],
        str(row["gpus"]),
        row["layout"],
        f"{row['kv_tokens']:,}",
        f"{row['max_sequences']:,} × {row['context']:,}",
        str(row["batch"]),
        f"{row['ttft_s'] * 1000:.0f} ms",
        f"{row['tpot_s'] * 1000:.1f} ms",
        f"{row['throughput_tok_per_s']:,.0f}",
        _usd(row["usd_per_mtok"], 3),
    )


def _usd(amount: float | None, digits: int) -> str:
    """Return an amount; one above zero never prints as zero."""
    if amount is None:
        return "- (no price)"
    text = f"{amount:,.{digits}f}"
    return text if amount == 0 or float(text.replace(",", "")) else f"{amount:.2g}"


def as_csv(document: dict[str, Any]) -> str:
    """Return the rows of a plan as CSV."""
    return csv_of(COLUMNS, document["rows"])


def csv_of(heads: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


def gpu_rows() -> list[dict[str, Any]]:
    """Return the GPUs of the table, for `--list gpus`."""
    return [
        {
            "gpu": gpu.name,
            "memory_bytes": gpu.memory_bytes,
            "bandwidth_bytes_per_s": gpu.bandwidth_bytes_per_s,
            "flop_per_s_16bit": gpu.matrix_flop_per_s["16bit"],
            "flop_per_s_fp8": gpu.matrix_flop_per_s["fp8"],
            "flop_per_s_int8": gpu.matrix_flop_per_s["int8"],
            "usd_per_hour_low": gpu.usd_per_hour[0] if gpu.usd_per_hour else None,
            "usd_per_hour_high": gpu.usd_per_hour[1] if gpu.usd_per_hour else None,
            "source": gpu.source,
            "price_kind": gpu.price_kind,
            "price_source": gpu.price_source,
        }
        for gpu in gpu_table().values()
    ]


def model_rows() -> list[dict[str, Any]]:
    """Return the shipped models, for `--list models`."""
    rows = []
    for name, entry in shipped_models().items():
        model = count(read_config(name))
        rows.append(
            {
                "model": name,
                "parameters": model.parameters,
                "active_parameters": model.active_parameters,
                "context": model.max_context,
                "format": model.own_format,
                "source": entry["source"],
            }
        )
    return rows
