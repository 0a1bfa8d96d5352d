"""The scanners page: rates of matches, a validation set, and hostile texts."""

from __future__ import annotations

from typing import Any

from store.interface.store import Store
from store.models import PromptTemplate
from store.models.scanners import NewScan, NewScanner, ScanError
from store.testing.clock import ManualClock
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read, succeeded
from tests.server.api import Api


@ON_BOTH
async def test_scanner_has_rates_by_step_version_and_worker(api: Api, store: Store) -> None:
    assert "rollbook scan" in Read((await api.get("//ui/scanners")).body).text
    await store.update_resources("prompt", {"p": PromptTemplate(template="a", engine="f-string")})
    name = HOSTILE.replace("@", "")[:64]
    await store.scanners.add(
        NewScanner(
            name=name,
            version="v1",
            kind="search",
            definition={"query": HOSTILE},
            match_label="hack",
            clear_label="fair",
        )
    )
    results: list[Any] = [(True, ["hack"]), (False, ["hack"]), (True, ["fair"]), (True, ["hack", "fair"]), (None, [])]
    scans: list[NewScan] = []
    for step, (is_match, labels) in enumerate(results):
        await store.enqueue_rollout({"n": step}, metadata={"rollbook.step": step // 2}, resources_id="prompt")
        rollout = await store.dequeue_rollout(worker_id="w")
        assert rollout is not None
        await store.update_attempt(rollout.rollout_id, "latest", "succeeded")
        if labels:
            await store.annotations.annotate(rollout.rollout_id, add_labels=labels)
        error = ScanError(type="ValueError", message="no") if is_match is None else None
        text = HOSTILE if is_match else None
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        scans.append(NewScan(**ids, is_match=is_match, error=error, explanation=text))
    await store.scanners.record(name, "v1", scans)

    (row,) = (await api.get("//ui/scanners.json")).ok()["scanners"]
    assert (row["scanned"], row["matches"], row["failures"]) == (4, 3, 1)
    assert (row["validation"]["precision"], row["validation"]["recall"]) == (0.5, 0.5)
    links = Read((await api.get("//ui/scanners")).body).links
    path = next(link for link in links if "/ui/scanners?scanner=" in link)
    chosen: Any = (await api.get("/" + path.replace("/ui/scanners", "/ui/scanners.json"))).ok()["chosen"]
    figures = [(part["step"], part["scanned"], part["matches"], part["errors"]) for part in chosen["by_step"]]
    assert figures == [(2, 0, 0, 1), (1, 2, 2, 0), (0, 2, 1, 0)]
    (chart,) = chosen["charts"]
    (line,) = chart["series"]
    assert (chart["start"], line["part"], line["count"]) == ([0, 1, 2], [1, 2, 0], [2, 2, 0])
    assert (line["mean"], [mark["label"] for mark in chosen["markers"]]) == ([0.5, 1.0, None], ["v1"])
    (version,), (worker,) = chosen["by_version"], chosen["by_worker"]
    assert (version["resources_id"], version["version"], version["matches"]) == ("prompt", 1, 3)
    assert (worker["worker_id"], worker["scanned"]) == ("w", 4)
    assert {match["rollout_id"] for match in chosen["matches"]} == {s.rollout_id for s in scans if s.is_match}
    page = Read((await api.get("/" + path)).body)
    assert not any("onerror" in mark for mark in page.marks)
    assert f"/ui/rollouts/{scans[0].rollout_id}" in page.links
    matched = next(link for link in page.links if "scan_match=" in link and "step=1" in link)
    listed = (await api.get("/" + matched.replace("/ui/rollouts", "/ui/rollouts.json"))).ok()["rollouts"]
    assert {item["rollout_id"] for item in listed} == {scans[2].rollout_id, scans[3].rollout_id}
    assert "Scanner match" in Read((await api.get("/" + matched)).body).text
    await store.update_rollout(scans[2].rollout_id, status="queuing")
    await store.dequeue_rollout(worker_id="w")
    listed = (await api.get("/" + matched.replace("/ui/rollouts", "/ui/rollouts.json"))).ok()["rollouts"]
    assert {item["rollout_id"] for item in listed} == {scans[3].rollout_id}
    assert (await api.get("//ui/scanners?scanner=missing@v1")).status == 404


@ON_BOTH
async def test_results_of_scanners_are_on_the_rollout_and_their_rates_on_the_overview(api: Api, store: Store) -> None:
    assert (await api.get("//ui/overview.json")).ok()["scanners"] is None
    rollouts = [await succeeded(store, metadata={"rollbook.step": step}) for step in (1, 1, 2)]
    attempts: list[Any] = [{"rollout_id": one.rollout_id, "attempt_id": one.attempt.attempt_id} for one in rollouts]
    for version in ("v1", "v2"):
        await store.scanners.add(NewScanner(name="hacks", version=version, kind="regex", definition={"pattern": "x"}))
    error = ScanError(type="TimeoutError", message=HOSTILE)
    await store.scanners.record("hacks", "v1", [NewScan(**attempts[2], error=error)])
    results = [NewScan(**ids, is_match=number != 0, explanation=HOSTILE) for number, ids in enumerate(attempts)]
    await store.scanners.record("hacks", "v2", results)

    panel: Any = (await api.get("//ui/overview.json")).ok()["scanners"]
    assert (panel["step"], panel["first_step_before"], panel["last_step_before"]) == (2, 1, 1)
    (rate,) = panel["rates"]
    assert rate == {"scanner": "hacks@v2", "scanned": 1, "matches": 1, "scanned_before": 2, "matches_before": 1}
    assert "/ui/rollouts?scan_match=hacks%40v2&step=2" in Read((await api.get("//ui/")).body).links
    path = f"//ui/rollouts/{rollouts[2].rollout_id}"
    scans: Any = (await api.get(f"{path}.json")).ok()["scans"]
    assert [(scan["version"], scan["is_match"]) for scan in scans] == [("v2", True), ("v1", None)]
    page = Read((await api.get(path)).body)
    assert "/ui/scanners?scanner=hacks%40v2" in page.links
    assert not any("onerror" in mark for mark in page.marks)
    past: Any = (await api.get(f"{path}.json?at={scans[0]['number'] - 1}")).ok()["scans"]
    assert [scan["version"] for scan in past] == ["v1"]


async def test_without_steps_the_overview_compares_the_last_300_seconds(
    api: Api, store: Store, clock: ManualClock
) -> None:
    await store.scanners.add(NewScanner(name="hacks", version="v1", kind="regex", definition={"pattern": "x"}))
    for is_match in (False, True):
        clock.advance(200)
        one = await succeeded(store)
        scan = NewScan(rollout_id=one.rollout_id, attempt_id=one.attempt.attempt_id, is_match=is_match)
        await store.scanners.record("hacks", "v1", [scan])
    clock.advance(200)
    panel: Any = (await api.get("//ui/overview.json")).ok()["scanners"]
    (rate,) = panel["rates"]
    assert (rate["scanned"], rate["matches"], rate["scanned_before"], rate["matches_before"]) == (1, 1, 1, 0)
