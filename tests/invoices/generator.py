"""Makes a month of requests at one provider, and the files in which the provider bills them, with
seven planted differences. It shares no code with `tollgate reconcile`: all sums and files are its
own.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from random import Random

MONTH = date(2026, 10, 1)
DAYS = [MONTH + timedelta(days=n) for n in range(31)]
ACCOUNT, PROJECT, KEY, FOREIGN_KEY = "org-77", "proj-a", "key-gateway", "key-laptop"
# Nano-dollars a token. Model `steady` keeps its price, `rising` gets a new one, `cents` is printed
# in whole cents.
RATES = {
    "steady-1": {"input": 2500, "cached": 250, "output": 10_000},
    "rising-1": {"input": 800, "cached": 200, "output": 3200},
    "cents-1": {"input": 1250, "cached": 125, "output": 9000},
}
KINDS = ("input", "cached", "output")
SHAPES = ("openai", "anthropic", "csv", "focus", "aws-cur", "gcp-billing")
RISE_PER_CENT = 6  # whole nano-dollars for each rate above


@dataclass
class Call:
    """One metered attempt; `tokens` by kind."""

    model: str
    at: datetime
    duration_s: float
    tokens: dict[str, int]
    outcome: str = "ok"

    @property
    def cost(self) -> int:
        return sum(count * RATES[self.model][kind] for kind, count in self.tokens.items())


@dataclass
class Billed:
    """Tokens and nano-dollars of one day, key, model and kind."""

    tokens: int = 0
    nusd: int = 0


@dataclass
class Month:
    """The metered calls, the files, and the planted differences in nano-dollars by cause.

    `mapping` is the YAML that `--mapping` needs, if the provider has its own words for models.
    """

    shape: str
    money_has_keys: bool
    calls: list[Call] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # text by kind of export
    planted: dict[str, int] = field(default_factory=dict)
    mapping: str = ""
    midnight_nusd: int = 0
    missing_day: date = MONTH


def make_month(seed: int) -> Month:
    """Return the month of a seed."""
    random = Random(seed)
    month = Month(SHAPES[seed % len(SHAPES)], money_has_keys=random.random() < 0.5)
    for day in DAYS:
        for model in RATES:
            month.calls += [call(random, model, day) for _ in range(random.randint(1, 3))]
    days = random.sample(range(2, 28), 8)
    before_midnight, aborted, missing = days[0], days[1], days[2]
    while missing in (before_midnight, before_midnight + 1, aborted):
        missing = random.randint(1, 29)
    rises, fee = random.randint(4, 26), random.choice([n for n in range(31) if n != missing])
    bypassed = random.sample([n for n in range(31) if n != missing], random.randint(1, 9))

    late = call(random, "steady-1", DAYS[before_midnight], hour=23, minute=58)
    late.duration_s = 60.0 * random.randint(4, 30)
    gone = call(random, "steady-1", DAYS[aborted])
    gone.outcome = "client_gone"
    month.calls += [late, gone]

    bill: dict[tuple[date, str, str, str], Billed] = {}
    for one in month.calls:
        day = one.at.date() + timedelta(days=1) if one is late else one.at.date()
        for kind, count in one.tokens.items():
            add(bill, day, KEY, one.model, kind, count)

    unseen = random.randint(500, 40_000)
    add(bill, DAYS[aborted], KEY, "steady-1", "output", unseen)
    month.planted["aborted"] = unseen * RATES["steady-1"]["output"]

    month.planted["unmetered"] = 0
    for n in bypassed:
        for kind in KINDS:
            count = random.randint(1, 90_000)
            add(bill, DAYS[n], FOREIGN_KEY, "steady-1", kind, count)
            month.planted["unmetered"] += count * RATES["steady-1"][kind]

    month.planted["price"] = month.planted["rounding"] = 0
    for (day, _, model, _), one in bill.items():
        exact = one.nusd
        if model == "rising-1" and day >= DAYS[rises]:
            one.nusd = exact * (100 + RISE_PER_CENT) // 100
            if day != DAYS[missing]:
                month.planted["price"] += one.nusd - exact
        if model == "cents-1":
            cents = (Decimal(exact) / 10**7).quantize(Decimal(1), rounding=ROUND_HALF_UP)
            one.nusd = int(cents) * 10**7
            if day != DAYS[missing]:
                month.planted["rounding"] += one.nusd - exact

    month.missing_day = DAYS[missing]
    month.planted["missing_bill"] = -sum(
        one.cost for one in month.calls if one.at.date() == DAYS[missing]
    )
    bill = {place: one for place, one in bill.items() if place[0] != DAYS[missing]}
    fee_nusd = random.randint(100, 99_999) * 10**7
    month.planted["fee"] = fee_nusd
    month.planted["timing"] = 0
    month.midnight_nusd = late.cost
    month.files = FILES[month.shape](bill, DAYS[fee], fee_nusd, month)
    return month


def call(random: Random, model: str, day: date, *, hour: int = 0, minute: int = 0) -> Call:
    """Return a call on a day, at a random time unless it has one."""
    at = datetime(day.year, day.month, day.day, hour or random.randint(1, 22), minute, tzinfo=UTC)
    tokens = {
        "input": random.randint(1, 60_000),
        "cached": random.randint(1, 60_000),
        "output": random.randint(1, 8_000),
    }
    return Call(model, at + timedelta(seconds=random.randint(0, 59)), 1.5, tokens)


def add(
    bill: dict[tuple[date, str, str, str], Billed],
    day: date,
    key: str,
    model: str,
    kind: str,
    count: int,
) -> None:
    """Bill tokens at the first price."""
    one = bill.setdefault((day, key, model, kind), Billed())
    one.tokens += count
    one.nusd += count * RATES[model][kind]


Bill = dict[tuple[date, str, str, str], Billed]


def usd(nusd: int, *, places: int = 9) -> str:
    """Return dollars as text with so many decimals."""
    return f"{Decimal(nusd).scaleb(-9):.{places}f}"


def printed(model: str, nusd: int) -> str:
    """Return an amount as the provider prints it."""
    return usd(nusd, places=2 if model in ("cents-1", "") else 9)


def by_money_key(bill: Bill, month: Month) -> Bill:
    """Return the bill as the costs have it: with keys, or added up over them."""
    if month.money_has_keys:
        return bill
    found: Bill = {}
    for (day, _, model, kind), one in bill.items():
        total = found.setdefault((day, "", model, kind), Billed())
        total.tokens += one.tokens
        total.nusd += one.nusd
    return found


def openai_files(bill: Bill, fee_day: date, fee: int, month: Month) -> dict[str, str]:
    """Return usage and costs as OpenAI's pages."""
    usage: dict[date, list[object]] = {}
    for day, key, model in sorted({place[:3] for place in bill}):
        own = {kind: bill.get((day, key, model, kind), Billed()).tokens for kind in KINDS}
        usage.setdefault(day, []).append(
            {
                "object": "organization.usage.completions.result",
                "input_tokens": own["input"] + own["cached"],
                "input_cached_tokens": own["cached"],
                "output_tokens": own["output"],
                "num_model_requests": 3,
                "project_id": PROJECT,
                "user_id": None,
                "api_key_id": key,
                "model": f"{model}-2026-05-01" if model == "steady-1" else model,
                "batch": None,
            }
        )
    words = {"input": "input", "cached": "cached input", "output": "output"}
    costs: dict[date, list[str]] = {}
    for (day, key, model, kind), one in sorted(by_money_key(bill, month).items()):
        costs.setdefault(day, []).append(
            cost_json(printed(model, one.nusd), f"{model}, {words[kind]}", key or None)
        )
    costs.setdefault(fee_day, []).append(cost_json(printed("", fee), "Priority support", None))
    days = sorted({place[0] for place in bill})
    return {
        "openai-usage": json.dumps(
            {
                "object": "page",
                "data": [
                    {
                        "object": "bucket",
                        "start_time": seconds(day),
                        "end_time": seconds(day) + 86_400,
                        "results": usage.get(day, []),
                    }
                    for day in days
                ],
                "has_more": False,
                "next_page": None,
            },
            indent=2,
        ),
        "openai-costs": '{"object":"page","data":['
        + ",\n".join(
            f'{{"object":"bucket","start_time":{seconds(day)},"end_time":{seconds(day) + 86_400},'
            f'"results":[{",".join(costs.get(day, []))}]}}'
            for day in days
        )
        + '],"has_more":false,"next_page":null}',
    }


def cost_json(value: str, item: str, key: str | None) -> str:
    """Return a result of costs, whose value keeps its digits."""
    return (
        f'{{"object":"organization.costs.result","amount":{{"value":{value},"currency":"usd"}},'
        f'"line_item":{json.dumps(item)},"project_id":"{PROJECT}","api_key_id":{json.dumps(key)}}}'
    )


def seconds(day: date) -> int:
    """Return a day's begin in Unix seconds."""
    return (day - date(1970, 1, 1)).days * 86_400


def anthropic_files(bill: Bill, fee_day: date, fee: int, month: Month) -> dict[str, str]:
    """Return usage and costs as Anthropic's pages; amounts are cents."""
    days = sorted({place[0] for place in bill})
    usage: dict[date, list[object]] = {}
    for day, key, model in sorted({place[:3] for place in bill}):
        own = {kind: bill.get((day, key, model, kind), Billed()).tokens for kind in KINDS}
        usage.setdefault(day, []).append(
            {
                "uncached_input_tokens": own["input"],
                "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
                "cache_read_input_tokens": own["cached"],
                "output_tokens": own["output"],
                "server_tool_use": {"web_search_requests": 0},
                "api_key_id": key,
                "workspace_id": PROJECT,
                "model": model,
                "service_tier": "standard",
            }
        )
    types = {
        "input": "uncached_input_tokens",
        "cached": "cache_read_input_tokens",
        "output": "output_tokens",
    }
    costs: dict[date, list[object]] = {}
    for (day, _, model, kind), one in sorted(
        by_money_key(bill, Month("", money_has_keys=False)).items()
    ):
        cents = Decimal(printed(model, one.nusd)).scaleb(2)
        costs.setdefault(day, []).append(
            {
                "currency": "USD",
                "amount": f"{cents:f}",
                "workspace_id": PROJECT,
                "description": f"{model} usage: {kind}",
                "cost_type": "tokens",
                "model": model,
                "token_type": types[kind],
            }
        )
    costs.setdefault(fee_day, []).append(
        {
            "currency": "USD",
            "amount": f"{Decimal(usd(fee, places=2)).scaleb(2):f}",
            "workspace_id": None,
            "description": "Seats",
            "cost_type": None,
            "model": None,
            "token_type": None,
        }
    )
    return {
        kind: json.dumps(
            {
                "data": [
                    {
                        "starting_at": f"{day}T00:00:00Z",
                        "ending_at": f"{day + timedelta(days=1)}T00:00:00Z",
                        "results": found.get(day, []),
                    }
                    for day in days
                ],
                "has_more": False,
            }
        )
        for kind, found in (("anthropic-usage", usage), ("anthropic-cost", costs))
    }


def csv_files(bill: Bill, fee_day: date, fee: int, month: Month) -> dict[str, str]:
    """Return one plain CSV."""
    words = {"input": "input", "cached": "cached_input", "output": "output"}
    rows = [
        (day, ACCOUNT, PROJECT, key, model, words[kind], one.tokens, printed(model, one.nusd))
        for (day, key, model, kind), one in sorted(bill.items())
    ]
    rows.append((fee_day, ACCOUNT, "", "", "", "support plan", "", usd(fee, places=2)))
    header = ("day", "account", "project", "key", "model", "token_kind", "quantity", "amount")
    return {"csv": table(header, rows)}


def focus_files(bill: Bill, fee_day: date, fee: int, month: Month) -> dict[str, str]:
    """Return one export in FOCUS 1.2's columns, as far as they matter."""
    header = (
        *("BilledCost", "BillingAccountId", "BillingCurrency", "ChargeCategory"),
        *("ChargeDescription", "ChargePeriodStart", "ChargePeriodEnd", "ConsumedQuantity"),
        *("ConsumedUnit", "ServiceCategory", "SkuId", "SkuMeter", "SubAccountId", "x_KeyId"),
    )
    words = {"input": "Input Tokens", "cached": "Cached Input", "output": "Output Tokens"}

    def row(day: date, amount: str, category: str, text: str, *rest: str) -> tuple[str, ...]:
        period = (f"{day}T00:00:00Z", f"{day + timedelta(days=1)}T00:00:00Z")
        tokens, sku, meter, project, key = rest
        unit = "Tokens" if tokens else ""
        service = "AI and Machine Learning"
        return (
            *(amount, ACCOUNT, "USD", category, text, *period, tokens, unit),
            *(service, sku, meter, project, key),
        )

    rows = [
        row(
            *(day, printed(model, one.nusd), "Usage", "tokens"),
            *(f"{one.tokens}.0", model, words[kind], PROJECT, key),
        )
        for (day, key, model, kind), one in sorted(bill.items())
    ]
    rows.append(row(fee_day, usd(fee, places=2), "Purchase", "Reserved seats", "", "", "", "", ""))
    other = row(fee_day, "99.99", "Usage", "a disk", "7", "disk", "GB", PROJECT, "")
    rows.append(tuple("Storage" if cell == "AI and Machine Learning" else cell for cell in other))
    return {"focus": table(header, rows)}


def aws_files(bill: Bill, fee_day: date, fee: int, month: Month) -> dict[str, str]:
    """Return a Cost and Usage Report with Bedrock's lines in thousands of tokens, a tax, and a line
    of another service. Its members are the account and the principal.
    """
    header = (
        *("lineItem/UsageStartDate", "lineItem/UsageAccountId", "lineItem/LineItemType"),
        *("lineItem/ProductCode", "lineItem/UsageType", "lineItem/UsageAmount", "pricing/unit"),
        *("lineItem/UnblendedCost", "lineItem/CurrencyCode", "lineItem/LineItemDescription"),
        "lineItem/IamPrincipal",
    )
    names = {model: model.title().replace("-", "") for model in RATES}
    words = {
        "input": "input-tokens",
        "cached": "cache-read-input-token-count",
        "output": "output-tokens",
    }
    rows = [
        (
            *(f"{day}T05:00:00Z", ACCOUNT, "Usage", "AmazonBedrock"),
            *(f"USE1-{names[model]}-{words[kind]}", f"{Decimal(one.tokens) / 1000:.3f}"),
            *("1K tokens", printed(model, one.nusd), "USD", "tokens", key),
        )
        for (day, key, model, kind), one in sorted(bill.items())
    ]
    at = f"{fee_day}T00:00:00Z"
    tax = ("Tax", "AmazonBedrock", "", "0", "", usd(fee, places=2), "USD", "Tax of the month", "")
    box = ("Usage", "AmazonEC2", "BoxUsage:m7i.large", "24", "Hrs", "2.42", "USD", "a box", "")
    rows += [(at, ACCOUNT, *tax), (at, ACCOUNT, *box)]
    month.mapping = "models:\n" + "".join(f"  {ours}: {one}\n" for one, ours in names.items())
    return {"aws-cur": table(header, rows)}


def gcp_files(bill: Bill, fee_day: date, fee: int, month: Month) -> dict[str, str]:
    """Return a billing export of Vertex AI with a tax and a line of another service. It has no
    keys: the bypassing program has a project of its own.
    """
    header = (
        *("billing_account_id", "service.description", "sku.description", "usage_start_time"),
        *("project.id", "cost", "currency", "usage.amount", "usage.unit", "cost_type"),
        "credits.amount",
    )
    words = {"input": "Input", "cached": "Cached Input", "output": "Output"}
    rows = [
        (
            *(ACCOUNT, "Vertex AI", f"{model} {words[kind]} - Predictions"),
            *(f"{day} 05:00:00 UTC", PROJECT if key == KEY else "proj-laptop"),
            *(printed(model, one.nusd), "USD", one.tokens, "count", "regular", ""),
        )
        for (day, key, model, kind), one in sorted(bill.items())
    ]
    at = f"{fee_day} 00:00:00 UTC"
    tax = (at, PROJECT, usd(fee, places=2), "USD", "", "", "tax", "")
    disk = (at, PROJECT, "9.99", "USD", "7", "gibibyte month", "regular", "")
    rows += [(ACCOUNT, "Vertex AI", "Tax", *tax), (ACCOUNT, "Compute Engine", "Disk", *disk)]
    month.mapping = "models:\n" + "".join(
        f"  {model} {word} - Predictions: {model}\n" for model in RATES for word in words.values()
    )
    return {"gcp-billing": table(header, rows)}


def table(header: object, rows: object) -> str:
    """Return rows as CSV."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(header)  # type: ignore[arg-type]  # a row of cells
    writer.writerows(rows)  # type: ignore[arg-type]  # rows of cells
    return out.getvalue()


FILES = {
    "openai": openai_files,
    "anthropic": anthropic_files,
    "csv": csv_files,
    "focus": focus_files,
    "aws-cur": aws_files,
    "gcp-billing": gcp_files,
}
