"""Takes the demand of the ledger's last days from `tollgate report demand`, run as a child: the
engine imports nothing of the gateway and knows no database.
"""

import re
import subprocess
import sys

from engine.errors import EngineError, UnknownStateError, UsageError
from engine.plan.demand import Demand, parse_demand

LIMIT_S = 900  # the report reads single events: minutes for millions of them
UNKNOWN = 3  # the gateway's exit code if it could not ask Postgres


def demand_of_ledger(period: str) -> Demand:
    """Return the measured demand of a period such as `30d`.

    Raises: UsageError: the period is no number of days. EngineError: the report has no demand.
    UnknownStateError: the ledger did not answer.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,2}d", period):
        raise UsageError(f"--from-ledger is {period!r}; write a number of days such as 30d.")
    command = [sys.executable, "-P", "-m", "gateway.main", "report", "demand"]
    command += ["--days", period.removesuffix("d"), "--format", "json"]
    try:
        # Its notes and errors go where ours go.
        result = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnknownStateError(
            f"tollgate report demand took more than {LIMIT_S} s. Take fewer days."
        ) from error
    if result.returncode:
        kind = UnknownStateError if result.returncode == UNKNOWN else EngineError
        raise kind(
            f"tollgate report demand --days {period.removesuffix('d')} failed (exit"
            f" {result.returncode}); its message stands above."
        )
    return parse_demand(result.stdout, "of the ledger")
