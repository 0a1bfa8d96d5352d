"""Algorithms, their plans, and reports of trainings."""
