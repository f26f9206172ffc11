"""Plans self-hosted inference by arithmetic: weights, KV cache, fit, latency, throughput and cost
of a model on a GPU; `command.py` is `python -m engine plan`.

It needs no GPU and no torch. `config.py` reads a model's config, `architecture.py` counts its
parameters and cache, `layout.py` fits it into GPUs, `roofline.py` predicts times, `demand.py` sizes
months. `data/` holds the models and GPUs, each figure with its source.
"""
