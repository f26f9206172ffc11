"""Names the pages on which each engine reports its load, and reads those that are JSON: llama.cpp's
slots and Ollama's loaded models; fetches nothing.

`engine_load` reads the pages of metrics. A page may hold more than figures: an old llama.cpp writes
the prompts into its slots. Only the members below are decoded, and the page itself is kept by no
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from gateway.domain.deployments.engine_load import SIGNALS, EngineMetrics, read_page


@dataclass(frozen=True, slots=True)
class EnginePage:
    """One page of an engine: its path, and the function that reads its text for a model.

    A path that begins with a colon names another port of the same host.
    """

    path: str
    read: Callable[[str, str], EngineMetrics]


class _Slot(Struct):
    is_processing: bool
    n_ctx: int = 0
    n_prompt_tokens: int = 0


class _Loaded(Struct):
    name: str = ""
    model: str = ""


class _LoadedModels(Struct):
    models: list[_Loaded]


_decode_slots = msgspec.json.Decoder(list[_Slot]).decode
_decode_loaded = msgspec.json.Decoder(_LoadedModels).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeEncodeError, RecursionError)
_LATEST = ":latest"


def read_slots(text: str, model: str = "") -> EngineMetrics:
    """Return the figures of llama.cpp's `/slots`: its room, the busy slots, and the share of the
    context that these fill.

    A slot's tokens grow while it reads or writes, so an engine at work never stands still.
    """
    try:
        slots = _decode_slots(text)
    except _UNREADABLE:
        return EngineMetrics()
    if not slots:
        return EngineMetrics()
    busy = [slot for slot in slots if slot.is_processing]
    context = sum(slot.n_ctx for slot in slots)
    filled = sum(slot.n_prompt_tokens for slot in busy)
    share = filled / context if context > 0 else -1.0
    return EngineMetrics(
        running=len(busy), room=len(slots), kv_use=share if 0 <= share <= 1 else None
    )


def read_loaded(text: str, model: str) -> EngineMetrics:
    """Return whether Ollama's `/api/ps` lists the model as loaded; it reports no queue.

    A name without a tag means the tag `latest`.
    """
    try:
        loaded = _decode_loaded(text).models
    except _UNREADABLE:
        return EngineMetrics()
    names = {_tagged(name) for one in loaded for name in (one.name, one.model) if name}
    return EngineMetrics(loaded=float(_tagged(model) in names))


def _tagged(name: str) -> str:
    """Return a model's name with its tag, as Ollama lists it."""
    return name if ":" in name.rpartition("/")[2] else name + _LATEST


def _text_page(path: str, engine: str | None = None) -> EnginePage:
    """Return a page of metrics as text; without an engine's name it is recognised."""
    return EnginePage(path, lambda text, model: read_page(text, engine, model=model))


_SLOTS = EnginePage("/slots", read_slots)
_OWN: Mapping[str, tuple[EnginePage, ...]] = {
    **{name: (_text_page(names.path, name),) for name, names in SIGNALS.items()},
    # Without `--metrics` it has only the slots.
    "llamacpp": (_text_page("/metrics", "llamacpp"), _SLOTS),
    "ollama": (EnginePage("/api/ps", read_loaded),),
}
# Whatever the policy calls the engine: one server often stands in for another.
_OTHERS = (
    (_text_page("/metrics"),),
    (_text_page("/prometheus/metrics"),),
    (_SLOTS,),
    (EnginePage("/api/ps", read_loaded),),
)


def pages_of(provider: str) -> tuple[tuple[EnginePage, ...], ...]:
    """Return the groups of pages to try for a provider's engine, its own first; the pages of one
    group are read together.
    """
    return (_OWN[provider], *_OTHERS) if provider in _OWN else _OTHERS


def figures_on(
    pages: Iterable[EnginePage], model: str, text_of: Callable[[str], str | None]
) -> EngineMetrics | None:
    """Return the figures on the pages of one group; None if the first one is silent.

    `text_of` returns the text of the page at a path, None without an answer.
    """
    found: list[EngineMetrics] = []
    for page in pages:
        text = text_of(page.path)
        if text is not None:
            found.append(page.read(text, model))
        elif not found:
            return None
    return together(found)


def together(figures: Iterable[EngineMetrics]) -> EngineMetrics:
    """Return the figures of several pages as one; the first page that has a figure counts."""
    found: dict[str, float] = {}
    for page in figures:
        for name, value in asdict(page).items():
            if value is not None:
                found.setdefault(name, value)
    return EngineMetrics(**found)
