"""Pure functions over the events of runs: plans of re-runs, comparisons, graphs, and frames for live readers."""
