"""Conversion of arguments to commands."""
