"""Builds the argv and the environment variables that start vLLM, and checks the model and key file
that they name; `supervisor.py` runs the command.

Owns vLLM's flags and their reasons.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine import home as homes
from engine.cpu import NumberFormat
from engine.environment import Device
from engine.errors import UsageError
from engine.home import EngineHome

DEFAULT_PORT = 8001
SHUTDOWN_TIMEOUT_S = 20
"""How long vLLM may finish running requests after SIGTERM.

Without it streams break off with an error.
"""

MAX_QUEUED_REQUESTS: Mapping[Device, int] = {"cpu": 256, "gpu": 2048}
"""Waiting and running together; more get 503. Without it vLLM's queue has no bound.

Twice the sequences that vLLM runs at once by default; a GPU below 70 GiB runs fewer.
"""

CPU_KV_CACHE_GIB = 1
CALM_ON_CPU = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
"""For the tiny model, whose matrices are too small to share: two threads would waste time waiting
for each other.

The first joins vLLM's core and its worker in one process. Measured 2026-11-23, 2 cores:
docs/guides/engine.md. A larger model keeps vLLM's own settings, which bind its threads to the
cores.
"""

NO_PARSER = "none"
PROGRAM_VARIABLE = "TOLLGATE_ENGINE_VLLM"
"""Names the program that is run in place of the environment's vLLM: `FILE serve MODEL --port …`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The model to serve and its address."""

    model: str
    """A folder, a shipped model, a name below `<engine home>/models`, or one on the hub."""
    served_model_name: str
    host: str
    port: int
    device: Device
    max_model_len_tokens: int | None
    """The longest context; None leaves it to `flags` or to vLLM."""
    runner: Literal["generate", "pooling"] = "generate"
    reasoning_parser: str = "qwen3"
    """The parser with which vLLM separates thinking from the answer, or `NO_PARSER`."""
    tool_call_parser: str = "hermes"
    api_key_file: Path | None = None
    max_queued_requests: int
    flags: tuple[str, ...] = ()
    """The flags of the profile."""
    extra: tuple[str, ...] = ()
    number_format: NumberFormat
    """The number format on a CPU; a GPU uses the model's own format."""
    has_ranks: bool = False
    """Whether the model is split or repeated over several processes."""
    program: Path | None = None
    """The program that is run in place of the environment's vLLM."""


def model_path(home: EngineHome, name: str) -> Path | None:
    """Return the local folder that `name` means, or None if it can only be a model on the hub.

    Raises: UsageError: the name looks like a local model and there is none.
    """
    for folder in (Path(name).expanduser(), homes.SHIPPED_MODELS / name, home.models / name):
        if os.path.isfile(folder / "config.json"):
            return folder.absolute()
    looks_local = name.count("/") != 1 or name.startswith((".", "/", "~"))
    if looks_local:
        others = "" if Path(name).is_absolute() else f", nor in {home.models / name}"
        raise UsageError(
            f"No model in {name} (no config.json){others}."
            " The model that comes with this package is called tiny."
        )
    return None


def program(inherited: Mapping[str, str]) -> Path | None:
    """Return the program that is run in place of the environment's vLLM, or None.

    Raises: UsageError: it cannot be run.
    """
    if not (given := inherited.get(PROGRAM_VARIABLE)):
        return None
    path = Path(given).expanduser().absolute()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise UsageError(f"{PROGRAM_VARIABLE}={given} is no file that can be executed.")
    return path


def default_name(home: EngineHome, model: str) -> str:
    """Return the name by which clients request a model if the command line gives none: its
    folder's, else its name on the hub.
    """
    folder = model_path(home, model)
    return folder.name if folder else model


def command(home: EngineHome, serving: Serving) -> list[str]:
    """Return the argv that starts vLLM."""
    model = model_path(home, serving.model)
    argv = [str(serving.program)] if serving.program else _environment_vllm(home)
    argv += [
        "serve",
        str(model) if model else serving.model,
        "--served-model-name",
        serving.served_model_name,
    ]
    argv += ["--host", serving.host, "--port", str(serving.port)]
    if serving.max_model_len_tokens is not None:
        argv += ["--max-model-len", str(serving.max_model_len_tokens)]
    argv += serving.flags
    argv += metering_flags()
    argv += [
        "--max-num-queued-reqs",
        str(serving.max_queued_requests),
        "--shutdown-timeout",
        str(SHUTDOWN_TIMEOUT_S),
    ]
    argv += ["--runner", "pooling"] if serving.runner == "pooling" else _chat_flags(serving)
    if serving.device == "cpu":
        # Compiling costs 40 s of a cold start on two cores and makes it a quarter faster: not worth
        # it here.
        argv.append("--enforce-eager")
        if serving.number_format == "float32":
            argv += ["--dtype", "float32"]
    return [*argv, *serving.extra]


def _environment_vllm(home: EngineHome) -> list[str]:
    """Return the argv of the vLLM in the engine's environment."""
    return [str(home.python), str(homes.PACKAGE / "inside" / "vllm_cli.py")]


def metering_flags() -> Sequence[str]:
    """Return the flags without which the gateway cannot meter.

    Without prompt token details, `/v1/messages` hides cached tokens and bills them in full.
    `--enable-force-include-usage` is left out on purpose: the gateway asks for usage in each
    request, and other callers get the standard's answer.
    """
    return (
        "--enable-prompt-tokens-details",
        "--enable-per-request-metrics",
        "--enable-request-id-headers",
    )


def _chat_flags(serving: Serving) -> Sequence[str]:
    """Return the vLLM flags that choose the parsers of reasoning and tool calls."""
    flags: list[str] = []
    if serving.reasoning_parser != NO_PARSER:
        flags += ["--reasoning-parser", serving.reasoning_parser]
    if serving.tool_call_parser != NO_PARSER:
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", serving.tool_call_parser]
    return flags


def environment(home: EngineHome, serving: Serving, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of vLLM. The caller's variables override it, except for the
    key and Tollgate's own secrets.

    Raises: UsageError: the key file cannot be read or is empty.
    """
    defaults = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
    model = model_path(home, serving.model)
    if serving.device == "cpu":
        defaults["VLLM_CPU_KVCACHE_SPACE"] = str(CPU_KV_CACHE_GIB)
        is_shipped = model is not None and model.parent == homes.SHIPPED_MODELS
        if is_shipped and not serving.has_ranks:
            defaults |= CALM_ON_CPU
    if serving.has_ranks:
        # Ranks talk without a password, by default at an address that other machines reach.
        defaults["VLLM_HOST_IP"] = "127.0.0.1"
    if model:
        defaults |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    # The key travels in the environment: every user of the machine can read a command line.
    key = {"VLLM_API_KEY": read_key(serving.api_key_file)} if serving.api_key_file else {}
    passed_on = {
        name: value for name, value in inherited.items() if not name.startswith("TOLLGATE_")
    }
    return {**defaults, **passed_on, **key}


def read_key(path: Path) -> str:
    """Return the API key in a file, without white space around it. Raises `UsageError` if it is
    unreadable or empty.
    """
    try:
        key = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(
            f"Cannot read the key file {path}: {error.strerror}. Check --api-key-file."
        ) from error
    if not key:
        raise UsageError(
            f"The key file {path} is empty. Write the key into it, or leave out --api-key-file."
        )
    return key
