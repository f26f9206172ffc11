"""Declares a deployment's treatment of request members that its provider's published schema does
not list, under a hard budget; finds no such member.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


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
