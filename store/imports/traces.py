"""Reader of the episodes and traces that verifiers and prime-rl write.

A line of `traces.jsonl` is an episode with the traces of its agents, or, from older versions, one trace. Each trace is
a rollout. prime-rl writes each episode to the folder `all` when it ends; when a batch is complete, it writes the
episodes of the batch again to the folder `effective`, with the values that the algorithm assigned to tokens. These
values become a separate span, so that the import of the copy adds them to the rollout of the original.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from store.errors import Invalid, NotFound
from store.imports.report import Skipped
from store.imports.rollouts import ForeignAttempt, ForeignRollout
from store.imports.trace_spans import TraceSpans
from store.model_calls.json_values import Json, as_count, as_list, as_object, as_objects, first_text
from store.models import AttemptError, RolloutMode
from store.runtime import lenient_json

FILE: Final = "traces.jsonl"
SOURCE: Final = "traces"
"""The name of the format."""
_OLD_FILE: Final = "results.jsonl"
_VERSION: Final = 1
_FOLDERS: Final = re.compile(r"(?:^|/)step_(\d+)/(train|eval)/(all|effective)/[^/]+$")
_OF_METADATA: Final = ("metrics", "info", "timing", "stop_condition", "root_reply", "extra_usage", "verifiers")
_OF_TRACE: Final = frozenset({
    *_OF_METADATA, "agent", "calls", "errors", "id", "is_completed", "is_timeout", "nodes", "num_input_tokens",
    "num_output_tokens", "num_total_tokens", "ok", "rewards", "task", "tools", "version",
})  # fmt: skip
_OF_EPISODE: Final = frozenset({
    "env", "errors", "group", "id", "is_timeout", "num_input_tokens", "num_output_tokens", "num_total_tokens", "ok",
    "run", "task", "traces",
})  # fmt: skip
_MODES: Final[dict[str, RolloutMode]] = {"train": "train", "eval": "val"}
"""The modes by the kind of an episode's work for a training run. Episodes of other runs get the mode `test`."""
_UNSTORABLE: Final = re.compile(rb"\\u(0000|[dD][89a-fA-F])")
_NO_TRACE: Final[Json] = {}
_BEGINNING: Final = re.compile(rb'\{"(?:id|version)":')
_MOST_REASONS: Final = 100
_LONGEST_TYPE: Final = 200
_LONGEST_MESSAGE: Final = 500


@dataclass(frozen=True, slots=True)
class TraceFolder:
    """The information in the path of a file of prime-rl. For other files, the fields have their default values."""

    step: int | None = None
    kind: str | None = None
    is_effective: bool = False

    @classmethod
    def of(cls, file: Path) -> TraceFolder:
        """Return the information in a path."""
        match = _FOLDERS.search(file.absolute().as_posix())
        return cls() if match is None else cls(int(match[1]), match[2], match[3] == "effective")


def read_traces(path: Path) -> Iterator[ForeignRollout | Skipped]:
    """Yield the rollouts in files with traces, and the parts that cannot be imported.

    Args:
        path: a file, or a folder. In a folder and its subfolders, all files with the name `traces.jsonl` are read.

    Raises:
        NotFound: the path does not exist.
        Invalid: the folder has no file with this name, or no line of the file is an episode or a trace.
    """
    files = [path] if path.is_file() else trace_files(path)
    for file in files:
        is_trace_file = file != path
        reasons: list[Skipped] = []
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                for record in records_of_line(line, f"{file}:{number}", TraceFolder.of(file)):
                    is_trace_file = is_trace_file or isinstance(record, ForeignRollout)
                    if is_trace_file:
                        yield from reasons
                        reasons.clear()
                        yield record
                    elif isinstance(record, Skipped) and len(reasons) < _MOST_REASONS:
                        reasons.append(record)
        if reasons:
            raise Invalid("path", f"{file} has no episode and no trace: {reasons[0].place}: {reasons[0].reason}")


def trace_files(folder: Path) -> list[Path]:
    """Return the files with traces below a folder, in the order of the numbers in their paths.

    Raises:
        NotFound: the folder does not exist.
        Invalid: the folder has no file with traces.
    """
    if not folder.is_dir():
        raise NotFound("path", str(folder), f"{folder} does not exist")
    files = files_named(FILE, folder)
    if not files:
        old = files_named(_OLD_FILE, folder)
        hint = f"; {old[0]} is of an old version of verifiers, which cannot be imported" if old else ""
        raise Invalid("path", f"no file in {folder} is named {FILE}{hint}")
    return files


def files_named(name: str, folder: Path) -> list[Path]:
    """Return the files with a name below a folder, in the order of the numbers in their paths.

    Folders that are deleted during the search are left out.
    """
    return sorted((Path(path, name) for path, _, files in os.walk(folder) if name in files), key=_natural)


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Return a sort key by which `step_2` comes before `step_10`."""
    pieces = re.split(r"(\d+)", path.as_posix())
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces]


def records_of_line(line: bytes, place: str, folder: TraceFolder) -> Iterator[ForeignRollout | Skipped]:
    """Yield the rollouts in one line of a file, and the reason for each part of the line that is not a rollout.

    Args:
        line: the line. If it has no line break at its end, it may be incomplete.
        place: the file and the number of the line.
        folder: the information in the path of the file.
    """
    try:
        value = lenient_json.loads(line)
    except orjson.JSONDecodeError as error:
        is_torn = not line.endswith(b"\n")
        yield Skipped(place=place, reason="the line is not complete" if is_torn else f"the line is not JSON: {error}")
        if (value := _appended(line)) is None:
            return
    if _UNSTORABLE.search(line):
        value = lenient_json.storable(value)
    episode = as_object(value)
    if isinstance(episode.get("traces"), list):
        traces = as_list(episode["traces"])
    elif isinstance(episode.get("nodes"), list):
        traces, episode = [episode], dict[str, Any]()
    else:
        yield Skipped(place=place, reason="the line is neither an episode nor a trace: it has no traces and no nodes")
        return
    # An episode that failed before its first agent began has no trace.
    items: list[Any] = traces or [_NO_TRACE]
    for number, trace in enumerate(items):
        name = f"{place}, trace {number + 1}" if len(items) > 1 else place
        if not isinstance(trace, dict):
            yield Skipped(place=name, reason="the trace is no object")
            continue
        key = first_text(as_object(trace), "id") or f"{hashlib.sha256(line.strip()).hexdigest()}-{number}"
        try:
            yield _rollout(episode, as_object(trace), key, name, folder)
        except Invalid as error:
            yield Skipped(place=name, reason=str(error))


def _appended(line: bytes) -> Any:
    """Return the episode or trace that follows an incomplete one in the same line; None if there is none.

    Such a line exists if a program was killed while it wrote the line, and the next program appended to the file.
    """
    for match in _BEGINNING.finditer(line, 1):
        try:
            return orjson.loads(line[match.start() :])
        except orjson.JSONDecodeError:
            continue
    return None


def _rollout(episode: Json, trace: Json, key: str, place: str, folder: TraceFolder) -> ForeignRollout:
    """Return the rollout of a trace. If the trace is `_NO_TRACE`, return the rollout of the episode.

    Raises:
        Invalid: the trace is malformed, or has a newer version.
    """
    if trace is _NO_TRACE:
        trace = {name: value for name, value in episode.items() if name in {"errors", "is_timeout"}}
        key = f"episode {first_text(episode, 'id') or key}"
    if (version := as_count(trace.get("version"))) is not None and version > _VERSION:
        raise Invalid("version", f"{version} of traces is newer than {_VERSION}; use a newer version of Rollbook")
    run = as_object(episode.get("run"))
    work = as_object(run.get("work"))
    agent, task = as_object(trace.get("agent")), as_object(trace.get("task") or episode.get("task"))
    is_trained = agent.get("trainable") is not False
    spans = TraceSpans(trace, key, _policy(work) if is_trained else None)
    kind = first_text(work, "type") or folder.kind
    step = as_count(work.get("step"))
    batch = {"training.step": folder.step} if folder.is_effective and folder.step is not None else {}
    credit = spans.credit(batch)
    start, end = spans.times
    return ForeignRollout(
        key=key,
        place=place,
        input=task.get("data"),
        attempts=[_attempt(trace, spans)],
        late_spans=[] if credit is None else [credit],
        mode=_MODES.get(kind or "", "test") if kind or run else None,
        metadata=_metadata(episode, trace),
        group=first_text(as_object(episode.get("group")), "id") or first_text(task, "key", "hash"),
        step=folder.step if step is None else step,
        start_time=start,
        end_time=end,
    )


def _attempt(trace: Json, spans: TraceSpans) -> ForeignAttempt:
    errors = as_objects(trace.get("errors"))
    # Older versions have no field `ok`.
    is_ok = trace.get("ok", bool(trace.get("is_completed")) and not errors)
    if is_ok is True:
        return ForeignAttempt("succeeded", spans.spans())
    last = errors[-1] if errors else {}
    reason = first_text(trace, "stop_condition") or "the trace is not complete"
    error = AttemptError(
        type=(first_text(last, "type") or reason)[:_LONGEST_TYPE],
        message=(first_text(last, "message") or reason)[:_LONGEST_MESSAGE],
    )
    return ForeignAttempt("timeout" if trace.get("is_timeout") is True else "failed", spans.spans(), error=error)


def _policy(work: Json) -> str | None:
    """Return the version of the policy of an episode; None if it is unknown.

    If the policy changed during the episode, return its first and its last version, such as `12-13`.
    """
    policy = as_object(work.get("policy"))
    start, end = as_count(policy.get("start")), as_count(policy.get("end"))
    if start is None or end is None:
        return None
    return f"{start}" if start == end else f"{start}-{end}"


def _metadata(episode: Json, trace: Json) -> Json:
    """Return the fields that are not in the spans. Fields that this module does not know are in `further`."""
    agent, task = as_object(trace.get("agent")), as_object(trace.get("task") or episode.get("task"))
    fields = {
        "episode": first_text(episode, "id"),
        "trace": first_text(trace, "id"),
        "env": episode.get("env"),
        "run": episode.get("run"),
        "task": {name: value for name, value in task.items() if name != "data"},
        "agent": agent,
        **{name: trace.get(name) for name in _OF_METADATA},
        "errors": trace.get("errors"),
        "episode_errors": episode.get("errors") if "id" in trace else None,
        "further": {
            name: value
            for fields, names in ((episode, _OF_EPISODE), (trace, _OF_TRACE))
            for name, value in fields.items()
            if name not in names and value not in (None, [], {})
        },
    }
    return {name: value for name, value in fields.items() if value not in (None, [], {})}
