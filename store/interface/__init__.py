"""The store's interface; its docstrings are the specification."""
