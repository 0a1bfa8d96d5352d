"""Commands. The declaration and the body of a command are in the same module."""
