"""Verification of the log and the tables, rebuild of wrong rows, and seals, which prove the state of the log later."""
