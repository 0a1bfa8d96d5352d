"""What is worked out about runs from their events alone: plans of re-runs, comparisons, graphs. Pure."""
