"""Reads a model's config from a folder, the shipped table or, with --download, the hub."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from engine.errors import EngineError, UnknownStateError

DATA = Path(__file__).parent / "data"
HUB_TIMEOUT_S = 20.0
MOST_COUNT = 10**9
"""The largest figure of a config; real ones stay below 20 million."""
MOST_SHOWN = 100
"""Characters of a wrong value in a message."""
MOST_BYTES = 4 * 2**20
"""The longest config.json; real ones have some KB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The fields of one model's `config.json`, with the model's name for messages."""

    name: str
    source: str
    fields: dict[str, Any]

    def get(self, field: str, default: Any = None) -> Any:
        """Return a field's value, or the default if it is absent or null."""
        value = self.fields.get(field)
        return default if value is None else value

    def count(self, field: str, *, least: int = 1, most: int = MOST_COUNT) -> int:
        """Return a field that must be a whole number. Raises `EngineError` naming the field."""
        value = self.fields.get(field)
        if value is None:
            raise EngineError(
                f"The config of {self.name} has no {field}, so the model cannot be counted. Add the"
                " field to its config.json."
            )
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not least <= value <= most:
            raise self.wrong(field, f"a whole number from {least} to {most}")
        whole: int = value
        return whole

    def count_or(self, field: str, default: int, *, least: int = 1) -> int:
        """Return a field that must be a whole number, or the default if it is absent or null.
        Raises `EngineError` naming the field.
        """
        return default if self.fields.get(field) is None else self.count(field, least=least)

    def wrong(self, field: str, wanted: str) -> EngineError:
        """Return the error of a field that is not what it must be."""
        value = repr(self.fields.get(field))[:MOST_SHOWN]
        return EngineError(f"The config of {self.name} has {field}: {value}; it must be {wanted}.")


@cache
def shipped_models() -> dict[str, dict[str, Any]]:
    """Return the shipped table: for each model its `source` and `config`."""
    table: dict[str, dict[str, Any]] = json.loads((DATA / "models.json").read_text("utf-8"))
    return table


def read_config(model: str, *, may_download: bool = False) -> ModelConfig:
    """Return the config of a folder, of a shipped model, or of one on the hub if allowed.

    A shipped model is found by its whole name or by the part after the slash, in any case.

    Raises: EngineError: there is no such model, or its config is unreadable. UnknownStateError: the
    hub did not answer.
    """
    folder = Path(model).expanduser()
    path = folder / "config.json"
    if os.path.isfile(path):
        return _from_text(config_text(path), name=folder.absolute().name, source=str(path))
    for name, entry in shipped_models().items():
        if model.lower() in (name.lower(), name.rpartition("/")[2].lower()):
            return ModelConfig(name=name, source=entry["source"], fields=entry["config"])
    if os.path.isdir(folder):
        raise EngineError(f"There is no config.json in {model}.")
    if may_download and model.count("/") == 1:
        return _from_text(_download(model), name=model, source="the hub")
    raise EngineError(
        f"No folder with a config.json and no shipped model is called {model}."
        f"{nearest(model, shipped_models())} List the shipped"
        " ones with: python -m engine plan --list models. With --download, ORG/NAME is read from"
        " the hub."
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the sentence ` Nearest: …` with the known names most like a given one, in any case.

    A name that begins the other comes first, else one of similar letters; empty if none is like it.
    """
    by_key = {one.rpartition("/")[2].lower(): one.rpartition("/")[2] for one in known}
    asked = name.strip().rpartition("/")[2].lower()
    found = [key for key in by_key if asked and (key.startswith(asked) or asked.startswith(key))]
    found = found or get_close_matches(asked, by_key, n=3)
    return f" Nearest: {', '.join(by_key[key] for key in found[:3])}." if found else ""


def config_text(path: Path) -> str:
    """Return the text of a config.json. Raises `EngineError` if it cannot be read, or is far longer
    than any.
    """
    try:
        with path.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > MOST_BYTES:
        raise EngineError(f"{path} is longer than {MOST_BYTES >> 20} MiB: it is no model's config.")
    return data.decode("utf-8", errors="replace")


def _from_text(text: str, *, name: str, source: str) -> ModelConfig:
    """Return the config in a JSON text; a text model inside a wrapper is unwrapped.

    Raises: EngineError: it is no JSON object, or has a vision tower, whose weights are not counted.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"The config of {name} is not JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise EngineError(f"The config of {name} is not a JSON object.")
    inner = fields.get("text_config")
    if isinstance(inner, dict):
        for other in ("vision_config", "audio_config"):
            if fields.get(other):
                raise EngineError(
                    f"The config of {name} has a {other}, whose weights cannot be counted. Plan the"
                    " language model alone: put its text_config into a config.json of its own."
                )
        fields = {**fields, **inner}
    return ModelConfig(name=name, source=source, fields=fields)


def _download(model: str) -> str:
    """Return the text of a model's config on the hub. Raises `UnknownStateError`."""
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not hub.startswith(("http://", "https://")):
        raise UnknownStateError(f"HF_ENDPOINT is no HTTP address: {hub}.")
    url = f"{hub}/{model}/resolve/main/config.json"
    try:
        with urllib.request.urlopen(url, timeout=HUB_TIMEOUT_S) as answer:  # noqa: S310
            body: bytes = answer.read(1 << 20)
    except (urllib.error.URLError, OSError) as error:
        raise UnknownStateError(
            f"{url} could not be read: {error}. Check the name and the network, or give a folder"
            " that holds the model's config.json."
        ) from error
    return body.decode("utf-8", errors="replace")
