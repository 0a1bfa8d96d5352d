"""The scanners page: rates of matches, a validation set, and hostile texts."""

from __future__ import annotations

from typing import Any

from store.interface.store import Store
from store.models import PromptTemplate
from store.models.scanners import NewScan, NewScanner, ScanError
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read
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
    shown = Read((await api.get("//ui/scanners")).body)
    path = next(link for link in shown.links if "/ui/scanners?scanner=" in link)
    chosen: Any = (await api.get("/" + path.replace("/ui/scanners", "/ui/scanners.json"))).ok()["chosen"]
    figures = [(part["step"], part["scanned"], part["matches"], part["errors"]) for part in chosen["by_step"]]
    assert figures == [(2, 0, 0, 1), (1, 2, 2, 0), (0, 2, 1, 0)]
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
