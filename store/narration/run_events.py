"""Sentences that describe the events of runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from store.narration.tokens import token_text
from store.runtime.durations import duration

Json = dict[str, Any]


def describe(type_: str, data: Json, attempt: str) -> str:
    """Return a sentence about an event, whose type must be in `TYPES`.

    `attempt` is the text for the attempt of the event, for example `attempt 2`. It is empty if the event has no
    attempt.
    """
    return _SENTENCES[type_](data, attempt)


def _event(data: Json, attempt: str) -> str:
    about = " ".join(data[name] for name in ("node_id", "scope") if data.get(name))
    metrics: Json = data.get("metrics") or {}
    parts = [f"{attempt}: {about + ': ' if about else ''}{data['kind']}"]
    if data.get("status"):
        parts.append(data["status"])
    if metrics.get("latency_ms") is not None:
        parts.append(duration(metrics["latency_ms"] / 1000))
    if metrics.get("model"):
        parts.append(metrics["model"])
    if metrics.get("tokens_in") is not None or metrics.get("tokens_out") is not None:
        parts.append(token_text(metrics.get("tokens_in"), metrics.get("tokens_out")))
    return ", ".join(parts)


def _phase(how: str) -> Callable[[Json, str], str]:
    def describe(data: Json, attempt: str) -> str:
        of_scope = f" of {data['scope']}" if data.get("scope") else ""
        why = f": {data['reason']}" if data.get("reason") else ""
        return f"{attempt}: phase {data['phase']}{of_scope} {how}{' (cascade)' if data.get('cascade') else ''}{why}"

    return describe


def _saved(data: Json, attempt: str) -> str:
    after = f" after {data['after_phase']}" if data.get("after_phase") else ""
    return f"{attempt}: checkpoint {data['name']} of {data['scope']} saved{after}"


def _rejected(data: Json, attempt: str) -> str:
    return f"{attempt}: checkpoint {data['name']} of {data['scope']} not saved: {data['reason']}"


def _artifact(data: Json, attempt: str) -> str:
    return f"{attempt}: {data['name']} of {data['scope']} saved as {data['artifact_id']}"


def _retracted(data: Json, _: str) -> str:
    return f"{data['artifact_id']} retracted" + (f": {data['reason']}" if data.get("reason") else "")


def _forked(data: Json, attempt: str) -> str:
    subject = " of ".join(part for part in (data.get("phase"), ", ".join(data.get("scopes") or ())) if part)
    cascade = f", then {', '.join(data['cascade'])}" if data.get("cascade") else ""
    degraded = ", from further back than requested" if data.get("degraded") else ""
    return (
        f"{attempt} is a {data['kind']} on attempt {data['base']}{': ' + subject if subject else ''}{cascade}{degraded}"
    )


def _head(data: Json, _: str) -> str:
    return f"head moved from attempt {data['from']} to attempt {data['to']}"


_SENTENCES: Final[dict[str, Callable[[Json, str], str]]] = {
    "run.event": _event,
    "phase.started": _phase("begun"),
    "phase.completed": _phase("done"),
    "phase.skipped": _phase("skipped"),
    "checkpoint.saved": _saved,
    "checkpoint.rejected": _rejected,
    "artifact.saved": _artifact,
    "artifact.retracted": _retracted,
    "attempt.forked": _forked,
    "rollout.head_moved": _head,
}

TYPES: Final = frozenset(_SENTENCES)
"""The types of event that this module describes."""
