"""Pipelines: phases of runs, and the runner that executes them."""
