"""Finds the hardware that an engine would run on: this machine's CPU flags, cores and NUMA nodes,
and the GPUs that `nvidia-smi` lists. It needs no torch.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from engine import cpu
from engine.environment import Device

ASK_GPUS = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
ASK_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledGpu:
    """One GPU, with its compute capability, such as (9, 0)."""

    name: str
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The hardware of one machine, and the device of it that serves."""

    device: Device
    cpu_flags: frozenset[str] = frozenset()
    cores: int = 1
    numa_nodes: int = 1
    gpus: tuple[InstalledGpu, ...] = ()
    """Asked for only if they serve."""

    @property
    def name(self) -> str:
        """Return the device's name for a message."""
        if self.device == "gpu":
            return f"{len(self.gpus)} x {self.gpus[0].name}" if self.gpus else "no GPU"
        vectors = [flag for flag in ("amx_tile", "avx512f", "avx2") if flag in self.cpu_flags]
        return f"this CPU ({vectors[0] if vectors else 'no known vector unit'})"


def hardware_here(device: Device) -> Hardware:
    """Return this machine's hardware, with the device that is to serve."""
    return Hardware(
        device=device,
        cpu_flags=cpu.flags_here(),
        cores=len(os.sched_getaffinity(0)),
        numa_nodes=max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))),
        gpus=_gpus_here() if device == "gpu" else (),
    )


def _gpus_here() -> tuple[InstalledGpu, ...]:
    """Return the GPUs that `nvidia-smi` lists; none if it is absent, fails or hangs."""
    try:
        asked = subprocess.run(
            ASK_GPUS, capture_output=True, text=True, timeout=ASK_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return gpus_in(asked.stdout) if asked.returncode == 0 else ()


def gpus_in(text: str) -> tuple[InstalledGpu, ...]:
    """Return the GPUs in the answer of `ASK_GPUS`, one a line: `NVIDIA H200, 9.0`."""
    found = []
    for line in text.splitlines():
        name, _, capability = line.rpartition(",")
        major, _, minor = capability.strip().partition(".")
        if name and major.isdecimal() and minor.isdecimal():
            found.append(InstalledGpu(name=name.strip(), capability=(int(major), int(minor))))
    return tuple(found)
