"""1,100 times U+0F76 are 3,300 bytes, and 6,600 tokens of an engine that reads NFC: five chats
spent USD 33 of a hard budget of USD 20.

The hold was a token for each byte that was sent. It is now the longest form of each character.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.bounded import Bounded, settled_spent
from tests.attacks.permissive_engine import FORMS, Engine, running_engine
from tests.gateway_process import StartGateway

LIMIT_USD = Decimal(20)
LETTER = "\u0f76"  # 3 bytes, 6 in NFC
TEXTS = {
    "compositions that NFC excludes": LETTER * 30,
    "a mark that takes a letter apart": "\u00e9\u0323" * 30,
    "words in one character": "\ufdfa\ufdfb\u3316" * 10,
    "Korean": "\ud55c\uae00\uc744 " * 10,
    "musical symbols": "\U0001d160" * 20,
}
OPERATIONS = "[chat, completions, responses, embeddings, messages, rerank, score]"


def policy(engine: Engine, *, limit_usd: Decimal | int = LIMIT_USD) -> str:
    """Return a policy with a route for each form of text, and a hard budget."""
    kinds = {form.lower(): ("vllm", engine.url("max_tokens", form)) for form in sorted(FORMS)}
    kinds["openai"] = ("openai", engine.url("max_completion_tokens"))
    listed = "\n".join(
        f"  - {{name: {name}, model: m-{name}, region: unknown, provider: {provider}, operations: "
        f"{OPERATIONS if provider == 'vllm' else '[chat]'}, base_url: '{url}', "
        "api_key: 'env:FAKE_KEY', price: {input_usd_per_mtok: 1000, output_usd_per_mtok: 1000}}"
        for name, (provider, url) in kinds.items()
    )
    routes = "\n".join(f"  - {{name: {name}, deployments: [{name}]}}" for name in kinds)
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{listed}
routes:
{routes}
teams:
  - {{name: poor, cost_centre: CC-1, data_class: internal, routes: [{", ".join(kinds)}],
     budgets: [{{period: month, limit_usd: {limit_usd}}}]}}
"""


def test_chats_at_once_do_not_overrun_a_hard_budget(start_gateway: StartGateway) -> None:
    """The sequence of the audit: six chats at once; each costs USD 6.61."""
    with running_engine() as engine:
        gateway = start_gateway(policy(engine))
        on = Bounded(gateway, engine, gateway.key)
        body = chat(LETTER * 1100, route="nfc")
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: on.post("chat/completions", body), range(6)))
        statuses = {answer.status_code for answer in answers}
        assert statuses == {200, 402}, [answer.text for answer in answers]
        assert sum(bill.input_tokens for bill in engine.bills) > 6_600
        assert settled_spent(on, "poor/month") <= LIMIT_USD
        for answer in answers:
            if answer.status_code == 200:
                assert not on.event(answer)["is_suspect"]


@pytest.fixture(scope="module")
def rewriting(launch_gateway: Any, module_database_url: str, tmp_path_factory: Any) -> Any:
    """Yield a gateway before engines that read texts in each of Unicode's forms. It has the
    tokenizer of one of them.
    """
    file: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    file.write_text(json.dumps({"normalizer": {"type": "NFC"}, "model": {}}))
    with running_engine() as engine:
        files = json.dumps({"m-nfc": str(file)})
        rich = policy(engine, limit_usd=10_000)
        for gateway in launch_gateway(rich, module_database_url, tokenizers=files):
            yield Bounded(gateway, engine, gateway.key)


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
def test_no_text_costs_more_than_its_hold(rewriting: Bounded, path: str, form: str) -> None:
    """Each text, as UTF-8 and as escapes, at an engine that reads one of the forms."""
    maximum = "max_output_tokens" if path == "responses" else "max_tokens"
    for text in TEXTS.values():
        member: Any = {
            "completions": {"prompt": text},
            "responses": {"input": text},
        }.get(path, {"messages": [{"role": "user", "content": text}]})
        is_served(rewriting, path, {"model": form.lower(), maximum: 1, **member})


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("path", ["embeddings", "rerank", "score"])
def test_no_text_that_is_read_again_costs_more(rewriting: Bounded, path: str, form: str) -> None:
    """A query counts once for each document: in the longest form each time."""
    for text in TEXTS.values():
        members: dict[str, Any] = {
            "embeddings": {"input": [text, "a"]},
            "rerank": {"query": text, "documents": ["a", "b", text]},
            "score": {"text_1": text, "text_2": ["a", "b", text]},
        }
        is_served(rewriting, path, {"model": form.lower(), **members[path]})


def test_what_counts_more_than_once_grows_as_often(rewriting: Bounded) -> None:
    """Tools are written into the prompt in four times their bytes, and a call is written twice."""
    text = TEXTS["words in one character"]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps(text)}}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": text},
    ]
    tool = {"type": "function", "function": {"name": "f", "description": text, "parameters": {}}}
    for members in ({"tools": [tool]}, {"messages": turns}, {"prediction": {"content": text}}):
        is_served(rewriting, "chat/completions", chat("a", route="nfkc") | members)


def test_a_tokenizer_that_is_known_holds_no_more(rewriting: Bounded) -> None:
    """OpenAI's reads the bytes as they are, and the file of the other one says NFC: Korean holds
    its bytes, and an unknown tokenizer could read three times as much.
    """
    holds = {}
    for route in ("openai", "nfc", "nfkc"):
        body = chat(TEXTS["Korean"], route=route) | {"max_completion_tokens": 1}
        answer = rewriting.post("chat/completions", json.dumps(body, ensure_ascii=False).encode())
        assert answer.status_code == 200, answer.text
        event = rewriting.event(answer)
        holds[route] = event["features"]["input_bound_tokens"] - len(route)
    syllables = 3 * 10
    assert holds["openai"] == holds["nfc"] == holds["nfkc"] - 6 * syllables


def is_served(on: Bounded, path: str, body: dict[str, Any]) -> None:
    """Assert that a request is served, however its text is written, and costs no more than was
    held.
    """
    for is_escaped in (False, True):
        before = len(on.engine.bills)
        answer = on.post(path, json.dumps(body, ensure_ascii=is_escaped).encode())
        assert answer.status_code == 200, answer.text
        (bill,) = on.engine.bills[before:]
        event = on.event(answer)
        assert event["input_tokens"] == bill.input_tokens
        assert bill.input_tokens <= event["features"]["input_bound_tokens"], event["features"]
        assert not event["is_suspect"]


def chat(text: str, *, route: str) -> dict[str, Any]:
    """Return a chat with a short answer."""
    return {"model": route, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
