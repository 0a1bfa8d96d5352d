"""The pages: one module per page, with its data and its actions."""
