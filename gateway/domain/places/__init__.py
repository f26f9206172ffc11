"""Declares regions and the facts about deployments' places, and checks upstream addresses;
`domain.residency` applies rules to them.
"""
