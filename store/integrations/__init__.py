"""Rollbook inside other frameworks; the module of each imports it, and needs the extra of the same name."""
