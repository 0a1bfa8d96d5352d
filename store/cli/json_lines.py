"""Files with one JSON document per line, which several commands read."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path
from typing import Any, Final

import orjson

from store.errors import Invalid

STANDARD_INPUT: Final = Path("-")
"""Stands for standard input."""
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read(option: str, path: Path) -> list[Any]:
    """Return the documents of a file, at least one.

    Args:
        option: the option that names the file, for error messages.
        path: the file; `STANDARD_INPUT` for standard input. The file is UTF-8 with or without byte order marks, or
            UTF-16 with a byte order mark. Lines end as on Unix or Windows. Empty lines are ignored.

    Raises:
        Invalid: a line is not JSON, or there is no document.
    """
    content = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
    if content.startswith(_UTF_16):
        # The redirection `>` of Windows PowerShell writes UTF-16.
        content = content.decode("utf-16", "replace").encode()
    documents: list[Any] = []
    for number, line in enumerate(content.splitlines(), start=1):
        # If several files were joined with `cat`, each part of the result begins with a mark.
        document = line.removeprefix(codecs.BOM_UTF8).strip()
        try:
            if document:
                documents.append(orjson.loads(document))
        except orjson.JSONDecodeError as error:
            raise Invalid(option, f"line {number} of {path} is not JSON: {error}") from None
    if not documents:
        raise Invalid(option, f"{path} contains no tasks")
    return documents
