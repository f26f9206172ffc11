"""Installs, feeds, starts and stops self-hosted inference; `python -m engine --help` is the tour.

The modules here use the standard library only and run under any Python >= 3.11. vLLM, torch and
transformers live in an environment of their own (`home.EngineHome.venv`); what runs there is in
`inside/`. Nothing here imports `gateway`.
"""
