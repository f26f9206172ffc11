"""One pool of memory for all threads: asked of glibc itself, in a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_COUNT_POOLS = """
import ctypes, os, sys, threading
from gateway.api.allocator import tune_allocator
if sys.argv[1] == "tuned":
    tune_allocator()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
gate = threading.Barrier(4)
def take():
    gate.wait()  # all alive at once: a thread that has ended leaves its pool to the next
    for _ in range(100):
        libc.malloc(10_000)
    gate.wait()
threads = [threading.Thread(target=take) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.fdopen.restype, libc.fdopen.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_char_p]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fflush.argtypes = [ctypes.c_void_p]
out = libc.fdopen(os.dup(1), b"w")
libc.malloc_info(0, out)
libc.fflush(out)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is asked")
@pytest.mark.parametrize(("how", "has_one"), [("tuned", True), ("as it comes", False)])
def test_threads_share_one_pool_of_memory(how: str, has_one: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _COUNT_POOLS, how], capture_output=True, text=True, check=True
    )
    assert (ended.stdout.count("<heap nr=") == 1) is has_one, ended.stdout[:2000]
