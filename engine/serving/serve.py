"""Plans and runs `python -m engine serve`: chooses device and model, checks the profile, builds
vLLM's command, supervises it and prints the deployment block once the engine is ready.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from engine import environment, supervisor, vllm_command
from engine import home as homes
from engine.arguments.printable import printable
from engine.cpu import number_format_here
from engine.errors import EngineError, UsageError
from engine.plan.text import csv_of, table
from engine.serving import addresses, checks, flags
from engine.serving.deployment_block import DeploymentFacts, deployment_block, dialable_url
from engine.serving.hardware import hardware_here
from engine.serving.model_config import ModelFacts, model_facts
from engine.serving.parsers import parser_refusals
from engine.serving.profile import Profile, ProfileFile, Refused, read_profile
from engine.serving.readiness import EngineProbe, probe_of

DEFAULT_MODEL = "tiny"
WITHOUT_PROFILE = Profile(
    max_model_len=4096,
    reasoning_parser="qwen3",
    tool_call_parser="hermes",
)
"""The settings of `serve` without `--profile`: those of the shipped model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """What is to be started: its command and the reasons against it."""

    name: str | None
    """The profile's name; None without a profile."""
    argv: list[str]
    refused: tuple[Refused, ...]

    def more(self) -> dict[str, Any]:
        """Return what `--dry-run` shows besides."""
        return {}

    def shown(self, format: str) -> str:
        """Return the output of `--dry-run`: all of it as JSON, the refused keys as CSV, or the
        command and the refused keys as text.
        """
        refused = [
            {"key": item.key, "value": _json_value(item.value), "reason": item.reason}
            for item in self.refused
        ]
        if format == "csv":
            return csv_of(("key", "value", "reason"), refused)
        if format == "table":
            cells = [[printable(str(cell)) for cell in row.values()] for row in refused]
            keys = table(("key", "value", "reason"), cells) if cells else "Nothing is refused."
            return f"profile  {self.name or '-'}\ncommand  {shlex.join(self.argv)}\n\n{keys}"
        shown = {"profile": self.name, "command": self.argv, **self.more(), "refused": refused}
        return json.dumps(shown, indent=2, default=str)

    def dry_run(self, format: str) -> int:
        """Print the plan, and each reason against it on standard error; return the exit code."""
        print(self.shown(format))
        for item in self.refused:
            print(item, file=sys.stderr)
        return 1 if self.refused else 0

    def require_possible(self, problem: str) -> None:
        """Raise `EngineError` with the problem and each reason against the plan, if there is
        one.
        """
        if self.refused:
            lines = "\n".join(map(str, self.refused))
            raise EngineError(f"{problem}; nothing was started.\n{lines}")


def _json_value(value: object) -> object:
    """Return a value of a YAML file as JSON has it: YAML has infinity, and keys of any type."""
    if isinstance(value, dict):
        return {str(key): _json_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json_value(inner) for inner in value]
    is_odd = isinstance(value, float) and not isfinite(value)
    return str(value) if is_odd else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan(StartPlan):
    """The plan of one engine, with its settings."""

    serving: vllm_command.Serving


def serve(options: argparse.Namespace) -> int:
    """Serve a model until an end is requested; return the exit code. With `--dry-run`, print the
    plan and start nothing.

    Raises: UsageError: no engine is installed, or an argument is wrong. EngineError: the profile
        has a key that is unknown or impossible.
    """
    home = homes.engine_home(os.environ)
    plan = plan_of(home, options, os.environ)
    if options.dry_run:
        return plan.dry_run(options.format)
    plan.require_possible("The profile cannot be served")
    if plan.serving.program is None and environment.installed_device(home) is None:
        raise UsageError(
            f"There is no complete engine environment in {home.venv}. Make it with: python -m "
            "engine setup"
        )
    variables = vllm_command.environment(home, plan.serving, os.environ)
    with addresses.held(plan.serving.host, plan.serving.port):
        addresses.require_free(plan.serving.host, plan.serving.port)
        return supervisor.run(
            _supervised(
                plan, variables, options, folder=vllm_command.model_path(home, plan.serving.model)
            )
        )


def plan_of(
    home: homes.EngineHome, options: argparse.Namespace, variables: Mapping[str, str]
) -> ServePlan:
    """Return the plan of one engine, with every reason against it. Raises `UsageError`, or
    `EngineError` if a file cannot be read.
    """
    settings = settings_of(home, options, variables)
    refused = checks.refusals(
        settings.profile,
        hardware_here(settings.device),
        settings.facts,
        draft=settings.draft,
        installed=settings.installed,
    )
    return ServePlan(
        name=options.profile,
        serving=settings.serving,
        argv=vllm_command.command(home, settings.serving),
        refused=(
            *settings.refused,
            *refused,
            *parser_refusals(settings.profile, options.extra),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """The settings of one engine, from the profile and the command line, and the model's facts."""

    profile: Profile
    refused: tuple[Refused, ...]
    """The keys of the profile's file that are unknown or impossible."""
    device: environment.Device
    installed: environment.Device | None
    """The device of the engine's environment; None if there is none to compare with."""
    facts: ModelFacts
    draft: ModelFacts | None
    serving: vllm_command.Serving


def settings_of(
    home: homes.EngineHome, options: argparse.Namespace, variables: Mapping[str, str]
) -> ServeSettings:
    """Return the settings of one engine. Raises `UsageError`, or `EngineError` if a file cannot be
    read.
    """
    given = ProfileFile(name="", profile=WITHOUT_PROFILE, refused=())
    if options.profile is not None:
        given = read_profile(options.profile)
    profile = _with_options(given.profile, options)
    program = vllm_command.program(variables)
    installed = None if program else environment.installed_device(home)
    device = installed or environment.detect_device("auto")
    if profile.device != "auto":
        device = profile.device
    model = options.model or profile.model or DEFAULT_MODEL
    folder = vllm_command.model_path(home, model)
    if folder is not None and folder.parent == homes.SHIPPED_MODELS:
        profile = _with_shipped_parsers(profile)
    facts = _facts(home, model)
    draft = _draft_facts(home, profile)
    serving = _serving(home, profile, options, model=model, device=device, program=program)
    serving = replace(
        serving,
        flags=flags.profile_flags(profile, device, facts, draft),
        number_format=(
            "bfloat16"  # no flag of ours: the profile has one, or the kernels need 16 bits
            if profile.dtype != "auto"
            or checks.quantization_of(profile, facts) in checks.SIXTEEN_BITS
            else number_format_here(variables)
        ),
    )
    return ServeSettings(
        profile=profile,
        refused=given.refused,
        device=device,
        installed=installed,
        facts=facts,
        draft=draft,
        serving=serving,
    )


def _with_options(profile: Profile, options: argparse.Namespace) -> Profile:
    """Return a profile with the command line's own settings, which win."""
    chosen = {
        name: value
        for name in ("device", "max_model_len", "reasoning_parser", "tool_call_parser")
        if (value := getattr(options, name)) is not None
    }
    return replace(profile, **chosen)


def _with_shipped_parsers(profile: Profile) -> Profile:
    """Return a profile with the parsers of the shipped model if it names none: they are known, and
    without them its thinking would be a part of the answer.
    """
    return replace(
        profile,
        reasoning_parser=profile.reasoning_parser or WITHOUT_PROFILE.reasoning_parser,
        tool_call_parser=profile.tool_call_parser or WITHOUT_PROFILE.tool_call_parser,
    )


def _facts(home: homes.EngineHome, model: str) -> ModelFacts:
    """Return the facts of a local model; unknown ones of a model on the hub."""
    folder = vllm_command.model_path(home, model)
    return model_facts(folder) if folder is not None else ModelFacts(is_known=False)


def _draft_facts(home: homes.EngineHome, profile: Profile) -> ModelFacts | None:
    """Return the facts of the model that drafts tokens; None if it is not on this machine."""
    if profile.speculative is None or profile.speculative.model is None:
        return None
    folder = vllm_command.model_path(home, profile.speculative.model)
    return model_facts(folder) if folder is not None else None


def _serving(
    home: homes.EngineHome,
    profile: Profile,
    options: argparse.Namespace,
    *,
    model: str,
    device: environment.Device,
    program: Path | None,
) -> vllm_command.Serving:
    """Return the settings of vLLM that are no flags of the profile. Raises `UsageError` for a name
    that vLLM would read as a flag.
    """
    name = options.served_model_name or vllm_command.default_name(home, model)
    for option, value in (("--model", model), ("--served-model-name", name)):
        if value.startswith("-"):
            raise UsageError(
                f"{option} {value!r} begins with '-', so vLLM would read it as a flag. Give another"
                " name; a folder is found as ./NAME."
            )
    ranks = (
        profile.tensor_parallel_size,
        profile.pipeline_parallel_size,
        profile.data_parallel_size,
    )
    return vllm_command.Serving(
        model=model,
        served_model_name=name,
        host=options.host,
        port=options.port,
        device=device,
        max_model_len_tokens=None,  # one of the profile's flags
        runner=options.runner,
        reasoning_parser=profile.reasoning_parser or vllm_command.NO_PARSER,
        tool_call_parser=profile.tool_call_parser or vllm_command.NO_PARSER,
        api_key_file=options.api_key_file,
        max_queued_requests=profile.max_num_queued_reqs or vllm_command.MAX_QUEUED_REQUESTS[device],
        extra=tuple(options.extra),
        number_format="bfloat16",
        has_ranks=max(ranks) > 1,
        program=program,
    )


def _supervised(
    plan: ServePlan,
    variables: Mapping[str, str],
    options: argparse.Namespace,
    *,
    folder: Path | None,
) -> supervisor.SupervisedProgram:
    """Return the program that the supervisor runs, with its probe. `folder` is the model's; None
    on the hub.
    """
    serving = plan.serving
    url = dialable_url(serving.host, serving.port)
    key = vllm_command.read_key(serving.api_key_file) if serving.api_key_file else None
    probe = probe_of(url, model=serving.served_model_name, key=key)
    return supervisor.SupervisedProgram(
        argv=plan.argv,
        environment=variables,
        grace_s=vllm_command.SHUTDOWN_TIMEOUT_S + 5.0,
        is_bound_to_parent=not options.outlive_parent,
        failure=probe.failure,
        on_ready=lambda: print_block(serving, probe, options.region),
        obstacle=lambda: _obstacle(serving, folder),
        must_start=options.must_start,
    )


def _obstacle(serving: vllm_command.Serving, folder: Path | None) -> str | None:
    """Return why vLLM could not start now, or None.

    While it waited to be started again, another program may have taken its address: that program's
    answers would look like its own. Without its folder, vLLM would look for the model on the hub.
    """
    if (reason := addresses.problem(serving.host, serving.port)) is not None:
        return f"{serving.host}:{serving.port} {reason} by another program"
    if folder is not None and not (folder / "config.json").is_file():
        return f"The model's folder {folder} has no config.json any more"
    return None


def print_block(
    serving: vllm_command.Serving,
    probe: EngineProbe,
    region: str,
    *,
    native: tuple[str, ...] = (),
    context_tokens: int | None = None,
) -> None:
    """Print the deployment block on standard output, the only thing that is printed there.

    `native` are the operations of a server that speaks fewer than vLLM; `context_tokens` are the
    model's if the server does not list them.
    """
    is_pooling = serving.runner == "pooling"
    facts = DeploymentFacts(
        url=probe.url,
        served_model_name=serving.served_model_name,
        region=region,
        context_tokens=probe.context_tokens() or context_tokens,
        api_key_file=serving.api_key_file,
        is_pooling=is_pooling,
        has_tools=serving.tool_call_parser != vllm_command.NO_PARSER,
        has_reasoning=serving.reasoning_parser != vllm_command.NO_PARSER,
        native=native,
    )
    try:
        print(deployment_block(facts), end="", flush=True)
    except OSError as error:  # the reader has gone; the engine stays
        print(f"The deployment block could not be printed: {error}.", file=sys.stderr, flush=True)
