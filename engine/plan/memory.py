"""Computes the bytes of weights and KV cache of a counted model."""

from engine.plan.architecture import Layer, Model

QUANTIZATIONS = ("none", "fp8", "int8", "awq", "gptq")
BITS = {
    "none": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "awq": 4 + 20 / 128,
    "gptq": 4 + 20 / 128,
    "mxfp4": 4 + 8 / 32,
}
"""Bits of a matrix weight.

AWQ and GPTQ add a 16-bit scale and a 4-bit zero point for each group of 128. MXFP4 adds an 8-bit
scale for each block of 32 (OCP Microscaling Formats v1.0).
"""
KV_BYTES = {"auto": 2, "fp8": 1}
STATE_BYTES = 2


def layer_bytes(layer: Layer, quantization: str) -> float:
    """Return the bytes of one layer's matrices, without its norms; MXFP4 holds experts alone."""
    bits = BITS[quantization]
    rest = 16.0 if quantization == "mxfp4" else bits
    experts = layer.expert_parameters * layer.experts
    return (experts * bits + (layer.attention_parameters + layer.mlp_parameters) * rest) / 8


def weight_bytes(model: Model, quantization: str) -> int:
    """Return the bytes of all weights: matrices in the format; embeddings, head and norms at 16
    bits.
    """
    matrices = sum(layer_bytes(layer, quantization) for layer in model.layers)
    return round(matrices) + 2 * (model.embedding_parameters + model.norm_parameters)


def layer_kv_elements(model: Model, layer: Layer, *, tensor_parallel: int = 1) -> int:
    """Return the elements that one layer caches for a token, on one of its GPUs.

    KV heads are split over the GPUs and repeated if there are more GPUs than heads. The latent
    cache is repeated on each GPU, as vLLM does.
    """
    if layer.attention == "linear":
        return 0
    if layer.attention == "latent":
        return model.latent_elements
    return 2 * -(-model.kv_heads // tensor_parallel) * model.head_dim


def kv_bytes_per_token(model: Model, kv_cache: str = "auto") -> int:
    """Return the bytes that one token takes in all layers that keep a cache, inside its window."""
    elements = sum(layer_kv_elements(model, layer) for layer in model.layers)
    return elements * KV_BYTES[kv_cache]


def kv_bytes_per_sequence(
    model: Model, context: int, kv_cache: str = "auto", *, tensor_parallel: int = 1
) -> int:
    """Return the bytes of one sequence of `context` tokens, on one GPU of the tensor group.

    A windowed layer keeps at most its window; a linear layer keeps a state of fixed size.
    """
    total = 0
    for layer in model.layers:
        kept = min(context, layer.window) if layer.window else context
        elements = layer_kv_elements(model, layer, tensor_parallel=tensor_parallel)
        total += kept * elements * KV_BYTES[kv_cache]
        total += -(-layer.state_elements // tensor_parallel) * STATE_BYTES
    return total


def kv_tokens(
    model: Model, memory_bytes: float, *, context: int, kv_cache: str, tensor_parallel: int = 1
) -> int:
    """Return the tokens that fit into the KV memory of one GPU, as vLLM logs them at start: the
    sequences of `context` tokens that fit, times `context`.
    """
    of_one = kv_bytes_per_sequence(model, context, kv_cache, tensor_parallel=tensor_parallel)
    return max(0, int(memory_bytes * context / of_one))
