"""A document of another agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_AGENT: Final = {"name": "helper", "version": "0.1", "model_name": "small"}
TRAJECTORY: Final[dict[str, Any]] = {
    "schema_version": "ATIF-v1.7",
    "session_id": "session",
    "trajectory_id": "main",
    "agent": {
        "name": "terminal",
        "version": "2.0",
        "model_name": "large",
        "tool_definitions": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
        "extra": {"temperature": 0},
    },
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be careful."},
        {"step_id": 2, "source": "user", "message": "What is in a?", "timestamp": "2026-09-21T14:13:20+00:00"},
        {
            "step_id": 3,
            "timestamp": "2026-09-21T14:13:21.5",
            "source": "agent",
            "message": "I read.",
            "reasoning_content": "Two files.",
            "reasoning_effort": "low",
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "read", "arguments": {"path": "a"}},
                {"tool_call_id": "c2", "function_name": "read", "arguments": {"path": "b"}, "extra": {"retries": 1}},
            ],
            "observation": {
                "results": [{"source_call_id": "c1", "content": "A"}, {"source_call_id": "c2", "content": None}]
            },
            "metrics": {
                "prompt_tokens": 7,
                "completion_tokens": 2,
                "cached_tokens": 3,
                "cost_usd": 0.5,
                "prompt_token_ids": [1, 2, 3],
                "completion_token_ids": [4, 5],
                "logprobs": [-0.5, -0.25],
                "extra": {"seconds": 1},
            },
            "llm_call_count": 1,
        },
        {
            "step_id": 4,
            "timestamp": "2026-09-21T14:13:21Z",
            "source": "agent",
            "message": "",
            "model_name": "larger",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "delegate", "arguments": {}}],
            "observation": {
                "results": [
                    {
                        "source_call_id": "c1",
                        "content": "done",
                        "subagent_trajectory_ref": [{"trajectory_id": "sub", "session_id": "session"}],
                    },
                    {"content": "a line of the terminal"},
                ]
            },
        },
        {"step_id": 5, "source": "agent", "message": "Dispatch.", "llm_call_count": 0},
        {"step_id": 6, "source": "agent", "message": "It is A.", "extra": {"is_final": True}},
        {"step_id": 7, "source": "user", "message": "Thanks."},
    ],
    "notes": "a note",
    "final_metrics": {"total_prompt_tokens": 7, "total_steps": 7},
    "continued_trajectory_ref": "next.json",
    "subagent_trajectories": [
        {
            "schema_version": "ATIF-v1.7",
            "trajectory_id": "sub",
            "agent": _AGENT,
            "steps": [
                {"step_id": 1, "source": "user", "message": "Help."},
                {"step_id": 2, "source": "agent", "message": "Copied.", "is_copied_context": True},
                {"step_id": 3, "source": "agent", "message": "Helped."},
            ],
        }
    ],
}


def set_field(path: str, value: Any) -> Callable[[dict[str, Any]], object]:
    """Return a function that sets a field of a document."""
    *places, last = (int(place) if place.isdigit() else place for place in path.split("/"))

    def change(document: dict[str, Any]) -> None:
        part: Any = document
        for place in places:
            part = part[place]
        part[last] = value

    return change
