"""The scanners page: all versions of scanners, and the results of one version. Decision 117."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import orjson

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.db.dialect import ReadSession
from store.db.queries import scan_figures
from store.db.queries import scanners as scanner_queries
from store.errors import NotFound
from store.validation.scores import VersionKey, version_key

pages = Pages()

MOST_MATCHES: Final = 50


@pages.get("/ui/scanners")
async def scanners(request: PageRequest) -> PageContent:
    """Show all versions of scanners. With `scanner`, such as `hacks@v1`, the results of this version are below."""
    key = version_key(request.one("scanner"), "scanner") if request.one("scanner") else None

    async def read(session: ReadSession) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        chosen = None
        for scanner in await scanner_queries.scanners(session, None):
            judged = scanner.validation
            counts = (
                None if judged is None else asdict(judged) | {"precision": judged.precision, "recall": judged.recall}
            )
            rows.append(scanner.model_dump() | {"scanned": scanner.matches + scanner.clear, "validation": counts})
            if key == VersionKey(scanner.name, scanner.version):
                chosen = scanner
        if key is None:
            return {"scanners": rows, "chosen": None}
        if chosen is None:
            raise NotFound("scanner", str(key))
        ids = await scan_figures.matching(session, chosen, limit=MOST_MATCHES)
        scans = await scanner_queries.scans(session, ids, key, None)
        matches = sorted((scan for scan in scans if scan.is_match), key=lambda scan: scan.at, reverse=True)
        return {
            "scanners": rows,
            "chosen": {
                "scanner": str(key),
                "definition": chosen.definition,
                "by_step": await scan_figures.rates(session, chosen, "step"),
                "by_version": await scan_figures.rates(session, chosen, "version"),
                "by_worker": await scan_figures.rates(session, chosen, "worker"),
                "matches": [match.model_dump() for match in matches[:MOST_MATCHES]],
            },
        }

    values = await request.store.core.look(read, snapshot=True)
    definition = orjson.dumps(values["chosen"]["definition"], option=orjson.OPT_INDENT_2).decode() if key else ""
    return PageContent("scanners.html", values, "Scanners", hidden={"definition": definition})
