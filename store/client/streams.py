"""Following a run over HTTP, from one connection to the next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import orjson

from store.client import requests
from store.client.runs import HTTPRuns
from store.client.transport import reading
from store.errors import Incompatible
from store.models import RunFrame
from store.validation import arguments
from store.wire import paths
from store.wire.errors import error_of

_SHORTEST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_ENDS: Final = frozenset({"error", "gap"})


class HTTPRunStream(HTTPRuns):
    """What a server tells of a run while it goes."""

    async def follow_run(
        self,
        rollout_id: str,
        *,
        after: int = 0,
        until: int | None = None,
        view: str = "head",
        bodies: bool = True,
    ) -> AsyncIterator[RunFrame]:
        arguments.whole(after, "after", "a version of the run: 0, 1, 2 …", 0)
        if until is not None:
            arguments.whole(until, "until", "a version of the run: 1, 2, 3 …", 1)
        path = requests.path(paths.RUN_STREAM, rollout_id=requests.sought(rollout_id, "rollout_id"))
        asked: dict[str, Any] = {"view": arguments.text(view, "view"), "bodies": "true" if bodies else "false"}
        pause = _SHORTEST_PAUSE
        while True:
            place = requests.given(after=after, until=until)
            call = reading("follow_run", path + requests.query_string({**asked, **place}), is_ours=True)
            stream = await self.core.transport.follow(call)
            if stream is None:
                base = self.core.transport.address.base
                raise Incompatible(f"{base} does not stream runs", "give the URL of a Rollbook server")
            try:
                while told := await stream.take():
                    for frame in _frames(told):
                        # Whoever is told this may stop here, and go on from it.
                        after, until, pause = frame.seq, frame.until, _SHORTEST_PAUSE
                        yield frame
                    if told[-1]["kind"] in _ENDS:
                        break
            finally:
                stream.close()
            await self.core.transport.pause("follow_run", pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


def _frames(told: list[dict[str, Any]]) -> Iterator[RunFrame]:
    """Yield what is told of the run.

    Raises:
        StoreError: the stream ended with an error that another connection would not mend.
    """
    for each in told:
        if each["kind"] in _ENDS:
            if not each.get("retryable"):
                raise error_of(400, orjson.dumps(each), "follow_run")
        elif each["kind"] != "heartbeat":
            yield RunFrame.model_validate(each)
