"""The platform's own identity for AWS: found once, renewed in the background."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.domain.policy.policy import Credentials, Deployment
from gateway.errors import UpstreamAuth
from gateway.providers.aws.keys import FRESH_S, RETRY_S, AwsKeys
from tests import factories

CHAIN = ("AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_WEB_IDENTITY_TOKEN_FILE")


class Seconds:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a credentials file, botocore's only source."""
    for name in CHAIN:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    return path


@pytest.fixture
def deployment() -> Deployment:
    return factories.deployment(provider="bedrock", credentials=Credentials(is_ambient=True))


def write(file: Path, key_id: str) -> None:
    file.write_text(f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = s\n")


async def key_id(keys: AwsKeys, deployment: Deployment) -> str:
    key = await keys.key_of(deployment)
    assert key is not None
    return key.access_key_id


async def test_a_rotated_file_is_read_again(file: Path, deployment: Deployment) -> None:
    """Its old key serves until the new one is read, and no restart is needed."""
    write(file, "OLD")
    clock = Seconds()
    keys = AwsKeys(clock_s=clock)
    assert await key_id(keys, deployment) == "OLD"
    write(file, "NEW")
    assert await key_id(keys, deployment) == "OLD"
    clock.now_s += FRESH_S
    assert await key_id(keys, deployment) == "OLD"  # and is read in the background
    async with asyncio.timeout(30):
        while await key_id(keys, deployment) != "NEW":  # noqa: ASYNC110 - a thread changes it
            await asyncio.sleep(0.01)


async def test_a_failed_search_is_not_repeated_at_once(file: Path, deployment: Deployment) -> None:
    """A source that hangs or refuses is asked again after some seconds, not by each request."""
    clock = Seconds()
    keys = AwsKeys(clock_s=clock)
    with pytest.raises(UpstreamAuth, match="finds none"):
        await keys.key_of(deployment)
    write(file, "ONE")
    with pytest.raises(UpstreamAuth, match="finds none"):
        await keys.key_of(deployment)
    clock.now_s += RETRY_S
    assert await key_id(keys, deployment) == "ONE"


async def test_many_requests_make_one_search(file: Path, deployment: Deployment) -> None:
    """Each wait ends with the same key, also if one of the callers leaves."""
    write(file, "ONE")
    keys = AwsKeys(clock_s=Seconds())
    first, *others = [asyncio.create_task(key_id(keys, deployment)) for _ in range(20)]
    await asyncio.sleep(0)
    first.cancel()
    assert set(await asyncio.gather(*others)) == {"ONE"}
