"""Reads pictures, documents and sounds in the parts of a chat into neutral values, and writes them
as parts.
"""

from __future__ import annotations

from typing import Any

from gateway.wire.translation.conversation import Media
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.request_members import RequestMembers, wrong_type

# `input_audio.format` of OpenAI's description, and the media type that means the same.
_SOUNDS = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_DOCUMENT = "application/pdf"
MOST_HEAD_CHARS = 1024  # of a `data:` URL, before its content


def picture_of(url: str, path: str, *, detail: str = "") -> Media:
    """Return the picture of an `image_url`, which is a `data:` URL or an address. Raises
    `InvalidRequest`.
    """
    if not is_data_url(url):
        return Media(kind="image", url=url, detail=detail)
    media_type, data = split_data_url(url, path)
    return Media(kind="image", media_type=media_type, data=data, detail=detail)


def document_of(file_data: str, path: str, *, name: str = "") -> Media:
    """Return the document of a `file_data`: a `data:` URL, or base64 of a PDF. Raises
    `InvalidRequest`.
    """
    media_type, data = _DOCUMENT, file_data
    if is_data_url(file_data):
        media_type, data = split_data_url(file_data, path)
    return Media(kind="document", media_type=media_type, data=data, name=name)


def sound_of(sound: RequestMembers) -> Media:
    """Return the sound of an `input_audio`. Raises `InvalidRequest`."""
    form = sound.text("format") or ""
    return Media(
        kind="audio",
        media_type=_SOUNDS.get(form, f"audio/{form}" if form else ""),
        data=sound.text("data") or "",
    )


def is_data_url(url: str) -> bool:
    """Return True for a `data:` URL (RFC 2397)."""
    return url[:5].lower() == "data:"


def split_data_url(url: str, path: str) -> tuple[str, str]:
    """Return the media type and the base64 text of a `data:` URL. Raises `InvalidRequest`."""
    head, comma, data = url.partition(",")
    media_type, *parameters = head[5:MOST_HEAD_CHARS].split(";")
    if (
        len(head) > MOST_HEAD_CHARS
        or not comma
        or "base64" not in (one.strip().lower() for one in parameters)
    ):
        raise wrong_type(path, "a data: URL has the form data:image/png;base64,iVBOR")
    return media_type.strip().lower(), data


def media_part(
    media: Media, losses: Losses, *, documents_by_url: bool = False
) -> dict[str, Any] | None:
    """Return the part of a chat message for a picture, a document or a sound; None if a chat has no
    place for it. Raises `Untranslatable`.
    """
    if media.kind == "image":
        picture = {"url": media.url or f"data:{media.media_type};base64,{media.data}"}
        if media.detail:
            picture["detail"] = media.detail
        return {"type": "image_url", "image_url": picture}
    if documents_by_url and media.kind == "document":  # Mistral's part
        url = media.url or f"data:{media.media_type};base64,{media.data}"
        named = {"document_name": media.name} if media.name else {}
        return {"type": "document_url", "document_url": url, **named}
    if media.url:
        losses.lose(f"{media.kind}.url", why="a chat takes its bytes alone")
        return None
    if media.kind == "audio":
        form = _FORMATS.get(media.media_type, media.media_type.removeprefix("audio/"))
        return {"type": "input_audio", "input_audio": {"data": media.data, "format": form}}
    file = {"file_data": f"data:{media.media_type};base64,{media.data}"}
    file["filename"] = media.name or f"document.{media.media_type.rpartition('/')[2]}"
    return {"type": "file", "file": file}
