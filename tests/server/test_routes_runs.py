"""Runs over HTTP: answers, statuses, and repeated requests."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from store.errors import StoreError
from store.interface.store import Store
from store.models import AttemptedRollout
from store.server.partitions import Partitions
from store.wire.errors import error_of
from tests.runs.trading import RISK, TA
from tests.runs.trading_runs import auto_run, begin, do_phase, ended
from tests.server.api import Answer, Api, speaking_to

RISK_OF_RIG: dict[str, Any] = {"phase": "risk", "scopes": ["RIG"]}
CONFIRMED: dict[str, Any] = {**RISK_OF_RIG, "confirm_side_effects": True}


@pytest.fixture
async def run(store: Store) -> AttemptedRollout:
    """A run that has ended, of everything."""
    return await auto_run(store, tickers=["RIG"])


def at(run: AttemptedRollout, rest: str = "") -> str:
    return f"/rollouts/{run.rollout_id}{rest}"


def of_attempt(run: AttemptedRollout, rest: str = "") -> str:
    return at(run, f"/attempts/{run.attempt.attempt_id}{rest}")


async def test_appended_run_events_are_read_in_pages(api: Api, store: Store) -> None:
    run = await begin(store)
    said = [{"kind": "log", "node_id": "n", "scope": "RIG", "message": f"{number}", "own": [1]} for number in range(5)]
    versions = (await api.post(of_attempt(run, "/events"), {"events": said})).ok(201)["versions"]
    first = (await api.get(at(run, "/events?limit=3"))).ok()
    assert ([event["version"] for event in first["items"]], first["has_more"]) == (versions[:3], True)
    assert first["items"][0]["extra"] == {"own": [1]}
    rest = (await api.get(at(run, f"/events?limit=3&after={first['next_after']}&bodies=false"))).ok()
    assert [(event["version"], event["message"]) for event in rest["items"]] == [
        (version, None) for version in versions[3:]
    ]
    assert (rest["has_more"], rest["head"], rest["next_after"]) == (False, 1, versions[-1])


async def test_a_view_is_cut_where_it_is_asked_for(api: Api, run: AttemptedRollout, store: Store) -> None:
    events = (await api.get(at(run, "/events?limit=-1"))).ok()["items"]
    middle = events[len(events) // 2]
    cuts: list[dict[str, Any]] = [{"at": middle["version"]}, {"as_at": middle["position"]}]
    for cut in cuts:
        ((name, where),) = cut.items()
        seen = (await api.get(at(run, f"/events?limit=-1&view=raw&{name}={where}"))).ok()["items"]
        beside = await store.runs.query_events(run.rollout_id, view="raw", limit=-1, **cut)
        assert [event["version"] for event in seen] == [row.version for row in beside.items]
        assert 0 < len(seen) < len(events)
    only = (await api.get(at(run, f"/events?scope=RIG&kind=result&node_id={quote(RISK[0])}"))).ok()["items"]
    assert [(event["node_id"], event["kind"]) for event in only] == [(RISK[0], "result")]


async def test_a_long_view_is_one_answer(api: Api, store: Store) -> None:
    run = await begin(store)
    text = "x" * 900
    events = [{"kind": "log", "message": f"{number} {text}"} for number in range(1500)]
    for part in (events[:750], events[750:]):
        (await api.post(of_attempt(run, "/events"), {"events": part})).ok(201)
    page = (await api.get(at(run, "/events?limit=-1"))).ok()
    assert [event["message"] for event in page["items"]] == [event["message"] for event in events]
    assert (page["has_more"], page["head"]) == (False, 1)


async def test_a_graph_is_drawn_by_the_runs_phase_graph_or_by_the_one_that_is_sent(
    api: Api, run: AttemptedRollout
) -> None:
    drawn = (await api.get(at(run, "/graph"))).ok()
    assert {column["kind"] for column in drawn["columns"]} == {"market", "ticker", "portfolio"}
    phases = [phase.model_dump() | {"name": f"my_{phase.name}"} for phase in TA.phases]
    alone: dict[str, Any] = {"after": [], "cascade": [], "requires": None}
    plain: dict[str, Any] = TA.model_dump() | {"phases": [phase | alone for phase in phases]}
    sent = (await api.post(at(run, "/graph"), {"graph": plain, "view": "attempt:1"})).ok()
    assert {node["phase"] for column in sent["columns"] for node in column["nodes"]} >= {"my_risk", "my_analysts"}


async def test_a_checkpoint_is_saved_listed_and_loaded(api: Api, store: Store) -> None:
    run = await begin(store)
    body = {"attempt_id": run.attempt.attempt_id, "scope": "rig", "name": "trader_checkpoint"}
    first, second = [
        (await api.post(at(run, "/checkpoints"), {**body, "state": {"trader_investment_plan": plan}})).ok(201)
        for plan in ("buy", "sell")
    ]
    assert (first["scope"], second["parent_id"]) == ("RIG", first["checkpoint_id"])
    rejected = await api.post(at(run, "/checkpoints"), {**body, "state": {"trader_investment_plan": ""}})
    assert rejected.ok(201) is None
    assert (await api.get(at(run, "/checkpoints?scope=RIG"))).ok() == [first, second]
    latest = (await api.get(at(run, "/checkpoints/latest?scope=RIG&name=trader_checkpoint"))).ok()
    assert latest == {**second, "state": {"trader_investment_plan": "sell"}}
    assert (await api.get(at(run, "/checkpoints/latest?scope=TSDD&name=trader_checkpoint"))).ok() is None
    loaded = (await api.get(at(run, f"/checkpoints/{first['checkpoint_id']}"))).ok()
    assert loaded == {**first, "state": {"trader_investment_plan": "buy"}}


async def test_an_artifact_is_saved_found_and_taken_back(api: Api, store: Store) -> None:
    run = await begin(store)
    body = {"attempt_id": run.attempt.attempt_id, "scope": "RIG", "name": "report"}
    artifacts = [
        (await api.post(at(run, "/artifacts"), {**body, "content": content})).ok(201) for content in (None, {"a": [1]})
    ]
    found_artifacts = (await api.get(at(run, "/artifacts?name=report"))).ok()
    assert [artifact["content"] for artifact in found_artifacts] == [None, {"a": [1]}]
    gone = (await api.post(at(run, f"/artifacts/{artifacts[1]['artifact_id']}/retract"))).ok()
    assert (gone["artifact_id"], gone["retracted"]) == (artifacts[1]["artifact_id"], True)
    assert len((await api.get(at(run, "/artifacts"))).ok()) == 1
    history = (await api.get("/artifacts?scope=RIG")).ok()
    assert [(artifact["artifact_id"], artifact["retracted"]) for artifact in history] == [
        (artifacts[1]["artifact_id"], True),
        (artifacts[0]["artifact_id"], False),
    ]


async def test_a_fork_is_planned_begun_and_found_where_it_says(api: Api, run: AttemptedRollout) -> None:
    plan = (await api.post(at(run, "/forks:plan"), RISK_OF_RIG)).ok()
    assert (plan["entry"], plan["unsafe"], plan["head"]) == (RISK[0], ["portfolio"], 1)
    begun = await api.post(at(run, "/forks"), {**CONFIRMED, "expected_head": 1, "reason": "why not"})
    fork = begun.ok(201)
    assert (fork["attempt"]["sequence_id"], fork["fork"]["reason"]) == (2, "why not")
    assert begun.headers["location"] == f"/v1/agl/rollouts/{run.rollout_id}/attempts/{fork['attempt']['attempt_id']}"
    assert (await api.get(begun.headers["location"].removeprefix("/v1/agl"))).ok() == fork["attempt"]
    lineage = (await api.get(at(run, "/lineage"))).ok()
    assert [(attempt["sequence_id"], attempt["base"], attempt["is_head"]) for attempt in lineage] == [
        (1, None, False),
        (2, 1, True),
    ]
    moved = (await api.post(at(run, "/head"), {"attempt_id": run.attempt.attempt_id})).ok()
    assert moved["rollout_id"] == run.rollout_id
    assert [attempt["is_head"] for attempt in (await api.get(at(run, "/lineage"))).ok()] == [True, False]
    changed = (await api.get(at(run, "/compare?a=1&b=2"))).ok()
    assert changed["counts"]["removed"] > 0


async def test_a_run_that_died_goes_on(api: Api, store: Store) -> None:
    run = await begin(store)
    await do_phase(store, run, "analysts", "RIG")
    await ended(store, run, "failed")
    answer = await api.post(at(run, "/resume"))
    resumed = answer.ok(201)
    assert (resumed["fork"]["kind"], resumed["fork"]["phase"]) == ("resume", "debate_and_trader")
    assert answer.headers["location"].endswith(resumed["attempt"]["attempt_id"])


REFUSED: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("POST", "/forks", RISK_OF_RIG, 428, "SideEffectsUnconfirmed"),
    ("POST", "/forks", {**CONFIRMED, "expected_head": 7}, 412, "HeadMoved"),
    ("POST", "/forks", {**CONFIRMED, "phase": "debate_and_trader", "scopes": ["NONE"]}, 422, "Invalid"),
    ("POST", "/forks:plan", {"node": "nobody", "scopes": ["RIG"]}, 422, "Invalid"),
    ("POST", "/forks:plan", {**RISK_OF_RIG, "base": "attempt:9"}, 404, "NotFound"),
    ("POST", "/resume", {}, 422, "Invalid"),
    ("POST", "/head", {"attempt_id": "nobody"}, 404, "NotFound"),
    ("POST", "/artifacts/nothing/retract", {}, 404, "NotFound"),
    ("POST", "/attempts/nobody/events", {"events": [{"kind": "log"}]}, 404, "NotFound"),
    ("POST", "/checkpoints", {"attempt_id": "nobody", "scope": "a", "name": "b", "state": {}}, 404, "NotFound"),
    ("GET", "/events?view=sideways", {}, 422, "Invalid"),
    ("GET", "/events?view=attempt:9", {}, 404, "NotFound"),
    ("GET", "/events?at=1&as_at=1", {}, 422, "Invalid"),
    ("GET", "/checkpoints/nothing", {}, 404, "NotFound"),
    ("GET", "/compare?a=1&b=9", {}, 404, "NotFound"),
    ("GET", "/attempts/nobody", {}, 404, "NotFound"),
]


@pytest.mark.parametrize("method,path,body,status,kind", REFUSED, ids=[f"{case[1]}-{case[3]}" for case in REFUSED])
async def test_a_refusal_has_the_status_of_its_class(
    api: Api, run: AttemptedRollout, method: str, path: str, body: Any, status: int, kind: str
) -> None:
    answer = await (api.get(at(run, path)) if method == "GET" else api.post(at(run, path), body))
    assert (answer.status, answer.json.get("error_type")) == (status, kind), answer
    assert str(error_of(answer.status, answer.body, path)) == answer.detail


async def test_refused_fork_has_the_status_and_type_of_its_obstacle(api: Api, store: Store) -> None:
    run = await begin(store)
    await do_phase(store, run, "analysts", "RIG")
    busy = await api.post(at(run, "/forks"), CONFIRMED)
    await ended(store, run)
    missing = await api.post(at(run, "/forks"), CONFIRMED)
    other = TA.model_copy(update={"version": "2"}).model_dump()
    debate = {**CONFIRMED, "phase": "debate_and_trader", "graph": other}
    changed = await api.post(at(run, "/forks"), debate)
    assert [(answer.status, answer.json["error_type"]) for answer in (busy, missing, changed)] == [
        (409, "AttemptActive"),
        (424, "CheckpointMissing"),
        (409, "GraphChanged"),
    ]
    assert vars(_again(missing))["scopes"] == ["RIG"]
    (await api.post(at(run, "/forks"), {**debate, "allow_graph_change": True})).ok(201)
    superseding = {**CONFIRMED, "phase": "analysts", "on_active": "supersede"}
    assert (await api.post(at(run, "/forks"), superseding)).ok(201)["attempt"]["sequence_id"] == 3


def _again(answer: Answer) -> StoreError:
    return error_of(answer.status, answer.body, "POST")


@pytest.mark.parametrize("path", ["/events", "/graph", "/checkpoints", "/checkpoints/c", "/artifacts", "/lineage"])
async def test_a_run_that_is_not_there_is_not_found(api: Api, path: str) -> None:
    answer = await api.get(f"/rollouts/nobody{path}")
    assert (answer.status, answer.detail) == (404, "Rollout nobody not found")


WRONG: list[tuple[str, Any]] = [
    ("/attempts/a/events", {}),
    ("/attempts/a/events", {"events": [{"node_id": "n"}]}),
    ("/attempts/a/events", {"events": [{"kind": "log", "metrics": 7}]}),
    ("/attempts/a/events", {"events": [{"kind": "phase.started"}]}),
    ("/attempts/a/events", b'{"events": [{"kind": "log", "metrics": {"cost": NaN}}]}'),
    ("/attempts/a/events", b'{"events": [{"kind": "log", "message": "\\ud800"}]}'),
    ("/attempts/a/events", {"events": [{"kind": "log", "message": "\0"}]}),
    ("/checkpoints", {"attempt_id": "a", "scope": "s", "name": "n", "state": [1]}),
    ("/checkpoints", {"attempt_id": "a", "scope": "s"}),
    ("/artifacts", {"attempt_id": "a", "scope": "s", "name": "n"}),
    ("/forks", {"phase": "risk", "scopes": "RIG"}),
    ("/forks", {"phase": "risk", "scopes": None}),
    ("/forks", {"phase": "risk", "on_missing": "guess"}),
    ("/forks", {"phase": "risk", "graph": {"name": "g"}}),
    ("/head", {}),
    (
        "/graph",
        {"graph": {"resource_type": "phase_graph", "name": "g", "version": "1", "scope_kinds": {}, "phases": []}},
    ),
]


@pytest.mark.parametrize("path,body", WRONG, ids=[f"{number}{case[0]}" for number, case in enumerate(WRONG)])
async def test_malformed_body_of_a_run_call_is_refused_and_changes_nothing(
    api: Api, store: Store, path: str, body: Any
) -> None:
    run = await begin(store)
    before = len(await store.log.history(run.rollout_id))
    answer = await api.post(at(run, path.replace("/a/", f"/{run.attempt.attempt_id}/")), body)
    assert (answer.status, bool(answer.detail)) == (422, True), answer
    assert len(await store.log.history(run.rollout_id)) == before


@pytest.mark.parametrize(
    "path",
    ["/events?after=", "/events?limit=", "/events?at=", "/events?view=own:", "/artifacts?limit=", "/compare?b=1&a="],
)
async def test_a_number_beyond_every_number_is_no_fault_of_ours(api: Api, store: Store, path: str) -> None:
    run = await begin(store)
    answers = [await api.get(at(run, f"{path}{number}")) for number in (2**31, 2**63, 10**40)]
    assert {answer.status for answer in answers} <= {200, 404, 422}
    assert [(await api.get(f"/artifacts?scope=RIG&limit={number}")).status for number in (2**63 - 1, 2**63)] == [
        200,
        422,
    ]
    assert await store.runs.scope_history("RIG", limit=10**40) == []


async def test_a_call_that_is_too_large_is_refused(api: Api, store: Store) -> None:
    run = await begin(store)
    many = await api.post(of_attempt(run, "/events"), {"events": [{"kind": "log"}] * 10_001})
    assert (many.status, many.json["error_type"]) == (413, "TooLarge")
    checkpoint = {"attempt_id": run.attempt.attempt_id, "scope": "s", "name": "n", "state": {"x": "y" * 10_000}}
    async with speaking_to(Partitions(store), max_body_bytes=10_000) as small:
        assert (await small.post(at(run, "/checkpoints"), checkpoint)).status == 413


async def test_repeated_run_call_with_the_same_key_is_done_once(api: Api, run: AttemptedRollout, store: Store) -> None:
    attempt_id = run.attempt.attempt_id
    saved = await store.runs.save_artifact(run.rollout_id, attempt_id, scope="RIG", name="a", content=1)
    calls: list[tuple[str, Any]] = [
        (of_attempt(run, "/events"), {"events": [{"kind": "log"}, {"kind": "log"}]}),
        (at(run, "/checkpoints"), {"attempt_id": attempt_id, "scope": "RIG", "name": "mine", "state": {"a": 1}}),
        (at(run, "/checkpoints"), {"attempt_id": attempt_id, "scope": "RIG", "name": "trader_checkpoint", "state": {}}),
        (at(run, "/artifacts"), {"attempt_id": attempt_id, "scope": "RIG", "name": "b", "content": 2}),
        (at(run, f"/artifacts/{saved.artifact_id}/retract"), {}),
        (at(run, "/forks"), CONFIRMED),
        (at(run, "/head"), {"attempt_id": attempt_id}),
    ]
    for path, body in calls:
        headers = {"Idempotency-Key": uuid4().hex}
        first = await api.post(path, body, headers=headers)
        told = len(await store.log.history(run.rollout_id))
        second = await api.post(path, body, headers=headers)
        assert (first.status, first.json) == (second.status, second.json), path
        assert len(await store.log.history(run.rollout_id)) == told, path
    assert (await store.query_attempts(run.rollout_id)).total == 2


async def test_a_key_of_another_request_is_a_conflict(api: Api, store: Store) -> None:
    run = await begin(store)
    headers = {"Idempotency-Key": uuid4().hex}
    (await api.post(of_attempt(run, "/events"), {"events": [{"kind": "log"}]}, headers=headers)).ok(201)
    again = await api.post(of_attempt(run, "/events"), {"events": [{"kind": "thought"}]}, headers=headers)
    assert (again.status, again.json["error_type"]) == (409, "Conflict")


async def test_a_head_that_moved_on_is_not_moved_back_by_an_old_request(
    api: Api, run: AttemptedRollout, store: Store
) -> None:
    begun = (await api.post(at(run, "/forks"), CONFIRMED)).ok(201)
    headers = {"Idempotency-Key": uuid4().hex}
    for _ in range(2):
        (await api.post(at(run, "/head"), {"attempt_id": run.attempt.attempt_id}, headers=headers)).ok()
        await store.runs.move_head(run.rollout_id, begun["attempt"]["attempt_id"])
    heads = [attempt.sequence_id for attempt in await store.runs.list_lineage(run.rollout_id) if attempt.is_head]
    assert heads == [2]
