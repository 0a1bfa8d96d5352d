"""Formats of exports to files. Each format has a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from store.errors import Invalid
from store.exports.formats.atif import ATIF
from store.exports.formats.base import Format
from store.exports.formats.hf import HuggingFace
from store.exports.formats.jsonl import JSONLines
from store.exports.formats.otlp import OpenTelemetry
from store.exports.formats.parquet import Parquet
from store.exports.formats.sft import FineTuning

FORMATS: Final[dict[str, Callable[[], Format]]] = {
    kind.name: kind for kind in (Parquet, JSONLines, HuggingFace, FineTuning, OpenTelemetry, ATIF)
}


def format_of(name: str) -> Format:
    """Return a format by its name.

    Raises:
        Invalid: there is no such format, or a package that it needs is not installed.
    """
    kind = FORMATS.get(name)
    if kind is None:
        raise Invalid("format", f"{name!r} is not a format; the formats are {', '.join(FORMATS)}")
    return kind()
