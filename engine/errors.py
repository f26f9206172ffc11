"""Declares the errors of `python -m engine`, each with the exit code that the command line returns.

    EngineError (1: a finding or a failure)
    ├── UsageError (2: the command or the machine does not fit; nothing was tried)
    └── UnknownStateError (3: could not find out)

Every message has the problem and the next step; the command line prints it without a traceback.
"""

from typing import ClassVar


class EngineError(Exception):
    """A failure that the reader can fix."""

    exit_code: ClassVar[int] = 1


class UsageError(EngineError):
    """The command cannot work as given, or not on this machine."""

    exit_code: ClassVar[int] = 2


class UnknownStateError(EngineError):
    """The engine's state could not be determined in time."""

    exit_code: ClassVar[int] = 3
