"""Reports errors in the regions that a policy document declares, and in those that its rules and
deployments name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.domain.places.regions import ANY, KNOWN, UNPLACED, RegionTree
from gateway.domain.providers.facts import host_of
from gateway.domain.providers.known_hosts import (
    KnownPlace,
    cloud_place,
    known_place,
    names_cloud_model,
)
from gateway.domain.words import nearest, suggestion
from gateway.wire.policy.deployments import DeploymentBlock
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy.residency import ALLOWED, ResidencyRuleBlock
from gateway.wire.yaml_blocks.blocks import Block, placed
from gateway.wire.yaml_blocks.findings import Spot

MAX_REGION_DEPTH = 20
_BUILT_IN = RegionTree({})


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions that a document may name: its declared ones and the built-in ones."""

    declared: frozenset[str]
    tree: RegionTree

    def has(self, region: str) -> bool:
        """Return True if the document or the built-in regions have a region with this name."""
        return region in self.declared or region in KNOWN

    def hint(self, region: str, besides: Iterable[str] = ()) -> str:
        """Return the region that was probably meant, or else the declared ones: the built-in
        ones are too many to list.
        """
        named = {*self.declared, *besides}
        # Most built-in names have two letters: nearly any short word resembles one of them.
        words = [name for name in KNOWN if len(name) > 2]
        near = nearest(region, named) or nearest(region.lower(), words)
        return f"; did you mean '{near}'?" if near else suggestion(region, named)


def check_regions(document: PolicyDocument) -> Regions:
    """Report an error if the declared regions and the built-in ones are inconsistent; return all of
    them.
    """
    declared = document.entries_of("regions")
    parents: dict[str, list[str]] = {}
    first: dict[str, Spot] = {}
    tree: dict[str, list[str]] = {}
    for parent, (place, children) in declared.items():
        if children is None:
            continue
        inside: list[str] = []
        tree[parent] = inside
        for spot, child in placed(place, children):
            inside.append(child)
            if child == ANY or child in UNPLACED:
                spot.error(
                    f"'{child}' is reserved and cannot be declared; choose another name",
                )
            elif parent in parents.get(child, ()):
                spot.error(f"'{child}' is already under '{parent}'; write it there once")
            else:
                parents.setdefault(child, []).append(parent)
                first.setdefault(child, spot)
    regions = Regions(frozenset({*declared, *parents}), RegionTree(tree))
    if not _is_in_order(tree, parents):
        for parent in tree:
            _check_order(parent, declared[parent][0], parents)
    for child, spot in first.items():
        _check_built_in(child, spot, regions.tree)
    return regions


def _is_in_order(tree: Collection[str], parents: Mapping[str, Collection[str]]) -> bool:
    """Return True if no region lies in itself or is nested too deeply, without a path to it: the
    paths of a wide document take seconds.
    """
    level = set(tree)
    for _ in range(MAX_REGION_DEPTH):
        level = {above for one in level for above in parents.get(one, ())}
    return not level


def _check_order(parent: str, spot: Spot, parents: Mapping[str, Sequence[str]]) -> None:
    """Report an error if a region lies in itself or is nested too deeply."""
    # Each region that this number of steps up leads to, with one path to it.
    level: dict[str, tuple[str, ...]] = {parent: (parent,)}
    for _ in range(MAX_REGION_DEPTH):
        level = {
            above: (*way, above) for one, way in level.items() for above in parents.get(one, ())
        }
        if parent in level or not level:
            break
    if parent in level:
        way = " in ".join(level[parent])
        spot.error(f"'{parent}' is under itself ({way}); regions are a tree")
    elif level:
        spot.error(f"regions are nested deeper than {MAX_REGION_DEPTH}")


def _check_built_in(child: str, spot: Spot, tree: RegionTree) -> None:
    """Reject a built-in region under a built-in parent that does not contain it; repeating a
    true parent is allowed.
    """
    if child not in KNOWN:
        return
    wrong = sorted((tree.ancestors(child) & KNOWN) - _BUILT_IN.ancestors(child))
    if wrong:
        spot.error(
            f"'{child}' is built in and does not lie in '{wrong[0]}'; put it under a region of "
            "your own, or choose another name",
        )


def check_rules(document: PolicyDocument, regions: Regions) -> None:
    """Report errors in the regions that residency rules name: of classes, data tags and teams."""
    for kind in ("classes", "data_tags"):
        for _, rule in document.entries_of(kind).values():
            if rule is not None:
                _check_rule(rule, regions)
    for team in document.blocks_of("teams"):
        if team.of("residency") is not None:
            _check_rule(team.of("residency"), regions)


def _check_rule(rule: ResidencyRuleBlock, regions: Regions) -> None:
    """Report an error for each region that a residency rule cannot name as allowed or denied."""
    for field in ALLOWED:
        for spot, region in rule.items_of(field):
            if region in UNPLACED:
                spot.error(
                    f"'{region}' promises no place, so no rule can be bound to it; write any"
                )
            elif region != ANY:
                _check_named(spot, region, regions, besides=(ANY,))
    for spot, region in rule.items_of("deny_regions"):
        if region == ANY or region in UNPLACED:
            spot.error(
                f"'{region}' cannot be denied; write 'regions: []' to allow nothing. Every name "
                "here also denies unknown and global places",
            )
        else:
            _check_named(spot, region, regions)


def check_deployment_places(deployment: DeploymentBlock, regions: Regions) -> None:
    """Report errors in the declared places of a deployment's processing, data storage and
    telemetry.
    """
    _check_fact(deployment, "region", regions)
    block = deployment.of("residency")
    if block is not None:
        _check_fact(block, "at_rest", regions)
        _check_fact(block, "telemetry", regions)
        for field, other in (("source", "as_of"), ("as_of", "source")):
            if block.has(field) and not block.has(other):
                block.error(
                    field,
                    f"goes with '{other}'; a fact needs both its source and its date",
                )
    _check_against_known(deployment, block, regions)


def _check_fact(entry: Block, field: str, regions: Regions) -> None:
    """Report an error if a deployment's fact names an unknown region, or `any`."""
    region = entry.of(field)
    if region is None or region in UNPLACED:
        return
    if region == ANY:
        entry.error(
            field,
            "'any' is for classes and other rules; write a region, global or unknown",
        )
        return
    _check_named(entry.spot_of(field), region, regions, besides=UNPLACED)


def _check_named(spot: Spot, region: str, regions: Regions, *, besides: Iterable[str] = ()) -> None:
    """Report an error if a named region is neither built in nor declared; `besides` are other words
    that may stand there, for the hint.
    """
    if not regions.has(region):
        hint = regions.hint(region, besides)
        spot.error(f"'{region}' is neither built in nor declared under regions{hint}")


def _check_against_known(
    deployment: DeploymentBlock, block: Block | None, regions: Regions
) -> None:
    """Report an error if a deployment's region contradicts its provider's promise.

    A document may promise less than its provider does; for more it must name a source and a date.
    """
    region, base_url = deployment.of("region"), deployment.of("base_url")
    if region is None or base_url is None or region in UNPLACED:
        return
    host = host_of(base_url)
    provider, model = deployment.of("provider") or "", deployment.of("model") or ""
    known = cloud_place(provider, host, model) or known_place(host)
    # Not `covered`: if a document declares only one child of `us`, that does not make the provider
    # promise the child.
    if known is None or region in regions.tree.ancestors(known.processing):
        return
    if block is not None and block.has("source") and block.has("as_of"):
        return
    deployment.error(
        "region",
        f"{_stated(host, known, model=model)} ({known.statement.source}, "
        f"{known.statement.as_of}), and '{region}' says more; write 'region: {known.processing}', "
        "or name in 'residency' who promises otherwise: 'source' and 'as_of'",
    )


def _stated(host: str, known: KnownPlace, *, model: str) -> str:
    """Return in words the place that a provider promises for a host, or that it promises none."""
    if known.host != host and names_cloud_model(known.provider, model):
        return f"Ollama sends '{model}' on to {known.host}, for which no place is promised"
    if known.processing in UNPLACED:
        return f"no place is promised for {host}"
    return f"{host} processes in {known.processing}"
