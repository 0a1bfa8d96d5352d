"""Reader of documents of ATIF, the Agent Trajectory Interchange Format.

The documents were exported from a store, or other agents wrote them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import orjson

from store.atif.form import ORIGIN
from store.atif.reading import ForeignSpans, OwnAttempt, description_of, input_of, is_own, own_attempt
from store.atif.schema import VERSIONS, read_document
from store.errors import Invalid, NotFound, StoreError
from store.imports.batches import Record
from store.imports.report import Skipped
from store.imports.rollouts import ForeignAttempt, ForeignRollout, span_id_of, trace_id_of
from store.model_calls.json_values import Json
from store.models import AttemptError

NAME: Final = "atif"
DESCRIPTION: Final = "atif"
"""The key in the metadata of a rollout of another agent. Its value is the document without the steps."""
_ENDED: Final = frozenset({"succeeded", "failed", "timeout", "unresponsive"})
_ENDED_ROLLOUTS: Final = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class _OwnFile:
    place: str
    sha256: str
    content: OwnAttempt

    @property
    def rollout_id(self) -> str:
        """The id of the rollout in the document."""
        return self.content.rollout.rollout_id

    @property
    def number(self) -> int:
        """The number of the attempt in its rollout."""
        return self.content.attempt.number


def atif_rollouts(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Record]:
    """Return the rollouts in documents, and a `Skipped` for each document that cannot be read.

    Documents of our own exports restore their rollouts. The attempts of a rollout must be in neighbouring files, as
    exports write them. Any other document becomes a rollout with one attempt.

    Args:
        paths: files, and folders with files `*.json` at any depth. In folders, JSON files that are not documents of
            ATIF are ignored and not reported.

    Raises:
        NotFound: a path does not exist.
    """
    roots = [Path(path) for path in paths]
    for root in roots:
        if not root.exists():
            raise NotFound("file", str(root))
    return _records(roots)


def _records(roots: Sequence[Path]) -> Iterator[Record]:
    attempts: list[_OwnFile] = []
    for item in _contents(roots):
        if isinstance(item, _OwnFile) and attempts and item.rollout_id == attempts[0].rollout_id:
            same = next((one for one in attempts if one.number == item.number), None)
            if same is None:
                attempts.append(item)
            elif same.sha256 != item.sha256:
                reason = f"attempt {item.number} of rollout {item.rollout_id} is another one in {same.place}"
                yield Skipped(place=item.place, reason=reason)
            continue
        if attempts:
            yield _rollout(attempts)
        attempts = [item] if isinstance(item, _OwnFile) else []
        if not isinstance(item, _OwnFile):
            yield item
    if attempts:
        yield _rollout(attempts)


def _contents(roots: Sequence[Path]) -> Iterator[_OwnFile | Record]:
    """Yield the content of each file."""
    for file, is_named in _files(roots):
        try:
            content = file.read_bytes()
            if not is_named and not _may_be_document(content):
                continue
            document = read_document(content)
            digest = sha256(content).hexdigest()
            if is_own(document):
                yield _OwnFile(str(file), digest, own_attempt(document))
            else:
                yield _foreign(document, str(file), digest)
        except OSError as error:
            yield Skipped(place=str(file), reason=f"cannot be read: {error.strerror}")
        except StoreError as error:
            yield Skipped(place=str(file), reason=str(error))


def _files(roots: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield the files in their order, and whether the caller named them."""
    for root in roots:
        if not root.is_dir():
            yield root, True
            continue
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                if name.endswith(".json"):
                    yield Path(folder, name), False


def _may_be_document(content: bytes) -> bool:
    """Return whether a JSON file is meant to be a document.

    A file with invalid JSON counts as a document if it contains the name of the format.
    """
    try:
        value: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        return b'"ATIF-' in content
    return isinstance(value, dict) and (
        str(value.get("schema_version")).startswith("ATIF") or {"agent", "steps"} <= value.keys()  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    )


def _rollout(files: Sequence[_OwnFile]) -> Record:
    """Return the rollout of our own documents."""
    files = sorted(files, key=lambda file: file.number)
    first = files[0]
    rollout = first.content.rollout
    try:
        attempts = [_attempt(file.content) for file in files]
    except Invalid as error:
        return Skipped(place=first.place, reason=str(error))
    return ForeignRollout(
        key=rollout.rollout_id,
        place=first.place,
        input=rollout.input,
        attempts=attempts,
        mode=rollout.mode,
        metadata={**(rollout.metadata or {}), ORIGIN: first.content.rollout_origin},
        group=rollout.group,
        step=rollout.step,
        is_cancelled=rollout.status == "cancelled",
        start_time=rollout.start_time,
        end_time=rollout.end_time,
        sha256=sha256("".join(file.sha256 for file in files).encode()).hexdigest(),
    )


def _attempt(own: OwnAttempt) -> ForeignAttempt:
    """Return an attempt of one of our own documents.

    Raises:
        Invalid: the attempt had not ended when it was exported.
    """
    attempt, rollout = own.attempt, own.rollout
    metadata = {**(attempt.metadata or {}), ORIGIN: own.attempt_origin}
    if attempt.status not in _ENDED and rollout.status not in _ENDED_ROLLOUTS:
        raise Invalid(
            "status",
            f"attempt {attempt.attempt_id} was {attempt.status} when it was exported; export it again after its end",
        )
    # The number of a span in a document is its place there, not its number in the rollout.
    spans = [span.model_copy(update={"sequence_id": 0}) for span in own.spans]
    if attempt.status == "succeeded" and rollout.status != "cancelled":
        return ForeignAttempt(attempt.status, spans, metadata)
    error = attempt.error
    if error is None and rollout.status == "cancelled":
        error = AttemptError(type="cancelled", message="the rollout was cancelled")
    status = attempt.status if attempt.status in _ENDED - {"succeeded"} else "failed"
    return ForeignAttempt(status, spans, metadata, error)


def _foreign(document: Json, place: str, digest: str) -> ForeignRollout:
    """Return a document of another agent as a rollout with one attempt, which counts as succeeded."""
    key = document.get("trajectory_id") or f"sha256:{digest}"
    spans = ForeignSpans(trace_id_of(NAME, key), partial(span_id_of, NAME, key))
    spans.add(document)
    times = [span.start_time for span in spans.spans if span.start_time is not None]
    return ForeignRollout(
        key=key,
        place=place,
        input=input_of(document),
        attempts=[ForeignAttempt("succeeded", spans.spans)],
        metadata={DESCRIPTION: {"schema_version": VERSIONS[-1], **description_of(document)}},
        start_time=min(times, default=None),
        end_time=max(times, default=None),
        sha256=digest,
    )
