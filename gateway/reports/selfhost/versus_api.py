"""Answers the report `selfhost-vs-api`: for each route, what its traffic costs on own GPUs and at
an API, and from which volume own GPUs cost less.

The arithmetic is `gateway.domain.pricing.break_even`. An engine's capacity is the calibrated one,
else that of its `gpu` block in the policy in force.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_CEILING, Decimal

from gateway.domain.deployments.gpu_bills import spread
from gateway.domain.money import EXACT, nusd_from_usd, usd_from_nusd
from gateway.domain.pricing.break_even import (
    DAY_S,
    DAYS_PER_MONTH,
    BreakEven,
    TokenMix,
    api_nusd,
    break_even,
    cost_at_utilisation_nusd,
    engine_seconds,
    hour_usd,
    verdict_of,
)
from gateway.domain.pricing.selfhost import SECONDS_PER_HOUR, GpuRate
from gateway.errors import BadUsage, NothingFound
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Dataset, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.selfhost.compared_range import ComparedRange, ServedTraffic, read_range
from gateway.reports.selfhost.engines import NamedPrice, api_price
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.notes import read_freshness

COLUMNS = (
    Column(name="route", unit="", kind=ColumnKind.TEXT),
    Column(name="deployment", unit="", kind=ColumnKind.TEXT),
    Column(name="api_model", unit="", kind=ColumnKind.TEXT),
    Column(name="requests", unit="served attempts", kind=ColumnKind.COUNT),
    Column(name="total_tokens", unit="tokens", kind=ColumnKind.COUNT),
    Column(name="selfhost_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="api_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="difference_usd", unit="USD, self-hosted minus API", kind=ColumnKind.MONEY),
    Column(name="utilisation", unit="share of the capacity", kind=ColumnKind.SHARE),
    Column(name="break_even_tokens_per_day", unit="tokens per day", kind=ColumnKind.COUNT),
    Column(name="break_even_utilisation", unit="share of the capacity", kind=ColumnKind.SHARE),
    Column(name="verdict", unit="selfhost, api or never", kind=ColumnKind.TEXT),
)
_SHARE_DIGITS = Decimal("0.000001")
_ONE = Decimal(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The assumptions of a comparison; None is the present.

    `api` prices own traffic (a deployment, or a model of the price book). `model` is a deployment,
    or a deployment's model, that would serve all traffic of each route.
    """

    api: str | None = None
    usd_per_gpu_hour: Decimal | None = None
    utilisation: Decimal | None = None
    model: str | None = None
    ops_usd_per_month: Decimal = Decimal(0)

    def assumed(self, gpu: GpuRate | None) -> GpuRate | None:
        """Return GPUs at the assumed price."""
        if gpu is None or self.usd_per_gpu_hour is None:
            return gpu
        return replace(gpu, usd_per_gpu_hour=self.usd_per_gpu_hour)


PRESENT = WhatIf()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One comparison: some traffic, its cost on own GPUs and at an API; None is unknown."""

    route: str
    deployment: str | None
    api_model: str | None
    served: ServedTraffic
    gpu: GpuRate | None
    selfhost_nusd: int | None
    api_nusd: int | None
    utilisation: Decimal | None


def selfhost_vs_api(
    snapshot: ReadSnapshot, question: Question, what_if: WhatIf = PRESENT
) -> Report:
    """Return the comparison of own GPUs with an API, one row for each route and own deployment
    that could serve it, and one for each route that an API serves.

    Raises `NothingFound` for an unknown `api` or `model`, `BadUsage` for a filter.
    """
    if question.where:
        raise BadUsage("Report selfhost-vs-api takes no filter: a GPU bill belongs to no team.")
    found = None if question.dataset is Dataset.DEMO else read_range(snapshot, question)
    sides: list[_Side] = []
    if found is not None:
        now: datetime = found.closed_at or snapshot.row("SELECT now() AS now")["now"]
        api = (
            None
            if what_if.api is None
            else api_price(snapshot, what_if.api, policy=found.policy, prices=found.prices, now=now)
        )
        sides = list(_sides(found, what_if, api))
    ops_nusd = 0
    if found is not None:
        ops = EXACT.divide(what_if.ops_usd_per_month * found.days, DAYS_PER_MONTH)
        ops_nusd = nusd_from_usd(ops)
    return Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple(_row(side, what_if, ops_nusd) for side in sides),
        total={
            "requests": sum(side.served.requests for side in sides),
            "total_tokens": sum(side.served.mix.total_tokens for side in sides),
        },
        complete_until=read_freshness(snapshot, question).complete_until,
        notes=tuple(_notes(question, found, sides, what_if)),
    )


def _sides(found: ComparedRange, what_if: WhatIf, api: NamedPrice | None) -> Iterator[_Side]:
    """Yield the comparisons of a range, by route."""
    routes = found.policy.routes
    smaller = None if what_if.model is None else _smaller(found, what_if.model)
    for name in sorted({*routes, *(route for route, _ in found.served)}):
        listed = routes[name].deployments if name in routes else ()
        used = [deployment for route, deployment in found.served if route == name]
        every = dict.fromkeys((*listed, *sorted(used)))
        own = [one for one in every if found.is_own(one)]
        external = [one for one in every if one in found.policy.deployments and one not in own]
        default = _default_api(found, external)
        if smaller is not None:
            yield from _right_sized(found, what_if, name, smaller, api or default)
            continue
        for deployment in own:
            yield _own_side(found, what_if, name, deployment, api or default)
        bought = sum(
            (found.served[name, one] for one in used if not _was_own(found, one)), ServedTraffic()
        )
        if bought.requests:
            yield _api_side(found, what_if, name, bought, own, default)


def _was_own(found: ComparedRange, deployment: str) -> bool:
    """Return True if a deployment is self-hosted, or left the policy and has a GPU bill."""
    return found.is_own(deployment) or deployment in found.bills


def _smaller(found: ComparedRange, name: str) -> str:
    """Return the name of the own deployment that a what-if names by its name or its model. Raises
    `NothingFound`.
    """
    own = [found.policy.deployments[one] for one in found.gpus]
    for deployment in own:
        if name in (deployment.name, deployment.model):
            return deployment.name
    names = ", ".join(sorted({*(one.name for one in own), *(one.model for one in own)}))
    raise NothingFound(
        f"'{name}' is no self-hosted deployment with a gpu block, nor the model of one. There is: "
        f"{names or 'none'}. For a model that is not deployed yet: take its tokens per second from "
        "tollgate engine plan, and declare it in the policy as a deployment of no route."
    )


def _default_api(found: ComparedRange, external: Sequence[str]) -> NamedPrice | None:
    """Return the price of a route's first API deployment that has one."""
    for name in external:
        if name in found.prices:
            return NamedPrice(model=found.policy.deployments[name].model, price=found.prices[name])
    return None


def _own_side(
    found: ComparedRange, what_if: WhatIf, route: str, deployment: str, api: NamedPrice | None
) -> _Side:
    """Return the comparison of the traffic that an own deployment served on a route.

    Its bill is shared out over its routes by the engine's work.
    """
    served = found.served.get((route, deployment), ServedTraffic())
    gpu = what_if.assumed(found.gpus.get(deployment))
    return _Side(
        route=route,
        deployment=deployment,
        api_model=None if api is None else api.model,
        served=served,
        gpu=gpu,
        selfhost_nusd=_own_nusd(found, what_if, route, deployment, gpu),
        api_nusd=None if api is None else api_nusd(served.mix, api.price),
        utilisation=what_if.utilisation or _utilisation(found, deployment, gpu),
    )


def _own_nusd(
    found: ComparedRange, what_if: WhatIf, route: str, deployment: str, gpu: GpuRate | None
) -> int | None:
    """Return a route's share of a deployment's bill, at the assumed price and utilisation; None if
    the bill is unknown.
    """
    served = found.served.get((route, deployment), ServedTraffic())
    if what_if.utilisation is not None:
        if gpu is None:
            return None
        return cost_at_utilisation_nusd(served.mix, gpu, what_if.utilisation)
    bill = found.bills.get(deployment)
    if bill is None:
        return None
    nusd = bill.nusd
    if what_if.usd_per_gpu_hour is not None:
        nusd = nusd_from_usd(EXACT.multiply(bill.gpu_hours, what_if.usd_per_gpu_hour))
    routes = [
        name
        for name in sorted({*found.policy.routes, *(name for name, _ in found.served)})
        if (name, deployment) in found.served
        or (name in found.policy.routes and deployment in found.policy.routes[name].deployments)
    ]
    weights = [
        _weight(found.served.get((name, deployment), ServedTraffic()), gpu) for name in routes
    ]
    return spread(nusd, weights)[routes.index(route)]


def _weight(served: ServedTraffic, gpu: GpuRate | None) -> int:
    """Return the work of some traffic as a whole number: nanoseconds of the engine, or tokens if
    its speed is unknown.
    """
    if gpu is None:
        return served.mix.total_tokens
    return int(EXACT.scaleb(engine_seconds(served.mix, gpu), 9))


def _utilisation(found: ComparedRange, deployment: str, gpu: GpuRate | None) -> Decimal | None:
    """Return the share of its capacity that a deployment used in its billed hours."""
    bill = found.bills.get(deployment)
    if gpu is None or bill is None or not bill.gpu_hours:
        return None
    billed_s = EXACT.divide(bill.gpu_hours * SECONDS_PER_HOUR, Decimal(gpu.count))
    return EXACT.divide(engine_seconds(found.served_by(deployment).mix, gpu), billed_s)


def _api_side(
    found: ComparedRange,
    what_if: WhatIf,
    route: str,
    bought: ServedTraffic,
    own: Sequence[str],
    api: NamedPrice | None,
) -> _Side:
    """Return the comparison of the traffic that an API served on a route, at its actual cost, with
    GPUs of the route's first own deployment.
    """
    gpus = (what_if.assumed(found.gpus.get(name)) for name in own)
    gpu = next((one for one in gpus if one is not None), None)
    return _Side(
        route=route,
        deployment=None,
        api_model=None if api is None else api.model,
        served=bought,
        gpu=gpu,
        selfhost_nusd=None if gpu is None else _fresh_nusd(found, what_if, bought.mix, gpu),
        api_nusd=bought.cost_nusd,
        utilisation=None if gpu is None else _fresh_utilisation(found, what_if, bought.mix, gpu),
    )


def _right_sized(
    found: ComparedRange, what_if: WhatIf, route: str, smaller: str, api: NamedPrice | None
) -> Iterator[_Side]:
    """Yield the comparison of all traffic of a route, if it has any, on GPUs of one deployment."""
    gpu = what_if.assumed(found.gpus[smaller])
    served = {name: one for (own, name), one in found.served.items() if own == route}
    bought = sum(
        (one for name, one in served.items() if not _was_own(found, name)), ServedTraffic()
    )
    ours = sum((one for name, one in served.items() if _was_own(found, name)), ServedTraffic())
    whole = bought + ours
    if gpu is None or not whole.requests:
        return
    own_nusd = None if api is None else api_nusd(ours.mix, api.price)
    if not ours.mix.total_tokens:
        own_nusd = 0
    yield _Side(
        route=route,
        deployment=smaller,
        api_model=None if api is None else api.model,
        served=whole,
        gpu=gpu,
        selfhost_nusd=_fresh_nusd(found, what_if, whole.mix, gpu),
        api_nusd=None if own_nusd is None else own_nusd + bought.cost_nusd,
        utilisation=_fresh_utilisation(found, what_if, whole.mix, gpu),
    )


def _fresh_nusd(found: ComparedRange, what_if: WhatIf, mix: TokenMix, gpu: GpuRate) -> int:
    """Return the cost of GPUs that would serve some traffic over the whole range: as many copies of
    the engine as it needs, at least one; or just its share at the assumed utilisation.
    """
    if what_if.utilisation is not None:
        return cost_at_utilisation_nusd(mix, gpu, what_if.utilisation)
    load = _fresh_utilisation(found, what_if, mix, gpu)
    copies = max(load.to_integral_value(rounding=ROUND_CEILING), _ONE)
    return nusd_from_usd(EXACT.multiply(copies * 24 * hour_usd(gpu), found.days))


def _fresh_utilisation(
    found: ComparedRange, what_if: WhatIf, mix: TokenMix, gpu: GpuRate
) -> Decimal:
    """Return the share of one engine's capacity over the range that some traffic needs."""
    if what_if.utilisation is not None:
        return what_if.utilisation
    return EXACT.divide(engine_seconds(mix, gpu), found.days * DAY_S)


def _row(side: _Side, what_if: WhatIf, ops_nusd: int) -> tuple[Cell, ...]:
    """Return a comparison as a report's row."""
    even: BreakEven | None = None
    if side.gpu is not None and side.api_nusd is not None:
        even = break_even(
            side.served.mix,
            side.gpu,
            api_nusd=side.api_nusd,
            ops_usd_per_month=what_if.ops_usd_per_month,
        )
    verdict = difference = None
    if side.selfhost_nusd is not None and side.api_nusd is not None:
        difference = side.selfhost_nusd - side.api_nusd
        verdict = verdict_of(
            even,
            selfhost_nusd=side.selfhost_nusd,
            ops_nusd=ops_nusd,
            api_nusd=side.api_nusd,
        ).value
    return (
        side.route,
        side.deployment,
        side.api_model,
        side.served.requests,
        side.served.mix.total_tokens,
        _usd(side.selfhost_nusd),
        _usd(side.api_nusd),
        _usd(difference),
        _share(side.utilisation),
        None if even is None else even.tokens_per_day,
        None if even is None else _share(even.utilisation),
        verdict,
    )


def _usd(nusd: int | None) -> Decimal | None:
    """Return an amount in USD; None stays unknown."""
    return None if nusd is None else usd_from_nusd(nusd)


def _share(share: Decimal | None) -> Decimal | None:
    """Return a share with six decimals; None stays unknown."""
    return None if share is None else EXACT.quantize(share, _SHARE_DIGITS)


def _notes(
    question: Question, found: ComparedRange | None, sides: Sequence[_Side], what_if: WhatIf
) -> Iterator[str]:
    """Yield the notes below a comparison: what is unknown, and how its figures are meant."""
    if question.dataset is Dataset.DEMO:
        yield "Demo data: its GPUs have no bill, so there is nothing to compare."
        return
    if found is None:
        yield "No policy was applied yet. Next: tollgate policy apply FILE"
        return
    if found.closed_at is not None:
        yield (
            f"The month was closed at {found.closed_at:%Y-%m-%d %H:%M:%S} UTC: policy, prices and "
            "speeds are those of that moment, and facts posted to later months are left out."
        )
    if any(side.deployment is not None and side.api_model is None for side in sides):
        yield "Without an API on the route its price is unknown: name one with --api MODEL."
    if any(side.deployment is not None and side.selfhost_nusd is None for side in sides):
        yield "A deployment's cost is unknown if it has no GPU bill, or no gpu block in the policy."
    gone = sorted({one for _, one in found.served if one not in found.policy.deployments})
    if gone:
        yield (
            "The policy in force lacks these deployments of the traffic, so their price and "
            f"capacity are unknown: {', '.join(gone)}."
        )
    if any(side.deployment is None for side in sides):
        yield (
            "A row without a deployment is the traffic that an API served, at its actual cost; its "
            "self-hosted side are GPUs of the route's first own deployment for all of the "
            f"{found.days:.1f} days, as many as the traffic needs."
        )
    if what_if.model is not None:
        yield (
            f"All traffic of each route on {what_if.model}, for {found.days:.1f} days. Its "
            "capacity is the calibrated one, else that of its gpu block in the policy."
        )
    yield (
        "Break-even: a day of the GPUs (24 h × GPUs × rate"
        + (", operations included" if what_if.ops_usd_per_month else "")
        + ") over the API's price of the same mix of tokens. Utilisation 1 is the declared "
        "capacity; 'never' means that the break-even lies above it."
    )
    yield (
        "An API's price is that of its lowest context tier. Money in USD; usage and bills by the "
        "hour of the request (UTC)."
    )


REPORT = ReportKind(
    name="selfhost-vs-api",
    title="Self-hosting against an API",
    question="Do our own GPUs cost less than an API, and from which volume?",
    by=None,
    run=selfhost_vs_api,
    usd_alone="it compares price lists, which are in USD, and volumes that are still to come",
)
