"""Pages of resources: versions with authors and rewards, contents, and differences."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from store.dashboard.diff.matching import Work
from store.dashboard.diff.texts import MOST_LINES, DiffRow, diff, is_comparable
from store.interface.store import Store
from store.models import LLM, NamedResources, PromptTemplate
from store.runtime.statistics import t_quantile
from store.testing import ManualClock
from store.testing.samples import make_prompt, make_span
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read
from tests.server.api import Api


async def _used(store: Store, resources_id: str, reward: float) -> None:
    await store.enqueue_rollout({"question": 1}, resources_id=resources_id)
    claimed = await store.dequeue_rollout(worker_id="w-1")
    assert claimed is not None
    attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward}
    await store.add_span(make_span(claimed.attempt, attributes=attributes))
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")


async def _versions(store: Store, *published: NamedResources) -> str:
    first = await store.add_resources(published[0])
    for resources in published[1:]:
        await store.update_resources(first.resources_id, resources)
    return first.resources_id


async def _one(api: Api, resources_id: str, query: str = "") -> Any:
    return (await api.get(f"//ui/resources/{quote(resources_id, safe='')}.json{query}")).ok()


async def test_an_empty_store_says_how_resources_are_published(api: Api) -> None:
    assert (await api.get("//ui/resources.json")).ok()["resources"] == []
    assert "add_resources" in Read((await api.get("//ui/resources")).body).text


@ON_BOTH
async def test_list_shows_names_use_and_rewards_of_resources(api: Api, store: Store) -> None:
    older = await _versions(store, make_prompt("A"))
    newer = await _versions(store, make_prompt("B"), {**make_prompt("C"), "llm": LLM(endpoint="http://l", model="m")})
    await _used(store, older, 0.25)
    await _used(store, older, 0.75)
    await _used(store, newer, 1.0)
    first, second = (await api.get("//ui/resources.json")).ok()["resources"]
    assert (first["resources_id"], first["version"], first["is_latest"]) == (newer, 2, True)
    assert sorted(first["names"]) == ["llm", "prompt"]
    assert first["use"].items() >= {"rollouts": 1, "mean_reward": 1.0, "rewarded": 1, "ended": 1}.items()
    assert (second["resources_id"], second["is_latest"]) == (older, False)
    assert second["use"]["mean_reward"] == 0.5
    assert [
        resource["resources_id"] for resource in (await api.get(f"//ui/resources.json?q={older}")).ok()["resources"]
    ] == [older]


async def test_resource_list_is_paged(api: Api, store: Store) -> None:
    ids = [await _versions(store, make_prompt(str(number))) for number in range(5)]
    listed: list[str] = []
    for offset in (0, 2, 4):
        page = (await api.get(f"//ui/resources.json?limit=2&offset={offset}")).ok()
        assert page["total"] == 5
        listed += [resource["resources_id"] for resource in page["resources"]]
    assert listed == ids[::-1]


@ON_BOTH
async def test_each_version_tells_its_rewards_and_when_it_was_used(api: Api, store: Store, clock: ManualClock) -> None:
    resources_id = await _versions(store, make_prompt("A"))
    await _used(store, resources_id, 0.0)
    clock.advance(60)
    await _used(store, resources_id, 1.0)
    await store.update_resources(resources_id, make_prompt("B"))
    await _used(store, resources_id, 0.75)
    newer, older = (await _one(api, resources_id))["versions"]
    assert (newer["version"], newer["use"]["mean_reward"], newer["attempts"]) == (2, 0.75, 1)
    assert (older["version"], older["use"]["mean_reward"], older["attempts"]) == (1, 0.5, 2)
    assert older["last_use_at"] - older["first_use_at"] > 59_000_000
    assert older["last_use_at"] < newer["first_use_at"]


@ON_BOTH
async def test_version_shows_how_many_of_its_rollouts_are_rewarded_and_both_means(api: Api, store: Store) -> None:
    resources_id = await _versions(store, make_prompt("A"), make_prompt("B"))
    for step, reward in enumerate((0.0, 0.25, 1.0, None)):
        rollout = await store.start_rollout({"step": step}, resources_id=resources_id, metadata={"rollbook.step": step})
        ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        if reward is not None:
            attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward}
            await store.add_span(make_span(rollout.attempt, attributes=attributes))
        await store.update_attempt(*ids, status="failed" if reward is None else "succeeded")
    use = (await _one(api, resources_id))["versions"][0]["use"]
    assert (use["rewarded_ended"], use["ended"], use["first_step"], use["last_step"]) == (3, 4, 0, 3)
    for name, values in (("counted", [0.0, 0.25, 1.0, 0.0]), ("rewarded_only", [0.0, 0.25, 1.0])):
        margin = t_quantile(len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
        assert use[name] == pytest.approx({"counted": len(values), "mean": np.mean(values), "margin": margin})
    page = Read((await api.get(f"//ui/resources/{resources_id}?version=2")).body)
    link = f"/ui/rollouts?resources={resources_id}&version=2"
    assert page.links.count(link) == 3
    assert "Contents of v2" in page.text
    assert (await api.get(f"/{link.replace('?', '.json?')}")).ok()["total"] == 4
    assert (await api.get(f"//ui/rollouts.json?resources={resources_id}&version=1")).ok()["total"] == 0
    listed = Read((await api.get("//ui/rollouts")).body)
    assert f"/ui/resources/{resources_id}?version=2" in listed.links


async def test_any_version_is_shown_as_it_was(api: Api, store: Store) -> None:
    resources_id = await _versions(store, make_prompt("first"), make_prompt("second"), make_prompt("third"))
    for version, text in ((1, "first"), (2, "second"), (3, "third")):
        values = await _one(api, resources_id, f"?version={version}")
        assert [entry["text"] for entry in values["content"]] == [text]
    assert (await _one(api, resources_id))["version"] == 3


async def test_a_version_is_compared_with_the_one_before_unless_another_is_named(api: Api, store: Store) -> None:
    resources_id = await _versions(store, make_prompt("a\nb"), make_prompt("a\nc"), make_prompt("a\nc\nd"))
    values = await _one(api, resources_id)
    assert values["against"] == {"resources_id": resources_id, "version": 2}
    (change,) = values["changes"]
    assert (change["state"], change["diff"]["removed"], change["diff"]["added"]) == ("changed", 0, 1)
    (change,) = (await _one(api, resources_id, "?against=1"))["changes"]
    assert (change["diff"]["removed"], change["diff"]["added"]) == (1, 2)
    assert (await _one(api, resources_id, "?version=1"))["changes"] is None


async def test_another_id_can_be_compared_with(api: Api, store: Store) -> None:
    older = await _versions(store, {**make_prompt("same"), "gone": PromptTemplate(template="x", engine="jinja")})
    newer = await _versions(store, {**make_prompt("same"), "come": PromptTemplate(template="y", engine="jinja")})
    values = await _one(api, newer, f"?against_id={older}")
    assert values["against"] == {"resources_id": older, "version": 1}
    assert {change["name"]: change["state"] for change in values["changes"]} == {
        "come": "added",
        "gone": "removed",
        "prompt": "same",
    }
    for view in ("unified", "side"):
        page = Read((await api.get(f"//ui/resources/{newer}?against_id={older}&view={view}")).body)
        assert "type: prompt_template" in page.text
    assert (
        f"/ui/resources/{newer}?version=1&against_id={older}&view=unified"
        in Read((await api.get(f"//ui/resources/{newer}")).body).links
    )


async def test_keys_to_other_services_are_never_shown(api: Api, store: Store) -> None:
    def model(key: str) -> NamedResources:
        return {"llm": LLM(endpoint="http://l", model="m", api_key=key, sampling_parameters={"api_key": key})}

    resources_id = await _versions(store, model("secret-one"), model("secret-two"))
    for path in (f"//ui/resources/{resources_id}.json", f"//ui/resources/{resources_id}", "//ui/resources.json"):
        answer = await api.get(path)
        assert answer.status == 200
        assert b"secret-" not in answer.body


async def test_long_texts_are_cut_unless_all_is_asked_for(api: Api, store: Store) -> None:
    resources_id = await _versions(store, make_prompt("x" * 200_000))
    (cut,) = (await _one(api, resources_id))["content"]
    assert cut["is_cut"]
    assert len(cut["text"]) == 50_000
    (entry,) = (await _one(api, resources_id, "?whole=1"))["content"]
    assert len(entry["text"]) == 200_000


async def test_texts_too_long_to_compare_are_marked_as_different(api: Api, store: Store) -> None:
    resources_id = await _versions(store, make_prompt("x" * 400_000), make_prompt("y" * 400_000))
    (change,) = (await _one(api, resources_id))["changes"]
    assert (change["state"], change["diff"]) == ("too large", None)
    assert "too long" in Read((await api.get(f"//ui/resources/{resources_id}")).body).text


async def test_hostile_texts_stay_text(api: Api, store: Store) -> None:
    prompts: list[NamedResources] = [
        {HOSTILE: PromptTemplate(template=f"{HOSTILE}\n{number}", engine="jinja")} for number in range(2)
    ]
    await store.update_resources(HOSTILE, prompts[0])
    await store.update_resources(HOSTILE, prompts[1])
    for path in ("//ui/resources", f"//ui/resources/{quote(HOSTILE, safe='')}"):
        page = Read((await api.get(path)).body)
        assert not {"img", "script"} & set(page.tags[page.tags.index("main") :])
        assert "<script>alert(1)</script>" in page.text


async def test_missing_resources_and_versions_are_refused(api: Api, store: Store) -> None:
    resources_id = await _versions(store, make_prompt())
    for path, status in (
        ("none.json", 404),
        (f"{resources_id}.json?version=9", 422),
        (f"{resources_id}.json?against=9", 422),
        (f"{resources_id}.json?against_id=x", 404),
    ):
        assert (await api.get(f"//ui/resources/{path}")).status == status, path


def _text(pieces: Sequence[tuple[str, bool]]) -> str:
    return "".join(piece for piece, _ in pieces)


def _sides(rows: Sequence[DiffRow]) -> tuple[dict[int, str], dict[int, str]]:
    old = {row.left: _text(row.old) for row in rows if row.left is not None}
    new = {row.right: _text(row.new) for row in rows if row.right is not None}
    return old, new


def test_diff_reproduces_both_texts_and_omits_only_equal_lines() -> None:
    drawn = random.Random(11)
    for _ in range(50):
        before = [drawn.choice(("a b", "b", "", "c d e", "<x>")) for _ in range(drawn.randrange(60))]
        after = [line for line in before if drawn.random() > 0.1]
        for _ in range(drawn.randrange(4)):
            after.insert(drawn.randrange(len(after) + 1), drawn.choice(("new", "a b", "c d f")))
        texts = diff("\n".join(before) + "\n", "\n".join(after) + "\n")
        old, new = _sides(texts.rows)
        assert all(before[number - 1] == line for number, line in old.items())
        assert all(after[number - 1] == line for number, line in new.items())
        hidden_old = [line for number, line in enumerate(before, 1) if number not in old]
        hidden_new = [line for number, line in enumerate(after, 1) if number not in new]
        assert hidden_old == hidden_new
        assert len(before) - texts.removed + texts.added == len(after)


def test_within_a_changed_line_only_the_words_that_differ_are_marked() -> None:
    (row,) = diff("You are a careful assistant.", "You are a precise assistant.").rows
    assert [text for text, differs in row.old if differs] == ["careful"]
    assert [text for text, differs in row.new if differs] == ["precise"]


def test_texts_in_which_all_recurs_are_compared_roughly_and_truly() -> None:
    """Matching them takes the square of their length."""
    work = Work(500_000)
    drawn = random.Random(5)
    before, after = (["".join(drawn.choices(".,", k=1_000)) for _ in range(20)] for _ in range(2))
    texts = diff("\n".join(before), "\n".join(after), work)
    assert (texts.is_rough, work.is_spent, work.left >= 0) == (True, True, True)
    assert _sides(texts.rows) == (dict(enumerate(before, 1)), dict(enumerate(after, 1)))
    assert not diff("a b", "a c", work).is_rough
    assert not is_comparable("\r" * MOST_LINES)


def test_only_texts_of_bounded_length_are_compared() -> None:
    assert is_comparable("x\n" * (MOST_LINES - 1))
    assert not is_comparable("x\n" * MOST_LINES)
    texts = diff("\n".join(f"a{n}" for n in range(MOST_LINES - 1)), "\n".join(f"b{n}" for n in range(MOST_LINES - 1)))
    assert texts.is_cut
    assert len(texts.rows) == 2_000
