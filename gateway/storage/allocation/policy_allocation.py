"""Stores, with each applied policy, the parts by which reports allocate cost: Postgres reads no
policy document.
"""

from __future__ import annotations

import json

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from gateway.domain.policy.allocation import PolicyAllocation
from gateway.errors import OperatorError

# Shares without a date are the earliest. Drivers cannot read the date -infinity.
_ADD_SHARE = """
INSERT INTO tollgate.policy_cost_centres (policy_version, team, first_day, cost_centre, share)
VALUES (:version, :team, coalesce(CAST(:first_day AS date), '0001-01-01'), :cost_centre, :share)
ON CONFLICT DO NOTHING
"""
_ADD_RULE = """
INSERT INTO tollgate.policy_idle_rules (policy_version, deployment, rule, weights)
VALUES (:version, :deployment, :rule, CAST(:weights AS jsonb)) ON CONFLICT DO NOTHING
"""


def write_allocation(
    connection: Connection, allocation: PolicyAllocation, *, policy_version: int
) -> None:
    """Store the shares and idle rules of a policy version, inside its transaction; those that are
    there already stay.

    Raises `OperatorError` if the version is of a closed month and they would be new.
    """
    shares = [
        {
            "version": policy_version,
            "team": team,
            "first_day": one.start,
            "cost_centre": one.name,
            "share": one.share,
        }
        for team, centres in allocation.cost_centres.items()
        for one in centres
    ]
    rules = [
        {
            "version": policy_version,
            "deployment": deployment,
            "rule": str(rule),
            "weights": json.dumps({team: f"{weight:f}" for team, weight in weights.items()}),
        }
        for deployment, (rule, weights) in allocation.idle.items()
    ]
    try:
        if shares:
            connection.execute(text(_ADD_SHARE), shares)
        if rules:
            connection.execute(text(_ADD_RULE), rules)
    except IntegrityError as refused:
        cause = refused.orig
        name = cause.diag.constraint_name if isinstance(cause, psycopg.Error) else None
        if name != "closed_months_keep_their_shares":
            raise
        raise OperatorError(
            f"Policy {policy_version} is of a closed month, which new shares or idle rules would "
            "change. Nothing was changed. Change the document, if only by a comment: a new version "
            "counts from today."
        ) from refused
