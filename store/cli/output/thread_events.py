"""What an event of a LangGraph thread says, in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Json = dict[str, Any]


def told(type_: str, data: Json) -> str:
    """Return what an event of a type in `TOLD` says."""
    return _TELLERS[type_](data)


def _checkpoint(data: Json) -> str:
    step = f" of step {data['step']}" if data.get("step") is not None else ""
    copied = ", a copy" if data.get("origin") is not None else ""
    return f"checkpoint {data['checkpoint_id']}{step}{_inside(data)} kept{copied}"


def _writes(data: Json) -> str:
    channels = ", ".join(dict.fromkeys(channel for _, channel in data["writes"]))
    return f"task {data['task_id']} wrote {channels} on checkpoint {data['checkpoint_id']}{_inside(data)}"


def _inside(data: Json) -> str:
    return f" of {data['ns']}" if data["ns"] else ""


def _copied(data: Json) -> str:
    return f"all of thread {data['source']} copied"


def _pruned(data: Json) -> str:
    count = len(data["checkpoints"])
    why = "those of deleted runs" if data["reason"] == "runs" else "all but the latest"
    return f"{count} checkpoint{'' if count == 1 else 's'} taken away: {why}"


def _deleted(_: Json) -> str:
    return "thread deleted"


_TELLERS: Final[dict[str, Callable[[Json], str]]] = {
    "thread.checkpoint_saved": _checkpoint,
    "thread.writes_saved": _writes,
    "thread.copied": _copied,
    "thread.pruned": _pruned,
    "thread.deleted": _deleted,
}

TOLD: Final = frozenset(_TELLERS)
"""The types of event that are told here."""
