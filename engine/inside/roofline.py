"""Measures the matrix rate and the memory bandwidth of this machine with torch, on its GPU if there
is one, and prints them as one JSON object.

Runs under the interpreter of the engine's own environment, started by
`engine/calibration/roofline.py`. The two rates bound an engine from above: prefill by the first,
decode by the second (S. Williams et al., Roofline: An Insightful Visual Performance Model for
Multicore Architectures, Commun. ACM 52(4), 2009).
"""

import json
import statistics
import time
from collections.abc import Callable

import torch

REPEATS = 7
"""The median of these counts; one more before them warms up caches and clocks."""
GPU_SIZES, CPU_SIZES = (1024, 2048, 4096, 8192), (256, 512, 1024, 2048)
"""Rows of the square matrices. The best size counts: small ones cannot fill the machine."""
LONGEST_S = 0.1
"""After a product that took longer no larger one is tried; each doubling takes eight times."""
GPU_COPY_BYTES, CPU_COPY_BYTES = 2**32, 2**28
"""Larger than any cache that the data could stay in."""


def main() -> None:
    """Measure and print one JSON object."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else torch.backends.cpu.get_cpu_capability()
    )
    rates = {
        f"matrix_flop_per_s_{shown}": matrix_flop_per_s(device, dtype)
        for shown, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32))
    }
    print(
        json.dumps(
            {
                "device": device,
                "name": name,
                "threads": torch.get_num_threads() if device == "cpu" else None,
                "torch": torch.__version__,
                **rates,
                "copy_bytes_per_s": copy_bytes_per_s(device),
            }
        )
    )


def matrix_flop_per_s(device: str, dtype: torch.dtype) -> float:
    """Return the best rate of square matrix products, 2 n³ operations each."""
    best = 0.0
    for size in GPU_SIZES if device == "cuda" else CPU_SIZES:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        seconds = median_s(lambda a=left, b=right: a @ b, device)  # type: ignore[misc]
        best = max(best, 2 * size**3 / seconds)
        if seconds > LONGEST_S:  # a CPU without instructions for this format
            break
    return best


def copy_bytes_per_s(device: str) -> float:
    """Return the rate of a copy in memory, with the read and the written bytes counted."""
    size = GPU_COPY_BYTES if device == "cuda" else CPU_COPY_BYTES
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_s(lambda: target.copy_(source), device)


def median_s(work: Callable[[], object], device: str) -> float:
    """Return the median seconds of a piece of work."""
    times = []
    for _ in range(REPEATS + 1):
        wait_for(device)
        began_s = time.perf_counter()
        work()
        wait_for(device)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times[1:])


def wait_for(device: str) -> None:
    """Wait for the work that a GPU has in its queue."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
