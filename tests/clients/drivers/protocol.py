"""The common part of the Python drivers: they read the name of a call from standard input, make it
with their library, and print the answer as one line of JSON.

An answer has `text`, the `tools` that the model called, each with its arguments, and
`output_tokens` as the library shows them, None if it shows none.
"""

import json
import os
import sys

CONFIG = json.loads(os.environ["TOLLGATE_CALL"])
BASE, KEY, MODEL, DIALECT = (CONFIG[name] for name in ("base", "key", "model", "dialect"))
PROMPT, TOOL_PROMPT = CONFIG["prompt"], CONFIG["tool_prompt"]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DESCRIPTION = "Return the weather of a city"
RESULT = "sunny"


def answer(text, *, tools=(), output_tokens=None):
    """Return an answer as the tests read it."""
    called = [{"name": name, "arguments": arguments} for name, arguments in tools]
    return {"text": text, "tools": called, "output_tokens": output_tokens}


def serve(calls):
    """Make each call that is asked for; `calls` maps dialect and call to a function."""
    for line in sys.stdin:
        try:
            made = calls[DIALECT, line.strip()]()
        except Exception as error:
            made = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print("ANSWER " + json.dumps(made), flush=True)
