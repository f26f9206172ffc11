"""Translates requests for a vLLM engine: the OpenAI dialect, with running usage on streams, a
prefix cache kept apart per team, a priority header, and llm-d's headers of team and objective.

Facts (vLLM 0.32): `continuous_usage_stats` puts running usage on every chunk, so that an abandoned
stream can still be billed; `cache_salt` isolates the prefix cache; the engine's key guards only
`/v1`.
"""

from __future__ import annotations

from typing import Any

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment, Priority
from gateway.domain.request.request import Request, RequestBody
from gateway.providers.openai import OpenAI
from gateway.wire.openai.answer.assemble import is_convertible
from gateway.wire.openai.request.read import stream_options
from gateway.wire.vllm_load import ASK_FORMAT, ASK_HEADER

# Lower values run first under `--scheduling-policy priority`; otherwise it changes nothing.
PRIORITY_HEADER = "x-vllm-priority"
PRIORITIES = {Priority.HIGH: "-1", Priority.LOW: "1"}

# An llm-d router before the engines queues fairly between teams of one objective, and counts by
# both. It takes an objective that its pool lacks for priority 0; vLLM ignores the headers.
# (llm-d/llm-d-router v0.9.0, pkg/epp/metadata/consts.go and pkg/epp/requestcontrol/director.go)
FAIRNESS_HEADER = "x-llm-d-inference-fairness-id"
OBJECTIVE_HEADER = "x-llm-d-inference-objective"

# Capabilities that vLLM provides by parsing the model's output.
_PARSED = frozenset({"reasoning", "tools"})


class Vllm(OpenAI):
    """Calls a vLLM engine and reads its answers.

    `assembles_plain`: send plain requests as streams if only the bill can differ.
    """

    def __init__(self, salt_key: bytes, *, assembles_plain: bool = False) -> None:
        """Make the adapter; both arguments are explained at the classes."""
        super().__init__(salt_key)
        self._assembles_plain = assembles_plain

    def add_headers(
        self,
        headers: dict[str, str],
        deployment: Deployment,
        request: Request,
        *,
        is_streamed: bool,
    ) -> None:
        """Add the headers with the team's priority to an engine's request, and the team's name if
        the engine is self-hosted.

        Plain answers also ask for the engine's load; streams do not report it.
        """
        if not is_streamed:
            headers[ASK_HEADER] = ASK_FORMAT
        if request.priority is not Priority.NORMAL:
            headers[PRIORITY_HEADER] = PRIORITIES[request.priority]
            headers[OBJECTIVE_HEADER] = request.priority.value
        if deployment.is_self_hosted:
            headers[FAIRNESS_HEADER] = request.caller.team

    def values(
        self, deployment: Deployment, read: RequestBody, team: str, *, is_assembled: bool
    ) -> dict[str, Any]:
        """Return the body members that OpenAI's dialect sets, and those that ask for a stream to be
        assembled.
        """
        values = super().values(deployment, read, team, is_assembled=is_assembled)
        if is_assembled:
            values["stream"] = True
            values["stream_options"] = stream_options(
                read, include_usage=True, continuous_usage_stats=True
            )
        return values

    def assembles(self, deployment: Deployment, read: RequestBody) -> bool:
        """Return True if a plain request can be sent as a stream that gives exactly the plain
        answer; tests/engine/test_assembled_real.py compares.

        They differ on an engine that parses reasoning or tools out of a chat: a stray end of
        thinking, a tool call that is cut short, and the count of reasoning tokens. A request does
        not show it, so the deployment must declare that it has neither. Completions are never
        parsed.
        """
        if not self._assembles_plain or not is_convertible(read):
            return False
        if deployment.provider_facts.running_usage is None:
            return False  # a stream without running usage bills nothing more than a plain answer
        has_no_parser = (
            deployment.capabilities is not None and not deployment.capabilities & _PARSED
        )
        return read.facts.operation is Operation.COMPLETIONS or has_no_parser
