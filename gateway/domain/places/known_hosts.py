"""What providers state about their hosts: where they process and keep what is sent there.

Data, with source and date.

Only what a source says is here. A host whose name does not tell the place (Azure's and Bedrock's
kinds of deployment, and any that is not listed) has no entry: what holds there is the policy's own
word.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase

from gateway.domain.places.regions import GLOBAL, UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What somebody says of a deployment besides where it processes. None: nothing is said of that.

    `source` says who or where, `as_of` when it was so; both or neither.
    """

    at_rest: str | None = None
    telemetry: str | None = None
    retention_days: int | None = None
    sub_processor: str | None = None
    source: str = ""
    as_of: date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPlace:
    """A host, or a pattern of hosts.

    `unknown` says that whoever looked found no promise of a place.

    `caveat` is what another page of the same provider says otherwise.
    """

    host: str
    provider: str
    processing: str
    said: Statement
    caveat: str = ""


_CHECKED = date(2026, 11, 20)
_OPENAI = "https://developers.openai.com/api/docs/guides/data-residency"
_ANTHROPIC = "https://platform.claude.com/docs/en/build-with-claude/data-residency"
_VERTEX = "https://docs.cloud.google.com/vertex-ai/generative-ai/docs/learn/locations"
# The guide names the region Europe and gives no list; the help page (2025) names these.
_OPENAI_HELP = (
    "OpenAI's help centre says 'the European Economic Area and Switzerland' of this host "
    "(https://help.openai.com/en/articles/10503543-data-residency-for-the-openai-api); where "
    "only the Union may "
    "process, see what your contract says, and name it in 'residency': 'source' and 'as_of'"
)
_NO_SOURCE = "no primary source was found"


def _openai_region(region: str) -> KnownPlace:
    # Usage, billing and structured-output schemas are outside of its residency; how long it keeps
    # is per project.
    said = Statement(at_rest=region, telemetry=GLOBAL, source=_OPENAI, as_of=_CHECKED)
    return KnownPlace(
        host=f"{region}.api.openai.com",
        provider="openai",
        processing=region,
        said=said,
        caveat=_OPENAI_HELP if region == "eu" else "",
    )


def _placeless(host: str, provider: str, processing: str, source: str) -> KnownPlace:
    said = Statement(source=source, as_of=_CHECKED)
    return KnownPlace(host=host, provider=provider, processing=processing, said=said)


KNOWN_PLACES: tuple[KnownPlace, ...] = (
    *(_openai_region(region) for region in ("us", "eu", "au", "in", "jp")),
    _placeless("api.openai.com", "openai", GLOBAL, _OPENAI),
    # Without `inference_geo`, which is not sent, inference runs anywhere; there is no value for the
    # EU.
    _placeless("api.anthropic.com", "anthropic", GLOBAL, _ANTHROPIC),
    _placeless("aiplatform.googleapis.com", "google", GLOBAL, _VERTEX),
    # "Endpoints don't guarantee residency": a table by model decides.
    _placeless("*-aiplatform.googleapis.com", "google", UNKNOWN, _VERTEX),
    _placeless("*.groq.com", "groq", UNKNOWN, _NO_SOURCE),
)
KNOWN_PROVIDERS = frozenset(place.provider for place in KNOWN_PLACES)


def known_place(host: str) -> KnownPlace | None:
    """What ships about a host in lower case, None for one that nothing is known of."""
    return next((place for place in KNOWN_PLACES if fnmatchcase(host, place.host)), None)
