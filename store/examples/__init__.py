"""Whole jobs on the store, small enough to read; part of the package so that an installed wheel has them."""
