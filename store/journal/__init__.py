"""The one write path, and what proves it: load → decide → evolve → append → project, for a batch."""
