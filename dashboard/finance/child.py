"""Starts `tollgate` commands of finance as child processes, follows their messages and returns
their result; it decides nothing and shows nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.finance.as_finance import FILE_VARIABLE
from dashboard.source import URL_VARIABLE

PERSON_VARIABLE = "TOLLGATE_OPERATOR"  # the author beside the database login
REPORTS_VARIABLE = "TOLLGATE_REPORTS_DATABASE_URL"
KEPT = frozenset({"PATH", "HOME", "LANG", "TZ", "PYTHONPATH"})
LIMIT_S = 1800.0  # ten million events take about a minute
MOST_MESSAGES = 200
READ_S = 5.0  # for the last messages of a process that has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCommand:
    """The end of a command. `record` is its JSON, None if it printed none; `messages` is its
    standard error. `is_cut`: it was ended at the time limit.
    """

    exit_code: int
    record: Mapping[str, Any] | None
    messages: str
    is_cut: bool = False

    @property
    def is_good(self) -> bool:
        """Return True if the command did what it should."""
        return self.exit_code == 0

    @property
    def is_unsure(self) -> bool:
        """Return True if the command may or may not have changed something."""
        return self.is_cut or self.exit_code not in (0, 1, 2)


class RunningCommand:
    """A command in a child process; `wait` returns its end.

    The process outlives the page's run that started it: a page that is drawn again finds it.
    """

    def __init__(self, arguments: Sequence[str], *, person: str) -> None:
        """Start `tollgate` with these arguments and `--format json`, for a person.

        Raises `KeyError` without finance's login, which `has_login` tells.
        """
        self._began_s = time.monotonic()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed by `_ended`
        self._messages: deque[str] = deque(maxlen=MOST_MESSAGES)
        self._end: EndedCommand | None = None
        self._is_cut = False
        self._child = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "dashboard.finance.as_finance"),
                *arguments,
                "--format=json",
            ],
            env=_environment(person),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.PIPE,
            pass_fds=(int(os.environ[FILE_VARIABLE]),),
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def newest_message(self) -> str:
        """Return the command's newest message, empty before the first."""
        return self._messages[-1] if self._messages else ""

    def wait(self, seconds: float) -> EndedCommand | None:
        """Wait for so many seconds at most; return the command's end, None while it runs."""
        if self._end is None and time.monotonic() - self._began_s > LIMIT_S:
            self._is_cut = True
            self._child.kill()
        try:
            code = self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        if self._end is None:
            self._reader.join(READ_S)
            self._end = self._ended(code)
        return self._end

    def _read(self) -> None:
        """Keep the command's messages as it writes them."""
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self._messages.append(line.rstrip())

    def _ended(self, code: int) -> EndedCommand:
        """Return the end of the command, with its record."""
        self._output.seek(0)
        printed = self._output.read()
        self._output.close()
        try:
            record = json.loads(printed, parse_float=str)  # money keeps its digits
        except ValueError:
            record = None
        return EndedCommand(
            exit_code=code,
            record=record if isinstance(record, dict) else None,
            messages="\n".join(self._messages),
            is_cut=self._is_cut,
        )


def has_login() -> bool:
    """Return True if `tollgate dashboard` has handed over finance's login."""
    return FILE_VARIABLE in os.environ


def shell_text(arguments: Sequence[str]) -> str:
    """Return a command as a person types it."""
    return shlex.join(["tollgate", *arguments])


def _environment(person: str) -> dict[str, str]:
    """Return the child's environment: the reports' address, the file of finance's login, and the
    person as author.
    """
    kept = {name: value for name, value in os.environ.items() if name in KEPT}
    return kept | {
        REPORTS_VARIABLE: os.environ[URL_VARIABLE],
        FILE_VARIABLE: os.environ[FILE_VARIABLE],
        PERSON_VARIABLE: person.replace("\0", ""),
    }
