"""Commands: the declaration and the body of each in one module."""
