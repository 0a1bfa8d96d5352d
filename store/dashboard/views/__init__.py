"""Functions that prepare data for the templates of the pages."""
