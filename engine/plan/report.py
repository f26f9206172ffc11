"""Puts a plan together: the rows of each GPU and batch size, levers and months, as plain values."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.errors import EngineError
from engine.plan.architecture import Model
from engine.plan.demand import Demand, capacity, months
from engine.plan.gpus import Gpu
from engine.plan.layout import Fit, Served, chosen_fit
from engine.plan.levers import largest_batch, levers
from engine.plan.memory import kv_bytes_per_sequence, kv_bytes_per_token, weight_bytes
from engine.plan.roofline import Work, predict

BATCHES = (1, 8, 32, 128)
COLUMNS = (
    "gpu",
    "gpus",
    "layout",
    "fits",
    "reason",
    "kv_tokens",
    "max_sequences",
    "context",
    "batch",
    "ttft_s",
    "tpot_s",
    "throughput_tok_per_s",
    "usd_per_mtok",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """The choices of one plan."""

    served: Served
    gpus: Sequence[Gpu]
    gpus_count: int | None
    prompt: int
    answer: int
    batch: int | None
    usd_per_hour: float | None
    utilisation: float
    demand: Demand | None
    months: int


def plan(settings: PlanSettings) -> dict[str, Any]:
    """Return the plan as the JSON of the contract.

    Raises: EngineError: the asked number of GPUs cannot hold the model, or no GPU keeps the SLO.
    """
    rows: list[dict[str, Any]] = []
    fitting: list[tuple[Gpu, Fit]] = []
    for gpu in settings.gpus:
        try:
            found = chosen_fit(settings.served, gpu, settings.gpus_count)
        except EngineError as error:
            if settings.gpus_count is not None:
                raise
            rows.append(_empty_row(settings, gpu, str(error)))
            continue
        fitting.append((gpu, found))
        rows += _rows(settings, gpu, found)
    first = fitting[0] if fitting else None
    return {
        "model": _model(settings.served),
        "rows": rows,
        "levers": [asdict(one) for one in _levers(settings, *first)] if first else [],
        "months": _months(settings, *first) if first and settings.demand else [],
    }


def _model(served: Served) -> dict[str, Any]:
    """Return the figures of the model alone."""
    model: Model = served.model
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "weight_bytes": weight_bytes(model, served.quantization),
        "kv_bytes_per_token": kv_bytes_per_token(model, served.kv_cache),
        "kv_bytes_per_sequence": kv_bytes_per_sequence(model, served.context, served.kv_cache),
    }


def _empty_row(settings: PlanSettings, gpu: Gpu, reason: str) -> dict[str, Any]:
    """Return the row of a GPU on which the model does not fit."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"gpu": gpu.name, "fits": False, "reason": reason, "context": settings.served.context}
    return row


def _rows(settings: PlanSettings, gpu: Gpu, found: Fit) -> Iterator[dict[str, Any]]:
    """Yield the row of each batch size on one layout."""
    tokens = settings.prompt + settings.answer
    room = found.sequences_of(settings.served, tokens)
    largest = largest_batch(settings.served, gpu, found, tokens)
    asked = [settings.batch] if settings.batch else [*BATCHES, largest]
    for batch in sorted({min(one, room) for one in asked}):
        work = Work(prompt=settings.prompt, answer=settings.answer, batch=batch)
        times = predict(settings.served, gpu, found.layout, work)
        is_less = settings.batch is not None and batch < settings.batch
        yield {
            "gpu": gpu.name,
            "gpus": found.layout.gpus,
            "layout": str(found.layout),
            "fits": True,
            "reason": f"{room} of {settings.batch} sequences fit; the others wait"
            if is_less
            else None,
            "kv_tokens": found.kv_tokens,
            "max_sequences": found.max_sequences,
            "context": settings.served.context,
            "batch": batch,
            "ttft_s": times.ttft_s,
            "tpot_s": times.tpot_s,
            "throughput_tok_per_s": times.throughput_tok_per_s,
            "usd_per_mtok": usd_per_mtok(
                price(settings, gpu),
                gpus=found.layout.gpus,
                throughput_tok_per_s=times.throughput_tok_per_s,
                utilisation=settings.utilisation,
            ),
        }


def price(settings: PlanSettings, gpu: Gpu) -> float | None:
    """Return the USD of a GPU's hour: the asked one, else the middle of its range."""
    if settings.usd_per_hour is not None:
        return settings.usd_per_hour
    return gpu.middle_usd_per_hour


def usd_per_mtok(
    usd_per_hour: float | None, *, gpus: int, throughput_tok_per_s: float, utilisation: float
) -> float | None:
    """Return the USD per million output tokens: rent of all GPUs / tokens really written."""
    if usd_per_hour is None:
        return None
    return usd_per_hour * gpus * 1e6 / (3600 * throughput_tok_per_s * utilisation)


def _levers(settings: PlanSettings, gpu: Gpu, found: Fit) -> Any:
    """Return the levers at the asked batch, else at 32 sequences or as many as fit."""
    room = max(1, found.sequences_of(settings.served, settings.prompt + settings.answer))
    batch = min(settings.batch or 32, room)
    work = Work(prompt=settings.prompt, answer=settings.answer, batch=batch)
    return levers(settings.served, gpu, found, work)


def _months(settings: PlanSettings, gpu: Gpu, found: Fit) -> list[dict[str, Any]]:
    """Return the months of the demand on the first GPU that holds the model."""
    assert settings.demand is not None
    try:
        carried = capacity(settings.demand, settings.served, gpu, found)
    except EngineError as error:
        if len(settings.gpus) == 1:
            raise
        raise EngineError(
            f"{error} The months are for the first GPU of --gpu that fits: name another one first."
        ) from error
    rows = months(
        settings.demand,
        carried,
        gpus=found.layout.gpus,
        usd_per_hour=price(settings, gpu),
        count=settings.months,
    )
    return [asdict(row) for row in rows]
