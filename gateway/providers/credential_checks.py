"""Checks whether this machine can use deployments' credentials, for `doctor` and `policy plan`.

It returns problems, never a secret. A request for an identity goes to the hosts that a request of a
caller would use, and has no content.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from threading import Thread

from gateway.domain.policy.policy import Deployment
from gateway.providers.access_tokens.renewal import TokenRefused
from gateway.providers.aws.keys import AwsKeys, IdentityMissing
from gateway.providers.azure.azure_tokens import AzureTokens
from gateway.providers.credentials import SecretUnusable, secret_problem
from gateway.providers.google.google_tokens import GoogleTokens

LIMIT_S = 15.0  # a token host has 5 s for one request, of two; a name lookup has no limit


class CredentialChecks:
    """Checks credentials on this machine. It keeps no token and no key."""

    def __init__(self, now: Callable[[], datetime], *, limit_s: float = LIMIT_S) -> None:
        """Make the checks; `now` dates signed statements, `limit_s` bounds one identity's check."""
        self._google, self._limit_s = GoogleTokens(now), limit_s
        self._fetches: dict[str, Callable[[Deployment], object]] = {
            "azure_openai": AzureTokens(now).fetch,
            "bedrock": lambda _: AwsKeys().fetch(),
            "vertex": self._google.fetch,
        }

    def secret_problem(self, deployment: Deployment) -> str | None:
        """Return the problem with the secrets that a deployment names, None without one; reads
        them, and sends nothing.
        """
        problem = secret_problem(deployment)
        if problem is not None or not deployment.provider_facts.key_is_exchanged:
            return problem
        try:
            self._google.check_key(deployment)
        except (SecretUnusable, TokenRefused) as refused:
            return f"{deployment.api_key} {refused}"
        return None

    def identity_problem(self, deployment: Deployment) -> str | None:
        """Fetch a token or key of the platform's identity and drop it. Return the problem, which
        continues "the identity …"; None without one.

        It runs in a thread of its own, a daemon: a source that hangs does not keep the process.
        """
        fetched: Future[str | None] = Future()
        fetch = self._fetches[deployment.provider]

        def run() -> None:
            try:
                fetch(deployment)
            except (SecretUnusable, TokenRefused) as problem:
                fetched.set_result(str(problem))
            except IdentityMissing as problem:
                fetched.set_result(f"cannot be had: {problem}")
            else:
                fetched.set_result(None)

        Thread(target=run, daemon=True, name="identity-check").start()
        try:
            return fetched.result(self._limit_s)
        except TimeoutError:
            return f"cannot be had: its source did not answer in {self._limit_s:g} s"
