"""Writes two models of 86.5 million random parameters with the tiny model's tokenizer: `mid`, and
`mid-int8` with the same weights in eight bits (W8A8, compressed-tensors).

    python random_models.py BASE OUT      BASE is the folder of the tiny model

Products of such a size dominate the time of a step, not Python. Random weights time like trained
ones; their answers mean nothing. Quantization: each output channel of a linear layer gets a scale,
the largest absolute weight / 127; activations are quantized while they are computed.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

HIDDEN, LAYERS, HEAD = 768, 12, 64
CARRIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**INT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**INT8, "strategy": "token", "dynamic": True},
        }
    },
}


def main() -> None:
    """Write both models."""
    base, out = Path(sys.argv[1]), Path(sys.argv[2])
    torch.manual_seed(0)
    given = json.loads((base / "config.json").read_text(encoding="utf-8"))
    for derived in ("layer_types", "transformers_version"):
        given.pop(derived)
    given |= {
        "hidden_size": HIDDEN,
        "intermediate_size": 3 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HIDDEN // HEAD,
        "num_key_value_heads": HIDDEN // HEAD // 2,
    }
    model = Qwen3ForCausalLM(Qwen3Config(**given)).to(torch.bfloat16)
    for name in ("mid", "mid-int8"):
        (out / name).mkdir(parents=True, exist_ok=True)
        for carried in CARRIED:
            shutil.copy(base / carried, out / name / carried)
    model.save_pretrained(out / "mid")
    shutil.copy(base / "generation_config.json", out / "mid" / "generation_config.json")
    write_int8(out / "mid", out / "mid-int8", model.state_dict())
    print(sum(weight.numel() for weight in model.parameters()))


def write_int8(source: Path, out: Path, weights: dict[str, Any]) -> None:
    """Write the weights with all linear layers but the head in eight bits."""
    written: dict[str, Any] = {}
    for name, weight in weights.items():
        if name == "lm_head.weight":  # tied to the embeddings
            continue
        if not name.endswith("_proj.weight"):
            written[name] = weight.contiguous()
            continue
        scale = weight.float().abs().amax(dim=1, keepdim=True) / 127
        written[name] = (weight.float() / scale).round().clamp(-127, 127).to(torch.int8)
        written[f"{name}_scale"] = scale.to(torch.bfloat16)
    save_file(written, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = QUANTIZATION
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    shutil.copy(source / "generation_config.json", out / "generation_config.json")


if __name__ == "__main__":
    main()
