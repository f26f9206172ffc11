"""The report of a run: a table for the terminal, the same in `docs/lab/chaos`, its line on
`docs/chaos.md`, and an exit status.
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

DOCS = Path(__file__).parents[2] / "docs"
PAGE, LAB = DOCS / "chaos.md", DOCS / "lab" / "chaos"
MARKS = "<!-- chaos: begin -->", "<!-- chaos: end -->"
SUMMED_UP = {  # a column of the page: the figure of a run
    "requests": "requests",
    "attempts": "attempts",
    "kills": "kills",
    "lost": "lost",
    "doubled": "doubled",
    "unknown": "unknown, of what can be counted",
    "findings": "findings",
    "commit": "commit",
    "date": "date",
}
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
    """Write the figures of a run into its file, and the page's table of all runs."""
    lines = [f"{name}\t{value}\n" for name, value in [("figure", "value"), *facts, *rows]]
    (LAB / f"{scenario}.tsv").write_text("".join(lines), encoding="utf-8")
    replace_between(PAGE, *MARKS, lines=summary())


def summary() -> list[str]:
    """Return the lines of a table with the last run of each scenario, by its file."""
    lines = [f"| run | {' | '.join(SUMMED_UP)} |", "|---" * (len(SUMMED_UP) + 1) + "|"]
    for path in sorted(LAB.glob("*.tsv")):
        figures = dict(
            line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines()
        )
        commit = figures["commit"].split()[0]
        shown = figures | {"commit": commit, "date": figures["date"].split()[0]}
        cells = [shown.get(figure, "–") for figure in SUMMED_UP.values()]
        lines.append(f"| [{path.stem}](lab/chaos/{path.name}) | {' | '.join(cells)} |")
    return lines
