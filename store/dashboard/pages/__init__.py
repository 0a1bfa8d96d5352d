"""The pages, each with its data and its actions."""
