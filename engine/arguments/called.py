"""The name by which the engine's commands were called, for help and messages."""

import os
import re

CALLED_AS = "TOLLGATE_CALLED_AS"
"""The variable by which `tollgate engine` states its own name."""
MODULE = "python -m engine"
OTHER_COMMANDS = ("status", "calibrate")
"""Commands that `tollgate engine` has with another meaning."""


def named(text: str) -> str:
    """Return a text in which the commands have the name by which this process was called."""
    name = os.environ.get(CALLED_AS, MODULE)
    return re.sub(rf"{MODULE}\b(?! (?:{'|'.join(OTHER_COMMANDS)})\b)", lambda _: name, text)
