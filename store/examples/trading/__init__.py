"""A trading desk, whole and small: a pipeline of phases that is killed, goes on, and runs a part of itself again.

A market is scanned, two tickers are analysed, debated and weighed side by side, one portfolio is traded. What stands
for the model is a counter of words, so that every run says the same, offline and in a second.
"""
