"""Full-text search over inputs, messages, tool calls, reasoning, errors and notes."""
