"""Adapters: pure functions that convert the spans of an attempt to training data: triplets or chat messages.

A triplet is the prompt, the response and the reward of a model call.
"""
