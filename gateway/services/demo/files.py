"""Makes the files of a demo ledger: the exports of every provider, the GPU bill, and the text that
lists the planted gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gateway.domain.money import plain_usd
from gateway.services.demo.exports import DemoFile, files_of, gpu_bill
from gateway.services.demo.invoices import PlantedGap, invoices_of, plant_gaps
from gateway.services.demo.metered import Key, Metered
from gateway.services.demo.organisation import Calendar, OrganisationSize
from gateway.services.demo.policy_file import NAME, policy_file
from gateway.services.demo.prices import PriceSince

README = "README.txt"
# One machine serves about so many events a month with the GPUs of the catalogue.
EVENTS_PER_MACHINE_MONTH = 350_000


def demo_files(
    size: OrganisationSize,
    calendar: Calendar,
    usage: Mapping[Key, Metered],
    prices: Mapping[str, Sequence[PriceSince]],
) -> list[DemoFile]:
    """Return the files of a demo ledger; the last one is the text for people."""
    invoices = invoices_of(usage)
    latest = {name: dated[-1].price for name, dated in prices.items()}
    gaps = plant_gaps(invoices, calendar, latest)
    found = [file for invoice in invoices.values() for file in files_of(invoice, calendar)]
    machines = max(1, round(size.events / size.months / EVENTS_PER_MACHINE_MONTH))
    found.append(gpu_bill(calendar, machines=machines))
    unknown = sum(one.unknown for one in usage.values())
    text = "\n".join(_readme(size, calendar, found, gaps, unknown=unknown))
    found.append(policy_file(size, latest))
    return [*found, DemoFile("readme", "", "", README, text + "\n")]


def _readme(
    size: OrganisationSize,
    calendar: Calendar,
    files: Iterable[DemoFile],
    gaps: Sequence[PlantedGap],
    *,
    unknown: int,
) -> Iterable[str]:
    """Yield the lines of the text: the data, the commands and each gap with its amount."""
    yield "Files of a Tollgate demo ledger. Everything in them is invented."
    yield ""
    yield f"Organisation: {size.name}; {calendar.first} to {calendar.last} (UTC)."
    yield f"Spike:        {calendar.spike}, one key of the route analyst with the tag"
    yield "              feature=runaway-evals."
    yield f"Bad morning:  {calendar.incident}, deployment mini-us fails from 08:00 to 12:00."
    yield f"Price change: {calendar.new_price}, deployment partner, in the ledger."
    yield "Budgets are not charged, no adjustment is booked, and no policy is applied yet."
    yield f"{unknown:,} attempts timed out: their cost is unknown, and no provider billed them."
    yield ""
    yield "In this folder, apply the policy, which says whose bills are whose, and import them:"
    yield f"  tollgate policy apply {NAME} --yes --message 'the demo organisation'"
    for file in files:
        if file.kind == "gpu-bill":
            yield f"  tollgate engine bill import {file.name}"
        else:
            yield (
                f"  tollgate reconcile import {file.name} --provider {file.provider} "
                f"--kind {file.kind} --account {file.account}"
            )
    yield ""
    yield "Planted gaps, billed less metered, in USD. Each provider bills the rest as metered:"
    for gap in gaps:
        days = f"{gap.first}" if gap.first == gap.last else f"{gap.first} to {gap.last}"
        yield ""
        yield f"  {gap.cause}: {plain_usd(gap.nusd)} USD"
        yield f"    {gap.provider} {gap.model or '(all models)'}, {days}"
        if gap.tokens:
            yield f"    {gap.tokens:,} tokens"
        yield f"    {gap.text}"
