"""Deploys one application of Ray Serve LLM and stays until told to stop; then it drains and deletes
the application. Runs in the engine's environment, as the child of `engine serve --cluster`.

    python ray_serve.py '{"address": …, "host": …, "port": …, "app": {…}}'
"""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

NAME = "tollgate"
POLL_S = 2.0
ALIVE = frozenset({"NOT_STARTED", "DEPLOYING", "RUNNING", "UNHEALTHY"})
"""States of an application in which Ray works on it or serves it; an unhealthy one is repaired."""


def main(given: dict[str, Any]) -> None:
    """Deploy the application and watch it; a signal ends the watch, and then the application."""
    import ray  # type: ignore[import-not-found]
    from ray import serve
    from ray.serve.llm import build_openai_app  # type: ignore[import-not-found]

    # The folder goes to every machine: see sitecustomize.py.
    environment = {"working_dir": str(Path(__file__).resolve().parent)}
    ray.init(address=given["address"], runtime_env=environment)
    # After ray.init, which takes the signal for itself.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    serve.start(
        proxy_location="EveryNode", http_options={"host": given["host"], "port": given["port"]}
    )
    try:
        serve.run(build_openai_app(given["app"]), name=NAME, route_prefix="/")
        while (state := serve.status().applications[NAME].status) in ALIVE:
            time.sleep(POLL_S)
        sys.exit(f"Ray Serve says that the application is {state}.")
    except SystemExit as end:
        if end.code == 0:
            serve.delete(NAME)  # waits for the running requests, then ends the engines
        raise


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
