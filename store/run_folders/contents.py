"""Conversion of the files of a run folder to contents that a store accepts, and back to the bytes of files."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final, cast

from store.run_folders import forms
from store.run_folders.records import FileRecord, SidecarFile

NATIVE_FORM: Final = "2+end"
_BASE64: Final = "base64"
_BINARY: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file, converted for the store."""

    described: SidecarFile
    value: Any = None
    form: str | None = None
    """The format that reproduces the file from the value: a format of JSON, or `base64`.

    None for text that is not JSON, and if `raw` is set.
    """
    raw: str | None = None
    """The JSON text, if no format reproduces it."""
    problem: str | None = None
    """Why the file is not imported, or is imported as another kind."""
    is_kept: bool = True
    """Whether the file is imported."""


def content_of(path: str, data: bytes, described: SidecarFile) -> Content:
    """Return the content of a file. For a damaged JSON file, `is_kept` is False and `problem` is the reason.

    Args:
        path: the path of the file in its folder. A file whose path ends with `.json` is a JSON file.
        data: the bytes of the file.
        described: the description of the file.
    """
    text = _text(data)
    if not path.endswith(".json"):
        if text is None:
            return Content(described, {_BASE64: base64.b64encode(data).decode()}, form=_BASE64)
        return Content(described, text)
    try:
        value = forms.loads(text or "")
    except ValueError as error:
        return Content(described, problem=f"is no JSON, and left out: {error}", is_kept=False)
    assert text is not None  # the JSON parser accepted it
    if not forms.is_storable(value):
        return _as_text(
            described,
            text,
            "has values that a store refuses (U+0000, integers of more than 64 bits …); imported as text",
        )
    if described.kind == "checkpoint" and not isinstance(value, dict) and described.external is None:
        return _as_text(described, text, "is no JSON object, so no checkpoint; kept as text")
    form = forms.form_of(value, text)
    return Content(described, value, form=form, raw=text if form is None else None)


def _text(data: bytes) -> str | None:
    """Return bytes as text that a store accepts; None if the bytes are not such text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _as_text(described: SidecarFile, text: str, problem: str) -> Content:
    return Content(described.model_copy(update={"kind": "artifact", "phase": None}), text, problem=problem)


def imported_bytes(value: Any, record: FileRecord) -> bytes:
    """Return the original bytes of an imported file."""
    if record.raw is not None:
        return record.raw.encode()
    if record.form == _BASE64:
        return base64.b64decode(value[_BASE64])
    return str(value).encode() if record.form is None else forms.dumps(value, record.form).encode()


def native_bytes(value: Any, media_type: str | None) -> tuple[str, bytes]:
    """Return a file name extension, and the bytes of a file, for content that was not imported."""
    if isinstance(value, str):
        end = {"text/markdown": ".md", "application/jsonl": ".jsonl"}.get(media_type or "", ".txt")
        return end, value.encode()
    if media_type == _BINARY and (binary := _binary(value)) is not None:
        return ".bin", binary
    return ".json", forms.dumps(value, NATIVE_FORM).encode()


def _binary(value: Any) -> bytes | None:
    if not isinstance(value, dict) or list(cast("dict[str, Any]", value)) != [_BASE64]:
        return None
    try:
        data = base64.b64decode(cast("dict[str, Any]", value)[_BASE64], validate=True)
    except (binascii.Error, TypeError, ValueError):
        return None
    # If bytes that decode as text were written to a `.bin` file, a later import would change these bytes to text. With
    # the result None, the bytes are written as JSON.
    return None if _text(data) is not None else data
