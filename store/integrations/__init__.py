"""Integrations with other frameworks. Each module imports its framework and needs the extra of the same name."""
