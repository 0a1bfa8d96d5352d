"""Example of reinforcement learning: a GRU of 7,500 weights learns to find a number by playing a game.

Agents call the policy over HTTP, through the LLM proxy; the algorithm learns only from the spans in the store.
"""
