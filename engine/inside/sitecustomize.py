"""Applies the fixes of `vllm_cli` in every process of a Ray cluster that serves an engine.

Python imports a module of this name at its start. `ray_serve.py` sends this folder to each machine,
and Ray puts it on the path of its workers, whose children (vLLM's core) inherit it.
"""

import vllm_cli  # type: ignore[import-not-found]  # noqa: F401 - its import applies the fixes
