"""Lists, by provider, models that choose another model, which is then billed."""

from __future__ import annotations

from fnmatch import fnmatchcase

# openrouter.ai/docs/guides/routing/routers/auto-router, "you pay the rate of the selected model";
# learn.microsoft.com/azure/foundry/openai/concepts/model-router;
# docs.aws.amazon.com/bedrock/latest/userguide/prompt-routing.html. 2026-11-29.
_ROUTERS = {
    "openrouter": ("openrouter/*",),
    "azure_openai": ("model-router*",),
    "bedrock": ("*prompt-router*",),
}


def is_router(provider: str, model: str) -> bool:
    """Return True if a model chooses another one to answer."""
    return any(fnmatchcase(model, pattern) for pattern in _ROUTERS.get(provider, ()))
