"""Alembic migrations of the Tollgate database.

`gateway.storage.postgres.migrations` runs them; no alembic.ini is needed. The first revision is the
baseline, which runs the SQL files of `baseline`. Those are never edited once a release has them.

The next step is a file `versions/YYYY-MM-DD-HHMM_what_changes.py` from `script.py.mako`. Its id is
its moment, and its `down_revision` the id before. It does one step of expand, backfill or
contract, and runs while the previous release serves. It imports nothing of the gateway. Rights that
it changes change `rights.tsv` too; a view of `finance` that it changes has its columns in
`gateway/storage/postgres/schema/finance_views.py`.
"""
