"""Files with one JSON document per line, which several commands read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import orjson

from store.errors import Invalid

STANDARD_INPUT: Final = Path("-")
"""Stands for standard input."""


def read(option: str, path: Path) -> list[Any]:
    """Return the documents of a file, at least one.

    Args:
        option: the option that names the file, for error messages.
        path: the file; `STANDARD_INPUT` for standard input. Empty lines are ignored.

    Raises:
        Invalid: a line is not JSON, or there is no document.
    """
    text = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
    documents: list[Any] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if line.strip():
                documents.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise Invalid(option, f"line {number} of {path} is not JSON: {error}") from None
    if not documents:
        raise Invalid(option, f"{path} contains no tasks")
    return documents
