"""Exports in processes of their own, which tests kill or give no space."""

from __future__ import annotations

import os
import resource
from typing import Any

import pytest

from store import open_store
from store.errors import Unavailable
from store.exports import export_store, forward_spans
from store.exports.manifest import UNFINISHED
from store.exports.otlp import sending

ARGUMENTS: dict[str, Any] = {"tables": ["rollouts", "spans", "messages"], "rows_per_file": 40}


async def export(url: str, directory: str) -> None:
    """Export a store, or continue to export it."""
    async with await open_store(url, read_only=True) as store:
        await export_store(store, "jsonl", directory, **ARGUMENTS)


async def export_documents(url: str, directory: str) -> None:
    """Export a store as documents, or continue to export it."""
    async with await open_store(url, read_only=True) as store:
        await export_store(store, "atif", directory, rows_per_file=9)


async def export_until_full(url: str, directory: str, most: int) -> None:
    """Export a store to files that can have at most `most` bytes; the export must report a full disk."""
    async with await open_store(url, read_only=True) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        with pytest.raises(Unavailable, match="the same command continues") as full:
            await export_store(store, "jsonl", directory, **ARGUMENTS)
    assert full.value.is_disk_full
    assert [path for path in os.scandir(directory) if path.name.endswith(UNFINISHED)] == []


async def forward(url: str, to: str, cursor: str) -> None:
    """Forward the spans of a store in small requests, until this process is killed."""
    sending._MOST_SPANS = 7  # pyright: ignore[reportPrivateUsage]
    async with await open_store(url, read_only=True) as store:
        await forward_spans(store, to, cursor)
