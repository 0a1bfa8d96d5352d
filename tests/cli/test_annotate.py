"""`rollbook annotate`, and how labels and notes are shown."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Filled, Rollbook


def test_labels_and_a_note_are_recorded_and_shown(rollbook: Rollbook, filled: Filled) -> None:
    said = rollbook("annotate", filled.retried, "-l", "bad answer", "--label", "infra", "-m", "proxy was\ndown")
    assert said.code == 0
    assert said.out.splitlines()[1] == "  labels  bad answer, infra"
    printed = rollbook("show", filled.retried)
    assert "labels     bad answer, infra" in printed.out
    assert "proxy was\n    down" in printed.out
    assert "by cli" in printed.out
    assert rollbook("show", filled.retried, "--json").json["labels"] == ["bad answer", "infra"]


def test_labels_are_taken_off(rollbook: Rollbook, filled: Filled) -> None:
    rollbook("annotate", filled.retried, "-l", "new", "-l", "good")
    done = rollbook("annotate", filled.retried, "--remove-label", "new", "--json").json
    assert done["labels"] == ["good"]
    assert done["rollout_id"] == filled.retried
    again = rollbook("annotate", filled.retried, "--remove-label", "new")
    assert (again.code, "nothing changed" in again.out) == (0, True)


def test_past_is_shown_without_later_annotations(rollbook: Rollbook, filled: Filled) -> None:
    rollbook("annotate", filled.retried, "-l", "new", "-m", "seen")
    past = rollbook("show", filled.retried, "--at", "1", "--json").json
    assert (past["labels"], past["notes"]) == ([], [])


def test_history_describes_annotations(rollbook: Rollbook, filled: Filled) -> None:
    rollbook("annotate", filled.retried, "-l", "new", "-l", "good")
    rollbook("annotate", filled.retried, "-l", "bad", "--remove-label", "good", "-m", "no")
    told = [row["what"] for row in rollbook("history", filled.retried).table if row["type"] == "rollout.annotated"]
    assert told == ["labelled new, good", "labelled bad; no longer good; note added"]


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        ((), 2, "give --note TEXT"),
        (("-l", " x"), 2, "spaces"),
        (("-l", "x", "--remove-label", "x"), 2, "remove it from one of the lists"),
    ],
    ids=["nothing", "untrimmed", "both"],
)
def test_invalid_annotation_is_refused(
    rollbook: Rollbook, filled: Filled, arguments: tuple[str, ...], code: int, said: str
) -> None:
    refused = rollbook("annotate", filled.retried, *arguments)
    assert (refused.code, said in refused.err) == (code, True)


def test_control_characters_of_a_note_are_spelled_out(rollbook: Rollbook, filled: Filled) -> None:
    rollbook("annotate", filled.retried, "-m", "red \x1b[31m alert")
    output = rollbook("show", filled.retried).out
    assert "red \\x1b[31m alert" in output
    assert "\x1b" not in output


def test_note_refers_to_a_span(filled: Filled, rollbook: Rollbook) -> None:
    span_id = rollbook("show", filled.retried, "--json").json["spans"][0]["span_id"]
    rollbook("annotate", filled.retried, "-m", "loops here", "--span", span_id)
    assert f"on span {span_id}" in rollbook("show", filled.retried).out
    assert f"note added on span {span_id}" in rollbook("history", filled.retried).out
    assert rollbook("annotate", filled.retried, "-m", "x", "--span", "none").code == 5
    assert "--span needs --note" in rollbook("annotate", filled.retried, "-l", "x", "--span", span_id).err
