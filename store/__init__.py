"""Rollbook: an event-sourced, SQL-backed rollout store for agent training."""

from store.opening import open_store

__all__ = ["open_store"]
