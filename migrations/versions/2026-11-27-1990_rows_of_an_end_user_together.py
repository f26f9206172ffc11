"""Sums by day and end user lie together by end user: a page about one reads a month of them.

The rows of a day came in the order of their hashes. One end user's month of 2,578 rows lay on 2,511
pages, which took three seconds to read from a disk; now those of a day lie side by side. Days that
are summed already stay as they are until one of their events changes.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from alembic import op

revision = "20261127_1990"
down_revision = "20261126_1980"
branch_labels = None
depends_on = None


def _whole_days() -> ModuleType:
    """Return the revision that defined the function. It never changes."""
    path = Path(__file__).with_name("2026-11-26-1960_sums_of_whole_days.py")
    spec = spec_from_file_location("sums_of_whole_days", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BEFORE = _whole_days()
_, _, AND_AFTER = BEFORE.REFRESH.partition("CREATE FUNCTION tollgate.refresh_days(")
REFRESH_DAYS, END, _ = AND_AFTER.partition("END\n$$;\n")
SUMMED = BEFORE.DAYS.USERS_SUMMED.format("event")
assert REFRESH_DAYS.count(SUMMED) == 1
# In a query of its own, or Postgres would sort the events to find the groups.
TOGETHER = f"SELECT * FROM ({SUMMED}) AS summed ORDER BY end_user"  # noqa: S608 - constants


def upgrade() -> None:
    """Replace the function."""
    function = (
        "CREATE OR REPLACE FUNCTION tollgate.refresh_days("
        + REFRESH_DAYS.replace(SUMMED, TOGETHER)
        + END
    )
    op.get_bind().connection.cursor().execute(function)
