"""Parses pip's printed lines into counts of packages and downloaded bytes, and picks the error
lines; it does not run pip.
"""

import re
from dataclasses import dataclass, field

_NAMED = re.compile(r"^(?:Collecting|Processing) (\S+)")
_DOWNLOAD = re.compile(r"^\s*Downloading \S+ \((\d+(?:\.\d+)?) (bytes|kB|MB|GB)\)")
_BYTES = {"bytes": 1, "kB": 1000, "MB": 1_000_000, "GB": 1_000_000_000}
KEPT_LINES = 20


@dataclass(slots=True)
class PipOutput:
    """pip's output so far."""

    collected: int = 0
    """Packages that pip has found and, if needed, downloaded."""
    downloaded_bytes: int = 0
    is_installing: bool = False
    current: str = ""
    last_lines: list[str] = field(default_factory=list)

    def feed(self, line: str) -> None:
        """Count one line of pip's output as progress."""
        self.last_lines = [*self.last_lines, line.rstrip()][-KEPT_LINES:]
        if named := _NAMED.match(line):
            self.collected += 1
            self.current = re.split(r"[=<>!]", named[1].rpartition("/")[2])[0]
        elif download := _DOWNLOAD.match(line):
            self.downloaded_bytes += round(float(download[1]) * _BYTES[download[2]])
        elif line.startswith("Installing collected packages"):
            self.is_installing = True

    def of_next_run(self) -> "PipOutput":
        """Return the output of pip's next run for the same environment, which goes on counting."""
        return PipOutput(collected=self.collected, downloaded_bytes=self.downloaded_bytes)

    def errors(self) -> str:
        """Return pip's lines with the error, or its last lines if there is none."""
        marked = [line for line in self.last_lines if line.startswith(("ERROR", "error"))]
        return "\n".join(marked or self.last_lines[-5:])
