"""The report of a run: a table for the terminal, the same in `docs/chaos.md`, and an exit
status.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.stand import machine
from bench.stand.page import replace_between
from tests.chaos.checker import Books, Finding, Verdict, check, self_test
from tests.fake_upstream.faults import Fault
from tests.fake_upstream.plans import HEALTHY

PAGE = Path(__file__).parents[2] / "docs" / "chaos.md"
SHOWN = 5  # findings of a kind


@dataclass(slots=True, kw_only=True)
class Result:
    """One scenario's outcome. `rows` are measurements, `findings` violations."""

    scenario: str
    seed: int
    rows: list[tuple[str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def say(self, what: str, value: object) -> None:
        """Add a row."""
        self.rows.append((what, str(value)))

    def print_step(self, what: str) -> None:
        """Say on the way how far the run is."""
        print(f"  {time.monotonic() - self.began_s:6.1f} s  {what}", file=sys.stderr, flush=True)

    def demand(self, holds: bool, kind: str, detail: str) -> None:
        """Add a finding if the condition does not hold."""
        if not holds:
            self.findings.append(Finding(kind, detail))

    def judge(self, books: Books, mix: dict[Fault, int] | None = None) -> Verdict:
        """Check the books, plant faults in them, and demand that every fault of the mix has
        fired.
        """
        verdict = check(books)
        self.findings += verdict.findings
        counts = verdict.counts
        for name in ("requests", "attempts", "events", "kills", "lost", "doubled"):
            self.say(name, f"{counts[name]:,}")
        self.say("callers asked for", _counted(_part(counts, "kind ")))
        self.say("attempts at", _counted(_part(counts, "at ")))
        self.say("callers saw", _counted(verdict.abandoned))
        self.say("usage is", _counted(_part(counts, "source ")))
        self.say("outcomes", _counted(_part(counts, "outcome ")))
        self.say("unknown, of what can be counted", f"{counts['unknown per 100,000'] / 1000:.2f} %")
        self.say(
            "unknown, with pictures: only their provider can count them",
            f"{counts['unknown, with pictures']:,}",
        )
        self.say(
            "unknown, killed before the upstream reported anything",
            f"{counts['unknown, killed unreported']:,}",
        )
        because = _part(counts, "because ")
        if because:
            self.say(
                "unknown because",
                "; ".join(f"{count} {cause}" for cause, count in because.most_common()),
            )
        for team, tokens in sorted(_part(counts, "tokens of ").items()):
            self.say(f"tokens of {team}, booked as the provider's", f"{tokens:,}")
        if parts := _part(counts, "part "):
            self.say("rarer counts, booked as the provider's", _counted(parts))
        for name in (
            "counted upstream",
            "suspect, flagged",
            "counted by the gateway",
            "counted: tokens booked",
            "counted: tokens true",
            "never sent",
            "killed before it was sent",
            "left before it arrived",
            "written into a closing connection",
        ):
            if counts[name]:
                self.say(name, f"{counts[name]:,}")
        self.say("faults fired", _counted(verdict.fired))
        for fault in set(mix or HEALTHY) - {Fault.NONE}:
            self.demand(
                verdict.fired[fault.value] > 0,
                "not fired",
                f"{fault.value}: in the mix, but it never fired",
            )
        missed = self_test(books)
        self.say(
            "planted in the checker's input",
            "each found" if not missed else f"NOT FOUND: {', '.join(missed)}",
        )
        for name in missed:
            self.demand(False, "checker", f"{name} was planted and not found")
        return verdict

    def finish(self, *, write: bool, command: str) -> int:
        """Print, write if requested, and return the exit status."""
        kinds = Counter(finding.kind for finding in self.findings)
        self.say("findings", _counted(kinds) if kinds else "none")
        facts = [
            ("machine", machine.describe()),
            ("commit", machine.commit()),
            ("date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
            ("command", command),
            ("seed", str(self.seed)),
            ("took", f"{time.monotonic() - self.began_s:.0f} s"),
        ]
        width = max(len(name) for name, _ in self.rows)
        for name, value in [*self.rows, *facts]:
            print(f"{name:<{width}}  {value}")
        for kind in kinds:
            for finding in [f for f in self.findings if f.kind == kind][:SHOWN]:
                print(f"  {kind}: {finding.detail}", file=sys.stderr)
        if write:
            _write(self.scenario, self.rows, facts)
            print(f"written to {PAGE.name}")
        return 1 if self.findings else 0


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common()) or "nothing"


def _part(counts: Counter[str], prefix: str) -> Counter[str]:
    return Counter(
        {
            name.removeprefix(prefix): count
            for name, count in counts.items()
            if name.startswith(prefix)
        }
    )


def _write(
    scenario: str, rows: Sequence[tuple[str, str]], facts: Sequence[tuple[str, str]]
) -> None:
    """Replace the lines between the scenario's marks.

    Raises `ValueError` if the page has none.
    """
    table = [
        "| | |",
        "|---|---|",
        *(f"| {name} | {value.replace('|', '/')} |" for name, value in rows),
    ]
    measured = [f"- {name}: {value}" for name, value in facts]
    opening, closing = f"<!-- chaos:{scenario}:begin -->", f"<!-- chaos:{scenario}:end -->"
    replace_between(PAGE, opening, closing, lines=[*measured, "", *table])
