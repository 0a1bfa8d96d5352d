"""Conversion of rows to models."""
