"""Real vocabularies and normalizers judge the bound of a text: no assigned character, alone or
among others, makes more tokens than its width.

Each vocabulary is a file of a package on PyPI. Those of today's Claude, Gemini, Gemma, Llama,
XLM-R and T5 are in none.
"""

from __future__ import annotations

import base64
import os
import random
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import sentencepiece
import tiktoken
import unicodedata2
from tokenizers import Tokenizer

from gateway.domain.providers.table import TextForms
from gateway.domain.request.text_forms import widths_of
from gateway.providers.engines.tokenizer_file import text_forms_of

Count = Callable[[Sequence[str]], Iterable[int]]
REPEATED = 4
MIXED_TEXTS, MIXED_CHARS = 3_000, 12


def folder_of(package: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


LITELLM = folder_of("litellm") / "litellm_core_utils/tokenizers"
MISTRAL = folder_of("mistral_common") / "data"
QWEN = folder_of("dashscope") / "resources/qwen.tiktoken"
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
os.environ["TIKTOKEN_CACHE_DIR"] = str(LITELLM)  # OpenAI's vocabularies, under their hashes


@cache
def assigned() -> tuple[str, ...]:
    """Return every assigned character beyond ASCII."""
    every = (chr(at) for at in range(0x80, 0x110000) if not 0xD800 <= at < 0xE000)
    return tuple(one for one in every if unicodedata2.category(one) not in ("Cn", "Co"))


@cache
def mixed() -> tuple[str, ...]:
    """Return random texts of characters that some form changes."""
    draw = random.Random(37)
    changed = [one for one in assigned() if unicodedata.normalize("NFKD", one) != one]
    marks = [one for one in assigned() if unicodedata.combining(one)]
    pool = [*changed, *marks, *"aZ ."]
    return tuple("".join(draw.choices(pool, k=MIXED_CHARS)) for _ in range(MIXED_TEXTS))


def of_tiktoken(encoding: tiktoken.Encoding, form: str | None = None) -> Count:
    """Return the counter of a vocabulary of byte pairs, which may read a normal form."""

    def count(texts: Sequence[str]) -> Iterable[int]:
        """Return the tokens of each text."""
        read = [unicodedata2.normalize(form, text) for text in texts] if form else list(texts)
        return map(len, encoding.encode_ordinary_batch(read))

    return count


def of_file(path: Path) -> Count:
    """Return the counter of a `tokenizer.json`."""
    tokenizer = Tokenizer.from_file(str(path))
    return lambda texts: (
        len(one.ids) for one in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    )


def of_sentencepiece(path: Path) -> Count:
    """Return the counter of a SentencePiece model, without the blank that it puts in front: the
    quotes around a text count for that.
    """
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda texts: (max(len(ids) - 1, 0) for ids in model.encode(list(texts)))


def qwen() -> tiktoken.Encoding:
    """Return Qwen's vocabulary."""
    lines = (line.split() for line in QWEN.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return tiktoken.Encoding("qwen", pat_str=QWEN_SPLIT, mergeable_ranks=ranks, special_tokens={})


VOCABULARIES: dict[str, tuple[Callable[[], Count], TextForms]] = {
    "claude-2023": (lambda: of_file(LITELLM / "anthropic_tokenizer.json"), TextForms.ANY),
    "deepseek-v3": (lambda: of_file(LITELLM / "deepseek_tokenizer.json"), TextForms.NONE),
    "qwen": (lambda: of_tiktoken(qwen(), "NFC"), TextForms.NFC),
    **{
        name: (lambda name=name: of_tiktoken(tiktoken.get_encoding(name)), TextForms.NONE)  # type: ignore[misc]
        for name in ("cl100k_base", "o200k_base", "p50k_base")
    },
    **{
        path.name: (lambda path=path: of_sentencepiece(path), TextForms.NONE)  # type: ignore[misc]
        for path in sorted(MISTRAL.glob("*.model*"))
    },
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_no_vocabulary_makes_more_tokens_than_the_width(name: str) -> None:
    """Each character some times, and texts of characters that change."""
    make, forms = VOCABULARIES[name]
    texts = [*(one * REPEATED for one in assigned()), *mixed()]
    over = [
        (text, tokens)
        for text, tokens in zip(texts, make()(texts), strict=True)
        if tokens > bound(text, forms)
    ]
    assert over == []


def bound(text: str, forms: TextForms) -> int:
    """Return the most tokens of a text."""
    if forms is TextForms.NONE:
        return len(text.encode())
    return sum(map(widths_of(forms).width, text))


def test_the_bytes_that_were_sent_are_no_bound() -> None:
    """These vocabularies would have overrun it: the test above is not empty."""
    for name, character in (("claude-2023", "\ufdfa"), ("qwen", "\u0f76")):
        (tokens,) = VOCABULARIES[name][0]()([character * 100])
        assert tokens > 100 * len(character.encode()), name


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"])
def test_no_rule_of_sentencepiece_writes_more_bytes(rule: str) -> None:
    """Those of T5, XLM-R and Gemma among them; a blank is three bytes there."""
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name=rule,
        add_dummy_prefix=False,
        escape_whitespaces=True,
        remove_extra_whitespaces=False,
    )
    over = [
        text
        for text in [*assigned(), *(text.replace(" ", "") for text in mixed())]
        if len(normalizer.normalize(text).encode()) > bound(text, TextForms.ANY)
    ]
    assert over == []


def test_the_files_say_which_forms_they_read() -> None:
    """As an admin's own file does."""
    forms = [
        text_forms_of((LITELLM / f"{name}_tokenizer.json").read_bytes())
        for name in ("anthropic", "deepseek")
    ]
    assert forms == [TextForms.ANY, TextForms.NONE]
