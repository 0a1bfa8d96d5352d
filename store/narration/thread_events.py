"""Sentences that describe the events of LangGraph threads, the stored states of a graph's execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Json = dict[str, Any]


def describe(type_: str, data: Json) -> str:
    """Return a sentence about an event, whose type must be in `TYPES`."""
    return _SENTENCES[type_](data)


def _checkpoint(data: Json) -> str:
    step = f" of step {data['step']}" if data.get("step") is not None else ""
    copied = " as a copy" if data.get("origin") is not None else ""
    return f"checkpoint {data['checkpoint_id']}{step}{_inside(data)} saved{copied}"


def _writes(data: Json) -> str:
    channels = ", ".join(dict.fromkeys(channel for _, channel in data["writes"]))
    return f"task {data['task_id']} wrote to {channels} at checkpoint {data['checkpoint_id']}{_inside(data)}"


def _inside(data: Json) -> str:
    return f" in {data['ns']}" if data["ns"] else ""


def _copied(data: Json) -> str:
    return f"everything copied from thread {data['source']}"


def _pruned(data: Json) -> str:
    count = len(data["checkpoints"])
    why = "their runs were deleted" if data["reason"] == "runs" else "only the latest are kept"
    return f"{count} checkpoint{'' if count == 1 else 's'} deleted: {why}"


def _deleted(_: Json) -> str:
    return "thread deleted"


_SENTENCES: Final[dict[str, Callable[[Json], str]]] = {
    "thread.checkpoint_saved": _checkpoint,
    "thread.writes_saved": _writes,
    "thread.copied": _copied,
    "thread.pruned": _pruned,
    "thread.deleted": _deleted,
}

TYPES: Final = frozenset(_SENTENCES)
"""The types of event that this module describes."""
