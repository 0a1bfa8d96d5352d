"""The cells of docs/notebook.ipynb. `python -m tests.notebook.cells` executes them and writes the notebook anew."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "docs/notebook.ipynb"
CELLS: tuple[tuple[str, str], ...] = (
    (
        "markdown",
        """\
# Rollbook in a notebook

Rollouts, traces, histories and differences have an HTML form, which Jupyter shows for the last value of a cell.""",
    ),
    (
        "code",
        """\
import rollbook
from rollbook.models import EnqueueRolloutRequest
from rollbook.models.spans import Span

store = rollbook.open_sync("sqlite:///notebook.db")
queued = store.enqueue_many_rollouts(
    [
        EnqueueRolloutRequest(
            input={"question": f"What is {number} + {number}?"},
            mode="train",
            metadata={"rollbook.group": "sums", "rollbook.step": number // 2},
        )
        for number in range(4)
    ]
)""",
    ),
    (
        "markdown",
        """\
A worker claims the rollouts. Each gets a trace: the agent, its call of a model, and a reward.""",
    ),
    (
        "code",
        """\
def spans(attempt, number, start=1_790_000_000.0):
    def span(place, name, parent, begin, end, **attributes):
        return Span.from_attributes(
            name=name,
            attributes=attributes,
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            sequence_id=place,
            trace_id="0" * 31 + "1",
            span_id=f"{attempt.attempt_id[-8:]}{place:08x}",
            parent_id=parent and f"{attempt.attempt_id[-8:]}{parent:08x}",
            start_time=start + begin,
            end_time=start + end,
        )

    call = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": f"What is {number} + {number}?",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": f"<b>{2 * number}</b>",
        "gen_ai.usage.output_tokens": 5,
    }
    return [
        span(1, "agent", None, 0.0, 1.2),
        span(2, "openai.chat.completion", 1, 0.1, 0.9, **call),
        span(3, "reward", 1, 1.0, 1.1, **{"agentlightning.reward.0.value": number / 4}),
    ]


for number, rollout in enumerate(store.dequeue_many_rollouts(limit=3, worker_id="notebook")):
    store.add_many_spans(spans(rollout.attempt, number))
    store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")

store.query_rollouts(sort_by="start_time")""",
    ),
    ("markdown", "A rollout, and the trace of its latest attempt:"),
    ("code", 'rollout = store.query_rollouts(status_in=["succeeded"], sort_by="start_time")[-1]\nrollout'),
    ("code", "store.query_spans(rollout.rollout_id)"),
    ("code", "store.query_spans(rollout.rollout_id)[1]"),
    ("markdown", "The last events of its history, which is a part of the log:"),
    ("code", "store.log.history(rollout.rollout_id, after=6)"),
    (
        "markdown",
        "Statements in SQL read the tables and views of [exports](sql.md):",
    ),
    (
        "code",
        """\
from rollbook.exports import query_sql

query_sql(store, "SELECT step, mode, rollouts, rewarded, reward FROM curves ORDER BY step")""",
    ),
    (
        "code",
        """\
query_sql(
    store,
    "SELECT m.role, m.content, c.model, r.reward"
    " FROM messages m JOIN model_calls c USING (rollout_id, call) JOIN rollouts r USING (rollout_id)"
    " ORDER BY r.start_time, place",
)""",
    ),
    ("markdown", "Whether the tables agree with the log:"),
    ("code", "store.log.verify()"),
    ("code", "store.close()"),
)


def execute(sources: list[str], display: Any) -> None:
    """Execute the sources of code cells in order, in one namespace, as Jupyter does.

    Args:
        sources: the sources.
        display: called with the index of a cell, what it printed and the value of its last expression, which may be
            None.
    """
    namespace: dict[str, Any] = {}
    for number, source in enumerate(sources):
        body = ast.parse(source).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(body, []), f"<cell {number}>", "exec"), namespace)
            value = None
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), namespace)
        display(number, printed.getvalue(), value)


def outputs(number: int, printed: str, value: Any) -> list[dict[str, Any]]:
    """Return the outputs of a cell in the format of notebooks."""
    of_cell: list[dict[str, Any]] = []
    if printed:
        of_cell.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if value is not None:
        data: dict[str, list[str]] = {"text/plain": [type(value).__name__]}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = [value._repr_html_()]
        of_cell.append({"data": data, "execution_count": number + 1, "metadata": {}, "output_type": "execute_result"})
    return of_cell


def notebook() -> dict[str, Any]:
    """Return the notebook with the outputs of its cells, executed in the current directory."""
    of_cells: list[list[dict[str, Any]]] = []

    def display(number: int, printed: str, value: Any) -> None:
        of_cells.append(outputs(number, printed, value))

    execute([text for kind, text in CELLS if kind == "code"], display)
    cells: list[dict[str, Any]] = []
    for place, (kind, text) in enumerate(CELLS):
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{place}",
            "metadata": {},
            "source": text.splitlines(keepends=True),
        }
        if kind == "code":
            number = sum(other == "code" for other, _ in CELLS[:place])
            cell |= {"execution_count": number + 1, "outputs": of_cells[number]}
        cells.append(cell)
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        NOTEBOOK.write_text(json.dumps(notebook(), indent=1, ensure_ascii=False) + "\n")
