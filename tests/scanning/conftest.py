"""Filled stores and processes for scans, as for rescoring."""

from __future__ import annotations

from tests.rescoring.conftest import filled_url, forked_workers

__all__ = ["filled_url", "forked_workers"]
