"""`rollbook search`: excerpts for people, JSON for programs, and the index made again."""

from __future__ import annotations

from tests.cli.conftest import Filled, Rollbook


def test_search_prints_excerpts_and_json(rollbook: Rollbook, filled: Filled) -> None:
    rollbook("annotate", filled.retried, "-m", "the proxy was\n\033[2Jdown again")
    printed = rollbook("search", "note:proxy", terminal=True)
    assert printed.code == 0
    assert f"{filled.retried}  " in printed.out
    assert "note (event" in printed.out
    assert "\033[2J" not in printed.out
    page = rollbook("search", "note:proxy", "--json").json
    assert [result["rollout_id"] for result in page["results"]] == [filled.retried]
    (hit,) = page["results"][0]["hits"]
    assert [hit["text"][start:end] for start, end in hit["marks"]] == ["proxy"]
    inside = rollbook("search", "note:", "--rollout", filled.retried, "--json").json
    assert inside["results"] == page["results"] or inside["results"][0]["rollout_id"] == filled.retried
    assert rollbook("search", "note:proxy", "--status", "queuing", "--json").json["results"] == []


def test_wrong_query_is_refused_with_its_place(rollbook: Rollbook) -> None:
    printed = rollbook("search", 'a "b')
    assert (printed.code, printed.out) == (2, "")
    assert "character 3" in printed.err


def test_index_is_made_again(rollbook: Rollbook, filled: Filled) -> None:
    rollbook("annotate", filled.retried, "-m", "remarkable")
    made = rollbook("rebuild", "--index", "search")
    assert (made.code, "made again" in made.out) == (0, True)
    assert rollbook("search", "remarkable", "--json").json["events_behind"] == 0
    assert "is no index" in rollbook("rebuild", "--index", "unknown").err
