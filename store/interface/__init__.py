"""Store interface; its docstrings are the specification."""
