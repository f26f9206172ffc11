"""One dialect at a time: the source of secrets, and the mapping of an upstream's errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import FieldLoss, PromptCache, default_output_limit
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.providers.own_members import StreamUsage
from gateway.domain.providers.table import (
    OPENAI_COMPATIBLE,
    PROVIDERS,
    OutputLimit,
    provider_at,
)
from gateway.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ModelMissing,
    ModelNotFound,
    Overloaded,
    RateLimited,
    RequestError,
    Untranslatable,
    UpstreamAuth,
    UpstreamError,
    UpstreamTimeout,
)
from gateway.providers.credentials import resolve, secret_problem
from gateway.providers.openai import OpenAI
from gateway.providers.registry import build_providers
from gateway.providers.vllm import Vllm
from gateway.wire.openai.answer.chat import ChatStream
from tests.answers import at_once
from tests.factories import REQUEST_ID, deployment, read, request

CONTEXT = b'{"error":{"message":"too long","param":"messages","code":"context_length_exceeded"}}'
VLLM_CONTEXT = (
    b'{"error":{"message":"too long","type":"BadRequestError","param":"input_tokens","code":400}}'
)
NO_MODEL = (
    b'{"error":{"message":"The model `nope` does not '
    b'exist.","type":"NotFoundError","param":"model","code":404}}'
)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b'{"error":{"message":"bad temperature","param":"temperature"}}', InvalidRequest),
        (400, CONTEXT, ContextLengthExceeded),
        (400, VLLM_CONTEXT, ContextLengthExceeded),
        (401, b'{"error":"Unauthorized"}', UpstreamAuth),
        (403, b"{}", UpstreamAuth),
        (404, NO_MODEL, ModelMissing),
        (404, b'{"error":{"code":"DeploymentNotFound","message":"none"}}', ModelMissing),
        (404, b'{"error":{"code":"model_not_found","param":null}}', ModelMissing),
        (404, b'{"error":{"code":"404","message":"Resource not found"}}', ModelNotFound),
        (404, b"{}", ModelNotFound),
        (408, b"", UpstreamTimeout),
        (413, b"", InvalidRequest),
        (422, b"", InvalidRequest),
        (429, b"", RateLimited),
        (500, b"<html>", UpstreamError),
        (502, b"", UpstreamError),
        (503, b"", Overloaded),
        (504, b"", UpstreamTimeout),
        (529, b"", Overloaded),
        (302, b"", UpstreamError),
    ],
)
def test_an_upstreams_error_is_mapped_by_status_and_type(
    status: int, body: bytes, expected: type[RequestError]
) -> None:
    """Never by the text of a message: messages change on a Tuesday.

    Our own 401 is for our own keys.
    """
    error = OpenAI().error(deployment(), status, {}, body=body)
    assert type(error) is expected
    assert "<html>" not in error.message


def test_an_upstreams_message_reaches_a_caller_who_can_fix_it() -> None:
    """A refused field is named as the upstream named it."""
    error = OpenAI().error(
        deployment(), 400, {}, body=b'{"error":{"message":"bad temperature","param":"temperature"}}'
    )
    assert (error.param, "bad temperature" in error.message) == ("temperature", True)


def test_usage_in_an_error_answer_is_read() -> None:
    """An upstream that failed and reports its usage is charged for it, exactly."""
    body = b'{"error":{"message":"died"},"usage":{"prompt_tokens":3,"completion_tokens":2}}'
    assert OpenAI().usage_in(body) == TokenUsage(input_tokens=3, output_tokens=2)
    assert OpenAI().usage_in(b'{"error":{"message":"died"}}') is None


def test_text_is_kept_only_if_the_upstream_sends_no_running_usage() -> None:
    """It has to be counted if the stream ends early; an engine of one's own says its usage
    itself.
    """
    chat = read(b'{"model":"m","messages":[],"stream":true}')
    responses = read(b'{"model":"m","input":"x","stream":true}', Operation.RESPONSES)
    for name, provider in build_providers(salt_key=b"").items():
        if not isinstance(provider, OpenAI):
            continue
        one = deployment(provider=name)
        streams = [
            provider.stream(body, at_once(provider.call(one, request(body))))
            for body in (chat, responses)
        ]
        counts = PROVIDERS[name].running_usage is None
        assert [stream.observed.collects_text for stream in streams] == [counts, True]


@pytest.mark.parametrize(
    ("provider", "asked"),
    [
        ("vllm", {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
        ("sglang", {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
        ("llamacpp", {"stream_options": {"include_usage": True}, "timings_per_token": True}),
        ("lmstudio", {"stream_options": {"include_usage": True}}),
        ("mistral", {}),
    ],
)
@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.COMPLETIONS])
def test_running_usage_is_asked_for_where_it_exists(
    provider: str, asked: dict[str, object], operation: Operation
) -> None:
    """Without it, an abandoned stream of an own engine would be counted or run on to its end."""
    body = read(b'{"model":"m-1","messages":[],"prompt":"a","stream":true}', operation)
    adapter = build_providers(salt_key=b"")[provider]
    call = at_once(adapter.call(deployment(provider=provider), request(body)))
    sent = json.loads(call.body)
    names = ("stream_options", "timings_per_token")
    assert {name: sent[name] for name in names if name in sent} == asked
    assert call.asks_running_usage is (PROVIDERS[provider].running_usage is not None)


def test_a_plain_answer_is_not_asked_for_running_usage() -> None:
    """TensorRT-LLM refuses `stream_options` without a stream."""
    for name in PROVIDERS:
        adapter = build_providers(salt_key=b"")[name]
        if not isinstance(adapter, OpenAI):
            continue
        sent = at_once(adapter.call(deployment(provider=name), request())).body
        assert b"stream_options" not in sent
        assert b"timings_per_token" not in sent


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        ({}, 1),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0"}, 1),
        ({"retry-after-ms": "2500"}, 2.5),
        ({"retry-after-ms": "2500", "retry-after": "3"}, 2.5),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3),
        ({"retry-after-ms": "9" * 5000, "retry-after": "3"}, 3),
        ({"retry-after-ms": "\u00b2"}, 1),
        ({"retry-after": "-5"}, 1),
        ({"retry-after": "9999"}, 120),
        ({"retry-after": "nan"}, 1),
        ({"retry-after": "inf"}, 120),
        ({"retry-after": "Fri, 20 Nov 2026 12:00:00 GMT"}, 1),
    ],
)
def test_retry_after_is_clamped_to_a_sane_range(sent: dict[str, str], seconds: float) -> None:
    """Absurd and negative values become sane ones."""
    assert OpenAI().error(deployment(), 429, sent, body=b"").retry_after_s == seconds


def test_a_secret_is_read_from_a_file_each_time(tmp_path: Path) -> None:
    """A rotated secret needs no restart; its blanks do not reach the header."""
    path = tmp_path / "secret"
    one = deployment(api_key=f"file:{path}")
    path.write_text("first\n")
    assert resolve(one) == "first"
    path.write_text("second\n")
    assert resolve(one) == "second"
    call = at_once(OpenAI().call(one, request()))
    assert call.headers["authorization"] == "Bearer second"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"cannot be read \(No such file or directory\)"),
        (b"", "is empty or not set"),
        (b" \n", "is empty or not set"),
        (b"\xff\xfe\x00", "is not text"),
        ("sk-é".encode(), "is more than one line of ASCII"),
        (b"sk-one\nsk-two\n", "is more than one line of ASCII"),
    ],
)
def test_an_unusable_secret_is_named_by_its_reference(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    """The message names its place, and nothing is sent. A file saved as UTF-16, or with two keys,
    was an error of the gateway: no other deployment was tried, and doctor ended.
    """
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UpstreamAuth, match=f"file:{path} of deployment one {reason}"):
        resolve(deployment(api_key=f"file:{path}"))


def test_without_a_declared_secret_no_key_is_sent() -> None:
    """An engine of one's own may have no key."""
    assert resolve(deployment()) is None
    assert "authorization" not in at_once(OpenAI().call(deployment(), request())).headers


def test_salts_differ_by_team_and_key_and_reveal_neither() -> None:
    """A team cannot compute another's salt without the gateway's secret."""

    def salt(key: bytes, team: str) -> str:
        one = deployment(provider="vllm")
        return str(Vllm(key).values(one, read(), team, is_assembled=False)["cache_salt"])

    assert len({salt(b"a", "x"), salt(b"a", "y"), salt(b"b", "x")}) == 3
    assert salt(b"a", "x") == salt(b"a", "x")


def test_an_allowed_store_is_left_as_it_was() -> None:
    """If the deployment may store, the caller decides."""
    body = read(b'{"model":"assistant","input":"x"}', Operation.RESPONSES)
    assert "store" not in OpenAI().values(
        deployment(allows=frozenset({"store"})), body, "t", is_assembled=False
    )
    assert OpenAI().values(deployment(), body, "t", is_assembled=False)["store"] is False


@pytest.mark.parametrize(
    ("host", "asks"),
    [("api.mistral.ai", False), ("api.groq.com", True), ("not-api.mistral.ai.example", True)],
)
def test_mistral_alone_is_not_asked_for_usage(host: str, asks: bool) -> None:
    """It refuses fields it does not know, and tells usage anyway; others tell it only when
    asked.
    """
    streamed = read(b'{"model":"m","messages":[],"stream":true}')
    target = deployment(provider="openai_compatible", base_url=f"https://{host}/v1")
    call = at_once(OpenAI().call(target, request(streamed)))
    assert (b"include_usage" in call.body) is asks


@pytest.mark.parametrize(
    ("provider", "status", "expected"),
    [
        ("together", 403, ContextLengthExceeded),
        ("openai", 403, UpstreamAuth),
        ("groq", 498, Overloaded),
    ],
)
def test_a_status_has_the_meaning_that_its_provider_gives_it(
    provider: str, status: int, expected: type[RequestError]
) -> None:
    """A prompt that is too long at Together opened the breaker of a healthy deployment."""
    assert isinstance(OpenAI().error(deployment(provider=provider), status, {}, body=b""), expected)


@pytest.mark.parametrize(("provider", "is_usable"), [("vertex", True), ("azure_openai", False)])
def test_only_a_key_that_is_exchanged_may_have_several_lines(
    tmp_path: Path, provider: str, is_usable: bool
) -> None:
    """`doctor` and `policy plan` called every service account of Vertex AI unusable, and passed a
    key of Azure's that no header can carry.
    """
    (tmp_path / "key").write_text('{\n  "type": "service_account"\n}\n')
    reference = f"file:{tmp_path / 'key'}"
    one = deployment(provider=provider, api_key=reference)
    problem = f"{reference} is more than one line of ASCII, so no header can carry it"
    assert secret_problem(one) == (None if is_usable else problem)


def test_the_table_of_providers_is_complete() -> None:
    """Each difference has a source, and a host belongs to one provider."""
    for entry in PROVIDERS.values():
        assert entry.sources or entry.name in ("vllm", OPENAI_COMPATIBLE)
        for host in entry.hosts:
            example = host.replace("*", "x")
            assert provider_at(example) is entry
            assert entry.is_engine or entry.needs_key


def sent_by(provider: str, members: bytes, **changes: Any) -> dict[str, Any]:
    """Return the body that a provider is sent for a chat with these members, dropped ones
    included.
    """
    adapter = build_providers(salt_key=b"")[provider]
    one = deployment(provider=provider, **changes)
    body = read(b'{"model":"m-1","messages":[]%b}' % members)
    translation = adapter.translate(one, body)
    call = at_once(adapter.call(one, request(body), translation=translation))
    found: dict[str, Any] = json.loads(call.body)
    return found


@pytest.mark.parametrize("provider", ["trtllm", "ollama", "mistral", "fireworks"])
@pytest.mark.parametrize(
    "sent", [b',"max_completion_tokens":9', b',"max_completion_tokens":9,"max_tokens":4']
)
def test_a_maximum_of_the_caller_goes_where_it_counts(provider: str, sent: bytes) -> None:
    """Ollama ignores `max_completion_tokens` and writes without end; TensorRT-LLM refuses both
    members together.
    """
    found = sent_by(provider, sent, output_limit=PROVIDERS[provider].output_limit)
    assert (found.get("max_tokens"), "max_completion_tokens" in found) == (9, False)


def test_mistral_is_not_sent_the_stream_options_of_its_caller() -> None:
    """Official clients that want the usage send them; it comes there anyway."""
    found = sent_by("mistral", b',"stream":true,"stream_options":{"include_usage":true}')
    assert "stream_options" not in found


@pytest.mark.parametrize(
    ("members", "choice"),
    [
        (b',"tools":[{"type":"function","function":{"name":"f"}}]', "auto"),
        (b',"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"', "none"),
        (b"", None),
    ],
)
def test_tools_are_chosen_automatically_where_none_is_the_default(
    members: bytes, choice: str | None
) -> None:
    """Without it, older builds of trtllm-serve call no tool."""
    assert sent_by("trtllm", members).get("tool_choice") == choice
    assert "tool_choice" not in sent_by("vllm", members) or choice == "none"


@pytest.mark.parametrize("provider", ["mistral", "triton", "fireworks", "openai", "sglang"])
def test_a_developer_message_goes_as_system_where_the_role_is_unknown(provider: str) -> None:
    """Mistral and Triton answer 422; the words of the message stay as they are."""
    quoted = 'say "role": "developer"'
    chat = {"model": "a", "messages": [{"role": "developer", "content": quoted}]}
    one = deployment(provider=provider, base_url="https://llm.example/v1")
    made = OpenAI().translate(one, read(json.dumps(chat).encode()))
    if provider in ("openai", "sglang"):
        assert made is None
    else:
        assert made is not None
        assert json.loads(made.body.body)["messages"] == [{"role": "system", "content": quoted}]


@pytest.mark.parametrize("provider", ["trtllm", "triton", "mistral"])
def test_a_refused_member_is_named_before_anything_is_sent(provider: str) -> None:
    """These servers refuse members that they do not know, TensorRT-LLM with the text of an
    exception.
    """
    with pytest.raises(Untranslatable, match="no place for 'store'") as refused:
        sent_by(provider, b',"store":true')
    assert refused.value.param == "store"


def test_a_refused_member_that_says_nothing_is_left_out() -> None:
    """`store: false` is what these servers do anyway."""
    members = b',"store":false,"metadata":null,"user":"u"'
    assert sent_by("trtllm", members) == {"model": "m-1", "messages": [], "user": "u"}


def test_a_refused_member_is_dropped_by_name_if_the_deployment_drops() -> None:
    """The answer's header names it."""
    body = read(b'{"model":"m-1","messages":[],"metadata":{"a":"b"},"stream":true}')
    one = deployment(provider="triton", untranslatable=FieldLoss.DROP)
    translation = OpenAI().translate(one, body)
    assert translation is not None
    assert (translation.sent_as, translation.dropped_fields) == ("chat", ("metadata",))
    call = at_once(OpenAI().call(one, request(body), translation=translation))
    assert b"metadata" not in call.body
    assert isinstance(OpenAI().stream(body, call), ChatStream)


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434/v1/chat/completions"),
        ("http://127.0.0.1:11434/", "http://127.0.0.1:11434/v1/chat/completions"),
        ("http://127.0.0.1:11434/v1", "http://127.0.0.1:11434/v1/chat/completions"),
        ("http://127.0.0.1/ollama/v1", "http://127.0.0.1/ollama/v1/chat/completions"),
    ],
)
def test_ollamas_address_has_no_path(base_url: str, url: str) -> None:
    """Its own documents write it so; another provider's address is taken as it is."""
    one = deployment(provider="ollama", base_url=base_url)
    assert at_once(OpenAI().call(one, request())).url == url
    assert at_once(OpenAI().probe(one, REQUEST_ID)).url == url
    other = deployment(base_url="http://127.0.0.1:8000")
    assert at_once(OpenAI().call(other, request())).url == "http://127.0.0.1:8000/chat/completions"


COMPATIBLE = {"provider": "openai_compatible", "base_url": "https://llm.partner.example/v1"}


@pytest.mark.parametrize(
    ("provider", "stream_usage", "members"),
    [
        (
            "vllm",
            None,
            {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
        ("vllm", StreamUsage.FINAL, {"stream_options": {"include_usage": True}}),
        ("vllm", StreamUsage.UNASKED, {}),
        (
            "llamacpp",
            None,
            {"stream_options": {"include_usage": True}, "timings_per_token": True},
        ),
        ("llamacpp", StreamUsage.FINAL, {"stream_options": {"include_usage": True}}),
        ("openai_compatible", StreamUsage.UNASKED, {}),
    ],
)
@pytest.mark.parametrize("own", ["", ',"stream_options":{"include_usage":true}'])
def test_a_stream_is_asked_for_the_usage_that_its_server_gives(
    provider: str, stream_usage: StreamUsage | None, members: dict[str, Any], own: str
) -> None:
    """Servers that forbid unknown members refuse it; then none is sent, not even the caller's."""
    body = read(b'{"model":"m","stream":true,"messages":[]%b}' % own.encode())
    target = deployment(
        provider=provider,
        base_url="http://127.0.0.1:9/v1",
        model="m",
        stream_usage=stream_usage,
        prompt_cache=PromptCache.TRUSTED,
    )
    adapter = build_providers(salt_key=bytes(32))[provider]
    call = at_once(adapter.call(target, request(body)))
    assert json.loads(call.body) == {"model": "m", "stream": True, "messages": [], **members}
    assert call.asks_running_usage is (stream_usage is None)


@pytest.mark.parametrize(
    "sent", ["", ',"max_tokens":9', ',"max_completion_tokens":9', ',"max_tokens":0']
)
@pytest.mark.parametrize(
    ("limit", "members"),
    [
        (OutputLimit.BOTH, {"max_tokens": 5, "max_completion_tokens": 5}),
        (OutputLimit.MAX_TOKENS, {"max_tokens": 5}),
        (OutputLimit.MAX_COMPLETION_TOKENS, {"max_completion_tokens": 5}),
    ],
)
def test_the_maximum_is_sent_in_the_members_that_the_upstream_honours(
    limit: OutputLimit, members: dict[str, int], sent: str
) -> None:
    """The caller's own is replaced, never sent twice, and left out if the upstream refuses it.
    Where only `max_tokens` counts, its caller's other one moves there.
    """
    body = read(b'{"model":"m"%b,"messages":[]}' % sent.encode())
    target = deployment(**COMPATIBLE, model="m", output_limit=limit)
    call = at_once(OpenAI().call(target, request(body), output_cap_tokens=5))
    assert json.loads(call.body) == {"model": "m", "messages": [], **members}
    is_moved = limit is OutputLimit.MAX_TOKENS and "max_completion_tokens" in sent
    as_sent = at_once(OpenAI().call(target, request(body)))
    assert json.loads(as_sent.body) == (
        {"model": "m", "messages": [], "max_tokens": 9} if is_moved else json.loads(body.body)
    )
    assert is_moved or as_sent.body == body.body


@pytest.mark.parametrize("cap_tokens", [None, 5])
@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (Operation.MESSAGES, b'{"model":"m","max_tokens":9,"messages":[]}'),
        (Operation.RESPONSES, b'{"model":"m","max_output_tokens":9,"input":"Hi"}'),
    ],
)
@pytest.mark.parametrize(
    "provider", [one.name for one in PROVIDERS.values() if Operation.CHAT in one.native]
)
def test_a_translated_maximum_stands_where_a_bound_does(
    provider: str, operation: Operation, body: bytes, cap_tokens: int | None
) -> None:
    """A server that reads `max_tokens` alone (TGI, older llama.cpp) would write without end."""
    limit = PROVIDERS[provider].output_limit
    target = deployment(provider=provider, native=frozenset({Operation.CHAT}), output_limit=limit)
    adapter = build_providers(salt_key=bytes(32))[provider]
    asked = request(read(body, operation))
    made = adapter.translate(target, asked.body)
    call = at_once(adapter.call(target, asked, output_cap_tokens=cap_tokens, translation=made))
    sent = json.loads(call.body)
    found = {name: sent[name] for name in sent if name.startswith("max_")}
    assert found == dict.fromkeys(limit.members, cap_tokens or 9)


@pytest.mark.parametrize(
    ("operation", "member"),
    [(Operation.COMPLETIONS, "max_tokens"), (Operation.RESPONSES, "max_output_tokens")],
)
def test_other_endpoints_have_one_maximum(operation: Operation, member: str) -> None:
    """A deployment's setting for chats does not apply to them."""
    body = read(b'{"model":"m","max_completion_tokens":9}', operation)
    target = deployment(**COMPATIBLE, model="m", allows=frozenset({"store"}))
    call = at_once(OpenAI().call(target, request(body), output_cap_tokens=5))
    assert json.loads(call.body) == {"model": "m", "max_completion_tokens": 9, member: 5}


@pytest.mark.parametrize(
    ("provider", "host", "limit"),
    [
        ("vllm", "127.0.0.1", OutputLimit.BOTH),
        ("openai_compatible", "llm.partner.example", OutputLimit.BOTH),
        ("openai_compatible", "api.mistral.ai", OutputLimit.MAX_TOKENS),
        ("openai", "api.openai.com", OutputLimit.MAX_COMPLETION_TOKENS),
    ],
)
def test_a_provider_gets_the_maximum_in_its_own_member(
    provider: str, host: str, limit: OutputLimit
) -> None:
    """OpenAI refuses both members together, and Mistral refuses unknown ones."""
    assert default_output_limit(provider, f"https://{host}/v1") is limit
