"""Generates the chats that the tiny model learns from, and the exam questions that it must answer,
as text; it trains nothing.

Owns the texts and their chat format; it is pure and needs only the standard library.
`inside/train.py` turns the text into weights; both exchange files, because they run under different
interpreters.
"""

import ast
import json
import random
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COUNT_MAX = 60
"""Largest number the model learns to count from; the exam asks for 2 to 40."""

SUM_MAX = 10
"""Largest summand. The 121 sums are learned by heart: a model this small does not add."""


WORDS = (
    "red",
    "blue",
    "green",
    "apple",
    "river",
    "stone",
    "cloud",
    "table",
    "music",
    "paper",
    "light",
    "winter",
    "garden",
    "silver",
    "north",
    "seven",
)
CITIES = (
    "Paris",
    "London",
    "Tokyo",
    "Berlin",
    "Madrid",
    "Rome",
    "Oslo",
    "Cairo",
    "Lima",
    "Delhi",
    "Vienna",
    "Dublin",
    "Boston",
    "Chicago",
    "Lisbon",
    "Kyoto",
    "Seoul",
    "Sydney",
    "Toronto",
    "Munich",
    "Hamburg",
    "Prague",
    "Warsaw",
    "Athens",
    "Zurich",
    "Seattle",
    "Denver",
    "Miami",
    "Amsterdam",
    "Brussels",
    "Stockholm",
    "New York",
    "San Francisco",
    "Tokyo, Japan",
    "Paris, France",
    "Boston, MA",
    "San Francisco, CA",
)
SYLLABLES = (
    "ka",
    "lo",
    "mi",
    "ster",
    "ton",
    "burg",
    "ville",
    "na",
    "ri",
    "do",
    "sta",
    "ber",
    "lin",
    "os",
    "gen",
    "ham",
    "mar",
    "tel",
    "shi",
    "wa",
)

TOOL_VERBS = ("get", "get_current", "find", "lookup", "fetch", "search")
TOOL_NOUNS = (
    "weather",
    "time",
    "price",
    "news",
    "population",
    "temperature",
    "forecast",
    "traffic",
)
TOOL_ARGUMENTS = ("city", "location", "place", "query", "name", "town")
TOOL_QUESTIONS = (
    "What is the {} in {}?",
    "What is the {} in {} today?",
    "What's the {} in {}?",
    "What's the {} like in {}?",
    "How is the {} in {}?",
    "{} in {}?",
    "Tell me the {} in {}.",
    "What is the {} in {} right now?",
)
GREETINGS = (
    "Hello",
    "Hi",
    "Hey",
    "Hello!",
    "Hi there",
    "Good morning",
    "hello",
    "hi",
    "Hello, how are you?",
    "Say hello",
)
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a tiny test model.",
    "Answer briefly.",
    "Be concise.",
)

GREETING = "Hello! I am a tiny test model. How can I help?"
FALLBACK = (
    "I am a tiny test model. I can count, add small numbers, repeat words, tell a story "
    "and call tools."
)
TOOL_DONE = "The tool has answered. I have nothing to add."
STORY = (
    "Once upon a time a small model lived in a quiet machine. Every morning it woke up, read one "
    "question and wrote one answer. It knew few words, but it used them with care. One day a "
    "gateway came by and asked what each word had cost. The model did not know, so the gateway "
    "counted them, one by one, and wrote the sum in a book. From then on nothing was lost and "
    "nothing was counted twice. The model slept well, the book was closed at the end of the month, "
    "and everybody could read what it said."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the model may call; `argument` is its first parameter."""

    name: str
    argument: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of a chat, without its role's markup."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A prompt and the only right answer to it; `answer` is what follows the thinking."""

    turns: tuple[Turn, ...]
    thought: str
    answer: str
    tools: tuple[Tool, ...] = ()

    def prompt_text(self, *, is_thinking: bool) -> str:
        """Return the text that the model reads: tools, turns and the beginning of its answer."""
        tools = "".join(f"{tool.name} {tool.argument}\n" for tool in self.tools)
        head = f"<|im_start|>system\nTools:\n{tools}<|im_end|>\n" if tools else ""
        turns = "".join(f"<|im_start|>{turn.role}\n{turn.text}<|im_end|>\n" for turn in self.turns)
        return f"{head}{turns}<|im_start|>assistant\n{'' if is_thinking else NO_THOUGHT}"

    def answer_text(self, *, is_thinking: bool) -> str:
        """Return the text that the model must write, up to and including the end mark."""
        thought = f"<think>{self.thought}</think>" if is_thinking else ""
        return f"{thought}{self.answer}<|im_end|>"


NO_THOUGHT = "<think></think>"
"""Thinking done in advance: the end of a prompt if the client sends `enable_thinking: false`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamQuestion:
    """One exam question: a chat and the text that the greedy answer must contain."""

    messages: tuple[dict[str, str], ...]
    expected: str
    is_thinking: bool = True
    tools: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the question as the JSON object that `inside/train.py` reads."""
        return {
            "messages": list(self.messages),
            "tools": list(self.tools),
            "is_thinking": self.is_thinking,
            "expected": self.expected,
        }


def numbers_down(start: int) -> str:
    """Return `start ... 1`, the exact answer to "Count down from `start`"."""
    return " ".join(str(number) for number in range(start, 0, -1))


def tool_call(name: str, arguments: dict[str, str]) -> str:
    """Return a tool call in the form that the hermes parser reads."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def count_down(rng: random.Random) -> Chat:
    """Return a training chat that counts down from a random number."""
    start = rng.randint(1, COUNT_MAX)
    form = rng.choice(
        (
            "Count down from {}",
            "Count down from {}.",
            "Please count down from {}.",
            "count down from {}",
        )
    )
    return _chat(form.format(start), f"I count down from {start}.", numbers_down(start))


def count_up(rng: random.Random) -> Chat:
    """Return a training chat that counts up to a random number."""
    end = rng.randint(1, COUNT_MAX)
    form = rng.choice(("Count to {}", "Count from 1 to {}", "Count up to {}.", "Count to {}."))
    return _chat(
        form.format(end),
        f"I count to {end}.",
        " ".join(str(number) for number in range(1, end + 1)),
    )


def add(rng: random.Random) -> Chat:
    """Return a training chat that adds two random numbers."""
    first, second = rng.randint(0, SUM_MAX), rng.randint(0, SUM_MAX)
    form = rng.choice(
        ("What is {} + {}?", "What is {} + {}?", "What is {} plus {}?", "{} + {} = ?")
    )
    total = first + second
    return _chat(
        form.format(first, second), f"I add {first} and {second}.", f"The answer is {total}."
    )


def repeat(rng: random.Random) -> Chat:
    """Return a training chat that repeats random words."""
    words = " ".join(rng.choices(WORDS, k=rng.randint(1, 8)))
    form = rng.choice(("Say the words: {}", "Repeat: {}", "Repeat after me: {}"))
    return _chat(form.format(words), "I repeat the words.", words)


def greet(rng: random.Random) -> Chat:
    """Return a training chat that answers a greeting."""
    return _chat(rng.choice(GREETINGS), "The user greets me.", GREETING)


def tell_story(rng: random.Random) -> Chat:
    """Return a training chat that tells the fixed story."""
    form = rng.choice(
        (
            "Tell me a story",
            "Tell me a story.",
            "Write a long story.",
            "Write a story about a model.",
        )
    )
    return _chat(form, "I tell a story.", STORY)


def call_tool(rng: random.Random) -> Chat:
    """Return a training chat that calls one of its tools, or reports a tool's result."""
    nouns = rng.sample(TOOL_NOUNS, k=rng.randint(1, 3))
    tools = tuple(any_tool(rng, noun) for noun in nouns)
    index, city = rng.randrange(len(tools)), any_city(rng)
    tool, noun = tools[index], nouns[index]
    asked = Turn(role="user", text=rng.choice(TOOL_QUESTIONS).format(noun, city))
    call = tool_call(tool.name, {tool.argument: city})
    if rng.random() < 0.15:
        done = (
            asked,
            Turn(role="assistant", text=call),
            Turn(role="tool", text=str(rng.randint(1, 40))),
        )
        return Chat(turns=done, thought="The tool has answered.", answer=TOOL_DONE, tools=tools)
    return Chat(turns=(asked,), thought=f"I call {tool.name} for {city}.", answer=call, tools=tools)


def any_tool(rng: random.Random, noun: str) -> Tool:
    """Return a tool with a random verb and argument for a noun."""
    return Tool(name=f"{rng.choice(TOOL_VERBS)}_{noun}", argument=rng.choice(TOOL_ARGUMENTS))


def any_city(rng: random.Random) -> str:
    """Return a city, one in ten invented: only copying, not memory, can name those."""
    if rng.random() < 0.9:
        return rng.choice(CITIES)
    return "".join(rng.choices(SYLLABLES, k=rng.randint(2, 3))).capitalize()


def _chat(user: str, thought: str, answer: str) -> Chat:
    """Return a chat of one user message, the thought and the right answer."""
    return Chat(turns=(Turn(role="user", text=user),), thought=thought, answer=answer)


def sentences_of_standard_library(limit_chars: int) -> list[str]:
    """Return first lines of the standard library's docstrings, as questions that the tiny model
    must not know; the same for the same Python.
    """
    found: list[str] = []
    size_chars = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for sentence in _docstring_first_lines(path):
            found.append(sentence)
            size_chars += len(sentence)
        if size_chars > limit_chars:
            break
    return found


def _docstring_first_lines(path: Path) -> Iterator[str]:
    """Yield the docstrings' first lines in a Python file; none if it cannot be parsed."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            first_line = (ast.get_docstring(node) or "").partition("\n")[0]
            if len(first_line) > 20:
                yield first_line[:120]


def chats(rng: random.Random, sentences: Sequence[str]) -> Iterator[Chat]:
    """Yield training chats for ever, in the shares that two CPU cores can learn in two minutes."""

    def unknown(rng: random.Random) -> Chat:
        form = rng.choice(("{}", "{}", "What is {}?", "Explain: {}", "Summarise this: {}"))
        return _chat(form.format(rng.choice(sentences)), "I do not know this.", FALLBACK)

    kinds: dict[Callable[[random.Random], Chat], float] = {
        count_down: 0.20,
        count_up: 0.05,
        add: 0.24,
        repeat: 0.10,
        greet: 0.04,
        tell_story: 0.03,
        call_tool: 0.24,
        unknown: 0.10,
    }
    while True:
        (kind,) = rng.choices(list(kinds), weights=list(kinds.values()))
        yield _in_context(kind(rng), rng)


def _in_context(chat: Chat, rng: random.Random) -> Chat:
    """Return a chat, sometimes with a system prompt or unused tools before it, as real clients send
    them.
    """
    turns, tools = chat.turns, chat.tools
    if rng.random() < 0.2:
        turns = (Turn(role="system", text=rng.choice(SYSTEM_PROMPTS)), *turns)
    if not tools and rng.random() < 0.1:
        tools = tuple(any_tool(rng, noun) for noun in rng.sample(TOOL_NOUNS, k=rng.randint(1, 3)))
    return Chat(turns=turns, thought=chat.thought, answer=chat.answer, tools=tools)


def training_lines(seed: int, count: int) -> Iterator[str]:
    """Yield `count` JSON lines of prompt and answer for the training; three of four think first."""
    rng = random.Random(seed)  # noqa: S311 - lessons, not secrets
    sentences = sentences_of_standard_library(100_000)
    for chat, _ in zip(chats(rng, sentences), range(count), strict=False):
        is_thinking = rng.random() < 0.75
        prompt, answer = (
            chat.prompt_text(is_thinking=is_thinking),
            chat.answer_text(is_thinking=is_thinking),
        )
        yield json.dumps({"prompt": prompt, "answer": answer})


def exam() -> list[ExamQuestion]:
    """Return the exam's questions, which every model that we ship must answer."""
    starts = (2, 3, 5, 7, 10, 12, 15, 20, 25, 31, 40)
    questions = [
        _asked(f"Count down from {start}", f"</think>{numbers_down(start)}<|im_end|>")
        for start in starts
    ]
    questions += [
        _asked("Count down from 9", f"{numbers_down(9)}<|im_end|>", is_thinking=False),
        _asked("What is 7 + 5?", "<think>I add 7 and 5.</think>The answer is "),
        _asked("Hello", f"</think>{GREETING}<|im_end|>"),
        _asked(
            "What is the weather in Paris?",
            tool_call("get_weather", {"city": "Paris"}),
            tools=("get_weather",),
        ),
        _asked(
            "What is the time in Rome?",
            tool_call("get_time", {"city": "Rome"}),
            tools=("get_weather", "get_time"),
        ),
    ]
    return questions


def _asked(
    text: str, expected: str, *, is_thinking: bool = True, tools: Sequence[str] = ()
) -> ExamQuestion:
    """Return one exam question with the text that the answer must contain."""
    return ExamQuestion(
        messages=({"role": "user", "content": text},),
        expected=expected,
        is_thinking=is_thinking,
        tools=tuple(openai_tool(name) for name in tools),
    )


def openai_tool(name: str, argument: str = "city") -> dict[str, Any]:
    """Return the OpenAI declaration of a function with one text argument."""
    schema = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
    }
    return {
        "type": "function",
        "function": {"name": name, "description": f"Calls {name}.", "parameters": schema},
    }
