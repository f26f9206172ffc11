"""Records everything that a user or a script can read of one frozen ledger, to compare two trees.

`python -m tests.house freeze HOME` makes the ledger, once, with this tree. `record HOME FOLDER
[TREE]` asks this tree or another checkout all questions on a copy of it; `compare A B` prints the
differences of two recordings. Each command starts at the same moment of a moved clock. It stays
until the house has moved (issue 39), and is then deleted.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.days.shifted_clock import ShiftedClock

ROOT = Path(__file__).parents[2]
MOMENT = datetime(2026, 11, 29, 12, tzinfo=UTC)
LAST_MONTH, MONTH = "2026-10", "2026-11"
# One place for all recordings: outputs name it.
PLACE = Path("/tmp/tollgate-house")
LISTS = (
    "db check",
    "policy show",
    "policy history",
    "policy schema",
    "policy export",
    "team list",
    "key list",
    "budget list",
    "price list",
    f"month status {LAST_MONTH}",
    f"month status {MONTH}",
    "reconcile dead-letters",
    f"reconcile show --provider anthropic --month {LAST_MONTH}",
    "currency list",
    "reallocation list",
    "journal list",
    "audit list",
    "audit verify",
    "audit head",
    "report list",
    "report demand",
    "report schedule list",
)
EXPORTS = (
    f"export events --month {LAST_MONTH} --format csv --out",
    f"export adjustments --month {LAST_MONTH} --format csv --out",
    f"export focus --month {LAST_MONTH} --format csv --out",
)
AS_JSON = {"policy export", "policy schema", "report demand"}  # they print a document as it is


Run = Callable[..., str]


def freeze(home: Path) -> None:
    """Make a home with a demo ledger: a policy, a key, a rate, bills, and a closed month."""
    home.mkdir(parents=True)
    practice = home / "practice"
    with _commands(home, ROOT) as run:
        run("db", "upgrade")
        run("demo-data", "--small", "--as-ledger", "--out", str(practice))
        run("policy", "apply", f"{practice}/policy.yaml", "--yes", "--message", "whose it is")
        team = json.loads(run("team", "list", "--format", "json"))[0]["team"]
        run("key", "create", team)
        rate = ("--usd-per-unit", "1.16", "--from", "2026-10-01", "--source", "a bank")
        run("currency", "add", "EUR", *rate)
        for name in ("openai-usage", "openai-costs", "anthropic-usage", "anthropic-cost"):
            bill = ("--provider", name.split("-")[0], "--kind", name, "--account", "org-acme")
            run("reconcile", "import", f"{practice}/{name}.json", *bill)
        run("engine", "bill", "import", f"{practice}/gpu-bill.csv", "--yes")
        months = json.loads(run("report", "months", "--format", "json"))["rows"]
        for month in sorted(row["month"][:7] for row in months):
            if month <= LAST_MONTH:
                _close(month, run)


def _close(month: str, run: Run) -> None:
    """Close a month with its open items as they are."""
    status = run("month", "status", month, "--format", "json", may_fail=True)
    accepted = [
        part
        for row in json.loads(status.removeprefix("exit 1\n"))
        if row["status"] != "ok"
        for part in ("--accept", f"{row['check']}=recorded as it is")
    ]
    run("month", "close", month, "--yes", "--reason", "recorded", *accepted)


def record(home: Path, folder: Path, tree: Path) -> None:
    """Ask a tree everything, on a copy of the home, and write an answer a file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, answer in _answers(home, tree):
        (folder / name.replace("/", "_").replace(" ", "_")).write_text(answer, encoding="utf-8")
        print(name, flush=True)


def compare(before: Path, after: Path) -> int:
    """Print how two recordings differ; 1 if they do."""
    names = sorted({path.name for folder in (before, after) for path in folder.iterdir()})
    differing = 0
    for name in names:
        old, new = before / name, after / name
        lines = list(difflib.unified_diff(_lines(old), _lines(new), str(old), str(new), n=1))
        differing += bool(lines)
        sys.stdout.writelines(lines[:60])
    print(f"{differing} of {len(names)} answers differ")
    return min(differing, 1)


def _answers(home: Path, tree: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each answer of a tree."""
    folder = PLACE / "home"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(home, folder)
    with _commands(folder, tree) as run:
        for command in _all_commands(run):
            yield f"help {' '.join(command)}".strip(), run(*command, "--help")
        reports = json.loads(run("report", "list", "--format", "json"))
        asked = [f"report {row['name']}" for row in reports]
        for question in (*LISTS, *asked):
            as_json = () if question in AS_JSON else ("--format", "json")
            yield question, run(*question.split(), *as_json, may_fail=True)
            if as_json:
                yield f"{question} table", run(*question.split(), may_fail=True)
        for export in EXPORTS:
            out = PLACE / "export.csv"
            out.unlink(missing_ok=True)
            yield export.split(" --")[0], run(*export.split(), str(out)) + out.read_text()
    shutil.rmtree(folder)
    folder.mkdir()
    with _commands(folder, tree) as run:
        run("db", "upgrade")
        yield "schema", run("db", "dump")
        run("policy", "init", str(folder / "policy.yaml"))
        run("policy", "apply", str(folder / "policy.yaml"), "--yes", "--message", "first")
        yield "openapi", run("openapi")


def _all_commands(run: Run, above: Sequence[str] = ()) -> Iterator[list[str]]:
    """Yield each command and group, by the list at the end of a group's help."""
    yield [*above]
    _, _, listed = run(*above, "--help").partition("\nCommands:\n")
    if above[:1] == ["engine"]:
        return  # the engine's own parser
    for name in re.findall(r"^  ([a-z][a-z0-9-]*)(?:  |$)", listed, re.MULTILINE):
        yield from _all_commands(run, [*above, name])


@contextmanager
def _commands(home: Path, tree: Path) -> Iterator[Run]:
    """Yield a function that runs a command of a tree at `MOMENT` and returns its output and, unless
    it is 0, its exit code.
    """
    clock = ShiftedClock(PLACE)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(PLACE),
        "TOLLGATE_HOME": str(home),
        "PYTHONPATH": str(tree),
        "LD_PRELOAD": str(clock.library),
        "COLUMNS": "200",
    }

    def run(*arguments: str, may_fail: bool = False) -> str:
        clock.move_to(MOMENT)
        command = [sys.executable, "-m", "gateway.main", *arguments]
        if arguments == ("db", "dump"):
            command = [sys.executable, "-c", _DUMP, str(home)]
        elif arguments == ("openapi",):
            command = [sys.executable, "-c", _OPENAPI]
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode and not may_fail:
            raise SystemExit(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
        code = f"exit {done.returncode}\n" if done.returncode else ""
        return _without_moments(code + done.stdout)

    yield run


# With data: rows that migrations insert, and the rights.
_DUMP = """
import subprocess, sys
from pathlib import Path
from gateway.storage.postgres.embedded import EmbeddedPostgres, bundled_binaries
with EmbeddedPostgres(Path(sys.argv[1])) as server:
    url = server.start()
    subprocess.run([bundled_binaries() / "pg_dump", "--restrict-key=house", url], check=True)
"""
# By a gateway on a free port: the description is made of what it serves.
_OPENAPI = """
import socket, subprocess, sys, time, urllib.request
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
serve = [sys.executable, "-m", "gateway.main", "serve", "--port", str(port)]
gateway = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while gateway.poll() is None:
    try:
        print(urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json").read().decode())
        break
    except OSError:
        time.sleep(0.2)
gateway.terminate()
sys.exit(gateway.wait())
"""


def _without_moments(text: str) -> str:
    """Return a text without the seconds since `MOMENT`."""
    return re.sub(r"2026-11-29([T ])12:0\d(:\d\d(\.\d+)?)?", r"2026-11-29\g<1>NOW", text)


def _lines(path: Path) -> list[str]:
    """Return the lines of an answer; none if it is missing."""
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []


def main(arguments: Sequence[str]) -> int:
    """Run what the first argument names."""
    PLACE.mkdir(exist_ok=True)
    match arguments:
        case ["freeze", home]:
            freeze(Path(home).absolute())
        case ["record", home, folder]:
            record(Path(home), Path(folder), ROOT)
        case ["record", home, folder, tree]:
            record(Path(home), Path(folder), Path(tree).absolute())
        case ["compare", before, after]:
            return compare(Path(before), Path(after))
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
