"""Import of the lines of a run folder as events of a run, with one attempt for each re-run. See decision 29.

A re-run executed a part of the run again. The lines of a re-run have the number of the re-run in the key `rerun_seq`.
"""

from __future__ import annotations

from dataclasses import dataclass
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
"""The phase graph of the forks that an import creates, one for each re-run.

A fork hides the events of a scope. The scope of this graph has no events, so a fork of an import hides nothing. Nothing
has to be hidden, because the run folder no longer contains the events that its re-runs replaced.
"""

_LINES_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 3 * 1024 * 1024
_WIDEST_GAP: Final = 64
_LISTED: Final = 50
_RECONSTRUCTED: Final = {"reconstructed": True}


@dataclass(frozen=True, slots=True)
class LineFile:
    """A file of lines that is imported."""

    file: str
    """The name of the file, for warnings."""
    data: bytes
    start: int
    """The offset after the last line of the previous import."""


class LineImporter:
    """Importer of lines as events of a rollout. It creates the attempts that the lines need.

    Each line is appended to the attempt with the greatest `rerun_seq` that has occurred so far. The reason is that the
    lines of two re-runs may interleave in a file: if a line were appended to the older attempt after the fork, the
    event would be missing from the view of the newer attempt. The event contains the `rerun_seq` of its line.
    """

    def __init__(self, store: Store, rollout_id: str, warnings: list[Warned]) -> None:
        self._store = store
        self._rollout_id = rollout_id
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

    async def carry_over(self, events: LineFile, extension: LineFile, attempts: int, rerun_seq: Any) -> tuple[int, int]:
        """Append the lines of both files from their offsets on; return the offsets after the last imported lines.

        A repeated call appends only lines that the first call did not append, because the idempotency key of a batch of
        lines consists of the file and the offset of the batch.

        Args:
            events: `run_events.jsonl`.
            extension: `run_extension.jsonl`.
            attempts: the number of attempts after the previous import.
            rerun_seq: the number of re-runs according to `run_meta.json`; a re-run may have no lines.
        """
        event_lines, extension_lines = self._split(events), self._split(extension)
        done = len(lines.split(events.data[: events.start])[0]) if extension_lines else 0
        merged = lines.merge(event_lines, done, extension_lines)
        await self.last_attempt()
        index, reached = 0, self._lineage[attempts - 1].rerun_seq
        while index < len(merged):
            file = extension.file if merged[index].is_extension else events.file
            reached = await self._reach(reached, merged[index].rerun_seq, file, merged[index].number)
            batch = _batch(merged, index, reached)
            versions = await self._store.runs.append_events(
                self._rollout_id,
                next(node for node in reversed(self._lineage) if node.rerun_seq == reached).attempt_id,
                [lines.event_of(line) for line in batch],
                key=f"import:{'extension:' if batch[0].is_extension else ''}{batch[0].start}",
            )
            # A call with a known key returns the versions of the first call, which may have had fewer lines.
            index += len(versions)
            self.imported += len(versions)
        if isinstance(rerun_seq, int) and not isinstance(rerun_seq, bool):
            await self._reach(reached, rerun_seq, events.file, None)
        ends = [
            of_file[-1].end if of_file else source.start
            for of_file, source in ((event_lines, events), (extension_lines, extension))
        ]
        return ends[0], ends[1]

    def _split(self, source: LineFile) -> list[Line]:
        """Return the lines of a file, and add a warning for each damaged line."""
        parsed, damaged = lines.split(source.data, source.start)
        for line in damaged[:_LISTED]:
            self._warn(source.file, line.number, line.problem)
        if len(damaged) > _LISTED:
            self._warn(source.file, None, f"{len(damaged) - _LISTED} more lines are damaged")
        return parsed

    async def _reach(self, reached: int, rerun_seq: int, file: str, line: int | None) -> int:
        """Create the missing attempts up to the attempt of a re-run; return the greatest `rerun_seq` so far.

        A `rerun_seq` that is far above the `rerun_seq` of the newest attempt creates no attempt, but a warning.
        """
        node = await self.last_attempt()
        if rerun_seq - node.rerun_seq > _WIDEST_GAP:
            if not self._refused:
                self._warn(
                    file, line, f"rerun_seq {rerun_seq} comes right after {node.rerun_seq}; no attempt is made for it"
                )
            self._refused = True
            return reached
        while node.rerun_seq < rerun_seq:
            if node.status in {"preparing", "running"}:
                # The folder does not contain the status of this attempt. Most re-runs come after a successful attempt,
                # so the attempt is set to succeeded.
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

    def _warn(self, file: str, line: int | None, problem: str) -> None:
        self._warnings.append(Warned(file=file, line=line, problem=problem))


def _batch(lines_: list[Line], index: int, rerun_seq: int) -> list[Line]:
    """Return the next lines that can be appended to the same attempt in one call."""
    batch: list[Line] = []
    size = 0
    for line in lines_[index : index + _LINES_AT_ONCE]:
        size += line.end - line.start
        if batch and (size > _BYTES_AT_ONCE or line.rerun_seq > rerun_seq):
            break
        batch.append(line)
    return batch
