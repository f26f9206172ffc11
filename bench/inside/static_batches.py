"""Answers chats with `transformers` in static batches: prompts are padded to the longest, and each
batch ends with its longest answer.

    python static_batches.py MODEL JOB.json      JOB: {"batch", "number_format", "requests": [{"text", "answer"}]}

It prints the seconds of all batches as JSON: {"seconds", "tokens": those that were asked for}. The
loading of the model and a first short batch are not counted.
"""  # noqa: E501

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast


def main() -> None:
    """Run all batches."""
    folder, job = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")
    model = loaded(folder, getattr(torch, job["number_format"]))
    requests, size = job["requests"], job["batch"]
    answer(model, tokenizer, [{**requests[0], "answer": 4}])
    began = time.perf_counter()
    for first in range(0, len(requests), size):
        answer(model, tokenizer, requests[first : first + size])
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "tokens": sum(one["answer"] for one in requests)}))


def loaded(folder: Path, dtype: torch.dtype) -> Any:
    """Return the model on the GPU if there is one; with random weights if the folder has none."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if any(folder.glob("*.safetensors")):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    with torch.device(device):
        return AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), dtype=dtype
        ).eval()


def answer(model: Any, tokenizer: Any, batch: list[dict[str, Any]]) -> None:
    """Write answers until the longest of the batch is complete."""
    chats = [[{"role": "user", "content": one["text"]}] for one in batch]
    prompts = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    longest = max(one["answer"] for one in batch)
    with torch.inference_mode():
        model.generate(
            **prompts.to(model.device),
            min_new_tokens=longest,
            max_new_tokens=longest,
            do_sample=False,
        )


if __name__ == "__main__":
    main()
