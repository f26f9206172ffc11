"""Reads a profile, the YAML file with the settings of one engine, and names each key that is
unknown or has an impossible value; `checks.py` checks it against hardware and model.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from engine import home as homes
from engine.arguments.printable import printable
from engine.arguments.yaml_text import read_yaml
from engine.errors import EngineError, UsageError

SHIPPED_PROFILES = homes.PACKAGE / "profiles"
AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One key of a profile that cannot be used, with its value and the reason."""

    key: str
    value: object
    reason: str

    def __str__(self) -> str:
        """Return the refusal as a line for people."""
        return printable(f"{self.key}: {self.value}: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: the method that drafts tokens, and the tokens drafted in each step."""

    method: Literal["ngram", "draft", "eagle"]
    tokens: int
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The settings of one engine; None leaves a setting to vLLM."""

    model: str | None = None
    device: Literal["auto", "cpu", "gpu"] = "auto"
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    max_model_len: int | Literal["auto"] | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    quantization: Literal["none", "fp8", "int8", "awq", "gptq"] = "none"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    speculative: Speculation | None = None
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    max_num_queued_reqs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """A profile as it was read: its usable keys, and the refused ones."""

    name: str
    profile: Profile
    refused: tuple[Refused, ...]


class _Impossible(ValueError):
    """A value that a key cannot have; the message gives the values that it can have."""


Reader = Callable[[object], object]


def _one_of(*values: str) -> Reader:
    """Return the reader of a key that takes one of these words."""

    def read(value: object) -> object:
        if value not in values:
            raise _Impossible(f"must be one of {', '.join(values)}")
        return value

    return read


def _count(value: object) -> object:
    """Return a whole number above 0. Raises `_Impossible`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _Impossible("must be a whole number above 0")
    return value


def _count_or_auto(value: object) -> object:
    """Return a whole number above 0 or `auto`. Raises `_Impossible`."""
    if value == AUTO:
        return value
    try:
        return _count(value)
    except _Impossible:
        raise _Impossible("must be a whole number above 0, or auto") from None


def _switch(value: object) -> object:
    """Return true or false. Raises `_Impossible`."""
    if not isinstance(value, bool):
        raise _Impossible("must be true or false")
    return value


def _name(value: object) -> object:
    """Return a name: text that is not empty, without blanks, and is no flag. Raises
    `_Impossible`.
    """
    if not isinstance(value, str) or not value or value.startswith("-") or value.split() != [value]:
        raise _Impossible("must be a name")
    return value


def _path(value: object) -> object:
    """Return a folder or a name on the hub. Raises `_Impossible`."""
    if not isinstance(value, str) or not value.strip() or value.startswith("-"):
        raise _Impossible("must be a folder, or a name on the hub (ORG/NAME)")
    return value


SPECULATIVE: Mapping[str, Reader] = {
    "method": _one_of("ngram", "draft", "eagle"),
    "tokens": _count,
    "model": _path,
}
"""The keys below `speculative`, with their readers."""

KEYS: Mapping[str, Reader] = {
    "model": _path,
    "device": _one_of("auto", "cpu", "gpu"),
    "dtype": _one_of("auto", "bfloat16", "float16", "float32"),
    "max_model_len": _count_or_auto,
    "max_num_seqs": _count,
    "max_num_batched_tokens": _count,
    "chunked_prefill": _switch,
    "prefix_caching": _switch,
    "kv_cache_dtype": _one_of("auto", "fp8"),
    "quantization": _one_of("none", "fp8", "int8", "awq", "gptq"),
    "tensor_parallel_size": _count,
    "pipeline_parallel_size": _count,
    "data_parallel_size": _count,
    "reasoning_parser": _name,
    "tool_call_parser": _name,
    "max_num_queued_reqs": _count,
}
"""The keys of a profile besides `speculative`, with their readers."""

assert {field.name for field in fields(Profile)} == {*KEYS, "speculative"}


def shipped_names() -> list[str]:
    """Return the names of the profiles that come with this package."""
    return sorted(path.stem for path in SHIPPED_PROFILES.glob("*.yaml"))


def read_profile(name: str) -> ProfileFile:
    """Return a shipped profile by its name, or the profile in a YAML file.

    Raises: UsageError: no such profile or file, or it cannot be read. EngineError: the file holds
        no YAML mapping.
    """
    path = SHIPPED_PROFILES / f"{name}.yaml"
    if name not in shipped_names():
        path = Path(name).expanduser()
        if not os.path.isfile(path):
            raise UsageError(
                f"No profile {name}: neither a file nor one of {', '.join(shipped_names())}."
            )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The profile {path} cannot be read: {error}.") from error
    profile, refused = parse_profile(text, source=str(path))
    return ProfileFile(name=name, profile=profile, refused=refused)


def parse_profile(text: str, *, source: str) -> tuple[Profile, tuple[Refused, ...]]:
    """Return a profile's usable keys, and its refused ones. Raises `EngineError` if the text is no
    YAML mapping.
    """
    try:
        document = read_yaml(text)
    except ValueError as error:
        raise EngineError(f"{source} is no YAML: {error}. Nothing was started.") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise EngineError(f"{source} is no profile: it must map keys to values.")
    refused: list[Refused] = []
    settings = dict(_read(document, KEYS, refused, inside=""))
    if document.get("speculative") is not None:
        settings["speculative"] = _speculation(document["speculative"], refused)
    return Profile(**settings), tuple(refused)


def _read(
    given: Mapping[Any, object], known: Mapping[str, Reader], refused: list[Refused], *, inside: str
) -> Iterator[tuple[str, Any]]:
    """Yield the usable keys with their values; add the others to `refused`. A null value is left
    out.
    """
    for key, value in given.items():
        if key == "speculative" and not inside:
            continue
        reader = known.get(key) if isinstance(key, str) else None
        if reader is None:
            allowed = ", ".join((*known, *(() if inside else ("speculative",))))
            refused.append(
                Refused(key=f"{inside}{key}", value=value, reason=f"no such key; known: {allowed}")
            )
        elif value is not None:
            try:
                yield key, reader(value)
            except _Impossible as error:
                refused.append(Refused(key=f"{inside}{key}", value=value, reason=str(error)))


def _speculation(given: object, refused: list[Refused]) -> Speculation | None:
    """Return the settings below `speculative`; None, with the reasons in `refused`, if they cannot
    be used.
    """
    if not isinstance(given, dict):
        refused.append(
            Refused(key="speculative", value=given, reason="must map method and tokens to values")
        )
        return None
    before = len(refused)
    settings = dict(_read(given, SPECULATIVE, refused, inside="speculative."))
    refused += [
        Refused(key=f"speculative.{key}", value=None, reason="is required")
        for key in ("method", "tokens")
        if given.get(key) is None
    ]
    method, model = settings.get("method"), settings.get("model")
    if method == "ngram" and model is not None:
        refused.append(
            Refused(key="speculative.model", value=model, reason="ngram drafts without a model")
        )
    if method in ("draft", "eagle") and given.get("model") is None:
        refused.append(
            Refused(key="speculative.model", value=None, reason=f"{method} drafts with a model")
        )
    return Speculation(**settings) if len(refused) == before else None
