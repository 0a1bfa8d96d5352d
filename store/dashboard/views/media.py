"""Images and other media of messages, and texts without encoded bytes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from store.dashboard.views.formats import size
from store.model_calls import MessagePart, call_of
from store.model_calls.items import media_url
from store.model_calls.json_values import as_object, first_text
from store.model_calls.recorded import tool_use_of

LARGEST_IMAGE: Final = 8 * 1024 * 1024
"""The maximum number of bytes of an image that a page shows."""
_SIGNATURES: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)
"""The first bytes of the formats that a page shows. Formats that may contain scripts, such as SVG, are missing."""
_LONGEST_SIGNATURE: Final = 12
_DATA_URL: Final = re.compile(r"data:([\w.+-]{1,100}/[\w.+-]{1,100})?(?:;[\w.+-]{1,100}=[\w.+-]{1,100})*;base64,\s*")
_RUN: Final = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{256,}={0,2}")
_LINES: Final = re.compile(r"(?<![A-Za-z0-9+/\n])(?:^[A-Za-z0-9+/]{60,128}\r?\n){4,}[A-Za-z0-9+/]*={0,2}", re.MULTILINE)
_REST: Final = re.compile(r"[A-Za-z0-9+/=_-]+")
_SHORTEST: Final = 256
"""The number of characters from which base64 is replaced."""


@dataclass(frozen=True, slots=True)
class Medium:
    """An image, a sound, a video or a document in a message."""

    kind: str
    name: str
    """The name of the file; empty if it is unknown."""
    media_type: str
    """The type of the bytes if their beginning shows that they are an image, or else the declared type."""
    size: int | None
    """The number of bytes; None if the message contains only a URL."""
    key: str
    """The hash of the bytes or of the URL."""
    span_id: str
    """The span that contains the medium."""
    is_image: bool
    """Whether a page shows the bytes as an image."""

    @property
    def title(self) -> str:
        """The name, the type and the size."""
        parts = (self.name, self.media_type or self.kind, None if self.size is None else size(self.size))
        return " · ".join(part for part in parts if part)


def media_of(parts: Iterable[MessagePart], span_id: str) -> tuple[Medium, ...]:
    """Return the media among the parts of messages of a span."""
    return tuple(_medium(part, span_id) for part in parts)


def _medium(part: MessagePart, span_id: str) -> Medium:
    url = media_url(part) or ""
    declared, encoded = _data_of(url)
    name = first_text(part.item, "filename", "file_name", "name", "title") or first_text(
        as_object(part.item.get("file")), "filename"
    )
    key = hashlib.sha256(url.encode(errors="replace")).hexdigest()[:16]
    if encoded is None:
        return Medium(part.kind, name or "", declared, None, key, span_id, is_image=False)
    count = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    sniffed = _image_type(_decoded(encoded[:64]))
    is_image = sniffed is not None and count <= LARGEST_IMAGE
    return Medium(part.kind, name or "", sniffed or declared, count, key, span_id, is_image=is_image)


def _data_of(url: str) -> tuple[str, str | None]:
    """Return the declared type and the base64 of a `data:` URL; an empty text and None for another URL."""
    match = _DATA_URL.match(url)
    if match is not None:
        return (match[1] or "").removesuffix("/*"), url[match.end() :]
    if url.startswith("data:"):
        header, _, content = url.partition(",")
        return header[5:].partition(";")[0], base64.b64encode(unquote_to_bytes(content)).decode()
    return "", None


def _decoded(encoded: str) -> bytes:
    text = "".join(encoded.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""


def _image_type(beginning: bytes) -> str | None:
    start = beginning[:_LONGEST_SIGNATURE]
    return next((media_type for pattern, media_type in _SIGNATURES if pattern.match(start)), None)


def image_of(attributes: Mapping[str, Any], key: str) -> tuple[bytes, str] | None:
    """Return the bytes and the type of the image of a span with this key; None if there is none."""
    call, tool = call_of(attributes), tool_use_of(attributes)
    parts = [part for message in (*call.messages, *call.answers) for part in message.media]
    for part in (*parts, *(() if tool is None else tool.media)):
        url = media_url(part) or ""
        if hashlib.sha256(url.encode(errors="replace")).hexdigest()[:16] != key:
            continue
        content = _decoded(_data_of(url)[1] or "")
        media_type = _image_type(content)
        return None if media_type is None or len(content) > LARGEST_IMAGE else (content, media_type)
    return None


def readable(text: str) -> str:
    """Return a text with the type and the size in place of each long base64 text."""
    if len(text) < _SHORTEST:
        return text
    if ";base64," in text:
        text = _without_urls(text)
    return _RUN.sub(_shortened, _LINES.sub(_shortened, text))


def _without_urls(text: str) -> str:
    parts: list[str] = []
    end = 0
    for match in _DATA_URL.finditer(text):
        rest = _REST.match(text, match.end())
        if match.start() < end or rest is None or len(rest[0]) < _SHORTEST:
            continue
        parts += [text[end : match.start()], _label(match[1] or "data", rest[0])]
        end = rest.end()
    return "".join([*parts, text[end:]])


def _shortened(match: re.Match[str]) -> str:
    text = match[0]
    # A long word without digits or in one case is no base64.
    kinds = (str.isupper, str.islower, str.isdigit)
    if not all(any(map(is_kind, text)) for is_kind in kinds) or text.count("-") + text.count("_") > len(text) // 16:
        return text
    return _label("base64", text)


def _label(media_type: str, encoded: str) -> str:
    digest = hashlib.sha256(encoded.encode()).hexdigest()[:8]
    return f"[{media_type}, {size(len(encoded) * 3 // 4)}, {digest}]"
