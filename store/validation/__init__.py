"""Validation of arguments and of JSON."""
