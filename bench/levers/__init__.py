"""The gain of each lever of a self-hosted engine on a CPU: `python -m bench.engine_levers`."""
