"""Reads the rule table `rules.yaml` and judges one setting by it: whether it runs on this hardware,
and on which evidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import yaml

from engine.environment import Device
from engine.serving.hardware import Hardware

TABLE = Path(__file__).with_name("rules.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareRule:
    """One row of the table: the hardware that a setting's value needs on a device."""

    setting: str
    value: str | None
    """The value that the row is about; None if it is about every number."""
    device: Device
    any_cpu_flag: tuple[str, ...] = ()
    from_capability: tuple[int, int] | None = None
    below_capability: tuple[int, int] | None = None
    product: tuple[str, ...] = ()
    at_most: str | None = None
    """The count of the machine that bounds the product: `numa_nodes`, `cores` or `gpus`."""
    why: str = ""
    proof: str
    source: str

    def refusal(self, hardware: Hardware, sizes: Mapping[str, int]) -> str | None:
        """Return the reason why the setting cannot run on this hardware, or None.

        `sizes` are the parallel sizes of the profile.
        """
        if self.any_cpu_flag and not hardware.cpu_flags.intersection(self.any_cpu_flag):
            return self._reason(hardware, f"needs {' or '.join(self.any_cpu_flag)}")
        if self.at_most is not None:
            return self._too_many(hardware, sizes)
        for gpu in hardware.gpus if self.device == "gpu" else ():
            if self.from_capability is not None and gpu.capability < self.from_capability:
                needed = _text_of(self.from_capability)
                return self._reason(hardware, f"needs compute capability {needed} or more")
            if self.below_capability is not None and gpu.capability >= self.below_capability:
                needed = _text_of(self.below_capability)
                return self._reason(hardware, f"needs compute capability below {needed}")
        return None

    def _too_many(self, hardware: Hardware, sizes: Mapping[str, int]) -> str | None:
        """Return the reason if the product of parallel sizes exceeds the machine's count."""
        assert self.at_most is not None
        here = len(hardware.gpus) if self.at_most == "gpus" else getattr(hardware, self.at_most)
        needed = prod(sizes[name] for name in self.product)
        if needed <= here:
            return None
        return self._reason(
            hardware, f"needs {needed} {self.at_most.replace('_', ' ')}, {here} here"
        )

    def _reason(self, hardware: Hardware, need: str) -> str:
        """Return a refusal for people, with the evidence of the row."""
        because = f": {self.why}" if self.why else ""
        return f"{need}{because}; not on {hardware.name} (by the rule table alone: {self.source})"


def _text_of(capability: tuple[int, int]) -> str:
    """Return a compute capability as NVIDIA writes it, such as 9.0."""
    return f"{capability[0]}.{capability[1]}"


@lru_cache(maxsize=1)
def hardware_rules() -> Sequence[HardwareRule]:
    """Return the rows of the table."""
    return tuple(map(_rule_of, yaml.safe_load(TABLE.read_text(encoding="utf-8"))))


def _rule_of(row: Mapping[str, Any]) -> HardwareRule:
    """Return one row of the YAML table as a rule."""
    return HardwareRule(
        setting=row["setting"],
        value=row.get("value"),
        device=row["device"],
        any_cpu_flag=tuple(row.get("any_cpu_flag", ())),
        from_capability=_capability(row.get("from")),
        below_capability=_capability(row.get("below")),
        product=tuple(row.get("product", ())),
        at_most=row.get("at_most"),
        why=row.get("why", ""),
        proof=str(row["proof"]),
        source=row["source"],
    )


def _capability(text: str | None) -> tuple[int, int] | None:
    """Return a compute capability of the table as two numbers."""
    if text is None:
        return None
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def rule_for(setting: str, value: object, device: Device) -> HardwareRule | None:
    """Return the row about a setting's value on a device, or None if it is not offered there."""
    for rule in hardware_rules():
        if (rule.setting, rule.device) == (setting, device) and rule.value in (None, value):
            return rule
    return None
