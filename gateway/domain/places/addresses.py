"""Checks the text of an upstream's or webhook's address in a policy, and returns the error with its
fix; resolves no name.

The decision uses only the text.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
# A resolver reads such a host as an address: 2852039166 and 169.254.43518 are 169.254.169.254.
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)")
_VISIBLE = re.compile(r"[\x21-\x7e]{1,2000}")
# Names that public DNS never serves (RFC 6761, 6762, 8375; ICANN .internal; Kubernetes; common
# LANs).
_PRIVATE_SUFFIXES = (
    ".localhost",
    ".local",
    ".internal",
    ".home.arpa",
    ".lan",
    ".svc",
    ".cluster.local",
)
_ENDPOINTS = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/embeddings",
    "/models",
    "/messages",
)


def base_address_problem(address: str) -> str | None:
    """Return the error in a deployment's base address, with the fix; None if it is valid. Endpoints
    are added to it.
    """
    problem = address_problem(address)
    if problem is not None:
        return problem
    ending = next(
        (end for end in _ENDPOINTS if urlsplit(address).path.rstrip("/").endswith(end)), None
    )
    if ending:
        return (
            f"must end before {ending}, which the gateway adds; write for example "
            "https://llm.example/v1"
        )
    return None


def address_problem(address: str) -> str | None:
    """Return the error in an upstream's address, with the fix; None if it is valid. Never quotes
    the address.
    """
    if not _VISIBLE.fullmatch(address):
        return "must be an address such as https://llm.example/v1, without spaces"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return "is not an address; write for example https://llm.example/v1"
    if parts.scheme not in ("http", "https"):
        return (
            "must start with https:// (or http:// for an engine on this machine or a "
            "private network)"
        )
    if parts.username is not None or parts.password is not None:
        return (
            "must not hold a user name or password; a secret belongs in its own field, as env:NAME "
            "or file:PATH"
        )
    if parts.query or parts.fragment or address.endswith(("?", "#")):
        return "must not have a query or fragment (? or #); write scheme, host, port and path only"
    if port == 0:
        return "has port 0; write the port the server listens on"
    return _host_problem(parts)


def _host_problem(parts: SplitResult) -> str | None:
    """Return the error in an address's host, with the fix; None if it is valid."""
    host = (parts.hostname or "").rstrip(".")
    literal = _literal(host)
    if literal is None and not _HOST.fullmatch(host):
        return "names no host; write for example https://llm.example/v1"
    if literal is None and _NUMBER.fullmatch(host):
        return "writes an address in an unusual form; write all four numbers, as in 10.0.0.7"
    if literal is not None and (
        literal.is_unspecified or literal.is_link_local or literal.is_multicast
    ):
        return "names an address that no server can have; write the host's own address or name"
    if parts.scheme == "http" and not _is_private(host, literal):
        return (
            "sends prompts unencrypted over a public network; write https://, or a private address "
            "(127.0.0.1, 10.x, a name without dots or ending in .internal, .local, .svc or .lan)"
        )
    return None


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address that a host is, with ::ffff:10.0.0.7 read as 10.0.0.7; None for a
    name.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_private(host: str, literal: IPv4Address | IPv6Address | None) -> bool:
    """Return True if an address's host is an IP address or a name that only private networks
    reach.
    """
    if literal is not None:
        return not literal.is_global
    return "." not in host or f".{host.lower()}".endswith(_PRIVATE_SUFFIXES)
