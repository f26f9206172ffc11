"""Runs `tollgate engine calibrate`: `python -m engine calibrate` measures a deployment of the
policy in a child process; with `--apply` the result becomes a dated entry of the price book.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from gateway.cli.child_process import die_with
from gateway.cli.operator import operator_name
from gateway.cli.terminal.output import Format, FormatOption, note, print_json, show_record
from gateway.domain.policy.policy import Deployment
from gateway.domain.policy.price_book import Dated, NewEntry, PriceOrigin
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.selfhost import Calibration, GpuRate, calibrated_price
from gateway.errors import BadUsage, DatabaseUnavailable, NothingFound, OperatorError
from gateway.services.policy.apply import require_current
from gateway.storage.deployments.engine_probes import EngineProbeNotes
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.prices import PriceStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.storage.policy.policies import PolicyStore
    from gateway.storage.postgres.database import Database

RATES = ("input_tok_per_s", "cached_input_tok_per_s", "output_tok_per_s")

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    "calibrate",
    short_help="Measure the engine time of a deployment's tokens.",
    epilog="\b\nExamples:\n  tollgate engine calibrate qwen-eu\n"
    "  tollgate engine calibrate qwen-eu --concurrency 64 --apply --reason 'vLLM 0.33'",
)
def calibrate(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="A self-hosted deployment.")],
    seconds: Annotated[
        int | None, typer.Option("--seconds", min=1, help="About how long to measure; 240.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", min=1, help="Requests at once: the load of the price; 16, at least 4."
        ),
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option("--prompt", min=1, help="Tokens of the longest prompt; 1024, at least 64."),
    ] = None,
    answer: Annotated[
        int | None,
        typer.Option("--answer", min=1, help="Tokens of the longest answer; 128, at least 8."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=1, help="Draw the same load again.")
    ] = None,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="Also measure this machine with torch.")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Price requests by the result from now on.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the history.")] = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Measure the engine time of an input, a cached input and an output token of a deployment.

    It asks the engine directly, with the deployment's key; no gateway needs to run. The load is
    charged to no team. The report goes to standard error. Without --apply nothing is stored. Exit 1
    if the weights miss held-out load by more than 10 % or the residuals bend; then nothing is
    stored either.
    """

    toolbox: Toolbox = ctx.obj
    if apply and not reason.strip():
        raise BadUsage("Give --reason with --apply: the book must explain each entry.")
    with toolbox.open_admin() as database:
        deployment, gpu = _measurable(PolicyStore(database), name)
    key = toolbox.credentials.secret_of(deployment)
    numbers = {
        "seconds": seconds,
        "concurrency": concurrency,
        "prompt": prompt,
        "answer": answer,
        "seed": seed,
    }
    with _noted_load(toolbox, deployment):
        result = _measured(deployment, key, numbers, with_roofline=roofline)
    try:
        if apply and not result["refused"]:
            measured = _calibration(result, deployment, gpu, now=toolbox.now())
            with toolbox.open_admin() as database:
                price = _store(database, deployment, measured, now=toolbox.now(), reason=reason)
            result["price_id"] = price.price_id
    finally:  # minutes of measuring: not lost if Postgres is away by now
        _print(result, format)
    if result["refused"]:
        if apply:
            note("Nothing was applied. The reasons are above.")
        raise typer.Exit(1)


def _measurable(policies: PolicyStore, name: str) -> tuple[Deployment, GpuRate]:
    """Return a deployment that can be calibrated, and its GPU rate.

    Raises: NothingFound: it is unknown. BadUsage: it is no engine of ours, or has no GPU rate.
    """
    deployments = require_current(policies).policy.deployments
    if name not in deployments:
        own = ", ".join(one.name for one in deployments.values() if one.is_self_hosted) or "none"
        raise NothingFound(
            f"There is no deployment '{name[:100]}' in the policy. Self-hosted are: {own}."
        )
    deployment = deployments[name]
    if not deployment.is_self_hosted:
        raise BadUsage(
            f"{name} is not self-hosted: its provider sets the price of a token. For another "
            f"price: tollgate price add --deployment {name} --help"
        )
    if deployment.gpu is None:
        raise BadUsage(
            f"{name} has no GPU price, so engine time has no cost. Add a 'gpu' block to it in the "
            "policy (type, count, usd_per_gpu_hour, target_utilisation and declared throughput), "
            "then: tollgate policy apply FILE"
        )
    return deployment, deployment.gpu


@contextmanager
def _noted_load(toolbox: Toolbox, deployment: Deployment) -> Iterator[None]:
    """Record the load of the block as a probe of unknown tokens. Raises `DatabaseUnavailable`
    before it.

    Unknown attempts are settled from the engine's counters: without this record, a team whose
    attempt was cut at that time would be charged for the load, up to its hold.
    """

    load_id = uuid4()
    with toolbox.open_booking() as database:
        EngineProbeNotes(database).sent(load_id, deployment.name, at=toolbox.now())
    try:
        yield
    finally:
        with suppress(DatabaseUnavailable), toolbox.open_booking() as database:
            EngineProbeNotes(database).ended(load_id, None, at=toolbox.now())


def _measured(
    deployment: Deployment,
    key: str | None,
    numbers: Mapping[str, int | None],
    *,
    with_roofline: bool,
) -> dict[str, Any]:
    """Run the measurement as a child process; return its result. Ends the command with the child's
    exit code if it has none.

    The key goes through standard input: every user of the machine can read a command line.
    """
    argv = [sys.executable, "-P", "-m", "engine", "calibrate", deployment.name]
    argv += ["--url", deployment.base_url, "--model", deployment.model]
    for option, number in numbers.items():
        if number is not None:
            argv += [f"--{option}", str(number)]
    if with_roofline:
        argv.append("--roofline")
    if key is not None:
        argv += ["--api-key-file", "/dev/stdin"]
    done = subprocess.run(
        argv,
        input=(key or "").encode(),
        stdout=subprocess.PIPE,
        check=False,
        preexec_fn=partial(die_with, os.getpid()),  # load without us would go on for minutes
    )
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise typer.Exit(done.returncode or 1)
    try:
        result: dict[str, Any] = json.loads(done.stdout, parse_float=Decimal)
    except ValueError as error:
        raise OperatorError(
            f"The engine's command printed no result ({error}). Run: tollgate engine calibrate "
            "--help"
        ) from error
    return result


def _calibration(
    result: Mapping[str, Any], deployment: Deployment, gpu: GpuRate, *, now: datetime
) -> Calibration:
    """Return the measurement as the price book keeps it."""
    cached = result["cached_input_tok_per_s"]
    return Calibration(
        model=deployment.model,
        gpu_type=gpu.type,
        gpu_count=gpu.count,
        input_tok_per_s=Decimal(result["input_tok_per_s"]),
        cached_input_tok_per_s=None if cached is None else Decimal(cached),
        output_tok_per_s=Decimal(result["output_tok_per_s"]),
        concurrency=result["concurrency"],
        held_out_error=Decimal(result["held_out_error"]),
        measured_on=now.date(),
    )


def _store(
    database: Database,
    deployment: Deployment,
    measured: Calibration,
    *,
    now: datetime,
    reason: str,
) -> Price:
    """Add the calibration to the price book; return the price that it gives.

    Raises: OperatorError: an apply changed the deployment while it was measured.
    """

    current = require_current(PolicyStore(database)).policy.deployments.get(deployment.name)
    if (
        current is None
        or current.gpu is None
        or current.base_url != deployment.base_url
        or not measured.is_of(current.gpu, model=current.model)
    ):
        raise OperatorError(
            f"An apply changed {deployment.name} while it was measured. Nothing was stored. "
            "Calibrate it again."
        )
    price = calibrated_price(current.gpu, measured)
    entry = NewEntry(
        origin=PriceOrigin.CALIBRATED,
        deployment=deployment.name,
        dated=Dated(valid_from=now, price=price),
        calibration=measured,
    )
    prices = PriceStore(database)
    prices.add([entry], author=operator_name(), reason=reason)
    override = prices.book([current]).override(current, at=now)
    if override is None:
        note(f"From now on {deployment.name} is charged by: {price.source}.")
    else:
        note(
            f"{deployment.name} has a price from 'price add' ({override.source}), which wins over "
            f"this one. End it: tollgate price add --deployment {deployment.name} --withdraw"
        )
    return price


def _print(result: Mapping[str, Any], format: Format) -> None:
    """Print the result: all of it as JSON, else one record with the ends of each interval."""
    if format is Format.JSON:
        print_json(result)
        return
    record = {"deployment": result["deployment"]}
    for rate in RATES:
        low, high = result["intervals"][rate] or (None, None)
        record |= {rate: result[rate], f"{rate}_low": low, f"{rate}_high": high}
    shown = ("r_squared", "held_out_error", "flat_price_error", "concurrency", "price_id")
    show_record(record | {name: result[name] for name in shown}, format)
