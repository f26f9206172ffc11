"""Plans and runs `python -m engine serve --cluster`: checks the profile, builds Ray's
configuration, supervises the program that deploys it, and prints the deployment block once an
engine answers.
"""

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine import home as homes
from engine import supervisor, vllm_command
from engine.cluster import ray_config, ray_packages
from engine.errors import UsageError
from engine.serving import checks
from engine.serving.deployment_block import dialable_url
from engine.serving.hardware import hardware_here
from engine.serving.parsers import parser_refusals
from engine.serving.readiness import probe_of
from engine.serving.serve import ServeSettings, StartPlan, print_block, settings_of

WHY_CLOSED = (
    "Ray listens on all addresses of a machine, without a password, and runs whatever it is sent. "
    "Start it only on a network that nothing else can reach, and say so with --closed-network "
    "(docs/guides/many-machines.md)."
)
OPERATIONS = ("chat", "completions")
"""The operations of Ray Serve LLM besides embeddings; it lacks `/v1/responses` and `/v1/messages`
(ray/llm/_internal/serve/core/ingress/ingress.py, Ray 2.60.0).
"""
GRACE_S = 3.0 * vllm_command.SHUTDOWN_TIMEOUT_S
"""Ray drains the ingress first and the engines after it, each within vLLM's own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan(StartPlan):
    """The plan of one application, with its settings and Ray's configuration."""

    settings: ServeSettings
    config: dict[str, Any]

    def more(self) -> dict[str, Any]:
        """Return what `--dry-run` shows besides: Ray's configuration."""
        return {"ray_serve": self.config}


def serve_on_cluster(options: argparse.Namespace) -> int:
    """Deploy a model on the running Ray cluster until an end is requested; return the exit code.
    With `--dry-run`, print the plan and start nothing.

    Raises: UsageError: `--closed-network` is missing, or Ray is not installed. EngineError: the
        profile or an option cannot be honoured.
    """
    if not (options.dry_run or options.closed_network):
        raise UsageError(f"Nothing was started. {WHY_CLOSED}")
    home = homes.engine_home(os.environ)
    plan = cluster_plan(home, options, os.environ)
    if options.dry_run:
        return plan.dry_run(options.format)
    plan.require_possible("The profile cannot be served on a cluster")
    if not ray_packages.has_ray(home):
        raise UsageError(
            f"There is no Ray in {home.venv}. Add it on each machine with: python -m engine setup "
            "--cluster"
        )
    return supervisor.run(_supervised(plan, options))


def cluster_plan(
    home: homes.EngineHome, options: argparse.Namespace, variables: Mapping[str, str]
) -> ClusterPlan:
    """Return the plan of one application, with every reason against it. Raises `UsageError`, or
    `EngineError` if a file cannot be read.

    Every machine of the cluster is taken to be like this one.
    """
    settings = settings_of(home, options, variables)
    serving = settings.serving
    refused = checks.refusals(
        ray_config.single_machine_part(settings.profile, settings.device),
        hardware_here(settings.device),
        settings.facts,
        draft=settings.draft,
        installed=settings.installed,
    )
    defaults = vllm_command.environment(home, replace(serving, has_ranks=False), {})
    folder = vllm_command.model_path(home, serving.model)
    config = {
        "address": variables.get("RAY_ADDRESS") or "auto",
        "host": serving.host,
        "port": serving.port,
        "app": ray_config.ray_config(
            settings.profile,
            serving,
            source=str(folder) if folder else serving.model,
            variables=ray_config.engine_variables(defaults, variables),
            model=settings.facts,
            draft=settings.draft,
        ),
    }
    program = homes.PACKAGE / "inside" / "ray_serve.py"
    return ClusterPlan(
        name=options.profile,
        settings=settings,
        config=config,
        argv=[str(home.python), str(program), json.dumps(config)],
        refused=(
            *settings.refused,
            *ray_config.refused_options(options, variables),
            *checks.parallel_refusals(settings.profile, settings.facts),
            *refused,
            *parser_refusals(settings.profile, ()),
        ),
    )


def _supervised(plan: ClusterPlan, options: argparse.Namespace) -> supervisor.SupervisedProgram:
    """Return the program that the supervisor runs, with its probe."""
    serving, facts = plan.settings.serving, plan.settings.facts
    probe = probe_of(dialable_url(serving.host, serving.port), model=serving.served_model_name)
    length = plan.settings.profile.max_model_len
    passed_on = {
        name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")
    }
    return supervisor.SupervisedProgram(
        argv=plan.argv,
        environment={**passed_on, "RAY_USAGE_STATS_ENABLED": "0"},
        grace_s=GRACE_S,
        is_bound_to_parent=not options.outlive_parent,
        failure=probe.failure,
        on_ready=lambda: print_block(
            serving,
            probe,
            options.region,
            native=OPERATIONS,
            context_tokens=length if isinstance(length, int) else facts.context_tokens,
        ),
        must_start=options.must_start,
    )
