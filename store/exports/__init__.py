"""Exports of a store: to Parquet, JSON lines, Hugging Face, files for fine-tuning and ATIF, and to data frames."""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
