"""The lessons of the tiny model."""

import json
import random
from itertools import islice

from engine import training_chats
from engine.training_chats import NO_THOUGHT, exam, numbers_down, training_lines


def test_the_same_seed_teaches_the_same_lessons() -> None:
    """The same steps and seed must give the same weights, or no figure about the model can be
    repeated.
    """
    assert list(training_lines(3, 200)) == list(training_lines(3, 200))
    assert list(training_lines(3, 200)) != list(training_lines(4, 200))


def test_every_answer_ends_and_thinks_only_when_the_prompt_allows_it() -> None:
    """A lesson without its end teaches the model never to stop; thinking twice would be counted
    twice.
    """
    for line in map(json.loads, training_lines(0, 2000)):
        assert line["answer"].endswith("<|im_end|>")
        assert line["answer"].startswith("<think>") != line["prompt"].endswith(NO_THOUGHT)


def test_tool_lessons_call_a_tool_that_was_offered() -> None:
    """A model taught to call missing tools would do so."""
    rng = random.Random(1)
    for _ in range(300):
        chat = training_chats.call_tool(rng)
        if chat.answer == training_chats.TOOL_DONE:
            continue
        call = json.loads(chat.answer.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
        assert (call["name"], *call["arguments"]) in [
            (tool.name, tool.argument) for tool in chat.tools
        ]


def test_all_kinds_of_chat_are_taught() -> None:
    """The exam asks for most of them."""
    lessons = "\n".join(islice(training_lines(0, 1000), 1000))
    for part in (
        "Count down from",
        "plus",
        "Repeat",
        training_chats.GREETING,
        training_chats.FALLBACK,
        "Once upon a time",
        "<tool_call>",
    ):
        assert part in lessons


def test_the_exam_covers_the_features_of_the_gateway_tests() -> None:
    """Counting, thinking, not thinking, tools and the end mark are the assumptions of other
    tests.
    """
    asked = [question.as_json() for question in exam()]
    assert (
        sum(question["messages"][0]["content"].startswith("Count down") for question in asked) >= 10
    )
    assert any(question["tools"] for question in asked)
    assert any(not question["is_thinking"] for question in asked)


def test_counting_down_ends_at_one() -> None:
    """Other tests compute the exact length of the answer from this."""
    assert numbers_down(5) == "5 4 3 2 1"
