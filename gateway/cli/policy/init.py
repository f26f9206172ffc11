"""Runs `tollgate policy init`: writes a starter policy with its few decisions explained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.operator import TakesYesOption
from gateway.cli.policy.document import files_text
from gateway.cli.terminal.output import note, write
from gateway.errors import BadUsage

# Valid as it is, without a note: a person changes one decision after the other and validates.
STARTER = """\
# A first policy for Tollgate: who may use which model, in which places, at which price.
# Change it decision by decision, and check it: tollgate policy validate policy.yaml
# Every field: docs/reference/policy.md. For completion in an editor: tollgate policy schema
version: 1

# 1. In which places may each class of data be processed? Countries, `eu` and others are built in;
#    add your own sites. `any` also allows providers that promise no place.
regions: {de: [our-site]}
classes:
  public:       {regions: [any]}
  internal:     {regions: [any]}
  confidential: {regions: [de]}
  restricted:   {regions: [our-site], self_hosted: true}

# 2. Which models are there, and in which place? A deployment is one model at one provider or engine.
#    A self-hosted one is priced by its GPUs, another one by the built-in list or its own `price`.
deployments:
  - name: own-engine
    provider: vllm
    base_url: "http://127.0.0.1:8001/v1"
    model: qwen3-32b
    region: our-site
    gpu: {type: H200, count: 1, usd_per_gpu_hour: 3.10, input_tok_per_s: 40000, output_tok_per_s: 2500, target_utilisation: 0.5}
    context_window: 32768
  - name: openai
    provider: openai
    base_url: "https://api.openai.com/v1"
    api_key: "env:OPENAI_API_KEY"      # the place of the key, never the key itself
    model: gpt-5-mini
    region: global                     # promises no place, so only `any` lets it in
    max_output_tokens: 8192

# 3. Which model names do apps send? A route tries its deployments in order of its objective:
#    priority (as listed), cheapest, fastest, balanced or weighted.
routes:
  - {name: assistant, aliases: ["gpt-4o*"], deployments: [own-engine, openai], objective: cheapest}

# 4. Who calls, and who pays? Give each team the least class of its data, a budget and limits.
teams:
  - name: payments
    cost_centre: CC-1207
    data_class: internal
    routes: [assistant]
    time_zone: UTC                     # its months begin there
    budgets: [{period: month, limit_usd: 500, kind: hard}]       # hard: refused beyond it
    limits: {requests_per_minute: 600, concurrent: 50}

# 5. Which cost centres does finance know? Teams may share one, and its budget.
cost_centres:
  - {name: CC-1207, title: Payments platform, owner: ana@example.com}
"""  # noqa: E501


def init(
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="The new file; - prints it instead.")
    ] = "policy.yaml",
    yes: TakesYesOption = False,
) -> None:
    """Write a starter policy: valid as it is, with the decisions to make explained in comments.

    It never overwrites a file, asks nothing and needs no database.
    """
    if file == "-":
        write(STARTER)
        return
    try:
        with Path(file).open("x", encoding="utf-8", newline="\n") as new:
            new.write(STARTER)
    except FileExistsError:
        raise BadUsage(f"{file} is there already. Name another file for the starter.") from None
    except OSError as broken:
        raise BadUsage(f"{file} cannot be written: {broken.strerror}.") from None
    note(f"Wrote {file}. Next: edit it, then tollgate policy validate {files_text([file])}")
