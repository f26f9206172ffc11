"""The fields of a deployment that say which dialects its server speaks, and who signs for it."""

from __future__ import annotations

import pytest

from gateway.domain.operation import OF_OPENAI, ONLY_STATED, Operation
from gateway.domain.policy.policy import AMBIENT, Billing, Credentials, FieldLoss, HostedToolsRule
from gateway.domain.providers.table import PROVIDERS
from gateway.wire.parsed_policy import parse
from gateway.wire.policy import effective, to_yaml
from tests import factories
from tests.policy.documents import findings

DOCUMENT = """version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: one, provider: {provider}, base_url: "https://llm.example/v1", model: m, region: eu,
     price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 2}}{fields}}}
routes:
  - {{name: assistant, deployments: [one]}}
teams:
  - {{name: payments, cost_centre: CC-1, data_class: internal, routes: [assistant]}}
"""


def document(fields: str = "", provider: str = "openai_compatible") -> str:
    return DOCUMENT.format(fields=fields and ", " + fields, provider=provider)


def test_every_conversation_is_served_unless_the_policy_says_less() -> None:
    one = parse(document()).policy.deployments["one"]
    assert one.native == OF_OPENAI
    assert one.operations == OF_OPENAI - ONLY_STATED | {Operation.MESSAGES}
    assert one.translates(Operation.MESSAGES)
    assert not one.translates(Operation.RESPONSES)
    less = parse(document("native: [chat]")).policy.deployments["one"]
    assert less.operations == {Operation.CHAT, Operation.RESPONSES, Operation.MESSAGES}
    assert less.translates(Operation.RESPONSES)
    assert not less.translates(Operation.CHAT)


def test_tritons_generate_extension_serves_no_conversation() -> None:
    """It speaks at an address without a path; a chat has no template there."""
    at_root = document(provider="triton").replace("llm.example/v1", "llm.example")
    assert parse(at_root).policy.deployments["one"].operations == {Operation.COMPLETIONS}
    frontend = parse(document(provider="triton")).policy.deployments["one"]
    assert frontend.operations >= {Operation.CHAT, Operation.MESSAGES}
    stated = document("operations: [chat]", "triton").replace("llm.example/v1", "llm.example")
    (finding,) = findings(stated) or ()
    assert "triton does not serve chat" in finding.message
    assert "it serves `completions`" in finding.message


@pytest.mark.parametrize("operation", ["rerank", "score"])
@pytest.mark.parametrize(
    ("provider", "host", "named"),
    [
        ("together", "api.together.ai", "together"),
        ("openai_compatible", "api.together.xyz", "together"),
        ("fireworks", "api.fireworks.ai", "fireworks"),
        ("openai_compatible", "api.fireworks.ai", "fireworks"),
    ],
)
def test_rerank_and_score_are_refused_where_no_usage_is_known(
    operation: str, provider: str, host: str, named: str
) -> None:
    """Together has a rerank endpoint, and no source has a whole answer of it; score is vLLM's."""
    fields = f'operations: [{operation}], api_key: "env:K"'
    found = findings(document(fields, provider).replace("llm.example", host)) or ()
    (finding,) = [one for one in found if one.field == "deployments[0].operations[0]"]
    assert f"{named} does not serve {operation}" in finding.message


def test_a_dropped_feature_needs_no_permission() -> None:
    """A tool that is dropped is never sent."""
    refuses = parse(document("native: [chat]")).policy.deployments["one"]
    assert refuses.unsent_features(Operation.RESPONSES) == frozenset()
    drops = parse(document("native: [chat], untranslatable: drop")).policy.deployments["one"]
    assert drops.untranslatable is FieldLoss.DROP
    assert "hosted_tools" in drops.unsent_features(Operation.RESPONSES)
    assert drops.unsent_features(Operation.CHAT) == frozenset()


def test_the_identity_of_the_platform_is_read_and_written() -> None:
    parsed = parse(document("credentials: ambient", provider="bedrock")).policy
    assert parsed.deployments["one"].credentials == AMBIENT
    assert parsed.deployments["one"].secret_references == ()
    assert effective(parsed)["deployments"][0]["credentials"] == "ambient"
    assert parse(to_yaml(parsed)).policy == parsed


def test_the_lines_of_a_bill_are_read_and_written() -> None:
    """A member that is not stated stays unstated: it is not compared with the bill."""
    fields = "billing: {account: org-acme, key: 'arn:aws:iam::410000000017:role/tollgate'}"
    parsed = parse(document(fields)).policy
    assert parsed.deployments["one"].billing == Billing(
        account="org-acme", key="arn:aws:iam::410000000017:role/tollgate"
    )
    assert parse(to_yaml(parsed)).policy == parsed
    (finding,) = findings(document("billing: {acount: org-acme}")) or ()
    assert "account" in finding.message


@pytest.mark.parametrize("version", ["2024-10-21", "2025-04-01-preview", "preview", "v1"])
def test_the_version_of_an_api_is_read_and_written(version: str) -> None:
    """A date stays the text that it is in the address."""
    fields = f"credentials: ambient, api_version: {version}"
    parsed = parse(document(fields, provider="azure_openai")).policy
    one = parsed.deployments["one"]
    assert (one.api_version, one.credentials) == (version, AMBIENT)
    assert effective(parsed)["deployments"][0]["api_version"] == version
    assert parse(to_yaml(parsed)).policy == parsed


@pytest.mark.parametrize(
    ("path", "version", "is_noted"),
    [
        ("openai/deployments/gpt", "", True),
        ("openai/deployments/gpt", ', api_version: "2024-10-21"', False),
        ("openai/v1", "", False),
    ],
    ids=["without", "with", "of version 1"],
)
def test_an_azure_address_without_its_version_is_noted(
    path: str, version: str, is_noted: bool
) -> None:
    """Every request would be a 404, which the first one would find."""
    text = document(f"credentials: ambient{version}", "azure_openai")
    text = text.replace("llm.example/v1", f"one.openai.azure.com/{path}")
    notes = [note for note in parse(text).notes if "api_version" in note.message]
    assert [note.field for note in notes] == ["deployments[0].base_url"] * is_noted


def test_every_reference_of_a_signing_key_is_listed() -> None:
    key = Credentials(
        access_key_id="env:ID", secret_access_key="file:/run/key", session_token="env:TOKEN"
    )
    one = factories.deployment(credentials=key)
    assert one.secret_references == ("env:ID", "file:/run/key", "env:TOKEN")


@pytest.mark.parametrize(
    ("fields", "provider", "message"),
    [
        ("credentials: ambient", "openai_compatible", "are not taken by openai_compatible"),
        (
            "credentials: {access_key_id: env:ID, secret_access_key: env:KEY}",
            "azure_openai",
            "of this form (keys) are not taken by azure_openai (it takes `ambient`)",
        ),
        ("credentials: ambient, api_key: env:K", "azure_openai", "stand instead of 'api_key'"),
        ("api_version: 2024-10-21", "openai", "is not sent to openai, only to `azure_openai`"),
        ('api_version: "a&b=c", api_key: env:K', "azure_openai", "2025-04-01-preview"),
        ("api_version: [v1], api_key: env:K", "azure_openai", "2025-04-01-preview"),
        ("credentials: ambience", "bedrock", "must be 'ambient' or a mapping"),
        ("credentials: {access_key_id: env:ID}", "bedrock", "is missing; write for example"),
        ("credentials: ambient, api_key: env:K", "bedrock", "stand instead of 'api_key'"),
        ("credentials: {access_key_id: AKIA1234}", "bedrock", "never the secret itself"),
        ("operations: [completions], native: [chat]", "openai_compatible", "does not serve"),
        ("native: [messages]", "openai_compatible", "does not speak messages by itself"),
        ("untranslatable: ignore", "openai_compatible", "drop"),
    ],
)
def test_a_mistake_is_named(fields: str, provider: str, message: str) -> None:
    found = findings(document(fields, provider))
    assert found is not None
    assert any(message in one.message for one in found), found


def test_a_company_can_be_denied_by_its_own_name() -> None:
    """`bedrock` is one of its products."""
    text = document("credentials: ambient", provider="bedrock")
    policy = parse(
        text.replace("regions: [any]", "regions: [any], deny_providers: [amazon]")
    ).policy
    (rule,) = policy.classes.values()
    facts = policy.deployments["one"].facts
    assert rule.deny_providers & facts.providers == {"amazon"}


def notes_on(provider: str, address: str, fields: str = "api_key: env:KEY") -> dict[str, str]:
    """Return the notes on a deployment's provider and address, by field."""
    text = document(fields, provider).replace("https://llm.example/v1", address)
    text = text.replace("region: eu,", "region: unknown,")
    prefix = "deployments[0]."
    return {
        note.field.removeprefix(prefix): note.message
        for note in parse(text).notes
        if note.field in (f"{prefix}base_url", f"{prefix}provider")
    }


@pytest.mark.parametrize(
    ("provider", "address"),
    [
        ("anthropic", "https://api.anthropic.com"),
        ("gemini", "https://generativelanguage.googleapis.com"),
        ("vertex", "https://europe-west4-aiplatform.googleapis.com/v1"),
        ("azure_openai", "https://acme.openai.azure.com"),
        ("groq", "https://api.groq.com/v1"),
        ("openai", "https://eu.api.openai.com"),
        ("bedrock", "https://bedrock-runtime.eu-central-1.amazonaws.com/v1"),
    ],
)
def test_an_address_that_nothing_answers_is_noted(provider: str, address: str) -> None:
    """Each provider's own SDK writes its address in another way, and the first request is the
    first to notice.
    """
    note = notes_on(provider, address)
    assert note.keys() == {"base_url"}
    assert note["base_url"].endswith(
        f"written '{PROVIDERS[provider].addresses[0]}'; is this one meant?"
    )


@pytest.mark.parametrize(
    ("provider", "address"),
    [
        *(
            (one.name, address.replace("LOCATION", "europe-west4").replace("HOST:PORT", "llm"))
            for one in PROVIDERS.values()
            for address in one.addresses
        ),
        ("vertex", "https://aiplatform.googleapis.com/v1/projects/p-1/locations/global"),
        ("mistral", "https://api.eu.mistral.ai/v1/"),
    ],
)
def test_the_addresses_of_the_reference_are_not_noted(provider: str, address: str) -> None:
    """The command must not doubt the page of providers."""
    address = address.replace("NAME", "acme").replace("REGION", "eu-west-1").replace("HOST", "llm")
    key = "api_key: env:KEY" if PROVIDERS[provider].needs_key else ""
    assert notes_on(provider, address, key) == {}


def test_an_engines_address_without_its_version_is_noted() -> None:
    assert "does not end in /v1" in notes_on("vllm", "http://gpu-1:8000", "")["base_url"]
    assert "llm:11434/api/chat" in notes_on("ollama", "http://llm:11434/api", "")["base_url"]


def test_another_providers_host_is_noted() -> None:
    """Only a host of `openai_compatible` was doubted: OpenAI's requests went to Anthropic."""
    note = notes_on("openai", "https://api.anthropic.com/v1")
    assert note == {
        "provider": "this host is Anthropic's, which 'provider: anthropic' is for; is 'openai' "
        "meant?"
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("google", "'gemini' or 'vertex'"),
        ("amazon", "'bedrock'"),
        ("AWS", "'bedrock'"),
        ("azure", "'azure_openai'"),
    ],
)
def test_a_companys_name_leads_to_its_providers(name: str, meant: str) -> None:
    (finding,) = findings(document(provider=name)) or ()
    assert (finding.field, finding.message) == (
        "deployments[0].provider",
        f"'{name}' is not known; did you mean {meant}?",
    )


def test_a_missing_key_names_the_identity_of_the_platform() -> None:
    """An admin on AWS has no key to write."""
    (finding,) = findings(document(provider="bedrock")) or ()
    assert finding.message.endswith("'api_key: env:BEDROCK_API_KEY' or 'credentials: ambient'")


@pytest.mark.parametrize(
    ("fields", "budget", "noted"),
    [
        ("allows: [hosted_tools]", "hard", ["allows"]),
        ("allows: [hosted_tools]", "soft", []),
        ("allows: [hosted_tools], context_window: 1000", "hard", []),
        ("allows: [store]", "hard", []),
    ],
)
def test_tools_that_a_hard_budget_would_refuse_are_noted(
    fields: str, budget: str, noted: list[str]
) -> None:
    """Each round reads the window, so the hold needs it."""
    budgets = f"budgets: [{{period: day, limit_usd: 1, kind: {budget}}}]"
    text = document(fields).replace("routes: [assistant]", f"routes: [assistant], {budgets}")
    found = [note for note in parse(text).notes if "these tools" in note.message]
    assert [note.field.split(".")[-1] for note in found] == noted


def test_the_rule_for_tools_without_a_bound_is_read_and_shown() -> None:
    """Both fields have defaults, and a wrong word names the right ones."""
    parsed = parse(document("hosted_rounds: 10, hosted_tools: hold")).policy
    one = parsed.deployments["one"]
    assert (one.hosted_rounds, one.hosted_tools) == (10, HostedToolsRule.HOLD)
    shown = effective(parsed)["deployments"][0]
    assert (shown["hosted_rounds"], shown["hosted_tools"]) == (10, "hold")
    (finding,) = findings(document("hosted_tools: keep")) or ()
    assert all(rule in finding.message for rule in ("refuse", "drop", "hold"))
    assert findings(document("hosted_rounds: 0"))
