"""Numbers of tokens in sentences."""

from __future__ import annotations


def token_text(tokens_in: float | None, tokens_out: float | None) -> str:
    """Return the tokens of a call: `1,200 → 340 tokens`. A dash stands for an unknown number."""
    before, after = ("–" if tokens is None else f"{tokens:,}" for tokens in (tokens_in, tokens_out))  # noqa: RUF001
    return f"{before} → {after} tokens"
