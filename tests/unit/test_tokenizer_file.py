"""A tokenizer's file says in which forms it reads a text, and its tokens keep to the bound."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from gateway.domain.providers.table import TextForms
from gateway.domain.request.text_forms import widths_of
from gateway.providers.engines.tokenizer_file import text_forms_of

# Every normalizer of the package, as tokenizers of the field combine them.
RULES: dict[str, tuple[Any, TextForms]] = {
    "none": (None, TextForms.NONE),
    "an empty sequence": (normalizers.Sequence([]), TextForms.NONE),
    "Llama's": (
        normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
        TextForms.NONE,
    ),
    "blanks around": (normalizers.Strip(), TextForms.NONE),
    "Qwen's": (normalizers.NFC(), TextForms.NFC),
    "with blanks": (normalizers.Sequence([normalizers.Strip(), normalizers.NFC()]), TextForms.NFC),
    "Claude's of 2023": (normalizers.NFKC(), TextForms.ANY),
    "NFD": (normalizers.NFD(), TextForms.ANY),
    "NFKD": (normalizers.NFKD(), TextForms.ANY),
    "lower case": (normalizers.Lowercase(), TextForms.ANY),
    "CLIP's": (
        normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
        TextForms.ANY,
    ),
    "without accents": (
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        TextForms.ANY,
    ),
    "BERT's": (normalizers.BertNormalizer(lowercase=True), TextForms.ANY),
    "SentencePiece's": (normalizers.Nmt(), TextForms.ANY),
    "another replacement": (normalizers.Replace("a", "bb"), TextForms.ANY),
}
TEXTS = st.text(
    st.one_of(
        st.sampled_from("\ufdfa\u0f76\u00e9\u0323\ud55c\U0001d160 "), st.characters(codec="utf-8")
    )
)


def tokenizer(rule: Any) -> Tokenizer:
    """Return the worst tokenizer with a normalizer: each byte that it reads is a token."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    made = Tokenizer(models.BPE(vocab={one: at for at, one in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if rule is not None:
        made.normalizer = rule
    return made


@pytest.mark.parametrize(("rule", "forms"), RULES.values(), ids=RULES)
def test_the_forms_are_those_of_the_normalizer(rule: Any, forms: TextForms) -> None:
    """A rule that may write more counts as any form."""
    assert text_forms_of(tokenizer(rule).to_str().encode()) is forms


BOUNDED = {
    name: tokenizer(rule)
    for name, (rule, _) in RULES.items()
    if name not in ("Llama's", "BERT's", "another replacement")  # blanks of 3 bytes are one token
}


@pytest.mark.parametrize("name", BOUNDED)
@given(text=TEXTS)
def test_a_byte_level_tokenizer_keeps_to_the_bound_of_its_forms(name: str, text: str) -> None:
    """The tokens that a real tokenizer makes, not only the bytes of a form."""
    forms = RULES[name][1]
    tokens = len(BOUNDED[name].encode(text, add_special_tokens=False).ids)
    if forms is TextForms.NONE:
        assert tokens <= len(text.encode())
    else:
        assert tokens <= sum(map(widths_of(forms).width, text))


@pytest.mark.parametrize(
    ("written", "forms"),
    [
        ({}, TextForms.NONE),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AA"}}, TextForms.ANY),
        ({"normalizer": {"type": "Sequence", "normalizers": [1]}}, TextForms.ANY),
        ({"normalizer": {}}, TextForms.ANY),
    ],
)
def test_an_unknown_rule_may_be_any_form(written: object, forms: TextForms) -> None:
    """Another version of the file may have others."""
    assert text_forms_of(json.dumps(written).encode()) is forms


def test_another_file_is_refused() -> None:
    """Its deployment keeps the forms of its provider's row."""
    with pytest.raises(msgspec.DecodeError):
        text_forms_of(b'{"normalizer": "NFC"}')
