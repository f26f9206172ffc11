"""What a request needs of a deployment: what it must be able to do, and what it must be allowed."""

from __future__ import annotations


class Needs:
    """What the members of a request were found to need.

    `features` names for each the first place it was found at.

    `is_sized` is False if a part of the prompt may have more tokens than bytes: pages of a
    document, encoded tensors.
    """

    def __init__(self) -> None:
        self.capabilities: set[str] = set()
        self.features: dict[str, str] = {}
        self.is_sized = True

    def leave(self, feature: str, where: str) -> None:
        """Note a feature that a deployment must allow, and where in the request it was found."""
        self.features.setdefault(feature, where)
