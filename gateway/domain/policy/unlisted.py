"""Declares a deployment's treatment of request members that its provider's published schema does
not list, under a hard budget; finds no such member.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

# What `listed` can name: `?` stands for a value that is no text.
LISTED_NAME = r"(?:anthropic-beta: )?[A-Za-z_][A-Za-z0-9_.:=?-]{0,127}"
# Names of this form need no quotes in a list of YAML, unless YAML gives the word a meaning.
_BARE = re.compile(r"[A-Za-z_](?:[A-Za-z0-9_.=-]|:(?=[A-Za-z0-9_]))*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


@dataclass(frozen=True, slots=True)
class Unlisted:
    """The treatment of unlisted members: refused, or `drops` (not sent), or sent, with the hold
    multiplied by `factor`.
    """

    drops: bool = False
    factor: Decimal | None = None

    @property
    def refuses(self) -> bool:
        """Return True if the request goes to another deployment, or is refused."""
        return not self.drops and self.factor is None


REFUSE_UNLISTED, DROP_UNLISTED = Unlisted(), Unlisted(drops=True)


def listed_text(names: Iterable[str]) -> str | None:
    """Return the line of a policy that lists these names, as a policy takes it; None if it can list
    none of them.
    """
    able = [name for name in names if re.fullmatch(LISTED_NAME, name)]
    if not able:
        return None
    written = (
        name if _BARE.fullmatch(name) and name.lower() not in _WORDS else f'"{name}"'
        for name in able
    )
    return f"listed: [{', '.join(written)}]"
