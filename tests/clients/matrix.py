"""The matrix: which client calls which dialect of which backend, under a residency rule or without.

A cell whose feature the gateway does not have yet is skipped with the feature's name, and runs as
soon as the gateway has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tests.clients.wording import Dialect

CHAT, RESPONSES, MESSAGES = Dialect.CHAT, Dialect.RESPONSES, Dialect.MESSAGES


class Call(StrEnum):
    """One call that a client makes."""

    CHAT = "chat"
    STREAM = "stream"
    TOOLS = "tools"


EVERY_CALL = tuple(Call)


class Treatment(StrEnum):
    """How the deployments of a cell's route treat a request that the backend cannot take whole."""

    PLAIN = "plain"
    DROP = "untranslatable: drop"
    HOSTED = "allows: [hosted_tools]"
    REFUSED = "neither"  # the request is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client and what it can do.

    `environment` is its requirements file or `node`; `package` names its version there. `driver` is
    the program that drives a library; without one the client is a command of `command_lines`.
    """

    name: str
    title: str
    dialects: tuple[Dialect, ...]
    environment: str | None = None
    package: str | None = None
    driver: str | None = None
    calls: tuple[Call, ...] = EVERY_CALL
    always_streams: bool = False
    has_hosted_tools: bool = False
    needs_drop: bool = False  # it always sends fields that only its own dialect has


CLIENTS = (
    Client(
        name="openai-python",
        title="openai-python",
        dialects=(CHAT, RESPONSES),
        environment="openai",
        package="openai",
        driver="openai_python.py",
    ),
    Client(
        name="openai-node",
        title="openai-node",
        dialects=(CHAT, RESPONSES),
        environment="node",
        package="openai",
        driver="openai_node.mjs",
    ),
    Client(
        name="anthropic-python",
        title="anthropic-python",
        dialects=(MESSAGES,),
        environment="anthropic",
        package="anthropic",
        driver="anthropic_python.py",
    ),
    Client(
        name="anthropic-typescript",
        title="anthropic-typescript",
        dialects=(MESSAGES,),
        environment="node",
        package="@anthropic-ai/sdk",
        driver="anthropic_typescript.mjs",
    ),
    Client(
        name="litellm",
        title="litellm's library",
        dialects=(CHAT, MESSAGES),
        environment="litellm",
        package="litellm",
        driver="litellm_sdk.py",
    ),
    Client(
        name="ai-sdk",
        title="Vercel AI SDK",
        dialects=(CHAT, RESPONSES, MESSAGES),
        environment="node",
        package="ai",
        driver="ai_sdk.mjs",
    ),
    Client(
        name="langchain-openai",
        title="langchain-openai",
        dialects=(CHAT, RESPONSES),
        environment="langchain-openai",
        package="langchain-openai",
        driver="langchain_for_openai.py",
    ),
    Client(
        name="langchain-anthropic",
        title="langchain-anthropic",
        dialects=(MESSAGES,),
        environment="langchain-anthropic",
        package="langchain-anthropic",
        driver="langchain_for_anthropic.py",
    ),
    Client(
        name="pydantic-ai",
        title="pydantic-ai",
        dialects=(CHAT, RESPONSES, MESSAGES),
        environment="pydantic-ai",
        package="pydantic-ai-slim",
        driver="pydantic_ai_agent.py",
    ),
    Client(
        name="llama-index",
        title="LlamaIndex (openai-like)",
        dialects=(CHAT,),
        environment="llama-index",
        package="llama-index-llms-openai-like",
        driver="llama_index_llm.py",
    ),
    Client(
        name="aider",
        title="aider",
        dialects=(CHAT,),
        environment="aider",
        package="aider-chat",
        calls=(Call.CHAT, Call.STREAM),  # it edits files by words in the answer
    ),
    Client(
        name="codex",
        title="Codex CLI",
        dialects=(RESPONSES,),
        environment="node",
        package="@openai/codex",
        calls=(Call.STREAM, Call.TOOLS),
        always_streams=True,
        has_hosted_tools=True,
    ),
    Client(
        name="claude-code",
        title="Claude Code",
        dialects=(MESSAGES,),
        environment="node",
        package="@anthropic-ai/claude-code",
        calls=(Call.STREAM, Call.TOOLS),
        always_streams=True,
        needs_drop=True,
    ),
    Client(
        name="opencode",
        title="opencode",
        dialects=(CHAT,),
        environment="node",
        package="opencode-ai",
        calls=(Call.STREAM, Call.TOOLS),
        always_streams=True,
    ),
    Client(name="open-webui", title="Open WebUI's API calls", dialects=(CHAT, RESPONSES)),
    Client(name="curl", title="curl", dialects=(CHAT, RESPONSES, MESSAGES)),
)
# The backends of each caller's dialect: its own, and one of another dialect.
BACKENDS: dict[Dialect, tuple[Dialect, ...]] = {
    CHAT: (CHAT, MESSAGES),
    RESPONSES: (RESPONSES, CHAT),
    MESSAGES: (MESSAGES, CHAT),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One client with one caller's dialect at one backend, under a residency rule or without."""

    client: Client
    caller: Dialect
    backend: Dialect
    is_ruled: bool
    treatment: Treatment = Treatment.PLAIN

    @property
    def route(self) -> str:
        """Return the route that the client asks for. One that is refused for its hosted tools asks
        for backends of both dialects.
        """
        if self.treatment is Treatment.REFUSED and self.client.has_hosted_tools:
            return "either"
        return route_of(self.backend, self.treatment)

    @property
    def remedies(self) -> tuple[str, ...]:
        """Return the words of a policy that a refusal has to name."""
        own = ("hosted_tools",) if self.client.has_hosted_tools else ()
        return (*own, Treatment.DROP.value)

    @property
    def team(self) -> str:
        """Return the team whose key the client has."""
        return "ruled" if self.is_ruled else "open"

    @property
    def place(self) -> str:
        """Return the region in which the request has to be processed: the route's first, unless a
        rule denies it.
        """
        return "eu-de" if self.is_ruled else "us-east"

    def __str__(self) -> str:
        parts = [self.client.name, f"{self.caller}-to-{self.backend}", self.team]
        return "-".join([*parts, self.treatment.name.lower()])


def route_of(backend: Dialect, treatment: Treatment) -> str:
    """Return the name of the route to a backend whose deployments have this treatment."""
    marks = {Treatment.DROP: "-drop", Treatment.HOSTED: "-hosted"}
    return f"{backend}{marks.get(treatment, '')}"


def cells() -> Iterator[Cell]:
    """Yield every cell."""
    for client in CLIENTS:
        for caller in client.dialects:
            for backend in BACKENDS[caller]:
                for is_ruled in (False, True):
                    yield from _treated(client, caller, backend, is_ruled=is_ruled)


def _treated(
    client: Client, caller: Dialect, backend: Dialect, *, is_ruled: bool
) -> Iterator[Cell]:
    """Yield the cells of one client at one backend.

    A client that always sends hosted tools, or fields of its own dialect alone, needs deployments
    that allow or drop them, and is refused by others.
    """
    treatments = [Treatment.PLAIN]
    if client.has_hosted_tools:
        treatments = [Treatment.HOSTED if backend is caller else Treatment.DROP]
        if backend is caller:
            treatments.append(Treatment.REFUSED)
    elif client.needs_drop and backend is not caller:
        treatments = [Treatment.DROP, Treatment.REFUSED]
    for treatment in treatments:
        yield Cell(
            client=client,
            caller=caller,
            backend=backend,
            is_ruled=is_ruled,
            treatment=treatment,
        )
