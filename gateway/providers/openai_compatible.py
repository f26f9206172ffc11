"""Translates requests for providers of the OpenAI dialect other than OpenAI, and leaves out
`stream_options` for hosts that are known to refuse it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from gateway.domain.policy.policy import Deployment
from gateway.domain.request.request import RequestBody
from gateway.providers.openai import OpenAI

# Mistral's chat request has no `stream_options` and refuses unknown members; its last chunk has
# usage anyway.
WITHOUT_STREAM_OPTIONS = frozenset({"api.mistral.ai"})


class OpenAICompatible(OpenAI):
    """Calls one upstream that is not OpenAI itself, and reads its answers."""

    def values(
        self, deployment: Deployment, read: RequestBody, team: str, *, is_assembled: bool
    ) -> dict[str, Any]:
        """Return the body members that OpenAI's dialect sets, without those that the host is known
        to refuse.
        """
        values = super().values(deployment, read, team, is_assembled=is_assembled)
        if (
            "stream_options" in values
            and urlsplit(deployment.base_url).hostname in WITHOUT_STREAM_OPTIONS
        ):
            del values["stream_options"]
        return values
