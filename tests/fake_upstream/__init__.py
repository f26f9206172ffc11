"""The fake upstream: a program that answers as a model server and counts its tokens by itself.

It shares nothing with the gateway except HTTP, so its ledger can disagree with the gateway's.

    python -m tests.fake_upstream [--port 0]                                # scripted by each request
    python -m tests.fake_upstream --seed 1 --mix faults --ledger FILE       # drawn from a seed (chaos)

The first line of its output is its address. `serving` runs the same server on a test's own loop.

| module | responsibility |
|---|---|
| `server.py` | sockets, HTTP, connection faults (cut, reset, stall), the ways to read the ledger |
| `exchange.py` | one attempt: pace, tokens, its fault, its line in the ledger |
| `faults.py` | the named faults, and a `Behaviour`: everything that one attempt does |
| `script.py` | the language in which a request selects its behaviour |
| `plans.py` | contents and faults drawn from a run's seed |
| `ledger.py` | the entries, in memory or synced to a file |
| `openai.py` | the OpenAI dialect: bodies, events, usage of each endpoint |
| `dialects/` | Anthropic, Gemini, Bedrock, Ollama and Triton in the same way, a file each |
| `transcripts.py` | recorded streams, played whole or cut after a byte |

A further dialect is a module in `dialects/` with the same methods, and a line in its `asked.py`.
"""  # noqa: E501
