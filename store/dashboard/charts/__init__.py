"""Charts: curves and run graphs as data for SVG."""
