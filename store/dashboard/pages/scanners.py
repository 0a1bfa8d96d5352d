"""The scanners page: all versions of scanners, and the results of one version. Decision 117."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from store.comparing import curve_charts as curves
from store.comparing.reward_curves import MOST_NOTES, markers_of
from store.dashboard.charts.scan_curves import scan_charts
from store.dashboard.page import PageContent, Pages
from store.dashboard.pages.rewards import place
from store.dashboard.request import PageRequest
from store.dashboard.views.figure_cache import FigureCache, cache_of
from store.db.dialect import ReadSession
from store.db.queries import curves as curve_queries
from store.db.queries import scan_figures
from store.db.queries import scanners as scanner_queries
from store.db.queries.annotations import last_notes
from store.db.queries.scan_figures import MOST_ROWS, ScanCell, ScanRate
from store.errors import NotFound
from store.models.scanners import Scanner
from store.validation.scores import VersionKey, version_key

pages = Pages()

MOST_MATCHES: Final = 50


@pages.get("/ui/scanners")
async def scanners(request: PageRequest) -> PageContent:
    """Show all versions of scanners, and the results of the one that `scanner` names, such as `hacks@v1`.

    Without this parameter, the results are those of the version that was added last.
    """
    key = version_key(request.one("scanner"), "scanner") if request.one("scanner") else None
    cache = cache_of(request.store.core)
    work = partial(_read, cache=cache, key=key)
    values = await request.store.core.look(lambda session: cache.read(session, ("scanner", key), work), snapshot=True)
    chosen = values["chosen"]
    match = chosen["scanner"] if chosen else ""
    charts: list[tuple[curves.Chart, str | None]]
    charts = list(zip(chosen["charts"], chosen["chart_resources"], strict=True)) if chosen else []
    hidden = {
        "whole": request.here(),
        "targets": {chart.id: request.url("rollouts", scan_match=match, resources=name) for chart, name in charts},
        "tables": {chart.id: _table(request, chart, match, name) for chart, name in charts},
        "most": max((row.matches / row.scanned for row in _bars(chosen) if row.scanned), default=0) or 1,
        "most_rows": MOST_ROWS,
    }
    return PageContent("scanners.html", values, "Scanners", hidden=hidden)


async def _read(session: ReadSession, cache: FigureCache, key: VersionKey | None) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    counts = await cache.rows(session, "scan counts", scanner_queries.result_counts)
    added = await scanner_queries.scanners(session, None, counts)
    for scanner in added:
        judged = scanner.validation
        counts = None if judged is None else asdict(judged) | {"precision": judged.precision, "recall": judged.recall}
        rows.append(scanner.model_dump() | {"scanned": scanner.matches + scanner.clear, "validation": counts})
    if key is None:
        chosen = max(added, key=lambda scanner: scanner.at, default=None)
    else:
        chosen = next((scanner for scanner in added if key == VersionKey(scanner.name, scanner.version)), None)
        if chosen is None:
            raise NotFound("scanner", str(key))
    return {"scanners": rows, "chosen": None if chosen is None else await _results(session, cache, chosen)}


async def _results(session: ReadSession, cache: FigureCache, scanner: Scanner) -> dict[str, Any]:
    key = VersionKey(scanner.name, scanner.version)
    ids = await scan_figures.matching(session, scanner, limit=MOST_MATCHES)
    scans = await scanner_queries.scans(session, ids, key, None)
    matches = sorted((scan for scan in scans if scan.is_match), key=lambda scan: scan.at, reverse=True)
    cells = await cache.rows(session, ("scan cells", key), partial(scan_figures.cells, scanner=scanner))
    of_workers = partial(scan_figures.worker_scans, scanner=scanner)
    along = await curve_queries.axis(session, "step", (), None)
    charts = scan_charts(along, cells) if along else []
    uses = await curve_queries.version_uses(session) if charts else []
    notes = await last_notes(session, MOST_NOTES) if charts else []
    return {
        "scanner": str(key),
        "kind": scanner.kind,
        "at": scanner.at,
        "actor": scanner.actor,
        "definition": scanner.definition,
        "charts": [chart for chart, _ in charts],
        "chart_resources": [resources_id for _, resources_id in charts],
        "markers": markers_of(along, uses, notes) if along else [],
        "by_step": _rates(cells, by_step=True)[:MOST_ROWS],
        "by_version": _rates(cells, by_step=False)[:MOST_ROWS],
        "by_worker": scan_figures.by_worker(await cache.rows(session, ("worker scans", key), of_workers)),
        "matches": [match.model_dump() for match in matches[:MOST_MATCHES]],
    }


def _rates(cells: Sequence[ScanCell], *, by_step: bool) -> list[ScanRate]:
    """Return the sums by step, the last step first, or by version of the resources, most matches first."""
    sums: defaultdict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for cell in cells:
        key = (cell.step, None, None) if by_step else (None, cell.resources_id, cell.version)
        if key != (None, None, None):
            for index, number in enumerate((cell.scanned, cell.matches, cell.errors)):
                sums[key][index] += number
    rates = [
        ScanRate(step, resources_id, version, None, scanned, matches, errors)
        for (step, resources_id, version), (scanned, matches, errors) in sums.items()
    ]
    if by_step:
        return sorted(rates, key=lambda rate: rate.step or 0, reverse=True)
    return sorted(rates, key=lambda rate: (-rate.matches, rate.resources_id or "", rate.version or 0))


def _bars(chosen: dict[str, Any] | None) -> list[ScanRate]:
    return [*chosen["by_version"], *chosen["by_worker"]] if chosen else []


def _table(request: PageRequest, chart: curves.Chart, match: str, resources_id: str | None) -> list[dict[str, Any]]:
    """Return the values of a chart as table rows, newest first, with links to the rollouts and to those that match."""
    rows: list[dict[str, Any]] = []
    for index in reversed(range(len(chart.start))):
        for line in chart.series:
            if line.mean[index] is not None:
                of_line = {"mode": line.mode, "resources": resources_id, "version": line.version}
                of_row = of_line | place(chart, index)
                rows.append(
                    {
                        "start": chart.start[index],
                        "line": line,
                        "index": index,
                        "url": request.url("rollouts", **of_row),
                        "matches_url": request.url("rollouts", scan_match=match, **of_row),
                    }
                )
    return rows[:MOST_ROWS]
