"""Lists all reports by name in the order in which they are shown; the CLI, the CSV export and the
docs table read this list.
"""

from __future__ import annotations

from gateway.reports.budgets import budgets
from gateway.reports.costs import movers, routing_savings, token_costs, unit_costs
from gateway.reports.forecasts import forecast, outlook, spikes
from gateway.reports.month import closes, months
from gateway.reports.questions import (
    destinations,
    events,
    latency,
    meter_quality,
    overview,
    retries,
    savings,
    shadow,
    spend,
    tokens,
    unsettled,
)
from gateway.reports.records import audit_log, prices, refusals, residency
from gateway.reports.report_kind import ReportKind
from gateway.reports.selfhost import engine_samples, gpu, versus_api, waterfall

REPORTS: dict[str, ReportKind] = {
    kind.name: kind
    for kind in (
        overview.REPORT,
        spend.REPORT,
        events.REPORT,
        tokens.REPORT,
        unit_costs.REPORT,
        token_costs.REPORT,
        savings.REPORT,
        routing_savings.REPORT,
        movers.REPORT,
        retries.REPORT,
        latency.REPORT,
        destinations.REPORT,
        gpu.REPORT,
        engine_samples.REPORT,
        waterfall.REPORT,
        versus_api.REPORT,
        budgets.REPORT,
        forecast.REPORT,
        outlook.REPORT,
        spikes.REPORT,
        meter_quality.REPORT,
        unsettled.REPORT,
        residency.REPORT,
        refusals.REPORT,
        shadow.REPORT,
        prices.REPORT,
        months.REPORT,
        closes.REPORT,
        audit_log.REPORT,
    )
}
