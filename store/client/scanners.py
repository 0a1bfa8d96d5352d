"""Scanners over HTTP."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from store.client import requests
from store.client.core import HTTPCore
from store.interface.runs import AsAt
from store.interface.scanners import StoreScanners
from store.models.calls import ChangingCall
from store.models.scanners import Scan, Scanner, UnscannedAttempt
from store.validation import arguments, scanners, scores
from store.wire import encoding, paths

T = TypeVar("T")

_decode_scanners = encoding.decoder(list[Scanner])
_decode_scans = encoding.decoder(list[Scan])
_decode_unscanned = encoding.decoder(list[UnscannedAttempt])


class HTTPScanners(StoreScanners):
    """Client of a server's scanners."""

    def __init__(self, core: HTTPCore) -> None:
        super().__init__("HTTPStore")
        self.core = core

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        return self.core.call(call)

    async def query(self, *, as_at: AsAt | None = None) -> list[Scanner]:
        fields = requests.moment(as_at)
        return await self.core.rollbook_read("query_scanners", paths.SCANNERS, fields, _decode_scanners)

    async def query_scans(
        self, rollout_id: str | Sequence[str], *, scanner: str | None = None, as_at: AsAt | None = None
    ) -> list[Scan]:
        fields = {"rollout_id": scores.rollout_ids(rollout_id), **requests.moment(as_at)}
        if scanner is not None:
            fields["scanner"] = str(scores.version_key(scanner, "scanner"))
        return await self.core.rollbook_query("query_scans", paths.SCANS_SEARCH, _decode_scans, **fields)

    async def unscanned(
        self,
        name: str,
        version: str,
        *,
        limit: int = 1000,
        after: str | None = None,
        retry_errors: bool = False,
        changed_after: int | None = None,
    ) -> list[UnscannedAttempt]:
        scanners.scanner_key(name, version)
        fields: dict[str, Any] = {"name": name, "version": version, "limit": scanners.check_limit(limit)}
        if after is not None:
            fields["after"] = arguments.text(after, "after")
        if retry_errors:
            fields["retry_errors"] = True
        if changed_after is not None:
            fields["changed_after"] = arguments.whole(changed_after, "changed_after", "a position", 0)
        return await self.core.rollbook_query("query_unscanned", paths.UNSCANNED, _decode_unscanned, **fields)
