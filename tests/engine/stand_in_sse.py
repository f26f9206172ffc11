#!/usr/bin/env python3
"""Runs `sse_server` in place of vLLM (`TOLLGATE_ENGINE_VLLM`): a profile with `max_num_seqs: 1` has
forty times the gap between tokens.

`STAND_IN` names the folder in which it notes each start and each drained end.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from sse_server import running

FAST_S, SLOW_S = 0.004, 0.16


def main() -> None:
    folder = Path(os.environ["STAND_IN"])
    arguments = sys.argv
    port = int(arguments[arguments.index("--port") + 1])
    is_slow = arguments[arguments.index("--max-num-seqs") + 1] == "1"
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    with running(port=port, gap_s=SLOW_S if is_slow else FAST_S):
        (folder / f"started-{port}").touch()
        over.wait()
    (folder / f"ended-{port}").touch()


if __name__ == "__main__":
    main()
