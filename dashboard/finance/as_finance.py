"""Becomes one `tollgate` command under finance's database login: `python -m
dashboard.finance.as_finance month close 2026-10 --yes`.

It reads the login's address from the open file that `tollgate dashboard` made. So the dashboard's
own process has it neither in its environment nor in its memory.
"""

from __future__ import annotations

import os
import sys

FILE_VARIABLE = "TOLLGATE_DASHBOARD_FINANCE"  # the number of the file, set by `tollgate dashboard`
URL_VARIABLE = "TOLLGATE_FINANCE_DATABASE_URL"
MOST_BYTES = 65_536


def main() -> None:
    """Replace this process by the command of its arguments."""
    file = int(os.environ.pop(FILE_VARIABLE))
    # pread: the position of the file is shared with all its other readers.
    os.environ[URL_VARIABLE] = os.pread(file, MOST_BYTES, 0).decode()
    os.close(file)
    command = [sys.executable, "-P", "-m", "gateway.main", *sys.argv[1:]]
    os.execv(sys.executable, command)  # noqa: S606  the interpreter itself, and no shell


if __name__ == "__main__":
    main()
