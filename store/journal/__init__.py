"""The write path, load → decide → evolve → append → project for a batch, and reads of the log."""
