"""Benchmarks one engine, or two profiles side by side in one run: `python -m engine bench`."""
