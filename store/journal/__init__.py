"""Write path of a batch (load → decide → evolve → append → project), and reads of the log."""
