"""What can go wrong and which exit code it has.

EngineError (1: a finding or a failure)
├── UsageError (2: the command or the machine does not fit; nothing was tried)
└── UnknownStateError (3: could not find out)

Every message says what happened and what to do next; the command line prints it without a
traceback.
"""

from typing import ClassVar


class EngineError(Exception):
    """Something failed that the reader can fix."""

    exit_code: ClassVar[int] = 1


class UsageError(EngineError):
    """The command cannot work as it was given, or not on this machine."""

    exit_code: ClassVar[int] = 2


class UnknownStateError(EngineError):
    """The state of the engine could not be found out in time."""

    exit_code: ClassVar[int] = 3
