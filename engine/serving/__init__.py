"""Profiles of `python -m engine serve`: reads them, checks them against the hardware and the model,
and translates them into vLLM's flags; probes the engine and prints its deployment block.
"""
