"""The audit log's chain: every change is found, and an unchanged log raises nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from gateway.domain.ledger.audit_chain import (
    BEGINNING,
    ChainHead,
    ChainWalk,
    read_head,
)
from tests.audit_edits import COLUMNS, EDITS, Rows, audit_log, edited, sealed

EDITS_MADE = 10_000


def findings(rows: Rows, *heads: ChainHead) -> list[str]:
    return [f"{finding.seq}: {finding.what}" for finding in ChainWalk(heads).findings(rows)]


def head_of(rows: Rows, place: int = -1) -> ChainHead:
    seq, digest = rows[place].seq, rows[place].hash
    assert seq is not None
    assert digest is not None
    return ChainHead(seq, digest)


def test_a_log_as_it_was_written_raises_nothing() -> None:
    """An alarm that rings by itself is switched off."""
    rows = audit_log(30)
    assert findings(rows, head_of(rows), head_of(rows, 0), head_of(rows, 12)) == []
    assert findings([]) == []
    walk = ChainWalk()
    assert walk.head is None
    assert [finding for row in rows for finding in walk.check_row(row)] == []
    assert (walk.rows, walk.head) == (30, head_of(rows))
    assert str(walk.head) == f"30 {rows[-1].hash}"


def test_every_one_of_ten_thousand_random_edits_is_found(rng: Random) -> None:
    """The promise itself: no edit, removal, move or insertion, and with a kept head no cut and no
    new story.
    """
    rows = audit_log(12)
    kept, missed, kinds = head_of(rows), [], Counter[str]()
    for _ in range(EDITS_MADE):
        kind, after = edited(rows, rng)
        kinds[kind] += 1
        if not any(ChainWalk([kept]).findings(after)):
            missed.append((kind, after))
    assert missed == []
    assert len(kinds) == len(set(EDITS)), "every kind of edit was made"


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_is_checked(column: str) -> None:
    """People read the columns, not the hashed line, so a forger would use an unchecked column."""
    rows = audit_log(3)
    rows[1] = replace(rows[1], **{column: 7 if column == "seq" else "x"})
    assert findings(rows)


def test_a_finding_names_the_row_and_each_break_once() -> None:
    """The reader of the alarm needs the place, and not a list of every later row."""
    rows = audit_log(9)
    rows[3] = replace(rows[3], operator="eve")
    assert findings(rows) == ["4: `operator` is not what its `line` says"]
    rows = audit_log(9)
    del rows[3]
    assert findings(rows) == [
        "5: row 4 before it is missing",
        "5: it does not follow the row before it: `previous` is not that row's hash",
    ]
    rows = audit_log(9)
    del rows[2:5]
    assert findings(rows)[0] == "6: rows 3 to 5 before it are missing"


def test_a_cut_off_end_needs_a_head() -> None:
    """The remainder is a valid log; only a kept head shows that there was more."""
    rows = audit_log(9)
    assert findings(rows[:6]) == []
    assert findings(rows[:6], head_of(rows)) == [
        "9: it is missing: a head was kept of it, and the log ends at 6"
    ]
    assert findings([], head_of(rows)) == [
        "9: it is missing: a head was kept of it, and the log ends at 0"
    ]


def test_a_log_rewritten_from_some_row_on_needs_a_head() -> None:
    """Who can write the table can compute hashes too."""
    rows = audit_log(9)
    kept = head_of(rows, 6)
    rows[4] = sealed(replace(rows[4], operator="eve"))
    for place in range(5, 9):
        rows[place] = sealed(rows[place], previous=rows[place - 1].hash)
    assert findings(rows) == []
    assert findings(rows, kept) == [
        "7: it is not the row that the kept head names: from some row up to here all is new"
    ]


def test_a_hash_covers_the_row_before_it() -> None:
    """Without it each row could be exchanged for another that is right in itself."""
    rows = audit_log(2)
    rows[1] = replace(rows[1], previous=BEGINNING)
    assert "2: its `hash` is not that of its `previous` and `line`" in findings(rows)


def test_details_that_mean_the_same_are_still_not_the_same() -> None:
    """1.50 and 1.5 are one number to a reader of JSON; the stored text was changed all the same."""
    rows = audit_log(1)
    rows[0] = replace(rows[0], details=(rows[0].details or "").replace("1.50", "1.5"))
    assert findings(rows) == ["1: `details` are not what its `line` says"]


def test_a_line_with_more_or_less_in_it_is_refused() -> None:
    """A second member of one name would let two readers read two things."""
    rows = audit_log(1)
    for line in ("", "[]", "{}", (rows[0].line or "").replace("{", '{"x": 1, ', 1)):
        assert "1: its `line` cannot be read" in findings([replace(rows[0], line=line)])


def test_a_head_reads_as_it_is_printed() -> None:
    """It is kept in a file, a ticket or a drawer and typed in again."""
    head = head_of(audit_log(3))
    assert read_head(f"  {head}\n") == head
    for wrong in (
        "",
        "3",
        f"x {head.hash}",
        f"-3 {head.hash}",
        f"3 {head.hash[:-1]}",
        f"3 {head.hash[:-1]}G",
    ):
        with pytest.raises(ValueError, match="SEQ HASH"):
            read_head(wrong)
