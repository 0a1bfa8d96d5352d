"""State of the job's runs. The state is stored as resources in the store, so that an interrupted run can be continued.

A run is one execution of the job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from store.models import PromptTemplate

if TYPE_CHECKING:
    from store.interface.store import Store

_PREFIX = "doc-search-"
_MARK = re.compile(rf"{_PREFIX}(\d+)/(job|result)")


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the job."""

    name: str
    is_resumed: bool = False
    """Whether the run was started before, by a process that did not finish the run."""
    result: str | None = None
    """The stored result if the run has finished."""


async def begin(store: Store, job: str) -> Run:
    """Return the unfinished run of a job; if there is none, start a new run.

    Args:
        store: the store with the state of the runs.
        job: all parameters of the job, as text. A run with other parameters is not continued.
    """
    marks = await _marks(store)
    for number, mark in marks.items():
        if mark.get("job") == job and "result" not in mark:
            return Run(f"{_PREFIX}{number}", is_resumed=True)
    name = f"{_PREFIX}{max(marks, default=0) + 1}"
    await _mark(store, name, "job", job)
    return Run(name)


async def last_finished(store: Store, job: str) -> Run | None:
    """Return the last finished run of a job; None if there is none, or if a run of the job is unfinished."""
    runs = [(number, mark.get("result")) for number, mark in (await _marks(store)).items() if mark.get("job") == job]
    if not runs or any(result is None for _, result in runs):
        return None
    number, result = max(runs)
    return Run(f"{_PREFIX}{number}", result=result)


async def _marks(store: Store) -> dict[int, dict[str, str]]:
    """Return the texts of each run by its number: `job`, and `result` once the run has finished."""
    marks: dict[int, dict[str, str]] = {}
    for resources in await store.query_resources(resources_id_contains=_PREFIX):
        if mark := _MARK.fullmatch(resources.resources_id):
            text = resources.resources.get(mark[2])
            marks.setdefault(int(mark[1]), {})[mark[2]] = text.template if isinstance(text, PromptTemplate) else ""
    return marks


async def end(store: Store, name: str, result: str) -> None:
    """End a run by storing its result."""
    await _mark(store, name, "result", result)


async def _mark(store: Store, name: str, kind: str, text: str) -> None:
    await store.update_resources(f"{name}/{kind}", {kind: PromptTemplate(template=text, engine="f-string")})
