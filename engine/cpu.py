"""Chooses bfloat16 or float32 by this machine's CPU flags: the number format for training and
serving a model on the CPU at full speed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

NumberFormat = Literal["float32", "bfloat16"]

NATIVE_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags of CPUs that multiply bfloat16 in hardware.

The first two are of x86-64, the last is of aarch64.
"""

WITHOUT_BFLOAT16 = frozenset({"default", "avx2"})
"""Values of `ATEN_CPU_CAPABILITY` with which torch works like a CPU without such instructions."""


def number_format(flags: frozenset[str], aten_capability: str | None) -> NumberFormat:
    """Return bfloat16 if the CPU multiplies it natively, else float32.

    Emulated bfloat16 is slow: with only AVX2, a matrix product takes 15 times as long as in
    float32. `aten_capability` is the value of `ATEN_CPU_CAPABILITY`, with which a larger CPU
    simulates a smaller one.
    """
    if aten_capability is not None and aten_capability.lower() in WITHOUT_BFLOAT16:
        return "float32"
    return "bfloat16" if flags & NATIVE_BFLOAT16 else "float32"


def number_format_here(environment: Mapping[str, str]) -> NumberFormat:
    """Return the number format in which this machine's CPU calculates, under these variables."""
    return number_format(flags_here(), environment.get("ATEN_CPU_CAPABILITY"))


def flags_here() -> frozenset[str]:
    """Return the flags of this machine's CPU, or none if Linux does not report them."""
    try:
        return flags_in(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        return frozenset()


def flags_in(cpuinfo: str) -> frozenset[str]:
    """Return the flags of the first CPU in `/proc/cpuinfo`; aarch64 calls them features."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
