"""Reinforcement learning, whole and small: a GRU of 7,500 weights learns to find a number by playing it.

Agents call the policy over HTTP, through the LLM proxy; what they did is learned from the spans in the store alone.
"""
