"""Makes a cross-encoder of the shipped tiny model: its weights, and a random head of one score;
runs in the engine's environment.

    python to_cross_encoder.py MODEL OUTPUT

Its scores mean nothing. Its tokens are those that vLLM counts for any cross-encoder: a query with
each document.
"""

import json
import shutil
import sys
from pathlib import Path

SEED = 1


def main(model: Path, output: Path) -> None:
    """Write the model's folder."""
    import torch
    from safetensors.torch import load_file, save_file

    output.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / name, output / name)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}
    weights = load_file(model / "model.safetensors")
    drawn = torch.randn((1, config["hidden_size"]), generator=torch.Generator().manual_seed(SEED))
    weights["score.weight"] = drawn.to(torch.bfloat16)
    save_file(weights, output / "model.safetensors", metadata={"format": "pt"})
    (output / "config.json").write_text(json.dumps(config), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
