"""Example of reinforcement learning: a model, by default a GRU of 7,500 weights, learns a game of finding a number.

Agents call the model, which is the policy, over HTTP through the LLM proxy. The proxy records each call as a span in
the store, and the algorithm learns only from these spans.
"""
