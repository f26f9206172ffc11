"""Carries Gemini's thought signature of a tool call inside the call's id, for clients of every
dialect: they send back nothing but the id.

The mark is that of litellm 1.106.2 (`prompt_templates/factory.py`, read 2026-11-24), so that tools
which know it find the id. The signature after it, base64 on the wire, is encoded once more: ids of
other providers allow neither `+` nor `/` nor `=`.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

MARK = "__thought__"


def with_signature(call_id: str, signature: str) -> str:
    """Return the id that a caller gets for a call: it holds the call's signature."""
    if not signature and MARK not in call_id:
        return call_id
    encoded = urlsafe_b64encode(signature.encode()).decode().rstrip("=")
    return f"{call_id}{MARK}{encoded}"


def without_signature(sent_id: str) -> tuple[str, str]:
    """Return the provider's own id of a call and its signature, empty if the id holds none."""
    call_id, mark, encoded = sent_id.rpartition(MARK)
    if not mark:
        return sent_id, ""
    try:
        signature = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        return sent_id, ""
    # An id that has the mark by chance stays as it is.
    return (call_id, signature) if with_signature(call_id, signature) == sent_id else (sent_id, "")
