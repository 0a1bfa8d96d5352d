"""The lines of a run become events of its attempts, one attempt for each re-run."""

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
"""The graph of an import's forks. They hide a scope that nothing is about: what they replace is gone already."""

_LINES_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 3 * 1024 * 1024
_WIDEST_GAP: Final = 64
_LISTED: Final = 50
_RECONSTRUCTED: Final = {"reconstructed": True}


class Telling:
    """Brings lines into a rollout, and makes the attempts that they ask for.

    A line goes to the attempt of the greatest `rerun_seq` so far: in a file two re-runs may interleave, and what an
    older attempt says after a fork would be in no view of the newer one. Each line keeps its own number.
    """

    def __init__(self, store: Store, rollout_id: str, file: str, warnings: list[Warned]) -> None:
        self._store = store
        self._rollout_id = rollout_id
        self._file = file
        self._warnings = warnings
        self._lineage: list[AttemptNode] = []
        self._refused = False
        self.told = 0
        """How many lines were appended by now."""

    async def last_attempt(self) -> AttemptNode:
        """Return the newest attempt of the run."""
        if not self._lineage:
            self._lineage = await self._store.runs.list_lineage(self._rollout_id)
        return self._lineage[-1]

    async def carry_over(self, data: bytes, start: int, attempts: int, rerun_seq: Any) -> int:
        """Append the lines of a file from an offset on; return up to where the file is told.

        A call that is repeated appends what the first one left out: each batch has the key of its place.

        Args:
            data: the whole file.
            start: up to where it was told before.
            attempts: how many attempts there were then.
            rerun_seq: the run's number of re-runs, as its folder has it: some may have left no line.
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
            # Of a call that was made before: as many as it had then.
            index += len(versions)
            self.told += len(versions)
        if isinstance(rerun_seq, int) and not isinstance(rerun_seq, bool):
            await self._reach(reached, rerun_seq, None)
        return found[-1].end if found else start

    def _attempt(self, rerun_seq: int) -> AttemptNode:
        return next(each for each in reversed(self._lineage) if each.rerun_seq == rerun_seq)

    async def _reach(self, reached: int, rerun_seq: int, line: int | None) -> int:
        """See to it that a re-run has its attempt, and those before it have; return which one it is."""
        node = await self.last_attempt()
        if rerun_seq - node.rerun_seq > _WIDEST_GAP:
            if not self._refused:
                self._warn(line, f"rerun_seq {rerun_seq} comes right after {node.rerun_seq}; no attempt is made for it")
            self._refused = True
            return reached
        while node.rerun_seq < rerun_seq:
            if node.status in {"preparing", "running"}:
                # How it ended was not kept; most re-runs follow upon a success.
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
