"""Charts: the data from which the pages draw curves and graphs of runs as SVG."""
