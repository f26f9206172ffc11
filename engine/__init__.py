"""Installs, starts and stops self-hosted inference; `python -m engine --help` is the tour.

The modules here use only the standard library and run under any Python >= 3.11. vLLM, torch and
transformers live in a separate environment (`home.EngineHome.venv`); `inside/` has the code that
runs there. Nothing here imports `gateway`.
"""
