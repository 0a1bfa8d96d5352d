"""Fields that every event in `run_events.jsonl` has, and default values for fields that were not recorded."""

from __future__ import annotations

from typing import Any, Final

from store.models.runs import RunEventRow

KINDS: Final = frozenset({"thought", "tool", "tool_result", "result", "log", "system"})
"""The kinds of events in `run_events.jsonl`; events of other kinds are in `run_extension.jsonl`."""
SYSTEM_NODE: Final = "__system__"
"""The `node_id` of an event that was recorded without a node."""

_SYSTEM_AGENT: Final = "SYSTEM"
_FIRST_PARENT: Final = "start"
_LONGEST_EXCERPT: Final = 300
_MARKS: Final = {"error": "✗", "graceful_skip": "⚠"}


def agent_of(node_id: str | None) -> str:
    """Return the name of the agent of a node: the node's id in upper case."""
    return _SYSTEM_AGENT if node_id in {None, SYSTEM_NODE} else str(node_id).upper()


def status_of(kind: str, error: str | None) -> str | None:
    """Return the status of an event; None for kinds that have no status."""
    if kind == "tool":
        return "running"
    if kind == "tool_result":
        return "success" if error is None else "error"
    return None


def message_of(
    kind: str,
    node_id: str | None,
    *,
    model: str | None = None,
    status: str | None = None,
    prompt: str | None = None,
    response: str | None = None,
    error: str | None = None,
) -> str:
    """Return a readable summary of an event. It contains at most the first 300 characters of the event's text.

    Args:
        kind: the kind of the event. For kinds other than `thought`, `tool` and `tool_result`, the summary is only the
            excerpt.
        node_id: the id of the node. For `tool` and `tool_result`, the name of the tool, with or without the prefix
            `tool_`.
        model: the model to which a thought sends its prompt.
        status: the status of a tool's result.
        prompt: the prompt of a thought, or the input of a tool.
        response: the response of an event of kind `result`, or the output of a tool.
        error: the error, if there is no response.
    """
    tool = (node_id or "").removeprefix("tool_")
    match kind:
        case "thought":
            return _joined(f"Prompting {model or 'unknown'}…", prompt)
        case "tool":
            return _joined(f"▶ Tool: {tool}", prompt)
        case "tool_result":
            return _joined(f"{_MARKS.get(status or '', '✓')} Tool result: {tool}", error or response)
        case _:
            return _joined("", error or response or prompt)


def defaults_of(row: RunEventRow) -> dict[str, Any]:
    """Return default values for the fields of an event whose kind is in `KINDS`.

    The keys are the names of fields of `RunEventRow`.

    A recorded value of a field takes precedence over the default value.
    """
    status = row.status or status_of(row.kind, row.error)
    model = (row.metrics or {}).get("model")
    texts: dict[str, Any] = {"prompt": row.prompt, "response": row.response, "error": row.error}
    defaults: dict[str, Any] = {
        "node_id": SYSTEM_NODE,
        "scope": "",
        "agent": agent_of(row.node_id),
        "service": "",
        "message": message_of(row.kind, row.node_id, model=model, status=status, **texts),
        "metrics": {},
    }
    if row.kind == "thought":
        defaults["parent_node_id"] = _FIRST_PARENT
    return defaults if status is None else defaults | {"status": status}


def _joined(start: str, text: str | None) -> str:
    excerpt = (text or "")[:_LONGEST_EXCERPT]
    return f"{start} | {excerpt}" if start and excerpt else start or excerpt
