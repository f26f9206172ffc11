#!/usr/bin/env python3
"""A small server that is run in place of vLLM (`TOLLGATE_ENGINE_VLLM`): a real process with a real
socket and two real workers under vLLM's titles, which a test steers by files in a folder.

`STAND_IN` names the folder. It writes `starts` (a line for each start: its pid and its workers'),
`arguments`, `waiting` (a request waits) and `drained`. It reads `broken` (it exits at the start,
with the code in the file, else 3), `hung` (no request is answered, though `/health` says 200),
`slow` (a start that takes until the file is gone) and `release` (until then, requests with the
prompt "wait" are not answered).
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["STAND_IN"])
POLL_S = 0.02
WORKER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class Endpoints(http.server.BaseHTTPRequestHandler):
    """The endpoints of vLLM that a supervisor and a client use."""

    def do_GET(self) -> None:
        model = {"id": argument("--served-model-name"), "max_model_len": 2048}
        self.answer(200, {"data": [model]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/completions":
            self.answer(404, {"error": {"message": "not found"}})
            return
        if (FOLDER / "hung").exists():
            self.answer(503, {"error": {"message": "no token"}})
            return
        if asked["prompt"] == "wait":
            (FOLDER / "waiting").touch()
            while not (FOLDER / "release").exists():
                time.sleep(POLL_S)
        key = os.environ.get("VLLM_API_KEY")
        if key is not None and self.headers.get("authorization") != f"Bearer {key}":
            self.answer(401, {"error": "Unauthorized"})
            return
        self.answer(200, {"choices": [{"text": "1", "finish_reason": "length"}]})

    def answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        print("stand-in: a log line on standard output", flush=True)


def argument(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]


class Server(http.server.ThreadingHTTPServer):
    """A server whose end waits for the requests that run."""

    daemon_threads = False
    block_on_close = True


def main() -> None:
    (FOLDER / "arguments").write_text(json.dumps(sys.argv))
    workers = [
        subprocess.Popen([f"VLLM::Worker_TP{rank}", "-c", WORKER], executable=sys.executable)
        for rank in range(2)
    ]
    with (FOLDER / "starts").open("a") as starts:
        starts.write(" ".join(str(pid) for pid in (os.getpid(), *(w.pid for w in workers))) + "\n")
    if (FOLDER / "broken").exists():
        sys.exit(int((FOLDER / "broken").read_text() or 3))
    while (FOLDER / "slow").exists():
        time.sleep(POLL_S)
    server = Server(("127.0.0.1", int(argument("--port"))), Endpoints)
    stops = iter([threading.Thread(target=server.shutdown)])

    def stop(*_: object) -> None:
        """Stop once: the kernel and the guard may both ask."""
        for thread in stops:
            thread.start()

    signal.signal(signal.SIGTERM, stop)
    server.serve_forever(poll_interval=POLL_S)
    server.server_close()
    (FOLDER / "drained").touch()


if __name__ == "__main__":
    main()
