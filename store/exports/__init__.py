"""Exports of a store: to Parquet, JSON lines, Hugging Face's layout and files for fine-tuning, and to data frames."""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
