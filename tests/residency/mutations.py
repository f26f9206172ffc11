"""Flip each operator of the rules, one at a time, and check that the oracle notices.

A checker proves little until it has found a real mistake. Each mutation is made in a copy of the
package; a run of some hundred cases on that copy must end with violations, or not run at all.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.stand.page import replace_between

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "residency.md"
RULES = (
    "gateway/domain/residency/rules.py",
    "gateway/domain/places/regions.py",
    "gateway/domain/providers/facts.py",
    "gateway/domain/residency/stated_place.py",
)
CASES = 500
WITHIN_S = 300
# Mutations that change nothing that a decision depends on, each with the reason why.
SAME: dict[str, str] = {
    """declared = ", ".join(sorted(policy.data_tags)) or "none\"""": "the words of an error",
    """why = f"{name} {broken.why}" if broken is not None else f"the target {origin} is not {permit.origin}\"""": (  # noqa: E501
        "the words of an error"
    ),
    'return frozenset(names - {""})': "no rule can name an empty provider",
    "return False": "of `overlaps` without a denied region: no rule has none",
    "new = set(ways.get(todo.pop(), ())) - found": "walks a part again; a circle is rejected",
    "sub_processor=_first(statements, lambda one: one.sub_processor) or "
    "Fact(None),": "shown, not decided by",
}

FLIPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
SWAPPED = {"all": "any", "any": "all"}


class _Flip(ast.NodeTransformer):
    """Changes the operator of this number; without a number it counts them."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.seen = 0
        self.what = ""

    def _is_it(self, node: ast.AST, what: str) -> bool:
        self.seen += 1
        if self.seen - 1 != self._number:
            return False
        self.what = f"line {getattr(node, 'lineno', '?')}: {what}"
        return True

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """The body: an annotation is no rule, and neither is a decorator."""
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """The same."""
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """The value alone."""
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for place, operator in enumerate(node.ops):
            flipped = FLIPPED.get(type(operator))
            if flipped is not None and self._is_it(
                node, f"{type(operator).__name__} → {flipped.__name__}"
            ):
                node.ops[place] = flipped()  # type: ignore[assignment]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        flipped = FLIPPED[type(node.op)]
        if self._is_it(node, f"{type(node.op).__name__} → {flipped.__name__}"):
            node.op = flipped()  # type: ignore[assignment]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Sub) and self._is_it(node, "Sub → left alone"):
            return node.left
        flipped = FLIPPED.get(type(node.op))
        if flipped is not None and self._is_it(
            node, f"{type(node.op).__name__} → {flipped.__name__}"
        ):
            node.op = flipped()  # type: ignore[assignment]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and self._is_it(node, "Not → nothing"):
            return node.operand
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if (
            node.id in SWAPPED
            and isinstance(node.ctx, ast.Load)
            and self._is_it(node, f"{node.id} → other")
        ):
            return ast.copy_location(ast.Name(SWAPPED[node.id], node.ctx), node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool) and self._is_it(node, f"{node.value} → {not node.value}"):
            return ast.copy_location(ast.Constant(not node.value), node)
        return node


def mutations(path: str) -> Iterator[tuple[str, str]]:
    """Yield every mutation of a file: its description, and the complete text with it."""
    source = (REPOSITORY / path).read_text(encoding="utf-8")
    number = 0
    while True:
        flip = _Flip(number)
        changed = ast.fix_missing_locations(flip.visit(ast.parse(source)))
        if not flip.what:
            return
        line = source.splitlines()[int(flip.what.split()[1].rstrip(":")) - 1].strip()
        yield f"{Path(path).name}, {flip.what}, in `{line}`", ast.unparse(changed)
        number += 1


def is_noticed(path: str, text: str, seed: int) -> bool:
    """Whether a run on a copy with this text finds something."""
    with tempfile.TemporaryDirectory(prefix="tollgate-mutation-") as folder:
        shutil.copytree(
            REPOSITORY / "gateway",
            Path(folder, "gateway"),
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        Path(folder, path).write_text(text, encoding="utf-8")
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.residency",
                "--cases",
                str(CASES),
                "--seed",
                str(seed),
                "--lanes",
                "4",
                "--first-finding",
            ],
            env={
                **os.environ,
                "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}",
                "PYTHONSAFEPATH": "1",
            },
            cwd=folder,
            capture_output=True,
            timeout=WITHIN_S,
            check=False,
        )
        return done.returncode != 0


def main(seed: int, *, is_written: bool) -> int:
    """Run all; return 0 if each was noticed or is known to change nothing."""
    planned = [(path, what, text) for path in RULES for what, text in mutations(path)]
    survived = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(
            lambda planned_one: is_noticed(planned_one[0], planned_one[2], seed), planned
        )
        for (_, what, _), noticed in zip(planned, results, strict=True):
            print(f"  {'noticed ' if noticed else 'SURVIVED'}  {what}", file=sys.stderr)
            if not noticed:
                survived.append(what)
    same = {what: why for what in survived for code, why in SAME.items() if f"`{code}`" in what}
    unnoticed = [what for what in survived if what not in same]
    summary = (
        f"{len(planned)} operators flipped, {len(planned) - len(survived)} noticed, "
        f"{len(same)} that change nothing"
    )
    print("\n".join([summary, *(f"not noticed: {what}" for what in unnoticed)]))
    if is_written:
        lines = [summary + ".", "", *(f"- {what}: {why}" for what, why in same.items())]
        opening, closing = "<!-- mutations:begin -->", "<!-- mutations:end -->"
        replace_between(PAGE, opening, closing, lines=lines)
    return 1 if unnoticed else 0
