"""Reads the console blocks of a guide, runs their commands, and compares what they print with the
guide.

A line `…` stands for any lines. Ids, hashes, moments, watermarks and logins differ in each run. An
id that the guide names in a later command is replaced by the one of this run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby

FENCE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROMPT, ELIDED = "$ ", "…"
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VOLATILE = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{64}\b"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z| UTC)"
    r"|\d+-\d+-[0-9A-F]{8}/\S+|(?<=^author)\s+.*|\btollgate_(?:\w+_)?admin_login\b"
)
# Shown after two seconds: a quick machine has none.
_PROGRESS = re.compile(r"▸ .*|[\d,]+ [a-z-]+ hashed\.")
AS_FINANCE = 'TOLLGATE_FINANCE_DATABASE_URL="$(tollgate db url --as finance)" '
Run = Callable[[Sequence[str], bool], str]  # arguments, with finance's login → all that it prints


@dataclass(slots=True)
class Step:
    """One command of a guide: its lines there, and the lines that it prints."""

    lines: list[str]
    printed: list[str]

    @property
    def command(self) -> str:
        """Return the command as one line."""
        return " ".join(line.removesuffix("\\").strip() for line in self.lines)

    @property
    def is_finances(self) -> bool:
        """Return True if the command runs with finance's login."""
        return self.command.startswith(AS_FINANCE)

    @property
    def arguments(self) -> list[str]:
        """Return the words behind `tollgate`."""
        program, *words = shlex.split(self.command.removeprefix(AS_FINANCE))
        assert program == "tollgate", self.command
        return words


def blocks_of(guide: str) -> list[list[Step]]:
    """Return the steps of each console block."""
    return [list(_steps(found[1])) for found in FENCE.finditer(guide)]


def _steps(block: str) -> Iterator[Step]:
    """Yield the steps of a block; a command goes on behind a backslash."""
    step: Step | None = None
    for line in block.splitlines():
        if line.startswith(PROMPT):
            if step is not None:
                yield step
            step = Step([line.removeprefix(PROMPT)], [])
            continue
        assert step is not None, f"no command before: {line}"
        is_going_on = not step.printed and step.lines[-1].endswith("\\")
        (step.lines if is_going_on else step.printed).append(line)
    if step is not None:
        yield step


def run_blocks(blocks: Iterable[Sequence[Step]], run: Run) -> None:
    """Run the steps of blocks and compare their output. Raises `AssertionError`."""
    ids: dict[str, str] = {}  # of this run by those of the guide
    for step in chain.from_iterable(blocks):
        words = [_renamed(word, ids) for word in step.arguments]
        actual = _lines_of(run(words, step.is_finances))
        for theirs, ours in _paired(step, actual):
            ids.update(zip(_ID.findall(theirs), _ID.findall(ours), strict=True))


def _paired(step: Step, actual: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each line of the guide with the one that was printed. Raises `AssertionError`."""
    chunks = [
        list(lines) for is_elided, lines in groupby(step.printed, ELIDED.__eq__) if not is_elided
    ]
    at = 0
    for number, chunk in enumerate(chunks):
        is_first = number == 0 and step.printed[0] != ELIDED
        is_last = number == len(chunks) - 1 and step.printed[-1] != ELIDED
        places = range(at, len(actual) - len(chunk) + 1)
        if is_last:
            places = range(max(at, len(actual) - len(chunk)), len(actual))
        if is_first:
            places = range(min(1, len(places)))
        wanted = list(map(_stable, chunk))
        found = [n for n in places if list(map(_stable, actual[n : n + len(chunk)])) == wanted]
        assert found, (
            f"$ {step.command}\n" + "\n".join(actual) + "\n\nThe guide has:\n" + "\n".join(chunk)
        )
        at = found[0] + len(chunk)
        yield from zip(chunk, actual[found[0] : at], strict=True)
    if chunks and step.printed[-1] != ELIDED:
        assert at == len(actual), (step.command, actual[at:])


def _renamed(text: str, ids: Mapping[str, str]) -> str:
    """Return a text with other ids in place of its own, as far as they are known."""
    return _ID.sub(lambda found: ids.get(found[0], found[0]), text)


def _lines_of(output: str) -> list[str]:
    """Return the lines of an output without those of progress."""
    return [line for line in output.splitlines() if not _PROGRESS.fullmatch(line)]


def _stable(line: str) -> str:
    """Return a line without the parts that differ in each run, and the spaces that align them."""
    return " ".join(_VOLATILE.sub("#", line).split())


def rewritten(guide: str, run: Run, *, blocks: range) -> str:
    """Return a guide with the output of the commands of some blocks now. An elided output keeps
    the number of its first and last lines, and a line that is right keeps its ids and moments.
    """
    ids: dict[str, str] = {}
    number = count()

    def block(found: re.Match[str]) -> str:
        if next(number) not in blocks:
            return found[0]
        lines: list[str] = []
        for step in _steps(found[1]):
            words = [_renamed(word, ids) for word in step.arguments]
            actual = _lines_of(run(words, step.is_finances))
            for theirs, ours in zip(step.printed, actual, strict=False):
                if len(_ID.findall(theirs)) == len(_ID.findall(ours)):
                    ids.update(zip(_ID.findall(theirs), _ID.findall(ours), strict=True))
            kept = {_stable(line): line for line in step.printed}
            known = {ours: theirs for theirs, ours in ids.items()}
            shown = [
                kept.get(_stable(line), _renamed(line, known))
                for line in _elided(step.printed, actual)
            ]
            lines += [PROMPT + step.lines[0], *step.lines[1:], *shown]
        return "```console\n" + "\n".join(lines) + "\n```"

    return FENCE.sub(block, guide)


def _elided(before: Sequence[str], actual: Sequence[str]) -> list[str]:
    """Return an output, shortened as the one before was."""
    if ELIDED not in before:
        return list(actual)
    head = before.index(ELIDED)
    tail = list(reversed(before)).index(ELIDED)
    return [*actual[:head], ELIDED, *(actual[len(actual) - tail :] if tail else [])]
