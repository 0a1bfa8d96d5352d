"""Values in notebooks: HTML without scripts, in which all text is escaped; and docs/notebook.ipynb, which runs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from store import open_sync
from store.exports import query_sql
from store.models import Difference, PaginatedResult
from store.models.log import History, HistoryEvent, VerifyReport
from store.models.runs import AttemptDiff, NodeChange, NodeDifference, NodeRun
from store.runtime import html
from tests.exports.agents import span
from tests.notebook.cells import CELLS, NOTEBOOK, execute, outputs

BAD = "<script>alert('x')</script>\"&"


class Checked(HTMLParser):
    """Parser of HTML that checks its tags, and collects its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"div", "b", "table", "tr", "th", "td", "span"}, tag
        assert {name for name, _ in attrs} <= {"style"}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def texts(value: Any) -> list[str]:
    """The texts of the HTML of a value."""
    return Checked(value._repr_html_()).texts


def test_every_text_of_a_store_is_escaped() -> None:
    with open_sync("memory://") as store:
        rollout = store.start_rollout({"question": BAD}, metadata={BAD: BAD}, worker_id="w")
        recorded = span(rollout.attempt, 1, {BAD: BAD, "agentlightning.reward.0.value": 1.0}, name=BAD)
        store.add_span(recorded)
        values: list[Any] = [
            rollout,
            store.get_rollout_by_id(rollout.rollout_id),
            store.query_rollouts(),
            store.query_attempts(rollout.rollout_id),
            store.query_attempts(rollout.rollout_id)[0],
            store.query_spans(rollout.rollout_id),
            recorded,
            store.query_workers(),
            store.log.history(rollout.rollout_id),
            store.log.history(rollout.rollout_id)[0],
            query_sql(store, "SELECT name, name, attributes FROM spans"),
        ]
        for value in values:
            assert texts(value)
        assert BAD in texts(recorded)
        assert BAD in texts(store.query_spans(rollout.rollout_id))
        assert [text for text in texts(values[-1]) if text.startswith("name")] == ["name", "name (1)"]
        assert "Result: 0 of 0" in texts(store.query_rollouts(status_in=["failed"]))


def test_a_trace_contains_every_span_once_below_its_parent() -> None:
    attempt = SimpleNamespace(rollout_id="ro-1", attempt_id="at-12345678")
    parents = {1: None, 2: 1, 3: 2, 4: 99, 5: 6, 6: 5, 7: 7}  # 99 is missing, and 5, 6 and 7 are circles
    spans = [
        span(attempt, number, {}, name=f"span {number}", span_id=str(number), parent_id=parent and str(parent))
        for number, parent in parents.items()
    ]
    trace = html.items(spans)
    named = re.findall(r"padding-left:([\d.]+)em\">span (\d)", trace)
    assert named == [("0.0", "1"), ("1.2", "2"), ("2.4", "3"), ("0.0", "4"), ("0.0", "5"), ("1.2", "6"), ("0.0", "7")]
    starts = [float(left) for left in re.findall(r"margin-left:([\d.]+)%", trace)]
    assert (starts == sorted(starts), starts[0], max(starts) < 100) == (True, 0.0, True)
    untimed = span(attempt, 8, {}, start_time=None, end_time=None)
    failed = untimed.model_copy(update={"status": untimed.status.model_copy(update={"status_code": "ERROR"})})
    assert "220,60,60" in html.items([failed])


def test_a_long_value_is_cut_and_the_other_rows_are_counted() -> None:
    events = [
        HistoryEvent(number=number, position=number, at=1e300, type="t", actor=None, cause=None, data={}, body=None)
        for number in range(1, 61)
    ]
    event = events[0].model_copy(update={"data": {"text": "x" * 300}})
    printed = texts(History([event, *events[1:]]))
    assert ("History: 60 events" in printed, "… and 10 more" in printed, "1e+300" in printed) == (True, True, True)
    assert any(text.endswith("…") and len(text) == 201 for text in printed)
    page = PaginatedResult[HistoryEvent](items=events[:2], limit=2, offset=0, total=60)
    assert {"HistoryEvent: 2 of 60", "… and 58 more"} <= {*texts(page)}


def test_differences_of_attempts_and_of_a_verification_are_tables() -> None:
    run = NodeRun(version=1, attempt=1, status="completed")
    changes: list[tuple[str, NodeChange]] = [("same", "kept"), ("gone", "removed")]
    nodes = [
        NodeDifference(
            scope="A", node_id=name, parent_node_id=None, ordinal=1, change=change, before=run, after=None,
            failed=False, same_response=None, deltas={"tokens": -3.0},
        )
        for name, change in changes
    ]  # fmt: skip
    diff = AttemptDiff(a=1, b=2, nodes=nodes, counts={"kept": 1, "removed": 1}, totals={})
    assert ("gone" in texts(diff), "same" in texts(diff), "Attempt 1 → attempt 2" in texts(diff)) == (True, False, True)
    difference = Difference(check="rollouts", key="ro-1", field="status", expected="failed", found=BAD)
    report = VerifyReport(
        store_id="s", commits=1, events=1, streams=1, rows={}, last_position=1, chain_head="", state_hash="",
        seal_checked=False, differences=[difference], difference_count=1, seconds=0.1,
    )  # fmt: skip
    assert {"1 differences", BAD, "ro-1"} <= {*texts(report)}


def test_the_notebook_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert cells == list(CELLS), "run python -m tests.notebook.cells"
    monkeypatch.chdir(tmp_path)
    kinds: list[list[list[str]]] = []

    def note(number: int, printed: str, value: Any) -> None:
        kinds.append([sorted(output["data"]) for output in outputs(number, printed, value)])

    execute([source for kind, source in cells if kind == "code"], note)
    committed = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [[sorted(output["data"]) for output in of_cell] for of_cell in committed] == kinds
    for output in (output for of_cell in committed for output in of_cell):
        Checked("".join(output["data"]["text/html"]))
    assert not re.search(r"/(tmp|home|root|work|Users)/|pid", NOTEBOOK.read_text())
