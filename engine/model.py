"""Makes the tiny chat model on this machine: no download, two minutes, the same weights each time.

Owns the order: write the lessons, train, sit the exam, publish. What is taught is in `chats.py`, how in
`inside/train.py`.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import chats
from engine import home as homes
from engine.children import start_bound
from engine.errors import EngineError, UsageError
from engine.home import EngineHome
from engine.progress import Progress

RECIPE = 1
"""Raise it when the lessons or the training change: models made before are then made again."""

STAMP = "tollgate-model.json"
TRAINING_CHATS = 40_000
MODEL_DISK_BYTES = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How long and from which dice the model learns; the seconds are a ceiling per round for slow machines."""

    steps: int = 600
    limit_s: float = 600.0
    seed: int = 0

    def stamp(self) -> dict[str, Any]:
        """Return what tells models apart; the ceiling does not: a model that passed its exam is good."""
        return {"recipe": RECIPE, "steps": self.steps, "seed": self.seed}


def default_model(home: EngineHome) -> Path:
    return home.models / "tiny"


def is_made(model: Path, training: Training) -> bool:
    """Return whether the folder holds a complete model of this recipe and these arguments."""
    stamp = homes.read_stamp(model / STAMP)
    return {key: stamp.get(key) for key in training.stamp()} == training.stamp()


def make(home: EngineHome, out: Path, *, training: Training, progress: Progress) -> None:
    """Train the model into `out`, or leave it as it is where it is already made.

    Raises:
        EngineError: training broke, or the model failed its exam twice.
        UsageError: there is no environment, or `out` holds something else.
    """
    if not home.python.exists():
        raise UsageError(f"There is no engine environment in {home.venv}. Make it with: python -m engine setup")
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


def _refuse_foreign(out: Path) -> None:
    """Protect a folder that this command did not make from being replaced."""
    if out.exists() and not (out / STAMP).exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not a model made by this command. Choose another --out, or remove it.")


@contextmanager
def _draft_of(out: Path) -> Iterator[Path]:
    draft = out.with_name(f".{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _publish(draft: Path, out: Path) -> None:
    if out.exists():
        shutil.rmtree(out)
    (draft / "model").replace(out)


def _teach(home: EngineHome, draft: Path, *, training: Training, progress: Progress) -> None:
    """Train and examine; the trainer itself gives a model that fails a second round."""
    progress.say("lessons", f"Writing {TRAINING_CHATS:,} short chats to learn from.")
    _write_lessons(draft, training.seed)
    progress.say("train", f"Training a 3.7 M parameter model on the CPU, at most {training.limit_s:.0f} s.")
    answers = _train(home, draft, training=training, progress=progress)
    if not all(answer["is_right"] for answer in answers):
        raise EngineError(_exam_complaint(answers))
    homes.write_stamp(draft / "model" / STAMP, {**training.stamp(), "exam": answers})


def _exam_complaint(answers: list[dict[str, Any]]) -> str:
    wrong = [f"  {answer['asked']!r} -> {answer['got']!r}" for answer in answers if not answer["is_right"]]
    return "\n".join(
        (
            "The trained model fails its exam:",
            *wrong,
            "The machine may be too busy or too slow: try again with a longer limit, for example:",
            "  python -m engine model --seconds 1800",
        )
    )


def _write_lessons(draft: Path, seed: int) -> None:
    with (draft / "chats.jsonl").open("w", encoding="utf-8") as lessons:
        for line in chats.training_lines(seed, TRAINING_CHATS):
            lessons.write(f"{line}\n")
    questions = [question.as_json() for question in chats.exam()]
    (draft / "exam.json").write_text(json.dumps(questions), encoding="utf-8")


def _train(home: EngineHome, draft: Path, *, training: Training, progress: Progress) -> list[dict[str, Any]]:
    """Run the trainer under the engine's interpreter and return the exam's answers."""
    argv = [str(home.python), str(homes.PACKAGE / "inside" / "train.py")]
    argv += ["--chats", str(draft / "chats.jsonl"), "--exam", str(draft / "exam.json")]
    argv += ["--template", str(homes.PACKAGE / "chat_template.jinja"), "--out", str(draft / "model")]
    argv += ["--steps", str(training.steps), "--seconds", str(training.limit_s), "--seed", str(training.seed)]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    trainer = start_bound(argv, os.environ | offline, stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    answers: list[dict[str, Any]] = []
    other_lines: list[str] = []
    for line in trainer.stdout:
        match _event(line):
            case {"event": "step", "step": step, "steps": steps, "loss": loss, "left_s": left_s}:
                progress.advance(
                    "train", f"Training, loss {loss:.2f}", done=step, total=steps, unit="steps", left_s=left_s
                )
            case {"event": "exam", "answers": answers}:
                right = sum(answer["is_right"] for answer in answers)
                progress.say("exam", f"Exam: {right} of {len(answers)} answers are right.")
            case _:
                other_lines.append(line.rstrip())
    if trainer.wait() != 0 or not answers:
        raise EngineError(
            "Training broke off:\n" + "\n".join(other_lines[-8:]) + "\nRun it again: python -m engine model"
        )
    return answers


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
