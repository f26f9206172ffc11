"""Trains a tiny Qwen3 chat model on given chats, or examines a trained one, and prints progress and
exam answers as JSON lines for `engine/model_making.py`.

Runs under the interpreter of the engine's own environment, started by `engine/model_making.py`. It
needs torch, transformers and tokenizers, and nothing of this package. It knows nothing about the
chats' content. Every line on standard output is one JSON object: progress while it learns, then the
exam with the greedy answers.
"""

import argparse
import copy
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY_TOKENS = 2048
CONTEXT_TOKENS = 8192
HIDDEN = 256
LAYERS = 4
BATCH_ROWS = 8
ROW_TOKENS = 192
PEAK_LEARNING_RATES = (3e-3, 1.5e-3)
"""One per round; the second round runs only if the exam after the first one failed."""
PROGRESS_EVERY_STEPS = 20
NUMBER_FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""The model is examined in each of them, because each is served: the CPU decides which."""

IGNORED = -100
"""The label that cross entropy skips: the model does not learn the prompts."""

END, PAD = "<|im_end|>", "<|endoftext|>"
SPECIAL = (PAD, "<|im_start|>", END)
VISIBLE = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens that stay in the decoded text, because vLLM's parsers look for them there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When training ends: after `steps`, or after `limit_s` seconds, whichever comes first."""

    steps: int
    limit_s: float
    peak_learning_rate: float

    def done_share(self, step: int, elapsed_s: float) -> float:
        """Return the completed share of the training: 0 at its beginning, 1 or more at its end."""
        return max(step / self.steps, elapsed_s / self.limit_s)


def main() -> None:
    """Train the tiny model, or examine a trained one, as the arguments ask."""
    arguments = parse_arguments()
    questions = json.loads(arguments.exam.read_text(encoding="utf-8"))
    if arguments.act == "examine":
        tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.model)
        saved = Qwen3ForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16)
        report(event="exam", answers=sit_exam(saved, tokenizer, questions))
    else:
        learn(arguments, questions)


def learn(arguments: argparse.Namespace, questions: Sequence[dict[str, Any]]) -> None:
    """Train a model in one round, or two if it fails its exam, and save it even if it fails again:
    the caller judges.
    """
    torch.manual_seed(arguments.seed)
    lines = [json.loads(line) for line in arguments.chats.read_text(encoding="utf-8").splitlines()]
    tokenizer = make_tokenizer(lines, arguments.template.read_text(encoding="utf-8").rstrip("\n"))
    model = Qwen3ForCausalLM(model_config(tokenizer))
    batches = packed_batches(tokenizer, lines, arguments.seed)
    for peak in PEAK_LEARNING_RATES:
        schedule = Schedule(
            steps=arguments.steps, limit_s=arguments.seconds, peak_learning_rate=peak
        )
        train(model, batches, schedule, number_format=NUMBER_FORMATS[arguments.number_format])
        # The exam tests the saved weights: rounding to bfloat16 may change a greedy choice.
        rounded = copy.deepcopy(model).to(torch.bfloat16)
        answers = sit_exam(rounded, tokenizer, questions)
        report(event="exam", answers=answers)
        if all(one["is_right"] for one in answers):
            break
    save(rounded, tokenizer, arguments.out)


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line: `examine` or `train`, with their options."""
    parser = argparse.ArgumentParser(
        description="Train the tiny chat model, or examine a trained one."
    )
    acts = parser.add_subparsers(dest="act", required=True)
    examine = acts.add_parser("examine")
    examine.add_argument("--model", type=Path, required=True, help="folder of the model to examine")
    train = acts.add_parser("train")
    train.add_argument("--chats", type=Path, required=True, help="JSON lines of prompt and answer")
    train.add_argument("--template", type=Path, required=True, help="chat template (Jinja)")
    train.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    train.add_argument("--steps", type=int, required=True)
    train.add_argument(
        "--seconds", type=float, required=True, help="end a round after this time, done or not"
    )
    train.add_argument("--seed", type=int, required=True)
    train.add_argument(
        "--number-format", choices=tuple(NUMBER_FORMATS), required=True, help="of the products"
    )
    for act in (examine, train):
        act.add_argument("--exam", type=Path, required=True, help="JSON list of questions")
    return parser.parse_args()


def report(**fields: Any) -> None:
    """Print an event as a JSON line for the program that started this one."""
    print(json.dumps(fields), flush=True)


def make_tokenizer(lines: Sequence[dict[str, str]], template: str) -> Any:
    """Return a byte-level BPE tokenizer trained on the chats; each number up to 99 is one token, so
    that counting is learnt by heart.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    numbers = [f"\n{number}\n {number}\n" for number in range(100)] * 300
    texts = [line["prompt"] + line["answer"] for line in lines[:4000]]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS - len(VISIBLE),
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(texts + numbers, trainer)
    bpe.add_tokens(list(VISIBLE))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template
    return tokenizer


def model_config(tokenizer: Any) -> Any:
    """Return the configuration of the tiny Qwen3 model: its size and its special tokens."""
    return Qwen3Config(
        vocab_size=VOCABULARY_TOKENS,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN * 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // 64,
        num_key_value_heads=HIDDEN // 128,
        head_dim=64,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
    )


def packed_batches(
    tokenizer: Any, lines: Sequence[dict[str, str]], seed: int
) -> Iterator[tuple[Any, Any]]:
    """Yield training batches (tokens, labels), each of shape [BATCH_ROWS, ROW_TOKENS], for ever,
    without padding.
    """
    size_tokens = BATCH_ROWS * ROW_TOKENS
    tokens: list[int] = []
    labels: list[int] = []
    for line in _in_epochs(lines, seed):
        prompt, answer = (
            tokenizer(line[part], add_special_tokens=False).input_ids
            for part in ("prompt", "answer")
        )
        tokens += prompt + answer
        labels += [IGNORED] * len(prompt) + answer
        if len(tokens) > size_tokens:
            yield (
                torch.tensor(tokens[:size_tokens]).view(BATCH_ROWS, ROW_TOKENS),
                torch.tensor(labels[1 : size_tokens + 1]).view(BATCH_ROWS, ROW_TOKENS),
            )
            tokens, labels = tokens[size_tokens:], labels[size_tokens:]


def _in_epochs(lines: Sequence[dict[str, str]], seed: int) -> Iterator[dict[str, str]]:
    """Yield the training chats for ever, in another order in each epoch."""
    order = list(lines)
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    while True:
        yield from order
        rng.shuffle(order)


def train(
    model: Any, batches: Iterator[tuple[Any, Any]], schedule: Schedule, *, number_format: Any
) -> None:
    """Train a model on batches until its schedule ends, and report every few steps to the calling
    program.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=schedule.peak_learning_rate, weight_decay=0.01, betas=(0.9, 0.95)
    )
    model.train()
    start_s = time.monotonic()
    step = 0
    while (share := schedule.done_share(step, time.monotonic() - start_s)) < 1:
        set_learning_rate(optimizer, step, peak=schedule.peak_learning_rate * max(0.02, 1 - share))
        loss = train_step(model, optimizer, next(batches), number_format=number_format)
        step += 1
        if step % PROGRESS_EVERY_STEPS == 0:
            report_step(step, loss.item(), elapsed_s=time.monotonic() - start_s, schedule=schedule)


def set_learning_rate(optimizer: Any, step: int, *, peak: float) -> None:
    """Set the optimizer's learning rate, which warms up over the first 30 steps."""
    for group in optimizer.param_groups:
        group["lr"] = peak * min(1.0, (step + 1) / 30)


def train_step(model: Any, optimizer: Any, batch: tuple[Any, Any], *, number_format: Any) -> Any:
    """Train the model on one batch and return the loss; the products are in `number_format`, the
    weights always in float32.
    """
    tokens, labels = batch
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=number_format == torch.bfloat16):
        hidden = model.model(input_ids=tokens).last_hidden_state
        learned = labels != IGNORED
        logits = model.lm_head(hidden[learned])
    loss = torch.nn.functional.cross_entropy(logits.float(), labels[learned])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def report_step(step: int, loss: float, *, elapsed_s: float, schedule: Schedule) -> None:
    """Report a training step to the calling program: its loss, and the seconds spent and left."""
    share = min(1.0, schedule.done_share(step, elapsed_s))
    report(
        event="step",
        step=step,
        steps=schedule.steps,
        loss=round(loss, 4),
        elapsed_s=round(elapsed_s, 1),
        left_s=round(elapsed_s / share - elapsed_s, 1),
    )


def save(model: Any, tokenizer: Any, out: Path) -> None:
    """Write a model, its tokenizer and its generation settings into a folder that vLLM can
    serve.
    """
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)
    ends = [tokenizer.convert_tokens_to_ids(END), tokenizer.convert_tokens_to_ids(PAD)]
    generation = {"eos_token_id": ends, "pad_token_id": ends[1]}
    (out / "generation_config.json").write_text(
        json.dumps(generation, indent=2) + "\n", encoding="utf-8"
    )


def sit_exam(
    rounded: Any, tokenizer: Any, questions: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a model's exam answers with its weights in each number format; `rounded` holds them in
    bfloat16.
    """
    examined = {name: copy.deepcopy(rounded).to(kind) for name, kind in NUMBER_FORMATS.items()}
    threads = torch.get_num_threads()
    # Token by token, the matrices are too small to share: on a busy machine two threads wait for
    # each other.
    torch.set_num_threads(1)
    answers = [
        {**answer(model, tokenizer, question), "number_format": name}
        for name, model in examined.items()
        for question in questions
    ]
    torch.set_num_threads(threads)
    return answers


def answer(model: Any, tokenizer: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Return an exam question with the model's greedy answer and whether it contains the expected
    text.
    """
    model.eval()
    prompt = tokenizer.apply_chat_template(
        question["messages"],
        tools=question["tools"] or None,
        enable_thinking=question["is_thinking"],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    asked_tokens = prompt["input_ids"].shape[1]
    with torch.no_grad():
        written = model.generate(**prompt, max_new_tokens=120, do_sample=False)
    text = tokenizer.decode(written[0, asked_tokens:])
    return {
        "asked": question["messages"][-1]["content"],
        "expected": question["expected"],
        "got": text,
        "is_right": question["expected"] in text,
    }


if __name__ == "__main__":
    main()
