"""Import and export of run folders through a server equal those in process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from store import open_store
from store.interface.store import Store
from store.run_folders import Mirror, export_run_folder, import_runs
from tests.client.served import Served
from tests.run_folders.folder_samples import Written, event, lines, tree
from tests.run_folders.foreign import HALF_WAY
from tests.run_folders.test_reruns_of_imports import Desk
from tests.runs.trading import FUND


async def test_a_folder_goes_in_and_out_over_http(store: Store, tmp_path: Path) -> None:
    rows = [event("result", "Trader", "RIG", rerun_seq=number, prompt="p" * 3000) for number in (0, 1, 0)]
    folder = Written(events=lines(rows), rerun_seq=1).write(tmp_path / "in")
    with Served() as server, server.serving(store) as url:
        async with await open_store(url) as distant:
            (report,) = [report async for report in import_runs(distant, tmp_path / "in")]
            assert (report.outcome, report.events, report.warnings) == ("imported", 3, [])
            assert report.rollout_id is not None
            assert tree(await export_run_folder(distant, report.rollout_id, tmp_path / "out")) == tree(folder)
            (again,) = [result async for result in import_runs(distant, tmp_path / "in")]
            assert again.outcome == "unchanged"
            assert await Mirror(distant, tmp_path / "mirror").catch_up()
            (place,) = (tmp_path / "mirror" / "daily").rglob("run_meta.json")
            assert tree(place.parent) == tree(folder)


async def test_imported_run_is_resumed_and_repeated_over_http(store: Store, tmp_path: Path) -> None:
    (report,) = [report async for report in import_runs(store, HALF_WAY.write(tmp_path))]
    assert report.rollout_id is not None
    with Served() as server, server.serving(store) as url:
        async with await open_store(url) as distant:
            resumed = await distant.runs.resume(report.rollout_id)
            again = [("debate_and_trader", "TSDD"), ("portfolio", FUND), ("risk", "TSDD")]
            assert await Desk().execute(distant, resumed) == again
            options: dict[str, Any] = {"node": "Trader", "scopes": ["TSDD"], "confirm_side_effects": True}
            assert await Desk().execute(distant, await distant.runs.fork(report.rollout_id, **options)) == again
