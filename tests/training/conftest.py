"""Fixtures of the training loop."""

from __future__ import annotations

from tests.training.stores import live, memory, training_server

__all__ = ["live", "memory", "training_server"]
