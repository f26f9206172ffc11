"""Reads from a `tokenizer.json` in which forms its tokenizer reads a text (its `normalizer`)."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.providers.table import TextForms

# Hugging Face tokenizers 0.23.3, normalizers: those that write no more bytes than they read, or
# write only U+2581 for a space, which is one token in each vocabulary that has it.
_AS_SENT = frozenset({"Strip", "Prepend", "ByteLevel"})
_SPACES = ({"String": " "}, "\u2581")


class _File(msgspec.Struct):
    normalizer: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_File).decode


def text_forms_of(file: bytes) -> TextForms:
    """Return the forms in which a tokenizer reads a text; any form if the file has a rule that is
    not known to be shorter. Raises `msgspec.DecodeError` for a file of another kind.
    """
    return _forms_of(_decode(file).normalizer)


def _forms_of(rule: dict[str, Any] | None) -> TextForms:
    """Return the forms that one normalizer, or a sequence of them, may write."""
    kind = None if rule is None else rule.get("type")
    if rule is None or kind in _AS_SENT:
        return TextForms.NONE
    if kind == "NFC":
        return TextForms.NFC
    if kind == "Replace" and (rule.get("pattern"), rule.get("content")) == _SPACES:
        return TextForms.NONE
    rules = rule.get("normalizers")
    if kind == "Sequence" and isinstance(rules, list) and all(isinstance(r, dict) for r in rules):
        found = {_forms_of(each) for each in rules}
        return max(found, key=list(TextForms).index, default=TextForms.NONE)
    return TextForms.ANY
