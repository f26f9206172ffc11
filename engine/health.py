"""Polls an engine's `/health` for `python -m engine wait` until it answers 200, and raises the last
reason after the time limit; it starts no engine.
"""

import time
import urllib.error
import urllib.request

from engine.errors import UnknownStateError, UsageError
from engine.progress import StageProgress

POLL_S = 0.5
ASK_TIMEOUT_S = 5.0


def wait(url: str, timeout_s: float, progress: StageProgress) -> None:
    """Wait until an engine's `GET /health` answers 200.

    Raises: UnknownStateError: it did not in `timeout_s`. UsageError: `url` is no HTTP address.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"{url!r} is no HTTP address. Write for example: --url http://127.0.0.1:8001"
        )
    last = "nothing was asked"
    while progress.elapsed_s < timeout_s:
        last = ask(url)
        if last == "200":
            progress.say("done", f"Engine is ready at {url} ({progress.elapsed_s:.0f} s).")
            return
        progress.advance(
            "starting",
            f"Engine is starting ({last})",
            done=round(progress.elapsed_s),
            total=round(timeout_s),
            unit="s",
        )
        time.sleep(POLL_S)
    raise UnknownStateError(
        f"No engine answered at {url}/health within {timeout_s:.0f} s; last: {last}."
        " Read the engine's log for the reason, or wait longer with --timeout."
    )


def ask(url: str) -> str:
    """Return the status of an engine's `/health` as text, or the reason why none came; vLLM refuses
    connections while it loads.
    """
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=ASK_TIMEOUT_S) as answer:  # noqa: S310 - http, see wait
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except urllib.error.URLError as error:
        return (
            "connection refused"
            if isinstance(error.reason, ConnectionRefusedError)
            else str(error.reason)
        )
    except OSError as error:
        return str(error)
