"""Reads the table of GPUs: memory, bandwidth, matrix rates and price range, with their sources."""

import json
from dataclasses import dataclass
from functools import cache

from engine.errors import UsageError
from engine.plan.config import DATA, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU. Rates are those of the data sheet, without sparsity."""

    name: str
    generation: str
    """NVIDIA's architecture: Hopper, Ada or Ampere."""
    memory_bytes: int
    bandwidth_bytes_per_s: float
    link_bytes_per_s: float
    """To the other GPUs of its node, in one direction."""
    is_nvlink: bool
    matrix_flop_per_s: dict[str, float | None]
    """By format: `16bit`, `fp8` and `int8`; None if the GPU has no such matrix unit."""
    usd_per_hour: tuple[float, float] | None
    """The range of rents, or None if no published range was found."""
    source: str
    price_kind: str
    """The sort of the rents: on demand, spot or a managed service; prices of two sorts do not
    compare.
    """
    price_source: str

    @property
    def middle_usd_per_hour(self) -> float | None:
        """Return the middle of the price range, if there is one."""
        return sum(self.usd_per_hour) / 2 if self.usd_per_hour else None


@cache
def gpu_table() -> dict[str, Gpu]:
    """Return the shipped GPUs by name."""
    rows = json.loads((DATA / "gpus.json").read_text("utf-8"))
    return {name: _gpu(name, row) for name, row in rows.items()}


def _gpu(name: str, row: dict[str, object]) -> Gpu:
    """Return one GPU of the table."""
    price = row.pop("usd_per_hour")
    bounds = (price["low"], price["high"]) if isinstance(price, dict) else None
    return Gpu(name=name, usd_per_hour=bounds, **row)  # type: ignore[arg-type]  # a JSON row


def gpu_named(name: str) -> Gpu:
    """Return a GPU by its name, in any case. Raises `UsageError` that lists the known ones, and
    first the nearest.
    """
    table = gpu_table()
    found = next((gpu for key, gpu in table.items() if key.lower() == name.strip().lower()), None)
    if found is None:
        raise UsageError(f"Unknown GPU {name!r}.{nearest(name, table)} Known: {', '.join(table)}.")
    return found
