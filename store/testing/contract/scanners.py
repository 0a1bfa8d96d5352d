"""Contract of scanners and their results."""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import Conflict, Invalid, NotFound, TooLarge
from store.interface.store import Store
from store.models import AttemptedRollout
from store.models.scanners import NewScan, NewScanner, ScanError, ScanValidation, UnscannedAttempt

FAILURE = ScanError(type="ValueError", message="no answer")


def loops(version: str = "v1", query: str = "again") -> NewScanner:
    """Return a version of a scanner."""
    return NewScanner(name="loops", version=version, kind="search", definition={"query": query}, match_label="loop")


def result(rollout: AttemptedRollout, is_match: Any = None, **fields: Any) -> NewScan:
    """Return a result for the attempt of a rollout."""
    values: dict[str, Any] = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id, **fields}
    return NewScan(is_match=is_match, **values)


class ScannersContract:
    """Tests of scanners."""

    pytestmark = pytest.mark.asyncio

    async def test_definition_of_a_version_never_changes(self, store: Store) -> None:
        assert await store.scanners.query() == []
        assert await store.scanners.add(loops())
        (added,) = await store.scanners.query()
        assert NewScanner(**{name: getattr(added, name) for name in NewScanner.model_fields}) == loops()
        assert (added.matches, added.clear, added.failures) == (0, 0, 0)
        assert not await store.scanners.add(loops())
        with pytest.raises(Conflict, match="new version"):
            await store.scanners.add(loops(query="other"))
        assert await store.scanners.add(loops("v2", "other"))
        assert [scanner.version for scanner in await store.scanners.query()] == ["v1", "v2"]

    async def test_result_is_returned_as_it_was_recorded(self, store: Store) -> None:
        rollout = await store.start_rollout({"n": 1})
        await store.scanners.add(loops())
        recorded = result(rollout, True, explanation="bécause\n…")
        (number,) = await store.scanners.record("loops", "v1", [recorded])
        assert await store.scanners.record("loops", "v1", [recorded]) == [None]
        (read,) = await store.scanners.query_scans(rollout.rollout_id, scanner="loops@v1")
        event = (await store.log.history(rollout.rollout_id))[-1]
        assert NewScan(**{name: getattr(read, name) for name in NewScan.model_fields}) == recorded
        assert (read.scanner, read.version, read.number, read.at) == ("loops", "v1", number, event.at)
        assert (event.type, "explanation" in event.data) == ("rollout.scanned", False)
        assert await store.scanners.query_scans([rollout.rollout_id], scanner="loops@v2") == []

    async def test_result_is_final_and_an_error_is_not(self, store: Store) -> None:
        first, other = await store.start_rollout({"n": 1}), await store.start_rollout({"n": 2})
        await store.scanners.add(loops())
        await store.scanners.record("loops", "v1", [result(first, error=FAILURE), result(other, error=FAILURE)])
        (failed, _) = await store.scanners.query_scans([first.rollout_id, other.rollout_id])
        assert (failed.is_match, failed.error) == (None, FAILURE)
        before = (await store.log.history(other.rollout_id))[-1].position
        await store.scanners.record("loops", "v1", [result(first, False)])
        for changed in (result(first, True), result(first, error=FAILURE)):
            with pytest.raises(Conflict, match="new version"):
                await store.scanners.record("loops", "v1", [result(other, True), changed])
        (scanner,) = await store.scanners.query()
        assert (scanner.matches, scanner.clear, scanner.failures) == (0, 1, 1)
        (then,) = await store.scanners.query(as_at=before)
        assert (then.clear, then.failures) == (0, 2)
        assert await store.scanners.query(as_at=0) == []

    async def test_page_of_unscanned_attempts_continues_after_a_rollout(self, store: Store) -> None:
        rollouts = [await store.start_rollout({"n": number}) for number in range(4)]
        for rollout in rollouts[:3]:
            await store.update_attempt(rollout.rollout_id, "latest", "succeeded")
        await store.scanners.add(loops())
        ids = [UnscannedAttempt(rollout_id=item.rollout_id, attempt_id=item.attempt.attempt_id) for item in rollouts]
        assert await store.scanners.unscanned("loops", "v1") == ids[:3]
        assert await store.scanners.unscanned("loops", "v1", limit=1, after=ids[0].rollout_id) == ids[1:2]
        await store.scanners.record("loops", "v1", [result(rollouts[0], True), result(rollouts[1], error=FAILURE)])
        assert await store.scanners.unscanned("loops", "v1") == ids[2:3]
        assert await store.scanners.unscanned("loops", "v1", retry_errors=True) == ids[1:3]
        position = (await store.log.position()).position
        await store.update_attempt(rollouts[3].rollout_id, "latest", "succeeded")
        assert await store.scanners.unscanned("loops", "v1", changed_after=position) == ids[3:]
        assert await store.scanners.unscanned("loops", "v1", changed_after=0, after=ids[1].rollout_id) == ids[2:]
        with pytest.raises(NotFound):
            await store.scanners.unscanned("loops", "v1", after="ro-none")
        with pytest.raises(Invalid, match="changed_after"):
            await store.scanners.unscanned("loops", "v1", changed_after=-1)

    async def test_rollouts_are_selected_by_a_match_of_their_latest_attempt(self, store: Store) -> None:
        rollouts = [await store.start_rollout({"n": number}) for number in range(3)]
        await store.scanners.add(loops())
        await store.scanners.record("loops", "v1", [result(rollouts[0], True), result(rollouts[1], False)])
        first = (await store.log.position()).position
        await store.scanners.record("loops", "v1", [result(rollouts[2], True)])
        second = (await store.log.position()).position
        retried = await store.start_attempt(rollouts[2].rollout_id)
        assert retried.attempt.sequence_id == 2

        async def matches(**conditions: Any) -> list[int]:
            page = await store.query_rollouts(scan_match="loops@v1", **conditions)
            assert page.total == len(page.items)
            return [rollout.input["n"] for rollout in page]

        assert await matches() == [0]
        assert await matches(rollout_id_in=[rollouts[1].rollout_id], filter_logic="or") == [0, 1]
        assert await matches(rollout_id_in=[rollouts[1].rollout_id]) == []
        assert [await matches(as_at=moment) for moment in (first - 2, first, second)] == [[], [0], [0, 2]]
        assert list(await store.query_rollouts(scan_match="loops@v2")) == []
        malformed: list[dict[str, Any]] = [{"scan_match": "loops"}, {"sort_by": "scan_match"}]
        for arguments in malformed:
            with pytest.raises(Invalid, match=next(iter(arguments))):
                await store.query_rollouts(**arguments)

    async def test_agreement_with_labels_counts_latest_attempts_with_a_result(self, store: Store) -> None:
        rollouts = [await store.start_rollout({"n": number}) for number in range(7)]
        await store.scanners.add(loops().model_copy(update={"clear_label": "fair"}))
        labels = [["loop"], ["loop"], ["fair"], ["fair"], ["loop", "fair"], ["loop"], []]
        for rollout, names in zip(rollouts, labels, strict=True):
            if names:
                await store.annotations.annotate(rollout.rollout_id, add_labels=names)
        (scanner,) = await store.scanners.query()
        assert scanner.validation is not None
        assert (scanner.validation.labelled, scanner.validation.precision, scanner.validation.recall) == (0, None, None)
        outcomes = [True, False, True, None, True, True, True]
        scans = [
            result(rollout, is_match, error=FAILURE if is_match is None else None)
            for rollout, is_match in zip(rollouts, outcomes, strict=True)
        ]
        await store.scanners.record("loops", "v1", scans)
        await store.start_attempt(rollouts[5].rollout_id)
        (scanner,) = await store.scanners.query()
        expected = ScanValidation(true_matches=1, missed=1, false_matches=1, true_clear=0)
        assert scanner.validation == expected
        assert (expected.labelled, expected.precision, expected.recall) == (3, 0.5, 0.5)
        (then,) = await store.scanners.query(as_at=(await store.log.position()).position)
        assert then.validation is None

    async def test_result_needs_its_scanner_and_attempt(self, store: Store) -> None:
        rollout = await store.start_rollout({"n": 1})
        with pytest.raises(NotFound, match="loops@v1"):
            await store.scanners.record("loops", "v1", [result(rollout, True)])
        await store.scanners.add(loops())
        for field, value in (("rollout_id", "ro-none"), ("attempt_id", "at-none")):
            with pytest.raises(NotFound, match=value):
                await store.scanners.record("loops", "v1", [result(rollout, True, **{field: value})])

    async def test_malformed_scanners_and_results_are_refused(self, store: Store) -> None:
        rollout = await store.start_rollout({"n": 1})
        with pytest.raises(Invalid, match="@"):
            await store.scanners.add(loops("v@1"))
        with pytest.raises(TooLarge):
            await store.scanners.add(loops(query="n" * 65_537))
        await store.scanners.add(loops())
        for scan, kind in ((result(rollout), Invalid), (result(rollout, True, explanation="n" * 4_097), TooLarge)):
            with pytest.raises(kind):
                await store.scanners.record("loops", "v1", [scan])
        with pytest.raises(Invalid, match="scanner"):
            await store.scanners.query_scans(rollout.rollout_id, scanner="loops")
