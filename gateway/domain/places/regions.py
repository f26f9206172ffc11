"""Declares the built-in regions, joins them with a policy's own, and computes which regions lie in,
cover or overlap others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

ANY = "any"
GLOBAL = "global"
UNKNOWN = "unknown"
OTHER_PLACE = "*"  # of prices by place: a stated place that has no price of its own
UNPLACED = frozenset({GLOBAL, UNKNOWN})  # no promise about the place: only `any` allows these

EUROPE = "europe"
# Parent to children. Europe has more countries than those of its treaties; the list is incomplete.
BUILT_IN: Mapping[str, tuple[str, ...]] = {
    EUROPE: ("eea", "ch", "uk"),
    "eea": ("eu", "is", "li", "no"),
    "eu": (
        "at",
        "be",
        "bg",
        "cy",
        "cz",
        "de",
        "dk",
        "ee",
        "es",
        "fi",
        "fr",
        "gr",
        "hr",
        "hu",
        "ie",
        "it",
        "lt",
        "lu",
        "lv",
        "mt",
        "nl",
        "pl",
        "pt",
        "ro",
        "se",
        "si",
        "sk",
    ),
}
# By ISO 3166 code. Countries partly in Europe are in neither list: the policy's author decides if
# `europe` holds them.
_COUNTRIES = (
    "ag ar bb bo br bs bz ca cl co cr cu dm do ec gd gt gy hn ht jm kn lc mx ni pa pe py sr sv "
    "tt us uy vc ve",
    "ae af bd bh bn bt cn hk id il in iq ir jo jp kg kh kp kr kw la lb lk mm mn mo mv my np om ph "
    "pk ps qa sa sg sy th tj tl tm tw uz vn ye",
    "ao bf bi bj bw cd cf cg ci cm cv dj dz eg er et ga gh gm gn gq gw ke km lr ls ly ma mg ml mr "
    "mu mw mz na ne ng rw sc sd sl sn so ss st sz td tg tn tz ug za zm zw",
    "au fj fm ki mh nr nz pg pw sb to tv vu ws",
)
OUTSIDE_EUROPE = frozenset(code for continent in _COUNTRIES for code in continent.split())
KNOWN = frozenset(
    {*BUILT_IN, *(child for children in BUILT_IN.values() for child in children), *OUTSIDE_EUROPE}
)


class RegionTree:
    """The regions of a document and the built-in ones, with queries on which lies in which.

    A document may put its own region over built-in ones, so a region can have two parents. A region
    that lies in itself is rejected with its document. Answers are cached: there are as many as
    rules and deployments.
    """

    def __init__(self, declared: Mapping[str, Collection[str]]) -> None:
        """Join the built-in regions with the declared ones, which map each region to the regions in
        it.
        """
        self._children: dict[str, set[str]] = {}
        self._parents: dict[str, set[str]] = {}
        for tree in (BUILT_IN, declared):
            for parent, children in tree.items():
                self._children.setdefault(parent, set()).update(children)
                for child in children:
                    self._parents.setdefault(child, set()).add(parent)
        self._covered: dict[tuple[str, frozenset[str]], bool] = {}
        self._overlaps: dict[tuple[str, frozenset[str]], bool] = {}

    def ancestors(self, region: str) -> frozenset[str]:
        """Return all regions that a region lies in, including itself."""
        return _reached(region, self._parents)

    def descendants(self, region: str) -> frozenset[str]:
        """Return all regions that lie in a region, including itself."""
        return _reached(region, self._children)

    def covered(self, region: str, allowed: frozenset[str]) -> bool:
        """Return True if all of a region is allowed: it or an ancestor is in the list, or each
        of its children is covered.
        """
        asked = (region, allowed)
        found = self._covered.get(asked)
        if found is None:
            found = self._covered[asked] = self._is_covered(region, allowed)
        return found

    def overlaps(self, region: str, denied: frozenset[str]) -> bool:
        """Return True if a place can lie both in a region and in one of the denied ones."""
        asked = (region, denied)
        found = self._overlaps.get(asked)
        if found is None:
            found = self._overlaps[asked] = self._is_overlapping(region, denied)
        return found

    def _is_covered(self, region: str, allowed: frozenset[str]) -> bool:
        """Compute whether all of a region is allowed, without the cache.

        Only `any` allows `global` and `unknown`. Covered children do not cover Europe, because the
        list of its children is incomplete.
        """
        if ANY in allowed:
            return True
        if region in UNPLACED:
            return False
        if self.ancestors(region) & allowed:
            return True
        children = self._children.get(region, ())
        return (
            len(children) > 0
            and region != EUROPE
            and all(self.covered(child, allowed) for child in children)
        )

    def _is_overlapping(self, region: str, denied: frozenset[str]) -> bool:
        """Compute whether a place can lie both in a region and in a denied one, without the
        cache.

        `global` and `unknown` overlap with every denied region.
        """
        if not denied:
            return False
        if region in UNPLACED or denied & {ANY, *UNPLACED}:
            return True
        inside = self.descendants(region)
        return any(inside & self.descendants(other) for other in denied)


def _reached(start: str, ways: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Return all regions that are reached from one by any number of steps, including itself; steps
    may form a circle.
    """
    found, todo = {start}, [start]
    while todo:
        new = set(ways.get(todo.pop(), ())) - found
        found |= new
        todo += new
    return frozenset(found)
