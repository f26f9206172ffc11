"""Asks the person at the terminal before a change."""

from __future__ import annotations

import sys

import typer

from gateway.errors import BadUsage


def confirm(question: str, *, done: str, act: str, is_input_free: bool = True) -> None:
    """Ask a question; end the command if the answer is no.

    `done` and `act` name the change for the refusal: nothing was `done`, --yes to `act`.
    `is_input_free` is False if standard input holds something else than answers.

    Raises `BadUsage` without a terminal to ask on.
    """
    if not (is_input_free and sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadUsage(
            f"There is no terminal to ask on, so nothing was {done}. Use --yes to {act} without "
            "asking."
        )
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
