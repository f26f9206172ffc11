"""Trains the tiny chat model for `python -m engine model --train`, publishes it only if it passes
its exam, and names the folder of the shipped model.

Owns the order: write the lessons, train, run the exam, publish. `training_chats.py` has the
lessons, `inside/train.py` the training. Weights depend on the CPU that trained them, so one trained
model is shipped.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine import home as homes
from engine import training_chats
from engine.children import start_bound
from engine.cpu import number_format_here
from engine.errors import EngineError, UsageError
from engine.home import EngineHome
from engine.progress import StageProgress

TINY = homes.SHIPPED_MODELS / "tiny"
RECIPE = 2
"""Raise it when the lessons or the training change, and train the shipped model again."""

TEMPLATE = TINY / "chat_template.jinja"
STAMP = "tollgate-model.json"
TRAINING_CHATS = 40_000
MODEL_DISK_BYTES = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The training's length and seed; the seconds limit each round on slow machines."""

    steps: int = 600
    limit_s: float = 600.0
    seed: int = 0

    def stamp(self) -> dict[str, Any]:
        """Return the values that identify a model. The time limit is not one: a model that
        passed its exam is good.
        """
        return {"recipe": RECIPE, "steps": self.steps, "seed": self.seed}


def default_out(home: EngineHome) -> Path:
    """Return the folder of a model trained on this machine; `tiny` names the shipped one."""
    return home.models / "trained"


def is_made(model: Path, training: Training) -> bool:
    """Return True if the folder holds a complete model of this recipe, number of steps and seed."""
    stamp = homes.read_stamp(model / STAMP)
    return {key: stamp.get(key) for key in training.stamp()} == training.stamp()


def make(home: EngineHome, out: Path, *, training: Training, progress: StageProgress) -> None:
    """Train the tiny model into the folder `out`, or keep the model that is there.

    Raises: EngineError: training broke, or the model failed its exam twice. UsageError: there is no
    environment, or `out` holds something else.
    """
    _require_environment(home)
    homes.require_writable(out.parent)
    homes.require_free(out.parent, MODEL_DISK_BYTES, setting="TOLLGATE_ENGINE_HOME")
    with homes.exclusive(out.with_name(f".{out.name}.lock")):
        if is_made(out, training):
            progress.say("done", f"Model is ready in {out}.")
            return
        _refuse_foreign(out)
        with _draft_of(out) as draft:
            _teach(home, draft, training=training, progress=progress)
            _publish(draft, out)
    progress.say("done", f"Model is ready in {out} ({progress.elapsed_s:.0f} s).")


def examine(home: EngineHome, folder: Path) -> list[dict[str, Any]]:
    """Let a trained model take the exam, in each number format, and return its answers.

    Raises: EngineError: the model cannot be loaded. UsageError: there is no environment.
    """
    _require_environment(home)
    with tempfile.TemporaryDirectory() as drafts:
        exam = _write_exam(Path(drafts))
        return _answers(home, ["examine", "--model", str(folder), "--exam", str(exam)], _ignore)


def _require_environment(home: EngineHome) -> None:
    """Raise `UsageError` unless the engine's environment is installed."""
    if not home.python.exists():
        raise UsageError(
            f"There is no engine environment in {home.venv}. Make it with: python -m engine setup"
        )


def _refuse_foreign(out: Path) -> None:
    """Raise `UsageError` if the folder holds something that this command did not make, because it
    would be replaced.
    """
    if out.exists() and not (out / STAMP).exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(
            f"{out} exists and is not a model made by this command. Choose another --out, or "
            "remove it."
        )


@contextmanager
def _draft_of(out: Path) -> Iterator[Path]:
    """Yield an empty folder beside `out` for an unfinished model, and delete it afterwards."""
    draft = out.with_name(f".{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _publish(draft: Path, out: Path) -> None:
    """Replace the model in the folder `out` by the finished draft."""
    if out.exists():
        shutil.rmtree(out)
    (draft / "model").replace(out)


def _teach(home: EngineHome, draft: Path, *, training: Training, progress: StageProgress) -> None:
    """Train a model into a draft folder and examine it; raise `EngineError` if it fails twice."""
    progress.say("lessons", f"Writing {TRAINING_CHATS:,} short chats to learn from.")
    number_format = number_format_here(os.environ)
    progress.say(
        "train",
        f"Training a 3.7 M parameter model on the CPU, in {number_format}, at most "
        f"{training.limit_s:.0f} s a round.",
    )
    answers = _train(home, draft, training=training, progress=progress)
    if not all(answer["is_right"] for answer in answers):
        raise EngineError(_exam_complaint(answers))
    homes.write_stamp(draft / "model" / STAMP, {**training.stamp(), "exam": answers})


def _exam_complaint(answers: list[dict[str, Any]]) -> str:
    """Return the error text for a trained model that answers exam questions wrongly."""
    wrong = [
        f"  in {answer['number_format']}: {answer['asked']!r} -> {answer['got']!r}"
        for answer in answers
        if not answer["is_right"]
    ]
    return "\n".join(
        (
            "The trained model fails its exam:",
            *wrong,
            "The machine may be too busy or too slow: try again with a longer limit, for example:",
            "  python -m engine model --train --seconds 1800",
        )
    )


def _write_lessons(draft: Path, seed: int) -> Path:
    """Write the training chats into a draft folder, as JSON lines, and return the file."""
    lessons = draft / "chats.jsonl"
    with lessons.open("w", encoding="utf-8") as opened:
        for line in training_chats.training_lines(seed, TRAINING_CHATS):
            opened.write(f"{line}\n")
    return lessons


def _write_exam(draft: Path) -> Path:
    """Write the exam's questions into a draft folder, as JSON, and return the file."""
    exam = draft / "exam.json"
    exam.write_text(
        json.dumps([question.as_json() for question in training_chats.exam()]), encoding="utf-8"
    )
    return exam


def _train(
    home: EngineHome, draft: Path, *, training: Training, progress: StageProgress
) -> list[dict[str, Any]]:
    """Train a model into a draft folder and return its exam answers."""
    arguments = [
        "train",
        "--chats",
        str(_write_lessons(draft, training.seed)),
        "--exam",
        str(_write_exam(draft)),
    ]
    arguments += ["--template", str(TEMPLATE), "--out", str(draft / "model")]
    arguments += [
        "--steps",
        str(training.steps),
        "--seconds",
        str(training.limit_s),
        "--seed",
        str(training.seed),
    ]
    arguments += ["--number-format", number_format_here(os.environ)]
    return _answers(home, arguments, partial(_report, progress))


def _report(progress: StageProgress, event: dict[str, Any]) -> None:
    """Report an event of the trainer as progress: a training step, or the result of the exam."""
    match event:
        case {"event": "step", "step": step, "steps": steps, "loss": loss, "left_s": left_s}:
            progress.advance(
                "train",
                f"Training, loss {loss:.2f}",
                done=step,
                total=steps,
                unit="steps",
                left_s=left_s,
            )
        case {"event": "exam", "answers": answers}:
            right = sum(answer["is_right"] for answer in answers)
            progress.say("exam", f"Exam: {right} of {len(answers)} answers are right.")


def _ignore(event: dict[str, Any]) -> None:
    """Report nothing for an event of the trainer: an exam takes seconds."""


def _answers(
    home: EngineHome, arguments: Sequence[str], report: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Run the trainer's program under the engine's interpreter and return the answers of its last
    exam.
    """
    argv = [str(home.python), str(homes.PACKAGE / "inside" / "train.py"), *arguments]
    offline = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    trainer = start_bound(argv, os.environ | offline, stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    answers: list[dict[str, Any]] = []
    other_lines: list[str] = []
    for line in trainer.stdout:
        event = _decoded_event(line)
        report(event)
        if "answers" in event:
            answers = event["answers"]
        elif not event:
            other_lines.append(line.rstrip())
    if trainer.wait() != 0 or not answers:
        raise EngineError(
            "Training broke off:\n"
            + "\n".join(other_lines[-8:])
            + "\nRun it again: python -m engine model --train"
        )
    return answers


def _decoded_event(line: str) -> dict[str, Any]:
    """Return the JSON object of one line of the trainer's output, empty if the line is something
    else.
    """
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
