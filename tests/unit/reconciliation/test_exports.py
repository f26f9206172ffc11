"""The readers of providers' exports, by their published shapes."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from gateway.domain.reconciliation.bills import BilledTo, BillFileKind
from gateway.errors import BillRejected
from gateway.wire.bills.exports.cells import kind_word, unit_size
from gateway.wire.bills.exports.collected import ParsedExport, ReadLine, collected
from gateway.wire.bills.exports.gcp_billing import model_in
from gateway.wire.bills.exports.mapping import ExportMapping
from gateway.wire.bills.exports.readers import parse_export, parse_mapping
from gateway.wire.bills.exports.text import WrongExport

Found = tuple[BilledTo, str, Decimal | None, int | None]


def parsed(
    kind: BillFileKind, text: str, *, mapping: ExportMapping | None = None, size: int = 7
) -> ParsedExport:
    """Return an export that comes in small pieces."""
    data = text.encode()
    return parse_export(
        [data[at : at + size] for at in range(0, len(data), size)],
        kind=kind,
        name="bill",
        account="A",
        mapping=mapping or ExportMapping(),
    )


def lines(export: ParsedExport) -> list[Found]:
    """Return the lines of an export."""
    return [
        (line.billed_to, line.token_kind, line.quantity, line.amount_nusd) for line in export.lines
    ]


def test_a_report_of_aws() -> None:
    """Bedrock's lines by usage type and unit; taxes are fees, other services are left out."""
    export = parsed(
        BillFileKind.AWS_CUR,
        "lineItem/UsageStartDate,lineItem/UsageAccountId,lineItem/UsageType,lineItem/UsageAmount,"
        "lineItem/UnblendedCost,lineItem/CurrencyCode,lineItem/ProductCode,pricing/unit,"
        "lineItem/LineItemType\n"
        "2026-10-01T03:00:00Z,41,USE1-Claude4Sonnet-input-tokens-cross-region-global,12.5,0.0375,"
        "USD,AmazonBedrock,1K tokens,Usage\n"
        "2026-10-01T04:00:00Z,41,USE1-Claude4Sonnet-cache-read-input-token-count,2,0.0006,USD,"
        "AmazonBedrock,1K tokens,Usage\n"
        "2026-10-01T04:00:00Z,41,BoxUsage,1,1,USD,AmazonEC2,Hrs,Usage\n"
        "2026-10-01T00:00:00Z,41,,0,3.1,USD,AmazonBedrock,,Tax\n",
        mapping=ExportMapping({}, {"Claude4Sonnet": "claude"}),
    )
    claude = BilledTo("41", None, None, "claude")
    assert lines(export) == [
        (claude, "input", Decimal("12500.0"), 37_500_000),
        (claude, "cached_input", Decimal(2000), 600_000),
        (BilledTo("41", None, None, ""), "", None, 3_100_000_000),
    ]


def test_a_report_of_aws_without_units() -> None:
    """A thousandfold error would be worse than a refusal."""
    with pytest.raises(BillRejected, match="line 2: pricing_unit"):
        parsed(
            BillFileKind.AWS_CUR,
            "line_item_usage_start_date,line_item_usage_type,line_item_usage_amount,"
            "line_item_unblended_cost\n2026-10-01,X-input-tokens,12.5,0.0375\n",
        )


def test_an_export_of_google() -> None:
    """Model and direction stand in the text of the SKU; credits are fees."""
    export = parsed(
        BillFileKind.GCP_BILLING,
        "billing_account_id,service.description,sku.description,usage_start_time,project.id,cost,"
        "currency,usage.amount,usage.unit,cost_type,credits.amount\n"
        "B,Vertex AI,Gemini 2.5 Pro Input - Predictions,2026-10-01 07:00:00 UTC,p,1.25,USD,"
        "1000000,count,regular,-0.25\n"
        "B,Compute Engine,N1,2026-10-01 07:00:00 UTC,p,1,USD,1,hours,regular,\n"
        "B,Vertex AI,Tax,2026-10-01 07:00:00 UTC,p,0.10,USD,,,tax,\n",
    )
    assert lines(export) == [
        (BilledTo("B", "p", None, "gemini-2.5-pro"), "input", Decimal(1_000_000), 1_250_000_000),
        (BilledTo("B", "p", None, ""), "", None, -250_000_000),
        (BilledTo("B", "p", None, ""), "", None, 100_000_000),
    ]
    assert model_in("Claude Sonnet 4.5 Output Tokens") == "claude-sonnet-4.5"
    assert model_in("A thing") == "A thing"


def test_the_parts_of_openais_tokens_are_told_apart() -> None:
    """Cached audio is part of both its whole counts."""
    export = parsed(
        BillFileKind.OPENAI_USAGE,
        '{"data":[{"start_time":1790812800,"results":[{"input_tokens":100,'
        '"input_cached_tokens":40,"input_cached_audio_tokens":10,"input_audio_tokens":30,'
        '"output_tokens":20,"output_audio_tokens":5,"model":"m"}]}],"has_more":false}',
    )
    assert {kind: int(quantity or 0) for _, kind, quantity, _ in lines(export)} == {
        "cached_audio_input": 10,
        "audio_input": 20,
        "cached_input": 30,
        "input": 40,
        "audio_output": 5,
        "output": 15,
    }


def test_calls_and_charges_of_costs() -> None:
    """A call names no model; any other text is a charge for no usage."""
    result = '{"amount":{"value":%s,"currency":"usd"},"line_item":"%s"}'
    page = ",".join(
        result % pair
        for pair in (
            (1, "web search tool calls"),
            (2, "Priority support"),
            (3, "m, batch input"),
            (0, "nothing"),
        )
    )
    export = parsed(
        BillFileKind.OPENAI_COSTS, f'{{"data":[{{"results":[{page}],"start_time":1790812800}}]}}'
    )
    assert [(line.billed_to.model, line.token_kind, line.text) for line in export.lines] == [
        ("", "web_search", ""),
        ("", "", "Priority support"),
        ("m", "batch input", ""),
        ("", "", "nothing"),
    ]


def test_anthropics_costs_are_cents() -> None:
    export = parsed(
        BillFileKind.ANTHROPIC_COST,
        '{"data":[{"starting_at":"2026-10-01T00:00:00Z","ending_at":"2026-10-02T00:00:00Z",'
        '"results":[{"amount":"123.45","currency":"USD","cost_type":"tokens","model":"c",'
        '"token_type":"cache_creation.ephemeral_1h_input_tokens","description":"x"},'
        '{"amount":"7","currency":"USD","cost_type":"web_search","description":"y"}]}]}',
    )
    assert [(line.token_kind, line.amount_nusd, line.slack_nusd) for line in export.lines] == [
        ("cache_write_1h", 1_234_500_000, 50_000),
        ("web_search", 70_000_000, 5_000_000),
    ]


def test_a_day_without_results_is_a_day_of_the_export() -> None:
    """It is billed at nothing; a day that is not there is missing."""
    export = parsed(
        BillFileKind.ANTHROPIC_USAGE,
        '{"data":[{"starting_at":"2026-10-01T00:00:00Z","results":[]}]}',
    )
    assert list(export.days.values()) == [0]
    assert export.first_day == export.last_day


def test_a_mapping_of_a_page_names_members() -> None:
    """A column that a page cannot have is refused, not left out."""
    page = (
        '{"data":[{"start_time":1790812800,"results":[{"input_tokens":5,"output_tokens":0,'
        '"deployment":"m","team":"p"}]}]}'
    )
    mapping = ExportMapping({"model": "deployment", "project": "team"}, {"m": "ours"})
    export = parsed(BillFileKind.OPENAI_USAGE, page, mapping=mapping)
    assert lines(export) == [(BilledTo("A", "p", None, "ours"), "input", Decimal(5), None)]
    with pytest.raises(BillRejected, match="cannot name `amount`"):
        parsed(BillFileKind.OPENAI_USAGE, page, mapping=ExportMapping({"amount": "x"}))


def test_words_and_units() -> None:
    assert kind_word("Cache Read Input Tokens") == "cached_input"
    assert kind_word("InputTokenCount") == "InputTokenCount"
    assert kind_word("output-token-count") == "output"
    assert unit_size("1K tokens") == 1000
    assert unit_size("1M Tokens") == 10**6
    assert unit_size("Million tokens") == 10**6
    assert unit_size("1000 tokens") == 1000
    assert unit_size("Tokens") == 1
    assert unit_size("Hrs") is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "- a", "models: [a]", "amount: ''", "amount: {a: b}", "amount: a\namount: b"),
        *("a: &b [*b", "price: a", "#" * 2**20 + "#", "[" * 100_000),
    ],
)
def test_a_mapping_with_a_mistake(text: str) -> None:
    with pytest.raises(BillRejected, match=r"line [0-9]+: "):
        parse_mapping(text.encode(), name="map.yaml")


ANTHROPIC_PAGE = '{"data":[{"starting_at":"2026-10-01T00:00:00Z",%s}]}'
OPENAI_PAGE = '{"data":[{"start_time":1790812800,"results":[%s]}]}'
FOCUS_HEADER = "ChargePeriodStart,ChargePeriodEnd,BilledCost,PricingUnit,SkuMeter,x_Model\n"
MISTAKES: dict[str, tuple[BillFileKind, str, int, str]] = {
    "usage without models, of Anthropic": (
        BillFileKind.ANTHROPIC_USAGE,
        ANTHROPIC_PAGE % '"results":[{"output_tokens":1}]',
        1,
        "group_by[]=model",
    ),
    "a week for a day": (
        BillFileKind.ANTHROPIC_USAGE,
        ANTHROPIC_PAGE % '"ending_at":"2026-10-08T00:00:00Z","results":[]',
        1,
        "bucket_width=1d",
    ),
    "another usage": (
        BillFileKind.ANTHROPIC_USAGE,
        ANTHROPIC_PAGE % '"results":[{"model":"m"}]',
        1,
        "no usage of messages",
    ),
    "a list for an object": (
        BillFileKind.ANTHROPIC_USAGE,
        ANTHROPIC_PAGE % '"results":[{"model":"m","output_tokens":1,"cache_creation":[1]}]',
        1,
        "are objects",
    ),
    "costs without a type": (
        BillFileKind.ANTHROPIC_COST,
        ANTHROPIC_PAGE % '"results":[{"amount":"5","currency":"USD"}]',
        1,
        "group_by[]=description",
    ),
    "usage without models, of OpenAI": (
        BillFileKind.OPENAI_USAGE,
        OPENAI_PAGE % '{"input_tokens":1}',
        1,
        "group_by=model",
    ),
    "usage of images": (
        BillFileKind.OPENAI_USAGE,
        OPENAI_PAGE % '{"images":1}',
        1,
        "no usage of completions",
    ),
    "parts of more than the whole": (
        BillFileKind.OPENAI_USAGE,
        OPENAI_PAGE % '{"model":"m","input_tokens":5,"input_cached_tokens":6}',
        1,
        "more than the whole",
    ),
    "a page without data": (BillFileKind.OPENAI_USAGE, '{"object":"page"}', 1, "no member `data`"),
    "an empty bucket": (BillFileKind.OPENAI_USAGE, '{"data":[\n{}]}', 2, "no list `results`"),
    "a number for a name": (BillFileKind.OPENAI_USAGE, "{1:2}", 1, "name is missing"),
    "no comma": (BillFileKind.OPENAI_USAGE, '{"data":[]\n"x":1}', 2, "',' is missing"),
    "a sum that is too large": (
        BillFileKind.CSV,
        "day,amount\n" + "2026-10-01,1000000000\n" * 10,
        11,
        "too large",
    ),
    "neither quantity nor amount": (BillFileKind.CSV, "day,amount\n2026-10-01,\n", 2, "are empty"),
    "columns without end": (BillFileKind.CSV, "x," * 2_000, 1, "more than 2,000 columns"),
    "FOCUS without costs": (
        BillFileKind.FOCUS,
        "ChargePeriodStart\n2026-10-01T00:00:00Z\n",
        2,
        "no BilledCost",
    ),
    "a month in one row": (
        BillFileKind.FOCUS,
        FOCUS_HEADER + "2026-10-01T00:00:00Z,2026-11-01T00:00:00Z,5,Tokens,input,m\n",
        2,
        "export daily rows",
    ),
    "Google without costs": (
        BillFileKind.GCP_BILLING,
        "usage_start_time\n2026-10-01\n",
        2,
        "no cost",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_an_export_is_named_with_its_line(name: str) -> None:
    """And with the way to export it again, if that helps."""
    kind, text, line, finding = MISTAKES[name]
    with pytest.raises(BillRejected, match=f"line {line}: ") as refused:
        parsed(kind, text, size=61)
    assert finding in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (BillFileKind.CSV, "day,amount\n2026-10-01,5\n"),
        (BillFileKind.ANTHROPIC_USAGE, ANTHROPIC_PAGE % '"results":[]'),
    ],
)
def test_a_bill_needs_an_account(kind: BillFileKind, text: str) -> None:
    """Two accounts' days must not replace each other."""
    with pytest.raises(BillRejected, match="names no account"):
        parse_export([text.encode()], kind=kind, name="bill")


def test_a_file_that_ends_within_a_character() -> None:
    """It was cut while it was copied."""
    with pytest.raises(BillRejected, match="line 2: it ends within a character"):
        parse_export(["day,amount\né".encode()[:-1]], kind=BillFileKind.CSV, name="b", account="A")


def test_sums_are_bounded() -> None:
    """Memory grows with them."""
    rows = [
        ReadLine(number, date(2026, 10, number), None, None, None, "m", "input", None, None)
        for number in (1, 2, 3)
    ]
    with pytest.raises(WrongExport, match="more than 2 sums by day") as refused:
        collected(rows, BillFileKind.CSV, account="A", models={}, most_sums=2)
    assert refused.value.line == 3


def test_a_plain_file_is_read_to_its_last_character() -> None:
    """Empty lines are none, and the last line needs no line break."""
    export = parsed(BillFileKind.CSV, "\nday,amount\n,\n2026-10-01,1.50\n2026-10-02,2")
    assert (export.rows, export.amount_nusd) == (2, 3_500_000_000)


def test_a_column_that_the_mapping_names_must_be_there() -> None:
    """Else its figures would be left out."""
    with pytest.raises(BillRejected, match="there is no column Cost, which the mapping names"):
        parsed(BillFileKind.CSV, "day,price\n", mapping=ExportMapping({"amount": "Cost"}))


def test_costs_of_nothing_are_a_day_of_the_export() -> None:
    """A provider prints a line of 0 for a day without use."""
    for kind, text in (
        (BillFileKind.ANTHROPIC_COST, ANTHROPIC_PAGE % '"results":[{"amount":"0"}]'),
        (BillFileKind.OPENAI_COSTS, OPENAI_PAGE % '{"amount":{"value":0,"currency":"usd"}}'),
    ):
        export = parsed(kind, text)
        assert (export.lines, list(export.days.values())) == ((), [0])


def test_an_item_with_a_comma_is_a_charge_if_it_is_no_usage() -> None:
    """A model's name stands before the comma, and a kind of tokens behind it."""
    text = OPENAI_PAGE % ('{"amount":{"value":5,"currency":"usd"},"line_item":"Support, monthly"}')
    assert lines(parsed(BillFileKind.OPENAI_COSTS, text)) == [
        (BilledTo("A", None, None, ""), "", None, 5_000_000_000)
    ]


def test_marketplace_models_of_aws() -> None:
    """Their usage type names the kind alone; the product names the model, or a mapping does."""
    header = (
        "lineItem/UsageStartDate,lineItem/UsageAccountId,lineItem/UsageType,lineItem/UsageAmount,"
        "lineItem/UnblendedCost,lineItem/CurrencyCode,product/ProductName,pricing/unit\n"
    )
    line = "2026-10-01T03:00:00Z,41,{},2,0.5,USD,Claude Opus (Amazon Bedrock Edition),1K tokens\n"
    kinds = "USE1-MP:USE1_InputTokenCount-Units", "USE1-MP:USE1_CacheReadInputTokenCount-Units"
    text = header + "".join(line.format(kind) for kind in (*kinds, "Bedrock-Guardrails"))
    export = parsed(BillFileKind.AWS_CUR, text, mapping=ExportMapping({}, {kinds[1]: "opus"}))
    assert lines(export) == [
        (BilledTo("41", None, None, "Claude Opus"), "input", Decimal(2000), 500_000_000),
        (BilledTo("41", None, None, "opus"), "cached_input", Decimal(2000), 500_000_000),
        (BilledTo("41", None, None, ""), "", None, 500_000_000),
    ]


def test_charges_that_count_no_tokens() -> None:
    """Hours and seats are fees, whatever else their row says; a credit of 0 is none."""
    focus = FOCUS_HEADER + "2026-10-01T00:00:00Z,2026-10-02T00:00:00Z,5,Hours,input,m\n"
    assert lines(parsed(BillFileKind.FOCUS, focus)) == [
        (BilledTo("A", None, None, ""), "", None, 5_000_000_000)
    ]
    google = (
        "usage_start_time,cost,sku_description,usage_unit,credits_amount\n"
        "2026-10-01,5,Provisioned seats,hour,0\n"
    )
    assert lines(parsed(BillFileKind.GCP_BILLING, google)) == [
        (BilledTo("A", None, None, ""), "", None, 5_000_000_000)
    ]
