"""Finds a name that no earlier one equals, for dialects that refuse one name twice."""

from __future__ import annotations


class UnusedNames:
    """The names of one request so far. A second equal one gets a number."""

    def __init__(self, *, mark: str, kept_chars: int, ignores_case: bool = False) -> None:
        """Start without any name. `mark` stands between `kept_chars` letters and the number."""
        self._mark, self._kept_chars, self._ignores_case = mark, kept_chars, ignores_case
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}  # so that no number is tried twice

    def unused(self, name: str) -> str:
        """Return the name if it is the first of its kind, else one that is."""
        own, number = name, self._numbers.get(name, 1)
        while self._key(own) in self._used:
            number += 1
            own = f"{name[: self._kept_chars]}{self._mark}{number}"
        self._numbers[name] = number
        self._used.add(self._key(own))
        return own

    def _key(self, name: str) -> str:
        """Return the form in which names are compared."""
        return name.lower() if self._ignores_case else name
