"""The clients that are commands: how each is configured, called and read. The guide
`docs/guides/clients.md` shows the same settings.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx2

from tests.clients import install, raw_requests
from tests.clients.matrix import Call
from tests.clients.sessions import COMMAND_PROMPT, PROMPTS, Answer, Session, Target, run
from tests.clients.wording import COMMAND, TEXT, Dialect

PRINTED = COMMAND.split(" ")[1]  # by the command that the backend asks for


@dataclass(slots=True)
class CommandLine(Session):
    """A client that is started anew for each call."""

    target: Target

    @property
    def model(self) -> str:
        """Return the model that the client asks for."""
        return self.target.cell.route

    def prompt(self, call: Call) -> str:
        """Return the text that the user would type."""
        return COMMAND_PROMPT if call is Call.TOOLS else PROMPTS[call]


@dataclass(slots=True)
class JsonLines(CommandLine):
    """A command that prints its events as lines of JSON."""

    def call(self, call: Call) -> Answer:
        """Run the command and read its events."""
        command, variables = self.command(call)
        done = run(command, self.target, variables)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0:
            words = f"{done.stderr[-800:]} {json.dumps(events[-2:])[-1200:]}"
            return Answer(failure=f"exit code {done.returncode}: {words}")
        return self.answer(events)

    @abstractmethod
    def command(self, call: Call) -> tuple[list[str], dict[str, str]]:
        """Return the command for a call, and its environment."""

    @abstractmethod
    def answer(self, events: list[dict[str, Any]]) -> Answer:
        """Return the answer that the printed events show."""


class Codex(JsonLines):
    """OpenAI's Codex CLI; it speaks responses alone."""

    def command(self, call: Call) -> tuple[list[str], dict[str, str]]:
        """Return `codex exec` with a model provider on the command line."""
        address = f'"{self.target.base}/v1"'
        provider = (
            f'{{name="Tollgate",base_url={address},env_key="TOLLGATE_KEY",wire_api="responses"}}'
        )
        settings = {
            "model": f'"{self.model}"',
            "model_provider": '"tollgate"',
            "model_providers.tollgate": provider,
        }
        command = [str(install.node_command("codex")), "exec", "--json"]
        command += ["--skip-git-repo-check", "--sandbox", "read-only"]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return [*command, self.prompt(call)], {"TOLLGATE_KEY": self.target.key}

    def answer(self, events: list[dict[str, Any]]) -> Answer:
        """Read the finished items and the turn's usage."""
        items = [event["item"] for event in events if event["type"] == "item.completed"]
        said = [item["text"] for item in items if item["type"] == "agent_message"]
        ran = [item["aggregated_output"] for item in items if item["type"] == "command_execution"]
        used = [event["usage"] for event in events if event["type"] == "turn.completed"]
        return Answer(
            text=said[-1] if said else "",
            tools=tuple(("command", output.strip()) for output in ran),
            output_tokens=used[-1]["output_tokens"],
        )


class ClaudeCode(JsonLines):
    """Anthropic's Claude Code."""

    def command(self, call: Call) -> tuple[list[str], dict[str, str]]:
        """Return `claude -p` with the gateway as its API."""
        command = [str(install.node_command("claude")), "-p", self.prompt(call)]
        command += ["--model", self.model, "--allowedTools", "Bash"]
        return [*command, "--output-format", "stream-json", "--verbose"], {
            "ANTHROPIC_BASE_URL": self.target.base,
            "ANTHROPIC_AUTH_TOKEN": self.target.key,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def answer(self, events: list[dict[str, Any]]) -> Answer:
        """Read the result and the results of the tools."""
        last = events[-1]
        if last.get("is_error"):
            return Answer(failure=str(last.get("result")))
        blocks = [
            block
            for event in events
            if event["type"] == "user"
            for block in event["message"]["content"]
            if block["type"] == "tool_result"
        ]
        return Answer(
            text=last["result"],
            tools=tuple(("command", str(block["content"]).strip()) for block in blocks),
            output_tokens=last["usage"]["output_tokens"],
        )


class OpenCode(JsonLines):
    """opencode, through the AI SDK's package for OpenAI-compatible servers."""

    def command(self, call: Call) -> tuple[list[str], dict[str, str]]:
        """Return `opencode run` with a configuration file that names the gateway."""
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Tollgate",
            "options": {"baseURL": f"{self.target.base}/v1", "apiKey": "{env:TOLLGATE_KEY}"},
            "models": {self.model: {"name": self.model}},
        }
        config = self.target.folder / "opencode.json"
        named = f"tollgate/{self.model}"
        config.write_text(
            json.dumps(
                {
                    "model": named,
                    "small_model": named,
                    "provider": {"tollgate": provider},
                    "permission": {"bash": "allow"},
                    "autoupdate": False,
                    "share": "disabled",
                }
            )
        )
        command = [str(install.node_command("opencode")), "run", "--format", "json"]
        return [*command, self.prompt(call)], {
            "OPENCODE_CONFIG": str(config),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "TOLLGATE_KEY": self.target.key,
        }

    def answer(self, events: list[dict[str, Any]]) -> Answer:
        """Read the parts of the answer. Its token counts leave out the reasoning."""
        parts = [event.get("part", {}) for event in events]
        failed = [event for event in events if event["type"] == "error"]
        if failed:
            return Answer(failure=json.dumps(failed[0])[:1500])
        ran = [part["state"].get("output", "") for part in parts if part.get("type") == "tool"]
        tokens = [part["tokens"] for part in parts if part.get("type") == "step-finish"]
        return Answer(
            text="".join(part["text"] for part in parts if part.get("type") == "text"),
            tools=tuple(("command", output.strip()) for output in ran),
            output_tokens=tokens[-1]["output"] + tokens[-1]["reasoning"] if tokens else None,
        )


class Aider(CommandLine):
    """aider, which calls through litellm."""

    def call(self, call: Call) -> Answer:
        """Run one message."""
        command = [str(install.home() / "python" / "aider" / "bin" / "aider")]
        command += ["--model", f"openai/{self.model}"]
        command += ["--openai-api-base", f"{self.target.base}/v1"]
        command += ["--openai-api-key", self.target.key, "--no-git", "--yes-always"]
        command += ["--no-check-update", "--analytics-disable", "--no-show-model-warnings"]
        command += ["--stream" if call is Call.STREAM else "--no-stream", "--no-pretty"]
        command += ["--message", self.prompt(call)]
        done = run(command, self.target, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})
        if done.returncode != 0 or TEXT not in done.stdout:
            return Answer(failure=f"exit code {done.returncode}: {done.stdout[-1500:]}")
        return Answer(text=done.stdout)


class Curl(CommandLine):
    """curl."""

    def call(self, call: Call) -> Answer:
        """Send one request, and for a tool's result another one."""
        dialect = self.target.cell.caller
        asked = raw_requests.body(dialect, call, model=self.model)
        printed = self._send(asked)
        if call is Call.STREAM and not printed.startswith("{"):
            return raw_requests.streamed_answer(dialect, printed.splitlines())
        made = json.loads(printed)
        if call is not Call.TOOLS or made.get("error"):
            return raw_requests.plain_answer(dialect, made)
        tools = raw_requests.tools_in(dialect, made)
        made = json.loads(self._send(raw_requests.with_results(dialect, asked, made)))
        return raw_requests.plain_answer(dialect, made, tools=tools)

    def _send(self, asked: dict[str, Any]) -> str:
        dialect, key = self.target.cell.caller, self.target.key
        headers = ["content-type: application/json", f"authorization: Bearer {key}"]
        if dialect is Dialect.MESSAGES:
            headers[1:] = [f"x-api-key: {key}", "anthropic-version: 2023-06-01"]
        command = ["curl", "--silent", "--show-error", "--no-buffer"]
        for header in headers:
            command += ["--header", header]
        body = self.target.folder / "body.json"
        body.write_text(json.dumps(asked))
        address = f"{self.target.base}{raw_requests.path_of(dialect)}"
        done = run([*command, "--data", f"@{body}", address], self.target, {})
        assert done.returncode == 0, done.stderr
        return done.stdout


class OpenWebUi(CommandLine):
    """The requests of Open WebUI's backend with its headers, as its source shows them.

    The version is in `install.SHOWN_VERSIONS`, the source in `routers/openai.py`,
    `routers/tasks.py` and `utils/headers.py`.

    A chat lists the models, then asks for a title as its tasks do (no stream); a stream and tools
    are a user's message. It forwards the user in headers, as with its user forwarding on.
    """

    headers: ClassVar[dict[str, str]] = {
        "User-Agent": "Python/3.11 aiohttp/3.14.3",
        "Accept": "*/*",
        "X-OpenWebUI-User-Name": "Ada Lovelace",
        "X-OpenWebUI-User-Id": "8c5e0a57-2f0c-4c6f-9e0e-0a5f0f3a1b11",
        "X-OpenWebUI-User-Email": "ada@example.com",
        "X-OpenWebUI-User-Role": "user",
        "X-OpenWebUI-Chat-Id": "2b7c51f6-7df4-4d29-8f7b-0b2d7a9e6a10",
    }

    def call(self, call: Call) -> Answer:
        """Replay the requests of one call."""
        dialect = self.target.cell.caller
        headers = {**self.headers, "Authorization": f"Bearer {self.target.key}"}
        path = raw_requests.path_of(dialect)
        with httpx2.Client(base_url=self.target.base, headers=headers, timeout=60) as http:
            if call is Call.CHAT:
                listed = http.get("/v1/models").json()["data"]
                assert self.model in [model["id"] for model in listed], listed
            asked = self._body(dialect, call)
            answered = http.post(path, json=asked)
            if not asked["stream"] or answered.status_code != 200:
                return raw_requests.plain_answer(dialect, answered.json())
            if call is Call.STREAM:
                return raw_requests.streamed_answer(dialect, answered.text.splitlines())
            made = _joined(dialect, answered.text.splitlines())
            tools = raw_requests.tools_in(dialect, made)
            asked = {**raw_requests.with_results(dialect, asked, made), "stream": False}
            asked.pop("stream_options", None)
            return raw_requests.plain_answer(
                dialect, http.post(path, json=asked).json(), tools=tools
            )

    def _body(self, dialect: Dialect, call: Call) -> dict[str, Any]:
        """Return the body; responses get each text as a part, and no `stream_options`."""
        asked = {
            "stream": call is not Call.CHAT,
            **raw_requests.body(dialect, call, model=self.model),
        }
        if dialect is Dialect.RESPONSES:
            part = {"type": "input_text", "text": PROMPTS[call]}
            asked["input"] = [{"type": "message", "role": "user", "content": [part]}]
        elif asked["stream"]:
            asked["stream_options"] = {"include_usage": True}
        else:
            asked["max_tokens"] = 1000
        return asked


def _joined(dialect: Dialect, lines: list[str]) -> dict[str, Any]:
    """Return a streamed answer as a whole one, with the pieces of a tool's arguments joined."""
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    if dialect is Dialect.RESPONSES:
        made: dict[str, Any] = events[-1]["response"]
        return made
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            for piece in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(piece["index"], {**piece, "function": {"arguments": ""}})
                function = call["function"]
                function["name"] = function.get("name") or piece["function"].get("name")
                function["arguments"] += piece["function"].get("arguments") or ""
    message = {"role": "assistant", "content": "", "tool_calls": list(calls.values())}
    return {"choices": [{"message": message}]}


COMMAND_LINES: dict[str, type[CommandLine]] = {
    "codex": Codex,
    "claude-code": ClaudeCode,
    "opencode": OpenCode,
    "aider": Aider,
    "curl": Curl,
    "open-webui": OpenWebUi,
}
