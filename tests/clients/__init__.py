"""Real clients of other projects, headless, against a running gateway, with the ledger checked after
each call.

    make clients                                     # every client and every cell
    python -m tests.clients --only codex,aider       # some of them
    python -m tests.clients --write                  # the result goes into docs/guides/clients.md

They are installed into a folder outside the repository (`TOLLGATE_CLIENTS_HOME`, else
`~/.cache/tollgate-clients`), each Python client into an environment of its own. `make test` neither
installs nor runs them.

| module | responsibility |
|---|---|
| `matrix.py` | which client calls which dialect of which backend, under a residency rule or without |
| `install.py` | installs a client with the versions of `requirements/` and `drivers/package.json` |
| `drivers/` | one small program for each library: it reads the name of a call, makes it, prints the answer |
| `sessions.py` | starts a driver or a command line of a client, and gives it one call after the other |
| `command_lines.py` | the clients that are commands: how each is configured and called |
| `backend.py`, `wording.py` | a model server of three dialects with tools and a ledger of its own |
| `policy.py` | the policy document of the run |
| `ledger.py` | compares the rows of the gateway's ledger with the backend's |
| `every_client.py` | the tests; its name keeps it out of `make test` |
| `table.py` | the result as a table of the guide |
"""  # noqa: E501
