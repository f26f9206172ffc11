"""The baseline: everything that a database of Tollgate 0.1.0 has.

It runs the files of `migrations/baseline` in the order of their names. There each table, function
and view stands once, in its last form. Forward only: a ledger is not rolled back.

Until 0.1.0 the same database was made by 48 steps. Their last one had this revision's id, so a
database at that step has the baseline. An older one is refused, see
`gateway.storage.postgres.migrations`.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "20261129_1000"
down_revision = None
branch_labels = None
depends_on = None

FILES = Path(__file__).parents[1] / "baseline"


def upgrade() -> None:
    """Create everything. Plain SQL: the text of the files is the text in the database."""
    # The driver's own cursor: many statements at once, and % as it stands.
    cursor = op.get_bind().connection.cursor()
    files = sorted(FILES.glob("*.sql"))
    assert files, "the package migrations must have been installed with its SQL files"
    for file in files:
        cursor.execute(file.read_text(encoding="utf-8"))
