"""Example of a trading desk: a pipeline of phases that is killed, resumed, and partly run again.

A market is scanned; two tickers are analysed, debated and evaluated concurrently; one portfolio is traded. A program
that counts words replaces the language model, so every run gives the same results, offline and within a second.
"""
