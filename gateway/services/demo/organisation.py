"""Builds the demo organisation from its size and seed: teams of very different sizes, their
projects and keys, and its calendar.
"""

from __future__ import annotations

from datetime import date, timedelta
from random import Random
from typing import NamedTuple

from gateway.domain.policy.api_keys import ALPHABET
from gateway.errors import BadUsage
from gateway.services.demo.catalogue import AREAS, FUNCTIONS, MOST_TEAMS, WORKS, DemoActivity

MOST_MONTHS, MOST_EVENTS = 36, 100_000_000
TEAM_SIZE_EXPONENT = 0.8  # the team of rank n has n to this power less traffic than the first
MOST_PROJECTS = 4
TEAMS_PER_COST_CENTRE = 1.5
# The shares of teams by the class of their data.
CLASSES = {"internal": 0.6, "confidential": 0.28, "public": 0.12}


class OrganisationSize(NamedTuple):
    """The size of a demo organisation; its events follow from it, the seed and its last day."""

    months: int
    events: int
    teams: int
    seed: int = 1

    @property
    def name(self) -> str:
        """Return the organisation's name: equal sizes and seeds have the same events."""
        return f"{self.months} months, {self.events:,} events, {self.teams} teams, seed {self.seed}"

    def check(self) -> None:
        """Raise `BadUsage` unless each number is within its limits."""
        for option, value, most in (
            ("--months", self.months, MOST_MONTHS),
            ("--events", self.events, MOST_EVENTS),
            ("--teams", self.teams, MOST_TEAMS),
        ):
            if not 1 <= value <= most:
                raise BadUsage(f"{option} is a number from 1 to {most:,}; got {value:,}.")


class Project(NamedTuple):
    """One project of a team with its key: the smallest unit of the organisation's traffic."""

    team: str
    cost_centre: str
    data_class: str
    name: str
    key_id: str
    work: DemoActivity
    weight: float


class Calendar(NamedTuple):
    """The days of the organisation's history: all of them, and those on which something happens.

    `spike` is the day of the runaway key, `incident` the provider's bad morning, `new_price` the
    first day of the partner's second contract.
    """

    first: date
    last: date
    spike: date
    incident: date
    new_price: date

    @property
    def days(self) -> int:
        """Return the number of days."""
        return (self.last - self.first).days + 1


def calendar_of(size: OrganisationSize, *, last: date) -> Calendar:
    """Return the history that ends with the day `last`: its month up to it, and the months before,
    `size.months` in all.
    """
    months = last.year * 12 + last.month - size.months
    first = date(months // 12, months % 12 + 1, 1)
    this_month = last.replace(day=1)
    return Calendar(
        first=first,
        last=last,
        spike=_working_day(last - timedelta(days=12), first, last),
        incident=_working_day(last - timedelta(days=40), first, last),
        new_price=max(first, (this_month - timedelta(days=1)).replace(day=1)),
    )


def projects_of(size: OrganisationSize) -> tuple[Project, ...]:
    """Return the projects of all teams, the largest team's first."""
    random = Random(f"{size.seed}/teams/{size.teams}")  # noqa: S311 - made-up data, not a secret
    names = [area if part == "core" else f"{area}-{part}" for part in FUNCTIONS for area in AREAS]
    centres = [
        f"CC-{1000 + 37 * n}" for n in range(max(1, round(size.teams / TEAMS_PER_COST_CENTRE)))
    ]
    found: list[Project] = []
    for rank, team in enumerate(names[: size.teams], start=1):
        data_class = random.choices(list(CLASSES), list(CLASSES.values()))[0]
        allowed = [w for w in WORKS if w.route.stays_in_eu or data_class != "confidential"]
        centre = centres[rank - 1] if rank <= len(centres) else random.choice(centres)
        wanted = min(len(allowed), random.randint(1, MOST_PROJECTS))
        chosen = sorted({random.choice(allowed) for _ in range(wanted)}, key=WORKS.index)
        size_of_team = rank**-TEAM_SIZE_EXPONENT / sum(work.weight for work in chosen)
        found += [
            Project(
                team=team,
                cost_centre=centre,
                data_class=data_class,
                name=work.name,
                key_id="".join(random.choices(ALPHABET, k=10)),
                work=work,
                weight=size_of_team * work.weight,
            )
            for work in chosen
        ]
    return tuple(found)


def runaway_project(projects: tuple[Project, ...]) -> Project:
    """Return the project whose key causes the spike: the analyst's of the largest team that has
    one, else the first.
    """
    return next((one for one in projects if one.work.route.name == "analyst"), projects[0])


def _working_day(wanted: date, first: date, last: date) -> date:
    """Return the working day nearest before a day, within the history if it has one."""
    day = max(first, min(wanted, last))
    while day.weekday() >= 5 and day > first:
        day -= timedelta(days=1)
    return day
