"""Reads YAML that a person wrote: a profile or a demand. It refuses two things that YAML allows: a
key that stands twice, because one value would be lost, and an alias, because ten lines of them are
a value of gigabytes once it is printed.
"""

from collections.abc import Hashable
from typing import Any

import yaml


def read_yaml(text: str) -> Any:
    """Return the document of a YAML text. Raises `ValueError` with the reason."""
    try:
        return yaml.load(text, Loader=_PlainYaml)  # noqa: S506 - derived from SafeLoader
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


class _PlainYaml(yaml.SafeLoader):
    """A loader without aliases and without repeated keys. It raises `ValueError`, also for a date
    or a number that is none.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node. Raises `ValueError` if it is an alias."""
        if self.check_event(yaml.AliasEvent):
            alias: yaml.AliasEvent = self.peek_event()  # type: ignore[no-untyped-call]
            raise ValueError(f"the alias *{alias.anchor} is not supported; write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Return a mapping. Raises `ValueError` if a key is repeated."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the loader refuses it
            if key in seen:
                raise ValueError(f"the key {key} stands twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
