"""Example of a trading desk: a pipeline of phases that is killed, resumed, and partly run again.

A market is scanned, two tickers are analysed, debated and evaluated concurrently, one portfolio is traded. A counter of
words replaces the model, so that every run gives the same results, offline and in a second.
"""
