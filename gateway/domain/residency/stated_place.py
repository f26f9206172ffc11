"""Reads the region that an upstream reports for its answer, and checks it against the deployment's
promise and the request's rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date

from msgspec import Struct

from gateway.domain.places.regions import ANY, GLOBAL, KNOWN, UNKNOWN, UNPLACED, RegionTree
from gateway.domain.policy.policy import Deployment, ResidencyRule
from gateway.domain.residency.rules import denials

# Azure's region names by country: https://learn.microsoft.com/azure/reliability/regions-list
_AZURE: Mapping[str, tuple[str, ...]] = {
    "at": ("austriaeast",),
    "au": ("australiacentral", "australiacentral2", "australiaeast", "australiasoutheast"),
    "br": ("brazilsouth", "brazilsoutheast"),
    "ca": ("canadacentral", "canadaeast"),
    "ch": ("switzerlandnorth", "switzerlandwest"),
    "de": ("germanynorth", "germanywestcentral"),
    "es": ("spaincentral",),
    "fr": ("francecentral", "francesouth"),
    "ie": ("northeurope",),
    "in": ("centralindia", "southindia", "westindia"),
    "it": ("italynorth",),
    "jp": ("japaneast", "japanwest"),
    "kr": ("koreacentral", "koreasouth"),
    "nl": ("westeurope",),
    "no": ("norwayeast", "norwaywest"),
    "pl": ("polandcentral",),
    "se": ("swedencentral", "swedensouth"),
    "sg": ("southeastasia",),
    "uk": ("uksouth", "ukwest"),
    "us": (
        "centralus",
        "eastus",
        "eastus2",
        "northcentralus",
        "southcentralus",
        "westcentralus",
        "westus",
        "westus2",
        "westus3",
    ),
    "za": ("southafricanorth", "southafricawest"),
}
# By header, the meaning of each of its values.
HEADERS: Mapping[str, Mapping[str, str]] = {
    "x-ms-region": {word: region for region, words in _AZURE.items() for word in words},
}

# The place of an answer that a server fetched from another one, as a server of Ollama does for a
# model of its cloud: the address of that one promises nothing.
ELSEWHERE = "elsewhere"


class Contradiction(Struct, frozen=True, kw_only=True, gc=False):
    """An upstream reported a place that was not promised, or that the request's rules do not
    allow.
    """

    deployment: str
    promised: str
    stated: str


def stated_region(headers: Mapping[str, str], inference_geo: str | None) -> str | None:
    """Return the region that an answer reports; None if it reports none, or an unknown value.

    `inference_geo` is Anthropic's: a country's code or `global`; or `ELSEWHERE`, which is no
    promised place.
    """
    if inference_geo is not None:
        if inference_geo == ELSEWHERE:
            return UNKNOWN
        word = inference_geo.lower()
        if word == GLOBAL or word in KNOWN:
            return word
    for header, words in HEADERS.items():
        stated = headers.get(header)
        if stated is not None:
            return words.get(stated.lower().replace(" ", "").replace("-", ""))
    return None


def contradiction(
    stated: str,
    deployment: Deployment,
    *,
    rules: Iterable[ResidencyRule],
    regions: RegionTree,
    gateway_region: str,
    day: date,
) -> Contradiction | None:
    """Return the contradiction of an answer from the stated region; None if promise and rules hold.

    A statement may be finer or coarser than the promise, but must overlap it. A finer one must be
    allowed itself. An answer that was made elsewhere is none of a self-hosted server.
    """
    promised = deployment.region
    if stated in UNPLACED:
        is_elsewhere = stated == UNKNOWN and deployment.is_self_hosted
        is_wrong = is_elsewhere or promised not in UNPLACED
    elif not regions.covered(stated, frozenset({ANY if promised in UNPLACED else promised})):
        is_wrong = not regions.overlaps(stated, frozenset({promised}))
    else:
        # The statement is of today, so no fact is too old for it.
        found = denials(
            rules,
            replace(deployment, region=stated),
            regions=regions,
            gateway_region=gateway_region,
            day=day,
            valid_days=None,
        )
        is_wrong = any(not denial.is_shadow for denial in found)
    return (
        Contradiction(deployment=deployment.name, promised=promised, stated=stated)
        if is_wrong
        else None
    )
