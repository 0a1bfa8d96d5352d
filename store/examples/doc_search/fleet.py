"""The runner processes: started, watched, killed on purpose, and stopped. None outlives the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_PATIENCE_SECONDS = 5.0
_LINES_SHOWN = 12


class RunnersKeepDying(RuntimeError):
    """More runners ended by themselves than a fault of the moment explains."""


@dataclass(frozen=True, slots=True)
class _Member:
    process: subprocess.Popen[bytes]
    said: IO[bytes]


class Fleet:
    """Runners on one store, each a process of its own, known by its worker id."""

    def __init__(self, db_url: str, library: Path, name: str) -> None:
        self._db_url = db_url
        self._library = library
        self._name = name
        self._started = 0
        self._lost = 0
        self._members: dict[str, _Member] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def members(self) -> frozenset[str]:
        """The worker ids of the runners that should be running."""
        return frozenset(self._members)

    def start(self) -> str:
        """Start another runner and return its worker id."""
        self._started += 1
        worker_id = f"{self._name}-runner-{self._started}"
        said = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as the runner lives, closed by `_close`
        process = subprocess.Popen(
            # -P: a directory named `store` where the user happens to stand must not be taken for this package.
            [sys.executable, "-P", "-m", "store.examples.doc_search.runner", str(self._library), worker_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=os.environ | {"ROLLBOOK_DB": self._db_url, "PYTHONPATH": _import_path()},
        )
        self._members[worker_id] = _Member(process, said)
        return worker_id

    def kill(self, worker_id: str) -> int:
        """End a runner as a power cut would, and return the process id it had."""
        member = self._members.pop(worker_id)
        member.process.kill()
        self._close(member)
        return member.process.pid

    def replace_the_lost(self) -> None:
        """Start a runner for each that ended by itself.

        Raises:
            RunnersKeepDying: as many were lost as there were to begin with; the text quotes the last one's last words.
        """
        for worker_id, member in list(self._members.items()):
            if member.process.poll() is None:
                continue
            del self._members[worker_id]
            self._lost += 1
            last_words = _last_lines(member.said)
            self._close(member)
            if self._lost > len(self._members):
                raise RunnersKeepDying(
                    f"{worker_id} ended with exit code {member.process.returncode}, the {self._lost}. one that did. "
                    f"It said:\n{last_words}"
                )
            self.start()

    def stop(self) -> None:
        """Ask all runners to end, wait for them, and end those that do not listen."""
        for member in self._members.values():
            if member.process.stdin:
                member.process.stdin.close()
        for member in self._members.values():
            try:
                member.process.wait(_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                member.process.kill()
            self._close(member)
        self._members.clear()

    @staticmethod
    def _close(member: _Member) -> None:
        if member.process.stdin:
            member.process.stdin.close()
        member.process.wait()
        member.said.close()


def _import_path() -> str:
    """Return a PYTHONPATH on which the runners find the package where this process found it."""
    ours = str(Path(__file__).parents[3])
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([ours, given]) if given else ours


def _last_lines(said: IO[bytes]) -> str:
    said.seek(0)
    return "\n".join(said.read().decode("utf-8", "replace").splitlines()[-_LINES_SHOWN:])
