"""Verification, rebuild and seal of the log."""
