"""Declares `python -m engine plan` with its options, and prints the plan."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.arguments.numbers import positive, whole
from engine.errors import EngineError, UsageError
from engine.plan import text
from engine.plan.architecture import count
from engine.plan.config import nearest, read_config
from engine.plan.demand import Demand, read_demand
from engine.plan.gpus import gpu_named
from engine.plan.layout import Served
from engine.plan.ledger import demand_of_ledger
from engine.plan.memory import KV_BYTES, QUANTIZATIONS
from engine.plan.picture import picture
from engine.plan.report import PlanSettings, plan

DEFAULT_CONTEXT = 8192
DEFAULT_PROMPT, DEFAULT_ANSWER = 1024, 256
DEFAULT_BOTH = DEFAULT_PROMPT + DEFAULT_ANSWER
FEWEST_MONTHS, MOST_MONTHS = 12, 18
DESCRIPTION = """\
Say what fits on which GPU, how fast it will be and what a million tokens will cost: arithmetic on
the model's config and the GPUs' data sheets. Needs no GPU, no torch and no network.
"""
EXAMPLES = """\
examples:
  python -m engine plan --model Llama-3.1-8B --gpu L40S,H100
  python -m engine plan --model Llama-3.3-70B --gpu H100 --gpus 2 --quantization fp8 --kv-cache fp8
  python -m engine plan --model /models/mine --gpu H200 --prompt 2000 --answer 400 --batch 64
  python -m engine plan --model Qwen3-32B --gpu H200 --demand demand.yaml --months 18
  python -m engine plan --model Qwen3-32B --gpu H200 --from-ledger 30d
  python -m engine plan --list gpus

A row is one batch size: the sequences that run at once. Up to 8 GPUs are one tensor-parallel group
(TP); beyond, the nodes are copies (DP) or, if one node is too small, pipeline stages (PP). Without
--gpus the smallest group that fits is taken. The column sequences says how many fit that are as
long as --context; a batch has requests of --prompt and --answer tokens, so it may be larger. Levers
and months are for the first GPU of --gpu that fits. USD are the middle of the GPU's price range
unless --gpu-usd-per-hour is given.

The demand file, in YAML or JSON (- reads standard input; `tollgate report demand` prints one):
  requests_per_day: 200000
  prompt_tokens: {p50: 900, p95: 4000}
  output_tokens: {p50: 200, p95: 700}
  cached_share: 0.3          # of the prompt's tokens
  growth_per_month: 0.1
  peak_to_mean: 3
  start: 2027-01
  slo: {ttft_ms: 1000, tpot_ms: 50}

Exit codes: 0 success, 1 it does not fit or cannot be counted, 2 bad usage, 3 no answer of the hub.
"""


def add_plan(command: argparse.ArgumentParser) -> None:
    """Add the options of `plan` to its parser."""
    command.description = DESCRIPTION
    command.epilog = EXAMPLES
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    add = command.add_argument
    add("--model", metavar="DIR|NAME", help="a folder with config.json, or a shipped model")
    add("--gpu", metavar="NAME[,NAME]", help="see --list gpus")
    add("--gpus", type=whole, metavar="N", help="GPUs of all copies; default: as few as fit")
    add("--quantization", metavar="|".join(QUANTIZATIONS), help="default: the config's own")
    add("--kv-cache", choices=tuple(KV_BYTES), default="auto", help="auto: 16 bits")
    add(
        "--context",
        type=whole,
        metavar="N",
        help=f"tokens of a sequence; {DEFAULT_CONTEXT}",
    )
    add("--prompt", type=whole, metavar="N", help=f"tokens; {DEFAULT_PROMPT}, or as many as fit")
    add("--answer", type=whole, metavar="N", help=f"tokens; {DEFAULT_ANSWER}, or as many as fit")
    add("--batch", type=whole, metavar="N", help="sequences at once; default: several sizes")
    add("--gpu-usd-per-hour", type=positive, metavar="X", help="of one GPU")
    add("--utilisation", type=_share, default=1.0, metavar="U", help="0 to 1; default 1")
    add("--demand", metavar="FILE", help="size replicas and GPUs for months")
    add("--from-ledger", metavar="30d", help="take the demand of the ledger's last days")
    add("--months", type=_months, default=FEWEST_MONTHS, metavar="12..18", help="default 12")
    add("--download", action="store_true", help="read a model's config.json from the hub")
    add("--list", choices=("gpus", "models"), dest="listed", help="the shipped table")
    add("--format", choices=("table", "json", "csv"), default="table", help="default: table")
    add("--picture", type=Path, metavar="FILE.svg", help="draw output against time per token")


def run_plan(options: argparse.Namespace) -> int:
    """Print a plan or a list; return 0. Raises `EngineError` and its subclasses."""
    if options.listed:
        rows = text.gpu_rows() if options.listed == "gpus" else text.model_rows()
        print(_listed(rows, options.format))
        return 0
    document = plan(_settings(options))
    if options.picture:
        try:
            options.picture.write_text(picture(document), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{options.picture} cannot be written: {error.strerror}.") from error
    shown: dict[str, Callable[[dict[str, Any]], str]] = {
        "json": lambda one: json.dumps(one, indent=2),
        "csv": text.as_csv,
        "table": lambda one: text.as_text(one, usd_per_hour=options.gpu_usd_per_hour),
    }
    print(shown[options.format](document))
    if not any(row["fits"] for row in document["rows"]):
        reasons = " ".join(row["reason"] for row in document["rows"])
        raise EngineError(f"Nothing fits. {reasons}")
    return 0


def _settings(options: argparse.Namespace) -> PlanSettings:
    """Return the checked choices. Raises `UsageError` for bad ones, `EngineError` for the model."""
    if options.from_ledger and options.demand:
        raise UsageError("Give --demand or --from-ledger, not both.")
    if not options.model or not options.gpu:
        raise UsageError("plan needs --model and --gpu; see: python -m engine plan --help")
    gpus = [gpu_named(name) for name in options.gpu.split(",")]
    quantization = None if options.quantization is None else options.quantization.lower()
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise UsageError(
            f"Unknown quantization {options.quantization!r}."
            f"{nearest(quantization, QUANTIZATIONS)} Known: {', '.join(QUANTIZATIONS)}."
        )
    demand = None
    if options.demand:
        demand = read_demand(options.demand)
    elif options.from_ledger:
        demand = demand_of_ledger(options.from_ledger)
    config = read_config(options.model, may_download=options.download)
    if quantization:
        fields = {**config.fields, "quantization_config": None}
        config = type(config)(name=config.name, source=config.source, fields=fields)
    model = count(config)
    prompt, answer = _lengths(options, demand, longest=options.context or model.max_context)
    context, longest = options.context, 0
    if context is None:
        longest = demand.prompt_p95 + demand.answer_p95 if demand else 0
        context = max(min(DEFAULT_CONTEXT, model.max_context), prompt + answer, longest)
    for name, tokens in (
        ("prompt and answer", prompt + answer),
        ("prompt and answer at the p95 of the demand", longest),
        ("context", context),
    ):
        if tokens > model.max_context:
            raise EngineError(
                f"A {name} of {tokens} tokens is beyond the {model.max_context} of {model.name}"
                " (max_position_embeddings)."
            )
    if prompt + answer > context:
        raise UsageError(
            f"--prompt {prompt} and --answer {answer} are longer than --context {context}."
        )
    return PlanSettings(
        served=Served(
            model=model,
            quantization=quantization or model.own_format,
            kv_cache=options.kv_cache,
            context=context,
        ),
        gpus=gpus,
        gpus_count=options.gpus,
        prompt=prompt,
        answer=answer,
        batch=options.batch,
        usd_per_hour=options.gpu_usd_per_hour,
        utilisation=options.utilisation,
        demand=demand,
        months=options.months,
    )


def _lengths(
    options: argparse.Namespace, demand: Demand | None, *, longest: int
) -> tuple[int, int]:
    """Return the tokens of prompt and answer: those given, else the demand's, else the default ones
    or as much of them as fits into `longest`.
    """
    prompt = options.prompt or (demand.prompt_p50 if demand else None)
    answer = options.answer or (demand.answer_p50 if demand else None)
    if answer is None:
        room = longest - prompt if prompt else longest * DEFAULT_ANSWER // DEFAULT_BOTH
        answer = max(1, min(DEFAULT_ANSWER, room))
    if prompt is None:
        prompt = max(1, min(DEFAULT_PROMPT, longest - answer))
    return prompt, answer


def _listed(rows: list[dict[str, Any]], shape: str) -> str:
    """Return a shipped table in the asked format."""
    if shape == "json":
        return json.dumps(rows, indent=2)
    heads = list(rows[0])
    cells = [["-" if row[head] is None else _cell(row[head]) for head in heads] for row in rows]
    if shape == "csv":
        return text.csv_of(heads, rows)
    return text.table(heads, cells)


def _cell(value: object) -> str:
    """Return a value of a list for people: billions as G, trillions as T."""
    if not isinstance(value, int | float) or value < 1000:
        return str(value)
    for size, unit in ((1e12, "T"), (1e9, "G")):
        if value >= size:
            return f"{value / size:,.2f} {unit}"
    return f"{value:,.0f}"


def _share(given: str) -> float:
    """Return a share above 0 and at most 1. Raises `ArgumentTypeError` otherwise."""
    value = positive(given)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{given!r} is above 1")
    return value


def _months(given: str) -> int:
    """Return a number of months from 12 to 18. Raises `ArgumentTypeError` otherwise."""
    value = whole(given)
    if not FEWEST_MONTHS <= value <= MOST_MONTHS:
        raise argparse.ArgumentTypeError(f"{given} is not from {FEWEST_MONTHS} to {MOST_MONTHS}")
    return value
