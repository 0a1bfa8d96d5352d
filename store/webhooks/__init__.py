"""Webhooks: conditions of a store, signed messages about them, and their delivery. Decision 119."""
