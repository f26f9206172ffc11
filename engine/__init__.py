"""Runs self-hosted inference on this machine: installs and serves vLLM, trains the tiny model and
reports the state; `plan/` sizes it by arithmetic; under the load of `load/`, `bench/` measures it
and `calibration/` finds the engine time of a token. `python -m engine --help` lists the commands.

The modules here use only the standard library and run under any Python >= 3.11; only YAML files
need PyYAML. vLLM, torch and transformers live in a separate environment (`home.EngineHome.venv`);
`inside/` has the code that runs there. Nothing here imports `gateway`.
"""
