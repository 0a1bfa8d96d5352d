"""Charts: curves and graphs drawn as SVG."""
