"""The result of a run as a table of the guide: one row for each client and pair of dialects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.clients.matrix import Call, Cell, Treatment

HEAD = "| client | version | caller → backend | direct | under a residency rule | date | result |"
MOST_SHOWN = 160


@dataclass(slots=True)
class Outcome:
    """The outcome of one cell: each call's word (`ok` or the failure), or why it did not run."""

    calls: dict[Call, str] = field(default_factory=dict)
    skipped: str | None = None

    @property
    def is_good(self) -> bool:
        """Return True if each call that was made succeeded; a skipped cell made none."""
        return all(word == "ok" for word in self.calls.values())

    def shown(self) -> str:
        """Return the calls that succeeded, or a dash."""
        good = [str(call) for call, word in self.calls.items() if word == "ok"]
        return ", ".join(good) or "–"

    def finding(self) -> str | None:
        """Return the first failure or the reason of the skip, in one line."""
        failed = [f"{call}: {word}" for call, word in self.calls.items() if word != "ok"]
        found = next(iter(failed), self.skipped)
        return None if found is None else " ".join(found.split()).replace("|", "/")[:MOST_SHOWN]


def lines(
    outcomes: Mapping[Cell, Outcome], versions: Mapping[str, str], *, date: str
) -> Iterator[str]:
    """Yield the lines of the table."""
    yield HEAD
    yield "|" + "---|" * (HEAD.count("|") - 1)
    for cell, direct in outcomes.items():
        if cell.is_ruled:
            continue
        ruled = _under_a_rule(cell, outcomes)
        finding = direct.finding() or ruled.finding()
        yield _row(
            cell.client.title,
            versions[cell.client.name],
            _pair(cell),
            direct.shown(),
            ruled.shown(),
            date,
            finding or _good(cell),
        )


def _under_a_rule(cell: Cell, outcomes: Mapping[Cell, Outcome]) -> Outcome:
    """Return the outcome of the same cell under a rule."""
    same = (cell.client, cell.caller, cell.backend, cell.treatment)
    return next(
        (
            outcome
            for other, outcome in outcomes.items()
            if other.is_ruled
            and (other.client, other.caller, other.backend, other.treatment) == same
        ),
        Outcome(),
    )


def _pair(cell: Cell) -> str:
    pair = f"{cell.caller} → {cell.backend}"
    if cell.treatment is Treatment.REFUSED:
        return f"{cell.caller} → {cell.route}, without leave"
    return pair if cell.treatment is Treatment.PLAIN else f"{pair}, `{cell.treatment}`"


def _good(cell: Cell) -> str:
    """Return the word for a cell without a finding."""
    if cell.treatment is not Treatment.REFUSED:
        return "ok"
    return f"refused as it should, naming {' and '.join(f'`{one}`' for one in cell.remedies)}"


def _row(*columns: str) -> str:
    return f"| {' | '.join(columns)} |"
