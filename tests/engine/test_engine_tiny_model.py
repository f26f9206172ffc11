"""The shipped model: a first run trains nothing, so it must be right on every CPU."""

import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from engine_factories import REPOSITORY

from engine import environment, model_making, training_chats
from engine import home as homes
from engine.home import engine_home

HOME = engine_home(os.environ)
IS_READY = environment.installed_device(HOME) is not None


@pytest.mark.engine
@pytest.mark.skipif(not IS_READY, reason="needs the engine's environment: python -m engine setup")
def test_the_shipped_weights_pass_the_whole_exam_in_both_number_formats() -> None:
    """Which format they are served in depends on the CPU; rounding may change a greedy choice."""
    answers = model_making.examine(HOME, model_making.TINY)
    wrong = [
        (answer["number_format"], answer["asked"], answer["got"])
        for answer in answers
        if not answer["is_right"]
    ]
    assert wrong == []
    asked = [question.messages[-1]["content"] for question in training_chats.exam()]
    for number_format in ("float32", "bfloat16"):
        assert [
            answer["asked"] for answer in answers if answer["number_format"] == number_format
        ] == asked


@pytest.mark.engine
@pytest.mark.skipif(not IS_READY, reason="needs the engine's environment: python -m engine setup")
def test_the_recipe_writes_a_model_of_the_shipped_form(tmp_path: Path) -> None:
    """Since a model is shipped, nothing else runs the recipe: it would rot until somebody has to
    train again.
    """
    lessons, exam, out = tmp_path / "chats.jsonl", tmp_path / "exam.json", tmp_path / "model"
    lessons.write_text("\n".join(training_chats.training_lines(0, 500)), encoding="utf-8")
    question = {**training_chats.exam()[0].as_json(), "expected": ""}  # two steps teach nothing
    exam.write_text(json.dumps([question]), encoding="utf-8")
    argv = [
        str(HOME.python),
        str(homes.PACKAGE / "inside" / "train.py"),
        "train",
        "--chats",
        str(lessons),
    ]
    argv += [
        "--exam",
        str(exam),
        "--template",
        str(model_making.TEMPLATE),
        "--out",
        str(out),
        "--seed",
        "0",
    ]
    argv += ["--steps", "2", "--seconds", "600", "--number-format", "float32"]
    trained = subprocess.run(argv, capture_output=True, text=True, check=True)
    (report,) = [json.loads(line) for line in trained.stdout.splitlines() if line.startswith("{")]
    assert [answer["number_format"] for answer in report["answers"]] == ["float32", "bfloat16"]
    written, shipped = (
        {path.name for path in folder.iterdir()} for folder in (out, model_making.TINY)
    )
    assert written == shipped - {model_making.STAMP}
    for name in (
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ):
        assert (out / name).read_text(encoding="utf-8") == (model_making.TINY / name).read_text(
            encoding="utf-8"
        )


def test_the_shipped_model_carries_the_stamp_of_the_recipe() -> None:
    """A changed recipe needs a new training: otherwise the package ships another model than it
    describes.
    """
    assert model_making.is_made(model_making.TINY, model_making.Training())
    exam = homes.read_stamp(model_making.TINY / model_making.STAMP)["exam"]
    assert len(exam) == 2 * len(training_chats.exam())
    assert all(answer["is_right"] for answer in exam)


def test_the_shipped_model_is_one_copy_of_the_weights_in_bfloat16() -> None:
    """It is in the repository and in every wheel; float32 or an optimizer's state would double it
    or worse.
    """
    weights = (model_making.TINY / "model.safetensors").read_bytes()
    (header_bytes,) = struct.unpack("<Q", weights[:8])
    kinds = set(re.findall(rb'"dtype":"(\w+)"', weights[8 : 8 + header_bytes]))
    assert kinds == {b"BF16"}
    assert homes.size_bytes_of(model_making.TINY) < 8_000_000


def test_the_wheel_holds_the_model_and_the_locks(tmp_path: Path) -> None:
    """An installed Tollgate has no repository beside it."""
    build = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
    ]
    subprocess.run([sys.executable, *build, str(REPOSITORY)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    shipped = [*model_making.TINY.iterdir(), *(homes.PACKAGE / "locks").iterdir()]
    assert {str(path.relative_to(REPOSITORY)) for path in shipped} <= held
