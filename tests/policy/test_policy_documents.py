"""A document's errors have their line, their field and the correction."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
import yaml

from gateway.domain.operation import OF_OPENAI, Operation
from gateway.domain.policy.policy import (
    DataClass,
    Deployment,
    Route,
    Team,
    Timeouts,
    default_operations,
)
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.selfhost import GpuRate
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import PolicyRejected
from gateway.wire.parsed_policy import parse
from gateway.wire.policy import to_yaml
from gateway.wire.yaml_blocks.findings import MAX_ERRORS
from gateway.wire.yaml_blocks.nodes import MAX_CHARACTERS, read_document
from tests.factories import class_rule
from tests.policy.documents import EXAMPLE, changed, findings

# (the replaced text in the example, its replacement, line, field, a part of the message)
WRONG_VALUES = [
    ("version: 1", "version: 2", 1, "version", "must be 1"),
    ("us: [us-east]", "us: us-east", 2, "regions.us", "must be a list"),
    ("us: [us-east]", "us: [no]", 2, "regions.us[0]", "true or false, so put it in quotes"),
    ("us: [us-east]", "us: [us-east, us-east]", 2, "regions.us[1]", "already under 'us'"),
    ("us: [us-east]", "us: [us]", 2, "regions.us", "under itself"),
    (
        "us: [us-east]",
        "us: [eu], eu-de: [us]",
        2,
        "regions.eu",
        "under itself (eu in us in eu-de in eu)",
    ),
    (
        "us: [us-east]",
        ", ".join(f"r{n}: [r{n + 1}]" for n in range(25)),
        2,
        "regions.r24",
        "deeper than 20",
    ),
    ("us: [us-east]", "any: [us-east]", 2, "regions.any", "cannot be declared"),
    ("us: [us-east]", "us: [global]", 2, "regions.us[0]", "cannot be declared"),
    (
        "us: [us-east]",
        "no: [us-east]",
        2,
        "regions",
        "a field name must be text, not true or false",
    ),
    ("us: [us-east]", "'a b': [us-east]", 2, "regions.a b", "is not allowed"),
    ("  public:  ", "  publik:  ", 7, "classes.publik", "did you mean 'public'?"),
    (
        "{regions: [any]}",
        "{regions: [any], selfhosted: true}",
        7,
        "classes.public.selfhosted",
        "'self_hosted'?",
    ),
    ("{regions: [any]}", "{regions: [global]}", 7, "classes.public.regions[0]", "write any"),
    (
        "{regions: [any]}",
        "{}",
        7,
        "classes.public.regions",
        "is missing; write for example 'regions: [eu]'",
    ),
    (
        "{regions: [eu, us]}",
        "{regions: [eu, usa]}",
        6,
        "classes.internal.regions[1]",
        "did you mean 'us'?",
    ),
    (
        "self_hosted: true}",
        "self_hosted: yes}",
        4,
        "classes.restricted.self_hosted",
        "must be true or false",
    ),
    (
        "  confidential: {regions: [eu]}\n",
        "",
        36,
        "teams[0].data_class",
        "class 'confidential' is not declared",
    ),
    ("region: eu-de", "region: eu-dee", 13, "deployments[0].region", "did you mean 'eu-de'?"),
    ("region: eu-de", "region: any", 13, "deployments[0].region", "'any' is for classes"),
    ("provider: vllm", "provider: nonesuch", 10, "deployments[0].provider", "there is: "),
    (
        "name: qwen-eu",
        "name: gpt-eu",
        18,
        "deployments[1].name",
        "is there twice (first in line 9)",
    ),
    ("name: qwen-eu", "name: 'qwen eu'", 9, "deployments[0].name", "letters, digits"),
    ("model: qwen3-32b", "model: null", 12, "deployments[0].model", "must be text, not nothing"),
    ("model: qwen3-32b", "model: 7", 12, "deployments[0].model", "a number, so put it in quotes"),
    ("    model: qwen3-32b\n", "", 9, "deployments[0].model", "is missing"),
    (
        "    model: gpt-5.5",
        "    modle: gpt-5.5",
        22,
        "deployments[1].modle",
        "did you mean 'model'?",
    ),
    (
        '    api_key: "env:OPENAI_API_KEY"\n',
        "",
        18,
        "deployments[1].api_key",
        "openai asks for one",
    ),
    ('"env:OPENAI_API_KEY"', "sk-123", 21, "deployments[1].api_key", "never the secret itself"),
    ('"env:OPENAI_API_KEY"', "123", 21, "deployments[1].api_key", "never the secret itself"),
    ('"env:OPENAI_API_KEY"', "[a]", 21, "deployments[1].api_key", "never the secret itself"),
    (
        "file:/run/secrets/partner",
        "file:partner",
        27,
        "deployments[2].api_key",
        "file:/absolute/path",
    ),
    ("count: 1", "count: 0", 14, "deployments[0].gpu.count", "from 1 to"),
    ("count: 1", "count: 1.5", 14, "deployments[0].gpu.count", "a whole number"),
    ("3.10", "3e2", 14, "deployments[0].gpu.usd_per_gpu_hour", "plain decimal"),
    ("3.10", "-1", 14, "deployments[0].gpu.usd_per_gpu_hour", "above 0"),
    ("3.10", "0", 14, "deployments[0].gpu.usd_per_gpu_hour", "above 0"),
    ("utilisation: 0.5}", "utilisation: 1.5}", 15, "deployments[0].gpu.target_utilisation", "to 1"),
    ("usd_per_gpu_hour: 3.10, ", "", 14, "deployments[0].gpu.usd_per_gpu_hour", "is missing"),
    (
        "    gpu: {",
        "    price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}\n    gpu: {",
        15,
        "deployments[0].gpu",
        "either",
    ),
    (
        "provider: vllm",
        "provider: openai_compatible",
        14,
        "deployments[0].gpu",
        "add 'self_hosted: true'",
    ),
    (
        "    region: eu\n",
        "    region: eu\n    self_hosted: true\n",
        24,
        "deployments[1].self_hosted",
        "never self-hosted",
    ),
    (", output_usd_per_mtok: 3.20", "", 30, "deployments[2].price", "lacks 'output_usd_per_mtok'"),
    ("0.80", "0.8e0", 30, "deployments[2].price.input_usd_per_mtok", "plain decimal"),
    ("0.80", ".8", 30, "deployments[2].price.input_usd_per_mtok", "plain decimal"),
    ("0.80", "free", 30, "deployments[2].price.input_usd_per_mtok", "plain decimal"),
    (
        "3.20}",
        "3.20, service_tiers: {default: {input_usd_per_mtok: 1}}}",
        30,
        "deployments[2].price.service_tiers.default",
        "is the standard tier",
    ),
    (
        "3.20}",
        "3.20, service_tiers: {Flex: {input_usd_per_mtok: 1}}}",
        30,
        "deployments[2].price.service_tiers.Flex",
        "as answers report it",
    ),
    (
        "3.20}",
        "3.20, service_tiers: {flex: {input_usd_per_mtok: 1}}}",
        30,
        "deployments[2].price",
        "lacks 'output_usd_per_mtok'",
    ),
    (
        "3.20}",
        "3.20, service_tiers: {flex: {output_usd_per_mtok: 1}}}",
        30,
        "deployments[2].price.service_tiers.flex.input_usd_per_mtok",
        "is missing",
    ),
    (
        "    price: {input",
        "    stand_in_price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}\n    price: {input",
        30,
        "deployments[2].stand_in_price",
        "stands in only while nothing else prices",
    ),
    (
        "    context_window: 32768",
        "    stand_in_price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}",
        16,
        "deployments[0].stand_in_price",
        "remove one of them",
    ),
    (
        "price: {input_usd_per_mtok: 0.80, cached_input_usd_per_mtok: 0.20, output_usd_per_mtok: "
        "3.20}",
        "stand_in_price: {input_usd_per_mtok: 0.80}",
        30,
        "deployments[2].stand_in_price",
        "absent is not 0",
    ),
    (
        "output_usd_per_mtok: 3.20",
        "output_usd_per_mtok: 3.20, web_search_usd_per_1k_calls: -1",
        30,
        "deployments[2].price.web_search_usd_per_1k_calls",
        "USD per thousand calls",
    ),
    ("total_s: 120", "total_s: 0", 31, "deployments[2].timeouts.total_s", "above 0"),
    (
        "total_s: 120",
        "totals: 120",
        31,
        "deployments[2].timeouts.totals",
        "did you mean 'total_s'?",
    ),
    ("[store]", "[stor]", 32, "deployments[2].allows[0]", "did you mean 'store'?"),
    ("[store]", "store", 32, "deployments[2].allows", "must be a list"),
    (
        "[store]",
        "[store]\n    verify: false",
        33,
        "deployments[2].verify",
        "nothing turns that off",
    ),
    ("[store]", "[store]\n    operations: []", 33, "deployments[2].operations", "at least one"),
    (
        "[store]",
        "[store]\n    operations: [chats]",
        33,
        "deployments[2].operations[0]",
        "did you mean 'chat'?",
    ),
    (
        "32768",
        "32768\n    max_output_tokens: 32769",
        17,
        "deployments[0].max_output_tokens",
        "fit in the window",
    ),
    (
        "[tools, json_schema, reasoning]",
        "[tool]",
        17,
        "deployments[0].capabilities[0]",
        "did you mean 'tools'?",
    ),
    (
        "deployments: [qwen-eu, gpt-eu]",
        "deployments: []",
        34,
        "routes[0].deployments",
        "at least one deployment",
    ),
    (
        "[qwen-eu, gpt-eu]",
        "[qwen-eu, gpt]",
        34,
        "routes[0].deployments[1]",
        "did you mean 'gpt-eu'?",
    ),
    ("[qwen-eu, gpt-eu]", "[qwen-eu, qwen-eu]", 34, "routes[0].deployments[1]", "listed twice"),
    ('"gpt-4o-*"]', '"gpt-4o-?"]', 34, "routes[0].aliases[1]", "'*' stands for anything"),
    (
        "aliases: [gpt-4o, ",
        "aliases: [partner-chat, ",
        34,
        "routes[0].aliases[0]",
        "is the name of a route",
    ),
    (
        "objective: priority",
        "aliases: [gpt-4o]",
        35,
        "routes[1].aliases[0]",
        "already an alias of route 'assistant'",
    ),
    ("name: partner-chat", "name: assistant", 35, "routes[1].name", "is there twice"),
    ("objective: priority", "objective: prio", 35, "routes[1].objective", "priority"),
    ("objective: priority", "latency: {}", 35, "routes[1].latency.ttft_p95_ms", "is missing"),
    (
        "objective: priority",
        "latency: {ttft_p95_ms: 0}",
        35,
        "routes[1].latency.ttft_p95_ms",
        "above 0",
    ),
    ("objective: priority", "max_cost_usd: 0", 35, "routes[1].max_cost_usd", "above 0"),
    ("objective: priority", "timeout_s: 0", 35, "routes[1].timeout_s", "above 0"),
    (
        "objective: priority",
        "degrade_to: assistant",
        35,
        "routes[1].degrade_to",
        "has nothing to go by",
    ),
    (
        "objective: priority",
        "max_cost_usd: 1, degrade_to: assistent",
        35,
        "routes[1].degrade_to",
        "did you mean 'assistant'?",
    ),
    (
        "objective: priority",
        "max_cost_usd: 1, degrade_to: partner-chat",
        35,
        "routes[1].degrade_to",
        "leads back to 'partner-chat' (partner-chat to partner-chat)",
    ),
    (
        "objective: priority",
        "balance: {cost: 1}",
        35,
        "routes[1].balance",
        "counts only with 'objective: balanced'",
    ),
    (
        "objective: priority",
        "objective: balanced, balance: {cost: 0, latency: 0}",
        35,
        "routes[1].balance",
        "no weight above 0",
    ),
    (
        "objective: priority",
        "objective: balanced, balance: {cost: -1}",
        35,
        "routes[1].balance.cost",
        "a weight",
    ),
    ("objective: priority", "objective: weighted", 35, "routes[1].objective", "asks for 'weights'"),
    (
        "objective: priority",
        "weights: {partner: 1}",
        35,
        "routes[1].weights",
        "count only with 'objective: weighted'",
    ),
    (
        "objective: priority",
        "objective: weighted, weights: {}",
        35,
        "routes[1].weights",
        "lacks partner",
    ),
    (
        "objective: priority",
        "objective: weighted, weights: {partner: 0}",
        35,
        "routes[1].weights.partner",
        "above 0",
    ),
    (
        "objective: priority",
        "objective: weighted, weights: {partner: 1, parter: 1}",
        35,
        "routes[1].weights.parter",
        "has no deployment 'parter'; did you mean 'partner'?",
    ),
    (
        "objective: priority",
        "objective: weighted, weights: {'a b': 1}",
        35,
        "routes[1].weights.a b",
        "is not allowed",
    ),
    (
        "[store]",
        "[store]\n    latency: {ttft_ms: 0}",
        33,
        "deployments[2].latency.ttft_ms",
        "milliseconds, above 0",
    ),
    ("[store]", "[store]\n    max_in_flight: 0", 33, "deployments[2].max_in_flight", "from 1 to"),
    ("[store]", "[store]\n    group: 'a b'", 33, "deployments[2].group", "is not allowed"),
    (
        "data_class: confidential,",
        "data_class: confidential, priority: urgent,",
        37,
        "teams[0].priority",
        "there is: high, low, normal",
    ),
    ("data_class: confidential, ", "", 37, "teams[0].data_class", "is missing"),
    ("provider: vllm", "provider: VLLM", 10, "deployments[0].provider", "did you mean 'vllm'?"),
    ("data_class: confidential", "data_class: secret", 37, "teams[0].data_class", "is not known"),
    ("cost_centre: CC-1207", "cost_centre: 1207", 37, "teams[0].cost_centre", "put it in quotes"),
    ("name: search", "name: payments", 38, "teams[1].name", "team 'payments' is there twice"),
    (
        "routes: [assistant]",
        "routes: [asistant]",
        37,
        "teams[0].routes[0]",
        "did you mean 'assistant'?",
    ),
    (
        "routes: [assistant]",
        "routes: [assistant], name: x",
        37,
        "teams[0].name",
        "is there twice (first in line 37)",
    ),
    ("teams:\n", "owner: me\nteams:\n", 36, "owner", "a policy has no such field"),
]

ADDRESSES = [
    ("ftp://x/v1", "must start with https://"),
    ("https://", "names no host"),
    ("https://user:pass@llm.example/v1", "must not hold a user name"),
    ("https://llm.example/v1?key=1", "query or fragment"),
    ("https://llm.example/v1#x", "query or fragment"),
    ("https://llm.example/v 1", "without spaces"),
    ("https://llm.example:99999/v1", "is not an address"),
    ("https://llm.example:0/v1", "port 0"),
    ("https://[::1/v1", "is not an address"),
    ("https://llm.example/v1/chat/completions", "must end before /chat/completions"),
    ("https://0.0.0.0/v1", "no server can have"),
    ("http://169.254.169.254/v1", "no server can have"),
    ("http://llm.example/v1", "unencrypted over a public network"),
    ("http://8.8.8.8/v1", "unencrypted over a public network"),
    ("http://0x8080808/v1", "in an unusual form"),
    ("http://134744072/v1", "in an unusual form"),
    ("http://[::ffff:8.8.8.8]/v1", "unencrypted over a public network"),
]

PRIVATE_ADDRESSES = [
    "http://127.0.0.1:8001/v1",
    "http://localhost/v1",
    "http://[::1]:8000/v1",
    "http://10.1.2.3/v1",
    "http://vllm:8000",
    "http://192.168.0.7/v1",
    "http://100.64.0.1/v1",
    "http://engine.default.svc.cluster.local/v1",
    "http://gpu-7.corp.internal/v1",
    "http://[fd00::1]/v1",
    "https://llm.example/v1",
]

BROKEN_YAML = [
    ("", 1, "the document is empty"),
    ("# nothing\n", 1, "the document is empty"),
    ("- a\n", 1, "must be a mapping"),
    ("version: 1\n\tclasses: {}\n", 2, "use spaces"),
    ("version: 1\nclasses: {a\n", 3, "not valid YAML"),
    ("version: 1\n---\nversion: 1\n", 2, "a second document"),
    ("a: &x 1\nb: *x\n", 1, "anchors and aliases"),
    ("a: !!python/object:os.system 1\n", 1, "tags (!)"),
    ("version: 1\n<<: {a: 1}\n", 2, "a merge key"),
    ("version: 1\nversion: 1\n", 2, "is there twice (first in line 1)"),
    ("version: 1\nx: \x07\n", 2, "cannot be printed"),
    ("a: " + "[" * 25, 1, "nested deeper"),
    ("#" * (MAX_CHARACTERS + 1), 1, "more than 1,048,576 characters"),
]


def is_read(text: str, loader: type[Any]) -> bool:
    """True if a YAML library makes nodes of a text."""
    try:
        read_document(text, loader=loader)
    except PolicyRejected:
        return False
    return True


@pytest.mark.parametrize(("old", "new", "line", "field", "part"), WRONG_VALUES)
def test_a_wrong_value_is_found_with_line_and_field(
    old: str, new: str, line: int, field: str, part: str
) -> None:
    """An author corrects the named place: a wrong line costs more time than no line."""
    found = [f for f in findings(changed(old, new)) or () if f.field == field and f.line == line]
    assert [f for f in found if part in f.message], findings(changed(old, new))


@pytest.mark.parametrize(("address", "part"), ADDRESSES)
def test_an_unsafe_address_is_refused(address: str, part: str) -> None:
    """Prompts travel to this address: it must be encrypted or private, and hold no secret."""
    (found,) = findings(changed("http://127.0.0.1:8001/v1", address)) or ()
    assert (found.line, found.field) == (11, "deployments[0].base_url")
    assert part in found.message
    assert "pass" not in found.message.replace("password", "")


@pytest.mark.parametrize("address", PRIVATE_ADDRESSES)
def test_a_private_or_encrypted_address_is_accepted(address: str) -> None:
    """Engines stand in private networks, mostly without certificates."""
    parsed = parse(changed("http://127.0.0.1:8001/v1", address + "/"))
    assert parsed.policy.deployments["qwen-eu"].base_url == address


@pytest.mark.parametrize(("text", "line", "part"), BROKEN_YAML)
def test_yaml_beyond_the_plain_subset_is_refused(text: str, line: int, part: str) -> None:
    """Clever YAML hides a policy's meaning, or takes a reader's memory."""
    found = findings(text) or ()
    assert [f for f in found if f.line == line and part in f.message], found


@pytest.mark.parametrize(("text", "line", "part"), BROKEN_YAML)
def test_both_yaml_libraries_refuse_the_same(text: str, line: int, part: str) -> None:
    """If PyYAML was built without libyaml, its slower half reads the policy and must not accept
    more.
    """
    assert is_read(text, yaml.CSafeLoader) == is_read(text, yaml.SafeLoader)


def test_an_impossible_escape_is_refused_by_the_slower_library() -> None:
    """There it escapes as a ValueError, not as an error of YAML."""
    with pytest.raises(PolicyRejected) as raised:
        read_document('a: "\\UFFFFFFFF"', loader=yaml.SafeLoader)
    assert "an escape that is not a character" in raised.value.findings[0].message


def test_all_errors_are_reported_at_once() -> None:
    """One error a run makes ten runs of ten errors."""
    text = changed("region: eu-de", "region: eu-dee", text=changed("version: 1", "version: 3"))
    text = changed("objective: priority", "objective: fast", text=text)
    assert [(f.line, f.field) for f in findings(text) or ()] == [
        (1, "version"),
        (13, "deployments[0].region"),
        (35, "routes[1].objective"),
    ]


def test_a_garbled_document_stops_at_a_hundred_errors() -> None:
    """A longer list is not read, and listing a megabyte of errors takes minutes."""
    found = findings("version: 1\n" + "".join(f"field_{n}: x\n" for n in range(1000))) or ()
    assert len(found) == MAX_ERRORS + 1
    assert "stopped reading" in found[-1].message


def test_a_syntax_error_does_not_quote_the_line() -> None:
    """The line may hold a key that was pasted by mistake; findings go to CI logs."""
    found = findings("version: 1\napi_key: 'sk-secret\n") or ()
    assert found
    assert "sk-secret" not in str(found)


def test_the_message_counts_the_errors() -> None:
    """The last line a person sees says how bad it is."""
    with pytest.raises(PolicyRejected, match=r"1 error\(s\)\. Nothing changed"):
        parse(changed("version: 1", "version: 3"))


def test_the_example_reads_as_written() -> None:
    """Every field reaches the policy, every absent one has its default, and prices stay exact."""
    policy = parse(EXAMPLE).policy
    assert policy.regions == {"eu": ("eu-de", "eu-fr"), "us": ("us-east",)}
    assert policy.classes[DataClass.RESTRICTED] == class_rule(
        "restricted", "eu", self_hosted_only=True
    )
    assert policy.deployments["qwen-eu"] == Deployment(
        name="qwen-eu",
        provider="vllm",
        base_url="http://127.0.0.1:8001/v1",
        model="qwen3-32b",
        region="eu-de",
        is_self_hosted=True,
        gpu=GpuRate(
            type="H200",
            count=1,
            usd_per_gpu_hour=Decimal("3.10"),
            input_tok_per_s=Decimal(40000),
            output_tok_per_s=Decimal(2500),
            target_utilisation=Decimal("0.5"),
        ),
        operations=default_operations(OF_OPENAI, PROVIDERS["vllm"]),
        capabilities=frozenset({"tools", "json_schema", "reasoning"}),
        native=PROVIDERS["vllm"].native,
        context_window=32768,
    )
    partner = policy.deployments["partner"]
    assert partner.price == Price(
        provider="openai_compatible",
        model="m-large",
        source="policy",
        rates=(
            Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal("0.80")),
            Rate(kind=TokenKind.CACHED_INPUT, usd_per_mtok=Decimal("0.20")),
            Rate(kind=TokenKind.OUTPUT, usd_per_mtok=Decimal("3.20")),
        ),
    )
    assert partner.timeouts == Timeouts(total_s=120.0)
    assert partner.allows == frozenset({"store"})
    assert policy.routes["assistant"] == Route(
        name="assistant", deployments=("qwen-eu", "gpt-eu"), aliases=("gpt-4o", "gpt-4o-*")
    )
    assert policy.teams["payments"] == Team(
        name="payments",
        cost_centre="CC-1207",
        data_class=DataClass.CONFIDENTIAL,
        routes=("assistant",),
    )


def test_every_kind_and_tier_of_a_declared_price_reaches_the_policy() -> None:
    """A contract with priority service, a long cache and searches by the thousand; and it reads
    back the same.
    """
    terms = (
        ", cache_write_1h_usd_per_mtok: 1.60, image_input_usd_per_mtok: 0.80, "
        "audio_output_usd_per_mtok: 64, web_search_usd_per_1k_calls: 2.5, service_tiers: "
        "{priority: {input_usd_per_mtok: 1.60, output_usd_per_mtok: 6.40, "
        "file_search_usd_per_1k_calls: 3}}}"
    )
    text = changed("output_usd_per_mtok: 3.20}", f"output_usd_per_mtok: 3.20{terms}")
    declared = parse(text).policy.deployments["partner"].price
    assert declared is not None
    assert {(rate.service_tier, rate.kind.value): rate.usd_per_mtok for rate in declared.rates} == {
        (None, "input"): Decimal("0.80"),
        (None, "cached_input"): Decimal("0.20"),
        (None, "output"): Decimal("3.20"),
        (None, "cache_write_1h"): Decimal("1.60"),
        (None, "image_input"): Decimal("0.80"),
        (None, "audio_output"): Decimal(64),
        (None, "web_search"): Decimal(2500),
        ("priority", "input"): Decimal("1.60"),
        ("priority", "output"): Decimal("6.40"),
        ("priority", "file_search"): Decimal(3000),
    }
    assert parse(to_yaml(parse(text).policy)).policy == parse(text).policy


def test_a_stand_in_price_is_flagged_and_says_so() -> None:
    """A charge by it must be recognisable later, in the event and in its price's source."""
    text = changed("price: {input", "stand_in_price: {input")
    partner = parse(text).policy.deployments["partner"]
    assert partner.price is None
    assert partner.stand_in_price is not None
    assert (partner.stand_in_price.is_stand_in, partner.stand_in_price.source) == (
        True,
        "stand-in: policy",
    )
    assert parse(to_yaml(parse(text).policy)).policy == parse(text).policy


def test_a_price_without_an_image_rate_is_noted() -> None:
    """Image tokens are never charged at the text rate silently: without a rate their cost stays
    unknown.
    """
    sees = changed("allows: [store]", "allows: [store]\n    capabilities: [vision]")
    assert any("no image_input_usd_per_mtok" in note.message for note in parse(sees).notes)
    priced = changed("3.20}", "3.20, image_input_usd_per_mtok: 0.80}", text=sees)
    assert not any("image_input" in note.message for note in parse(priced).notes)


def test_an_embeddings_deployment_needs_no_output_price() -> None:
    """Embeddings write nothing, so there is nothing to price."""
    text = changed(
        ", output_usd_per_mtok: 3.20",
        "",
        text=changed("[store]", "[store]\n    operations: [embeddings]"),
    )
    assert parse(text).policy.deployments["partner"].operations == frozenset({Operation.EMBEDDINGS})


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "part"),
    [
        (
            "{regions: [any]}",
            "{regions: []}",
            7,
            "classes.public",
            "every request of this class is denied",
        ),
        (
            "{regions: [eu, us]}",
            "{regions: [eu-de]}",
            5,
            "classes.confidential",
            "allows eu, which the lower class",
        ),
        (
            "confidential: {regions: [eu]}",
            "confidential: {regions: [any]}",
            5,
            "classes.confidential",
            "every region",
        ),
        ("[qwen-eu, gpt-eu]", "[qwen-eu]", 18, "deployments[1].name", "no route uses"),
        ("[assistant, partner-chat]", "[assistant]", 35, "routes[1].name", "no team may use"),
        ("[assistant, partner-chat]", "[]", 38, "teams[1].routes", "may call nothing"),
        (
            "objective: priority",
            'aliases: ["gpt-4o-mini*"]',
            35,
            "routes[1].aliases[0]",
            "is never reached",
        ),
        (
            "data_class: internal",
            "data_class: restricted",
            38,
            "teams[1].routes[1]",
            "allows none of its deployments",
        ),
        ("    region: eu-fr", "    region: global", 38, "teams[1].routes[1]", "partner in global"),
        (
            "{input_usd_per_mtok: 0.80, cached_input_usd_per_mtok: 0.20, output_usd_per_mtok: "
            "3.20}",
            "{input_usd_per_mtok: 0, output_usd_per_mtok: 0}",
            30,
            "deployments[2].price",
            "is free",
        ),
    ],
)
def test_odd_but_valid_policies_are_noted(
    old: str, new: str, line: int, field: str, part: str
) -> None:
    """A policy without the apparent effect is found before a team finds it."""
    notes = parse(changed(old, new)).notes
    assert [n for n in notes if (n.line, n.field) == (line, field) and part in n.message], notes
    assert not any(note.is_error for note in notes)


def test_a_misspelt_field_is_one_error() -> None:
    """`data_clas` was an unknown field and a missing one, which is one slip."""
    with pytest.raises(PolicyRejected) as rejected:
        parse(changed("data_class: confidential", "data_clas: confidential"))
    assert [finding.field for finding in rejected.value.findings] == ["teams[0].data_clas"]
    with pytest.raises(PolicyRejected) as rejected:
        parse(changed("data_class: confidential", "x_y: confidential"))
    assert {finding.field for finding in rejected.value.findings} == {
        "teams[0].x_y",
        "teams[0].data_class",
    }


@pytest.mark.parametrize(
    ("address", "is_noted"),
    [
        ("http://127.0.0.1:8001", True),
        ("http://127.0.0.1:8001/", True),
        ("http://127.0.0.1:8001/engine", True),
        ("http://127.0.0.1:8001/engine/v1/", False),
        ("http://127.0.0.1:8001/v1beta", False),
    ],
)
def test_an_engines_address_without_its_version_is_noted(address: str, is_noted: bool) -> None:
    """It was valid without a word, and each request came back as 404 of the engine."""
    parsed = parse(changed("http://127.0.0.1:8001/v1", address))
    assert (
        any(n.field == "deployments[0].base_url" and "/v1" in n.message for n in parsed.notes)
        == is_noted
    )
    assert "base_url" not in str(
        parse(changed("https://llm.partner.example/v1", "https://llm.example")).notes
    )


def test_an_unpriced_self_hosted_deployment_is_noted() -> None:
    """Its requests would all be refused, which an owner of an engine does not expect."""
    text = EXAMPLE.replace(
        "    gpu: {type: H200, count: 1, usd_per_gpu_hour: 3.10, input_tok_per_s: 40000, ", "    #"
    )
    text = text.replace("          target_utilisation: 0.5}\n", "")
    assert any("neither 'gpu' nor 'price'" in note.message for note in parse(text).notes)


def test_a_self_hosted_deployment_with_a_stand_in_is_priced() -> None:
    """It is charged, and flagged: no note that its requests were refused."""
    text = EXAMPLE.replace(
        "    gpu: {type: H200, count: 1, usd_per_gpu_hour: 3.10, input_tok_per_s: 40000, ", "    #"
    )
    stand_in = "    stand_in_price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}\n"
    text = text.replace("          target_utilisation: 0.5}\n", stand_in)
    assert not any("neither 'gpu' nor 'price'" in note.message for note in parse(text).notes)


def test_a_note_says_that_teams_are_unlimited() -> None:
    """A team that was forgotten may spend without end; an admin must not believe otherwise."""
    note = parse(EXAMPLE).notes[-1]
    assert (note.line, note.field) == (37, "teams")
    assert note.message == "unlimited: payments, search (no budgets and no limits)"


def test_a_tool_and_its_arguments_may_be_listed() -> None:
    """The remedies of a refusal have these names; OpenRouter's tools have a colon."""
    names = [
        "video_generation",
        "openrouter:web_search.max_results=25",
        "image_generation.quality=high",
        "anthropic-beta: context-1m",
        "context_management=compaction",
    ]
    address = '"http://127.0.0.1:8001/v1"'
    listed = ", ".join(f'"{one}"' for one in names)
    policy = parse(changed(address, f"{address}\n    listed: [{listed}]")).policy
    assert policy.deployments["qwen-eu"].listed == frozenset(names)
    assert parse(to_yaml(policy)).policy == policy
