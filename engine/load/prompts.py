"""Writes prompts of exact length in tokens, out of words that are one token each.

vLLM's `/tokenize` says which words of the list those are, and counts the chat template. A server
without it gets one word for a token, which is about right for a large vocabulary; the usage of each
answer says how many tokens it really read.
"""

import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError

from engine.errors import UnknownStateError, UsageError
from engine.load.json_answer import BROKEN_ANSWER, ask_json
from engine.load.workload import LoadRequest

_WORD_LIST = """\
the of and to in is it that for was on are as with they at be this have from or one had by word
but not what all were we when your can said there use an each which she do how their if will up
other about out many then them these so some her would make like him into time has look two more
write go see number no way could people my than first water been call who its now find long down
day did get come made may part over new sound take only little work know place year live me back
give most very after thing our just name good sentence man think say great where help through
much before line right too mean old any same tell boy follow came want show also around form
three small set put end does another well large must big even such because turn here why ask
went men read need land different home us move try kind hand picture again change off play spell
air away animal house point page letter mother answer found study still learn should world list
model city town table music garden stone paper green blue river silver light winter book apple
"""
WORDS = tuple(_WORD_LIST.split())
OPENING = "Read:"
"""The text before the first word, counted with the template: a word's token holds the space before
it.
"""
FEWEST_WORDS = 8
MOST_TEMPLATE_TOKENS = 100_000
ANSWER_LIMIT_S = 30.0
SPACE_MARKS = ("Ġ", "▁", " ")
"""A space at the begin of a token: of byte-level BPE, of SentencePiece, and as plain text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWriter:
    """Writes the chat requests of one model. Requests with the same number, seed and salt get the
    same text.

    The salt keeps a second run from reading the prefix cache that the first one filled.
    """

    model: str
    words: Sequence[str] = WORDS
    template_tokens: int = 0
    """Tokens of the chat template and `OPENING`, without a system message."""
    shared_template_tokens: int = 0
    """The same with a system message."""
    is_exact: bool = False
    seed: int = 0
    salt: str = field(default_factory=lambda: secrets.token_hex(8))

    def body(self, request: LoadRequest) -> dict[str, Any]:
        """Return the body of a chat request, whose answer has exactly the stated tokens."""
        return {
            "model": self.model,
            "messages": self.messages(request),
            "max_tokens": request.answer_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def messages(self, request: LoadRequest) -> list[dict[str, str]]:
        """Return the messages: the shared part as the system message, then the request's own."""
        own = request.prompt_tokens - request.shared_tokens
        if not request.shared_tokens:
            return [_message("user", self._text("own", request.number, own - self.template_tokens))]
        own -= self.shared_template_tokens
        return [
            _message("system", self._text("shared", 0, request.shared_tokens)),
            _message("user", self._text("own", request.number, own)),
        ]

    def _text(self, part: str, number: int, words: int) -> str:
        """Return a text of that many words; at least one."""
        rng = random.Random(f"{part} {number} {self.seed} {self.salt}")  # noqa: S311 - load, no secret
        return " ".join((OPENING, *rng.choices(self.words, k=max(1, words))))


def prompt_writer(url: str, *, model: str | None, key: str | None, seed: int) -> PromptWriter:
    """Return the writer for a server's model, the first that it lists if none is named.

    Raises: UnknownStateError: the server does not answer. UsageError: it lists no model.
    """
    model = model or _first_model(url, key)
    try:
        words = _one_token_words(url, key, model)
        template = _tokens(url, key, model, ("user",))
        shared = _tokens(url, key, model, ("system", "user"))
    except BROKEN_ANSWER:  # not vLLM: no such endpoint, or another one of that name
        return PromptWriter(model=model, seed=seed)
    return PromptWriter(
        model=model,
        words=words,
        template_tokens=template,
        shared_template_tokens=shared,
        is_exact=True,
        seed=seed,
    )


def _first_model(url: str, key: str | None) -> str:
    """Return the first model that a server lists."""
    try:
        return str(_ask(url, key, "/v1/models", None)["data"][0]["id"])
    except HTTPError as error:
        raise UsageError(
            f"{url}/v1/models answers HTTP {error.code}. Name the model with --model, and the key "
            "with --api-key-file."
        ) from error
    except OSError as error:
        raise UnknownStateError(f"No server answers at {url}: {error}.") from error
    except BROKEN_ANSWER as error:
        raise UsageError(f"{url} lists no model. Name one with --model.") from error


def _one_token_words(url: str, key: str | None, model: str) -> list[str]:
    """Return the words of the list that are one token each. Raises `BROKEN_ANSWER`."""
    asked = {"model": model, "prompt": " ".join((OPENING, *WORDS)), "return_token_strs": True}
    found = _ask(url, key, "/tokenize", asked)["token_strs"]
    begins = [index for index, text in enumerate(found) if text[:1] in SPACE_MARKS]
    # A word is one token if the next token begins the next word.
    words = [
        found[begin][1:]
        for begin, after in zip(begins, [*begins[1:], len(found)], strict=True)
        if after == begin + 1
    ]
    single = [word for word in words if word in WORDS]
    if len(single) < FEWEST_WORDS:
        raise ValueError("too few words of one token")
    return single


def _tokens(url: str, key: str | None, model: str, roles: Sequence[str]) -> int:
    """Return the tokens of the chat template with an opening for each role. Raises
    `BROKEN_ANSWER`.
    """
    messages = [_message(role, OPENING) for role in roles]
    found = int(_ask(url, key, "/tokenize", {"model": model, "messages": messages})["count"])
    if not 0 < found <= MOST_TEMPLATE_TOKENS:  # a negative count would be a prompt of gigabytes
        raise ValueError(f"a chat template of {found} tokens")
    return found


def _ask(url: str, key: str | None, path: str, body: Mapping[str, object] | None) -> Any:
    """Return the JSON that answers one request. Raises `BROKEN_ANSWER`."""
    return ask_json(f"{url}{path}", key=key, body=body, limit_s=ANSWER_LIMIT_S)


def _message(role: str, content: str) -> dict[str, str]:
    """Return one chat message."""
    return {"role": role, "content": content}
