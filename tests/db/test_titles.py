"""Titles of tasks, which are read from the inputs of rollouts."""

from __future__ import annotations

from typing import Any

import pytest

from store.db.queries.input_starts import MOST_BYTES, input_titles, title
from store.sql.store import SQLStore
from tests.dashboard.page_helpers import ON_BOTH


@pytest.mark.parametrize(
    "value, expected",
    [
        ("Who wrote it? Answer in one word.", "Who wrote it?"),
        ("# Fix the parser.\n\nIt fails.", "Fix the parser"),
        ("version 3.11 is out", "version 3.11 is out"),
        ({"question": "6 times 7"}, "6 times 7"),
        ({"difficulty": 3, "task": "Sort a list. Fast."}, "Sort a list"),
        ({"instance_id": "flask-1296", "issue": "Dates fail. See below."}, "flask-1296: Dates fail"),
        ({"id": "flask-1296", "title": "flask-1296 fails"}, "flask-1296 fails"),
        ({"task": {"question": "Who?"}}, "Who?"),
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why? And how?"}], "Why?"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Look."}]}]}, "Look"),
        ({"seed": 7, "level": 2}, "seed: 7, level: 2"),
        ({"custom": "Only one field. Two sentences."}, "Only one field"),
        (42, "42"),
        ({"question": "  ", "id": "t-1"}, "t-1"),
        (None, ""),
        ("", ""),
        ("a" * 200, "a" * 139 + "…"),
    ],
)
def test_title_is_the_first_sentence_of_the_task_after_its_id(value: Any, expected: str) -> None:
    assert title(value) == expected


@ON_BOTH
async def test_titles_of_rollouts_are_read_from_the_beginning_of_their_inputs(store: SQLStore) -> None:
    noise = (
        "".join(chr(33 + number * number % 90) for number in range(2 * MOST_BYTES)).replace("\\", "").replace('"', "")
    )
    inputs: list[Any] = [
        {"question": "Who? Tell."},
        "Sort it.",
        {"context": "c", "question": 'Is "it" é? Yes.', "noise": noise},
        {"question": "é" * 700, "noise": noise},
        None,
    ]
    ids = [(await store.enqueue_rollout(value)).rollout_id for value in inputs]
    titles = await store.core.look(lambda session: input_titles(session, [*ids, "ro-none"], 80))
    assert titles == dict(zip(ids, ["Who?", "Sort it", 'Is "it" é?', "é" * 79 + "…"], strict=False))
