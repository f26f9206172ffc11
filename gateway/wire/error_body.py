"""Declares the error in an upstream's error answer, in neutral form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An upstream's error."""

    message: str
    type: str | None
    param: str | None
    code: str | None
    is_moderation: bool = False  # the prompt was refused, not the credential
