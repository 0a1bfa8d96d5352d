"""Adapters: pure functions from the spans of an attempt to training data, as triplets or chat messages."""
