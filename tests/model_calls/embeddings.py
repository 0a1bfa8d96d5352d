"""Responses of OpenAI's Embeddings API. They have no streams."""

from __future__ import annotations

from typing import Any

from tests.model_calls.entries import MODEL, Entry, Json, PromptPart


def entry(name: str, request: Any, *prompt: PromptPart, data: Any = None, **details: Any) -> Entry:
    """Return an entry of this protocol, with the input of its request. An input of token ids has no facts."""
    items = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}] if data is None else data
    more: Json = details.pop("more", {})
    usage: Json = details.pop("reported", {"prompt_tokens": 3, "total_tokens": 3})
    fields: dict[str, Any] = {"usage": {"prompt": 3, "total": 3}, **details}
    return Entry(
        name=f"embeddings {name}",
        protocol="embeddings",
        # Without this field, the openai client asks for base64.
        request={"model": MODEL, "input": request, "encoding_format": "float", **more},
        response={"object": "list", "model": MODEL, "data": items, "usage": usage},
        prompt=prompt or None,
        **fields,
    )


ENTRIES = (
    entry("text", "hi", ("user", "text", "hi")),
    entry("list of texts", ["hi", "ho"], ("user", "text", "hi"), ("user", "text", "ho")),
    entry("token ids", [11, 12, 13]),
    entry("lists of token ids", [[11, 12], [13]]),
    entry("dimensions", "hi", ("user", "text", "hi"), more={"dimensions": 2}),
    entry(
        "base64",
        "hi",
        ("user", "text", "hi"),
        data=[{"object": "embedding", "index": 0, "embedding": "AAAAPwAAAL8="}],
        more={"encoding_format": "base64"},
    ),
    entry("no usage", "hi", ("user", "text", "hi"), reported=None, usage={}),
    entry("empty input", ""),
)
