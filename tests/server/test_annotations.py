"""Labels and notes over HTTP: rights, authors, and repeated requests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store.interface.store import Store
from store.testing import ManualClock
from tests.server.api import Api
from tests.server.keyed import Keyed, keyed_server


async def test_an_annotation_is_answered_and_read_back(api: Api) -> None:
    (rollout,) = await api.enqueue()
    path = f"/rollouts/{rollout['rollout_id']}/annotations"
    done = (await api.post(path, {"note": "odd", "add_labels": ["good", "a/b, c"]})).ok()
    assert done == {"labels": ["a/b, c", "good"], "number": 2}
    state = (await api.get(path)).ok()
    assert state["labels"] == ["a/b, c", "good"]
    assert [(note["number"], note["text"], note["actor"]) for note in state["notes"]] == [(2, "odd", None)]
    assert (await api.get(f"{path}?at=1")).ok() == {"labels": [], "notes": []}
    assert (await api.get(f"{path}?limit=0")).ok()["notes"] == []


async def test_refusal_of_an_annotation_names_the_field(api: Api) -> None:
    (rollout,) = await api.enqueue()
    path = f"/rollouts/{rollout['rollout_id']}/annotations"
    for body, field in (({"add_labels": [" x"]}, "add_labels[0]"), ({}, "note"), ({"note": ""}, "note")):
        answer = await api.post(path, body)
        assert answer.status == 422
        assert field in answer.detail
    assert (await api.post(path, {"note": "x" * 65_537})).status == 413
    assert (await api.post("/rollouts/ro-nobody/annotations", {"note": "x"})).status == 404
    assert (await api.get("/rollouts/ro-nobody/annotations")).status == 404


async def test_a_repeated_request_is_answered_as_the_first_and_done_once(api: Api) -> None:
    (rollout,) = await api.enqueue()
    path = f"/rollouts/{rollout['rollout_id']}/annotations"
    key = {"Idempotency-Key": "0123456789abcdef0123456789abcdef"}
    body = {"note": "once", "add_labels": ["good"]}
    first = (await api.post(path, body, headers=key)).ok()
    (await api.post(path, {"add_labels": ["later"]})).ok()
    assert (await api.post(path, body, headers=key)).ok() == first
    state = (await api.get(path)).ok()
    assert [note["text"] for note in state["notes"]] == ["once"]
    assert state["labels"] == ["good", "later"]


@pytest.fixture
async def keyed(store: Store, store_url: str, clock: ManualClock) -> AsyncIterator[Keyed]:
    """A server of an empty store that asks for keys."""
    async with keyed_server(store, store_url, clock, always=True) as keyed:
        yield keyed


async def test_log_names_the_key_of_the_annotator(keyed: Keyed, store: Store) -> None:
    key, text = await keyed.make("algorithm")
    (rollout,) = (await keyed.ask(text, "POST", "/queues/rollouts/enqueue", json={"rollouts": [{"input": 1}]})).ok(201)
    path = f"/rollouts/{rollout['rollout_id']}/annotations"
    (await keyed.ask(text, "POST", path, json={"note": "mine"})).ok()
    (note,) = (await keyed.ask(text, "GET", path)).ok()["notes"]
    assert note["actor"] == f"key:{key.key_id}"
    events = await store.log.history(rollout["rollout_id"])
    assert {event.actor for event in events} == {f"key:{key.key_id}"}


async def test_readers_and_runners_read_and_say_nothing(keyed: Keyed) -> None:
    algorithm = await keyed.key("algorithm")
    (rollout,) = (await keyed.ask(algorithm, "POST", "/queues/rollouts/enqueue", json={"rollouts": [{"input": 1}]})).ok(
        201
    )
    path = f"/rollouts/{rollout['rollout_id']}/annotations"
    for role in ("reader", "runner"):
        text = await keyed.key(role)
        assert (await keyed.ask(text, "POST", path, json={"note": "mine"})).status == 403
        assert (await keyed.ask(text, "GET", path)).ok() == {"labels": [], "notes": []}
