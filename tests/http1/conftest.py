"""The client is fuzzed on both event loops, as `tests/providers` tests it."""

from __future__ import annotations

from tests.providers.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
