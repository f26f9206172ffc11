"""Which region lies in which: real geography, documents' additions, and places without a
promise.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.places.regions import ANY, BUILT_IN, KNOWN, OUTSIDE_EUROPE, UNPLACED, RegionTree

WORLD = RegionTree({})
DECLARED = {
    "eu": ("eu-1",),
    "de": ("de-a", "de-b"),
    "us": ("us-east", "us-west"),
    "home": ("de", "ch"),
    "rack": ("rack-1",),
    "hall": ("rack",),
}
TREE = RegionTree(DECLARED)
NAMES = sorted(
    {
        *DECLARED,
        *(c for cs in DECLARED.values() for c in cs),
        "europe",
        "eea",
        "ch",
        "uk",
        "fr",
        "no",
        "x",
    }
)
some_regions = st.frozensets(st.sampled_from([*NAMES, *sorted(UNPLACED), ANY]))
a_region = st.sampled_from([*NAMES, *sorted(UNPLACED)])


@pytest.mark.parametrize(
    ("region", "lies_in", "not_in"),
    [
        ("de", {"eu", "eea", "europe"}, {"ch", "uk", "us"}),
        ("gr", {"eu", "eea", "europe"}, {"us"}),
        ("cy", {"eu", "eea", "europe"}, set()),
        ("eu", {"eea", "europe"}, {"de", "uk"}),
        ("no", {"eea", "europe"}, {"eu"}),
        ("is", {"eea", "europe"}, {"eu"}),
        ("li", {"eea", "europe"}, {"eu", "ch"}),
        ("ch", {"europe"}, {"eu", "eea"}),
        ("uk", {"europe"}, {"eu", "eea"}),
        ("us", set(), {"europe", "eu", "eea"}),
        ("ca", set(), {"europe", "us"}),
        ("in", set(), {"europe", "eu"}),
        ("europe", set(), {"eea", "eu"}),
    ],
)
def test_the_world_is_as_it_is(region: str, lies_in: set[str], not_in: set[str]) -> None:
    """Switzerland and the United Kingdom are in Europe and not in the Union: the mistake auditors
    look for first.
    """
    for wider in lies_in | {region}:
        assert WORLD.covered(region, frozenset({wider})), f"{region} lies in {wider}"
    for other in not_in:
        assert not WORLD.covered(region, frozenset({other})), f"{region} does not lie in {other}"


def test_the_union_has_its_27_countries_and_every_name_is_there_once() -> None:
    """A country that is forgotten is refused; one that is listed twice would have two places."""
    assert len(BUILT_IN["eu"]) == len(set(BUILT_IN["eu"])) == 27
    everywhere = [child for children in BUILT_IN.values() for child in children] + sorted(
        OUTSIDE_EUROPE
    )
    assert len(everywhere) == len(set(everywhere))
    assert {*everywhere, "europe"} == KNOWN
    assert not KNOWN & {ANY, *UNPLACED}
    # Not members, and often taken for it.
    assert not {"ch", "uk", "gb", "no", "is", "li", "tr", "ua", "rs"} & set(BUILT_IN["eu"])


def test_all_children_stand_for_their_parent_except_in_europe() -> None:
    """The Union is its countries; Europe is more than its treaties."""
    members = frozenset(BUILT_IN["eu"])
    assert WORLD.covered("eu", members)
    assert not WORLD.covered("eu", members - {"mt"})
    assert WORLD.covered("eea", members | {"is", "li", "no"})
    assert WORLD.covered("eea", frozenset({"eu", "is", "li", "no"}))
    assert not WORLD.covered("europe", frozenset({"eea", "ch", "uk"}))
    assert not WORLD.covered("europe", members | {"is", "li", "no", "ch", "uk", *OUTSIDE_EUROPE})


def test_to_name_two_data_centres_is_not_to_name_the_union() -> None:
    """Declared children join the built-in ones; they do not take their place."""
    tree = RegionTree({"eu": ("eu-de", "eu-fr"), "us": ("us-east",)})
    assert not tree.covered("eu", frozenset({"eu-de", "eu-fr"}))
    assert tree.covered("eu-de", frozenset({"eu"}))
    assert not tree.covered("eu", frozenset(BUILT_IN["eu"])), (
        "a data centre somewhere in the Union is in no country"
    )
    assert tree.covered("us", frozenset({"us-east"})), (
        "the document says what the United States are for it"
    )


def test_a_region_over_built_in_ones_is_all_of_them() -> None:
    """`home: [de, ch]` is a choice of the author; neither country leaves the place the world has it
    in.
    """
    assert TREE.covered("home", frozenset({"de", "ch"}))
    assert TREE.covered("home", frozenset({"eu", "ch"}))
    assert TREE.covered("de-a", frozenset({"home"}))
    assert TREE.covered("de-a", frozenset({"eu"}))
    assert not TREE.covered("home", frozenset({"eu"}))
    assert not TREE.covered("ch", frozenset({"eu"}))
    assert TREE.ancestors("de-a") == {"de-a", "de", "home", "eu", "eea", "europe"}


def test_an_empty_region_stands_for_itself() -> None:
    """`x: []` names one place and not none: nothing would be covered by everything."""
    tree = RegionTree({"x": ()})
    assert not tree.covered("x", frozenset({"eu"}))
    assert tree.covered("x", frozenset({"x"}))


@pytest.mark.parametrize("region", sorted(UNPLACED))
@given(some_regions)
def test_a_deployment_without_a_place_is_covered_only_by_any(
    region: str, allowed: frozenset[str]
) -> None:
    """Not even a list that names it lets it in."""
    assert TREE.covered(region, allowed) == (ANY in allowed)


@given(a_region, some_regions)
def test_a_deployment_without_a_place_overlaps_with_every_region(
    region: str, denied: frozenset[str]
) -> None:
    """It may be there."""
    for unplaced in UNPLACED:
        assert TREE.overlaps(unplaced, denied) == bool(denied)
        assert TREE.overlaps(region, frozenset({unplaced}))
    assert TREE.overlaps(region, frozenset({ANY}))


@pytest.mark.parametrize(
    ("region", "denied", "expected"),
    [
        ("eu", "de", True),
        ("de", "eu", True),
        ("de-a", "europe", True),
        ("europe", "de-a", True),
        ("eu", "home", True),
        ("home", "eu", True),
        ("fr", "home", False),
        ("eu", "ch", False),
        ("eea", "ch", False),
        ("us", "us-east", True),
        ("us-east", "us-west", False),
        ("rack-1", "hall", True),
        ("x", "eu", False),
        ("x", "x", True),
    ],
)
def test_regions_overlap_if_a_place_lies_in_both(region: str, denied: str, expected: bool) -> None:
    """A deployment somewhere in the Union may be in the one country of it that is denied."""
    assert TREE.overlaps(region, frozenset({denied})) == expected
    assert TREE.overlaps(denied, frozenset({region})) == expected


@given(a_region, some_regions, st.sampled_from(NAMES))
def test_a_longer_list_covers_more_and_overlaps_more(
    region: str, names: frozenset[str], one: str
) -> None:
    """Nothing that is allowed becomes denied by allowing more, and the other way round."""
    assert not TREE.covered(region, names) or TREE.covered(region, names | {one})
    assert not TREE.overlaps(region, names) or TREE.overlaps(region, names | {one})


@given(st.sampled_from(NAMES), some_regions)
def test_a_covered_region_overlaps(region: str, names: frozenset[str]) -> None:
    """Allowed and denied by the same list is denied: there is no gap between the two questions."""
    if TREE.covered(region, names):
        assert TREE.overlaps(region, names)


@given(a_region, some_regions)
def test_the_order_of_a_document_never_matters(region: str, names: frozenset[str]) -> None:
    """Also not that in which questions were asked: answers are remembered."""
    shuffled = RegionTree(
        {parent: tuple(reversed(DECLARED[parent])) for parent in reversed(DECLARED)}
    )
    assert shuffled.covered(region, names) == TREE.covered(region, names)
    assert shuffled.overlaps(region, names) == TREE.overlaps(region, names)


def test_a_region_in_itself_is_walked_once() -> None:
    """Documents with one are rejected; finding that out must come to an end."""
    tree = RegionTree({"de": ("a",), "a": ("eu",)})
    assert tree.ancestors("eu") == tree.ancestors("de") | {"eu"}
