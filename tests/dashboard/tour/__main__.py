"""Click through the dashboard with 3 and with 300 teams, as finance and as a team lead; compare the
totals with SQL, and keep a screenshot of each page, wide, narrow and dark.

    python -m tests.dashboard.tour [--out DIR] [--teams 3,300] [--events 60000]

A ledger of its own is made for each size, in a home that is removed afterwards (`--home DIR` keeps
it). It fails on the first figure that differs, on a foreign name that a team lead sees, and on any
error of the browser's console.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.dashboard.browser import signing_in
from tests.dashboard.tour.organisation import LEAD, home_of, organisation
from tests.dashboard.tour.walk import Tour, click_down, show_to_finance, show_to_lead
from tests.deploy.openid_provider import sign_in_server


def main() -> int:
    """Make each ledger, and walk through its pages."""
    parser = argparse.ArgumentParser(prog="python -m tests.dashboard.tour", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tests/output/tour"))
    parser.add_argument("--teams", default="3,300", help="numbers of teams, separated by commas")
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--home", type=Path, help="keep the ledgers here, and use them again")
    parser.add_argument("--only", default="", help="only pages with this word in their name")
    parser.add_argument("--as", dest="person", choices=("finance", "lead"), help="only as one")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    for teams in chosen.teams.split(","):
        with ExitStack() as stack:
            home = stack.enter_context(home_of(chosen.home, teams))
            ledger = stack.enter_context(organisation(home, teams=teams, events=chosen.events))
            provider = stack.enter_context(sign_in_server())
            address, _ = stack.enter_context(
                signing_in(ledger.url, home=home, folder=home, provider=provider.address)
            )
            tour = Tour(ledger=ledger, address=address, out=chosen.out, name=teams)
            if chosen.person != "lead":
                show_to_finance(tour, only=chosen.only)
                if not chosen.only:
                    click_down(tour)
            if chosen.person != "finance":
                provider.groups = (LEAD,)
                show_to_lead(tour)
    print(f"All figures agree. Screenshots: {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
