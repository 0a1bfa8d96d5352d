"""Import of the lines of a run as events, with one attempt for each re-run."""

from __future__ import annotations

from typing import Any, Final

from store.interface.store import Store
from store.models import Phase, PhaseGraph, ScopeKind
from store.models.runs import AttemptNode
from store.run_folders import lines
from store.run_folders.lines import HIDDEN_SCOPE, Line
from store.run_folders.records import Warned

NOTHING: Final = PhaseGraph(
    name="rollbook.import",
    version="1",
    scope_kinds={"import": ScopeKind(fixed=HIDDEN_SCOPE)},
    phases=[Phase(name="import", scope_kind="import", nodes=["import"])],
)
"""The graph of an import's forks. They hide a scope without events, since the file lacks the replaced lines already."""

_LINES_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 3 * 1024 * 1024
_WIDEST_GAP: Final = 64
_LISTED: Final = 50
_RECONSTRUCTED: Final = {"reconstructed": True}


class LineImporter:
    """Importer of lines into a rollout, which creates the attempts that the lines need.

    A line goes to the attempt of the greatest `rerun_seq` so far. Two re-runs may interleave in a file, and events of
    an older attempt after a fork would be in no view of the newer one. Each line keeps its own number.
    """

    def __init__(self, store: Store, rollout_id: str, file: str, warnings: list[Warned]) -> None:
        self._store = store
        self._rollout_id = rollout_id
        self._file = file
        self._warnings = warnings
        self._lineage: list[AttemptNode] = []
        self._refused = False
        self.imported = 0
        """The number of lines that were appended."""

    async def last_attempt(self) -> AttemptNode:
        """Return the newest attempt of the run."""
        if not self._lineage:
            self._lineage = await self._store.runs.list_lineage(self._rollout_id)
        return self._lineage[-1]

    async def carry_over(self, data: bytes, start: int, attempts: int, rerun_seq: Any) -> int:
        """Append the lines of a file from an offset on; return the offset after the last imported line.

        A repeated call appends only what the first one did not: the key of each batch is its offset.

        Args:
            data: the whole file.
            start: the offset after the last line of the previous import.
            attempts: the number of attempts after that import.
            rerun_seq: the number of re-runs according to the folder; some may have left no line.
        """
        found, damaged = lines.split(data, start)
        for each in damaged[:_LISTED]:
            self._warn(each.number, each.problem)
        if len(damaged) > _LISTED:
            self._warn(None, f"{len(damaged) - _LISTED} more lines are damaged")
        await self.last_attempt()
        index, reached = 0, self._lineage[attempts - 1].rerun_seq
        while index < len(found):
            reached = await self._reach(reached, found[index].rerun_seq, found[index].number)
            batch = _batch(found, index, reached)
            versions = await self._store.runs.append_events(
                self._rollout_id,
                self._attempt(reached).attempt_id,
                [lines.event_of(line) for line in batch],
                key=f"import:{batch[0].start}",
            )
            # A repeated call returns the versions of the first call, which may have had fewer lines.
            index += len(versions)
            self.imported += len(versions)
        if isinstance(rerun_seq, int) and not isinstance(rerun_seq, bool):
            await self._reach(reached, rerun_seq, None)
        return found[-1].end if found else start

    def _attempt(self, rerun_seq: int) -> AttemptNode:
        return next(each for each in reversed(self._lineage) if each.rerun_seq == rerun_seq)

    async def _reach(self, reached: int, rerun_seq: int, line: int | None) -> int:
        """Create the attempt of a re-run and those before it, if they are missing; return the re-run's number."""
        node = await self.last_attempt()
        if rerun_seq - node.rerun_seq > _WIDEST_GAP:
            if not self._refused:
                self._warn(line, f"rerun_seq {rerun_seq} comes right after {node.rerun_seq}; no attempt is made for it")
            self._refused = True
            return reached
        while node.rerun_seq < rerun_seq:
            if node.status in {"preparing", "running"}:
                # The folder does not contain its status; most re-runs follow a success.
                await self._store.update_attempt(
                    self._rollout_id, node.attempt_id, status="succeeded", metadata=_RECONSTRUCTED
                )
            await self._store.runs.fork(
                self._rollout_id,
                phase="import",
                graph=NOTHING,
                request_id=f"import:rerun:{node.rerun_seq + 1}",
                on_active="supersede",
                reason="reconstructed from a run folder",
            )
            self._lineage = []
            node = await self.last_attempt()
        return max(reached, rerun_seq)

    def _warn(self, line: int | None, problem: str) -> None:
        self._warnings.append(Warned(file=self._file, line=line, problem=problem))


def _batch(found: list[Line], index: int, rerun_seq: int) -> list[Line]:
    """Return the next lines that go to one attempt in one call."""
    batch: list[Line] = []
    size = 0
    for line in found[index : index + _LINES_AT_ONCE]:
        size += line.end - line.start
        if batch and (size > _BYTES_AT_ONCE or line.rerun_seq > rerun_seq):
            break
        batch.append(line)
    return batch
