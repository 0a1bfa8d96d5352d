"""`rollbook show`: all data of one rollout, of one set of resources, or of one worker."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from store import semconv
from store.cli import lookup
from store.cli.commands import annotate
from store.cli.options import DEFAULT_DB, AsAt, AsJson, Db
from store.cli.output.printing import (
    STYLES,
    compact,
    console,
    fitted,
    heading,
    is_terminal,
    json_document,
    line,
    note,
    printable,
    tree,
)
from store.cli.output.tables import ATTEMPTS, WORKERS, print_table, rewards_of
from store.cli.output.times import ago, duration, in_words, local, utc
from store.cli.store_context import run_reading
from store.errors import Incompatible, Invalid, NotFound, Unsupported
from store.narration.events import FAILED_ATTEMPT, Narrator, config_text, invalid_reward_texts, reward_text

if TYPE_CHECKING:
    from store.interface.store import AsAt as Past
    from store.interface.store import Store
    from store.models import Annotations, Attempt, ResourcesUpdate, Rollout, Span
    from store.models.rollouts import ObservedWorker
    from store.models.threads import ThreadSummary

app = typer.Typer()

_INPUT_LINES: Final = 20
_SPAN_LINES: Final = 100
_REWARDS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class _RolloutDetails:
    """A rollout with its attempts, spans, annotations and threads."""

    rollout: Rollout
    attempts: Sequence[Attempt]
    spans: Sequence[Span]
    annotations: Annotations
    failures: Sequence[str]
    """A sentence about the end of each attempt that did not succeed."""
    threads: Sequence[ThreadSummary] = ()
    """The current LangGraph threads of the rollout; empty for a past moment and for a remote store."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """The requested object as of one moment, and remarks about this moment."""

    thing: _RolloutDetails | ResourcesUpdate | ObservedWorker
    remarks: list[str]
    is_past: bool


@app.command(rich_help_panel="Look")
def show(
    *,
    prefix: Annotated[
        str,
        typer.Argument(metavar="ID", help="The id of a rollout, resources or a worker, or the beginning of the id."),
    ],
    db: Db = DEFAULT_DB,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Show a rollout as it was after its event number N; `rollbook history` shows the numbers.",
        ),
    ] = None,
    as_at: AsAt = None,
    full: Annotated[bool, typer.Option("--full", help="Show everything, also what a terminal omits.")] = False,
    transcript: Annotated[
        bool,
        typer.Option("--transcript", help="Show the messages, tool calls and rewards of an attempt, by time."),
    ] = False,
    attempt: Annotated[
        str | None,
        typer.Option(metavar="ID", help="With --transcript: the attempt, given by its id or number; default: latest."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show a rollout with its attempts, spans and rewards, or show resources or a worker."""
    if at is not None and as_at is not None:
        raise typer.BadParameter("give --at or --as-at, not both")
    if attempt is not None and not transcript:
        raise typer.BadParameter("--attempt needs --transcript")

    async def read(store: Store) -> _Subject:
        kind, key = await lookup.anything(store, prefix)
        if at is not None and kind != "rollout":
            raise Invalid(
                "--at", f"{key} is not a rollout; use --as-at, since only the events of a rollout are numbered"
            )
        remarks = [] if as_at is None else [f"as of {in_words(as_at)}"]
        if at is not None:
            remarks.append(f"as it was after event {at} of {len(await store.log.history(key))}")
        if transcript and kind != "rollout":
            raise Invalid("--transcript", f"{key} is not a rollout; only rollouts have transcripts")
        thing = await _read(store, kind, key, as_at, at)
        if transcript and isinstance(thing, _RolloutDetails):
            thing = await _of_attempt(store, thing, attempt, as_at)
        return _Subject(thing, remarks, is_past=as_at is not None or at is not None)

    subject = run_reading(db, read)
    if transcript and isinstance(subject.thing, _RolloutDetails):
        _print_transcript(subject, full=full, json=json)
    else:
        _print(subject, full=full, json=json)


async def _of_attempt(
    store: Store, details: _RolloutDetails, prefix: str | None, as_at: Past | None
) -> _RolloutDetails:
    """Return a rollout with the spans of only one attempt; the latest attempt if `prefix` is None."""
    if prefix is None and not details.attempts:
        return details
    attempt_id = await lookup.attempt(store, details.rollout.rollout_id, prefix or "latest", as_at)
    return replace(
        details,
        attempts=[attempt for attempt in details.attempts if attempt.attempt_id == attempt_id],
        spans=[span for span in details.spans if span.attempt_id == attempt_id],
    )


def _print_transcript(subject: _Subject, *, full: bool, json: bool) -> None:
    from store.cli.output.transcript import entries_of, print_transcript
    from store.dashboard.transcripts.turns import blocks_of

    details = subject.thing
    assert isinstance(details, _RolloutDetails)
    for remark in subject.remarks:
        note(remark)
    attempt = details.attempts[0] if details.attempts else None
    entries = entries_of(details.spans, full=full or json or not is_terminal())
    if json:
        json_document(
            {
                "rollout_id": details.rollout.rollout_id,
                "attempt_id": attempt and attempt.attempt_id,
                "input": details.rollout.input,
                "entries": [asdict(entry) for entry in entries],
                "turns": [asdict(block) for block in blocks_of(entries)],
            }
        )
        return
    _print_title(details.rollout)
    if attempt is not None:
        line(f"  attempt {attempt.sequence_id}  {attempt.attempt_id}  {attempt.status}", style="dim")
    heading("Input")
    for text in orjson.dumps(details.rollout.input, option=orjson.OPT_INDENT_2).decode().splitlines():
        line(f"  {printable(text)}")
    print_transcript(entries)
    if not entries:
        note("no spans, so there is no transcript yet")


def _print(subject: _Subject, *, full: bool, json: bool) -> None:
    from store.models import ResourcesUpdate
    from store.models.rollouts import ObservedWorker

    for remark in subject.remarks:
        note(remark)
    match subject.thing:
        case _RolloutDetails() as details if json:
            json_document(_details_json(details))
        case _RolloutDetails() as details:
            _print_rollout(details, is_past=subject.is_past, cuts=is_terminal() and not full)
        case thing if json:
            json_document({"resources" if isinstance(thing, ResourcesUpdate) else "worker": thing.model_dump()})
        case ResourcesUpdate() as update:
            _print_resources(update)
        case ObservedWorker() as worker:
            print_table(WORKERS, [worker], is_past=subject.is_past)


async def _read(
    store: Store, kind: lookup.Kind, key: str, as_at: Past | None, at: int | None
) -> _RolloutDetails | ResourcesUpdate | ObservedWorker:
    from store.models.rollouts import ObservedWorker
    from store.sql.store import SQLStore

    match kind:
        case "resources":
            item = await store.get_resources_by_id(key, as_at=as_at)
        case "worker":
            worker = await store.get_worker_by_id(key, as_at=as_at)
            item = worker and ObservedWorker.of(worker, time.time())
        case _:
            rollout = await store.get_rollout_by_id(key, as_at=as_at, at=at)
            attempts = await store.query_attempts(key, as_at=as_at, at=at)
            has_failed = any(attempt.status in FAILED_ATTEMPT for attempt in attempts)
            item = rollout and _RolloutDetails(
                rollout,
                attempts,
                await store.query_spans(key, as_at=as_at, at=at),
                await _annotations(store, key, as_at, at),
                await _failures(store, key, as_at, at) if has_failed else [],
                await store.threads.list_threads(key)
                if isinstance(store, SQLStore) and as_at is None and at is None
                else (),
            )
    if item is None:
        when = "" if as_at is None else f" at {in_words(as_at)}"
        raise NotFound(kind, key, f"{kind} {key} did not exist yet{when}; leave out --as-at to see it as it is now")
    return item


async def _annotations(store: Store, rollout_id: str, as_at: Past | None, at: int | None) -> Annotations:
    from store.models import Annotations

    try:
        return await store.annotations.query(rollout_id, as_at=as_at, at=at)
    except (Incompatible, Unsupported):
        # Servers of Agent-lightning, and servers of earlier versions of Rollbook, have no annotations.
        return Annotations(labels=[], notes=[])


async def _failures(store: Store, rollout_id: str, as_at: Past | None, at: int | None) -> list[str]:
    try:
        events = await store.log.history(rollout_id, as_at=as_at, limit=-1 if at is None else at)
    except (Incompatible, Unsupported):
        # Servers of Agent-lightning have no log.
        return []
    narrator = Narrator(local)
    sentences = [(event, narrator.describe(event)) for event in events]
    return [
        sentence
        for event, sentence in sentences
        if event.type == "attempt.status_changed" and event.data["to"] in FAILED_ATTEMPT
    ]


def _details_json(details: _RolloutDetails) -> dict[str, Any]:
    return {
        "rollout": details.rollout.model_dump(),
        "attempts": [attempt.model_dump() for attempt in details.attempts],
        "spans": [span.model_dump() for span in details.spans],
        "rewards": [
            {"attempt_id": span.attempt_id, "span_id": span.span_id, "name": name, "value": value}
            for span in details.spans
            for name, value in rewards_of(span)
        ],
        "invalid_rewards": [
            {"attempt_id": span.attempt_id, "span_id": span.span_id, "name": name, "value": value}
            for span in details.spans
            for name, value in semconv.invalid_rewards(span.attributes)
        ],
        **details.annotations.model_dump(),
        "failures": details.failures,
        "threads": [asdict(thread) for thread in details.threads],
    }


def _print_rollout(details: _RolloutDetails, *, is_past: bool, cuts: bool) -> None:
    rollout = details.rollout
    _print_title(rollout)
    for name, text in _facts(details):
        line(f"  {name:<10} {text}")
    annotate.print_notes(details.annotations)
    heading("Input")
    lines = orjson.dumps(rollout.input, option=orjson.OPT_INDENT_2).decode().splitlines()
    for text in lines[:_INPUT_LINES] if cuts else lines:
        line("  " + (fitted(printable(text), console().width - 2) if cuts else printable(text)))
    if cuts and len(lines) > _INPUT_LINES:
        note(f"  … {len(lines) - _INPUT_LINES:,} more lines: --full")
    if details.attempts:
        heading("Attempts")
        print_table(ATTEMPTS, details.attempts, is_past=is_past, indent="  ")
    if details.failures:
        heading("Failures")
        for failure in details.failures:
            line(f"  {printable(failure)}")
    if details.spans:
        heading("Spans")
        _print_spans(details, cuts=cuts)
    if details.threads:
        heading("Threads")
        for thread in details.threads:
            line(f"  {_thread_line(thread)}")


def _thread_line(thread: ThreadSummary) -> str:
    step = "" if thread.step is None else f", at step {thread.step}"
    plural = "" if thread.checkpoints == 1 else "s"
    return f"{printable(thread.thread_id)}  {thread.checkpoints} checkpoint{plural}{step}, {_when(thread.at)}"


def _print_title(rollout: Rollout) -> None:
    if not is_terminal():
        line(f"{rollout.rollout_id}\t{rollout.status}")
        return
    from rich.text import Text

    console().print(Text.assemble((rollout.rollout_id, "bold"), "  ", (rollout.status, STYLES[rollout.status])))


def _facts(details: _RolloutDetails) -> list[tuple[str, str]]:
    rollout = details.rollout
    facts = [("created", _when(rollout.start_time))]
    if rollout.end_time is not None:
        facts.append(("ended", f"{_when(rollout.end_time)}, after {duration(rollout.end_time - rollout.start_time)}"))
    facts += [("mode", rollout.mode or ""), ("resources", rollout.resources_id or "")]
    facts.append(("config", config_text(rollout.config.model_dump())))
    rewards = _latest_rewards(details)
    more = f" and {len(rewards) - _REWARDS_SHOWN} more" if len(rewards) > _REWARDS_SHOWN else ""
    facts.append(("rewards", printable(", ".join(rewards[:_REWARDS_SHOWN])) + more))
    facts.append(("labels", annotate.labels_text(details.annotations.labels) if details.annotations.labels else ""))
    facts.append(("metadata", printable(compact(rollout.metadata)) if rollout.metadata else ""))
    return [fact for fact in facts if fact[1]]


def _latest_rewards(details: _RolloutDetails) -> list[str]:
    """Return the rewards of the latest attempt as text."""
    latest = details.attempts[-1].attempt_id if details.attempts else None
    texts: list[str] = []
    for span in details.spans:
        if span.attempt_id == latest:
            texts += [f"{name} {value:g}" for name, value in rewards_of(span)]
            texts += invalid_reward_texts(span.attributes)
    return texts


def _when(moment: float) -> str:
    return f"{local(moment)} ({ago(moment, time.time())})" if is_terminal() else utc(moment)


def _print_spans(details: _RolloutDetails, *, cuts: bool) -> None:
    from store.adapters.recordings import repeated_calls

    by_attempt: defaultdict[str, list[Span]] = defaultdict(list)
    for span in details.spans:
        by_attempt[span.attempt_id].append(span)
    numbers = {attempt.attempt_id: attempt.sequence_id for attempt in details.attempts}
    lines_left = _SPAN_LINES if cuts else len(details.spans)
    repeated = repeated_calls(details.spans)
    for attempt_id, spans in sorted(by_attempt.items(), key=lambda item: numbers.get(item[0], 0)):
        line(f"  attempt {numbers.get(attempt_id, '?')}  {attempt_id}", style="dim")
        for lead, span in tree(*_family(spans)):
            if lines_left == 0:
                break
            lines_left -= 1
            line(f"    {lead}{_span_line(span, repeated.get((attempt_id, span.span_id)))}")
    if cuts and len(details.spans) > _SPAN_LINES:
        note(f"  … {len(details.spans) - _SPAN_LINES:,} more spans: --full, or rollbook ls spans")


def _family(spans: Sequence[Span]) -> tuple[list[Span], Callable[[Span], list[Span]]]:
    """Return the root spans, and a function that returns the children of a span.

    From the roots, every span is reached exactly once, even if ids repeat or parents form a cycle.
    """
    ids = {span.span_id for span in spans}
    below: defaultdict[str, list[Span]] = defaultdict(list)
    roots: list[Span] = []
    for span in spans:
        has_parent = span.parent_id in ids and span.parent_id != span.span_id
        (below[span.parent_id or ""] if has_parent else roots).append(span)

    def children(span: Span) -> list[Span]:
        return below[span.span_id]

    reached: set[str] = set()
    waiting = list(roots)
    remaining = iter(spans)
    while True:
        while waiting:
            span = waiting.pop()
            reached.add(span.span_id)
            waiting.extend(children(span))
        circular = next((span for span in remaining if span.span_id not in reached), None)
        if circular is None:
            return roots, children
        below[circular.parent_id or ""].remove(circular)
        roots.append(circular)
        waiting.append(circular)


def _span_line(span: Span, same_call: Span | None) -> str:
    parts = [f"{span.sequence_id} {span.name}"]
    if span.start_time is not None and span.end_time is not None:
        parts.append(duration(span.end_time - span.start_time))
    if span.status.status_code == "ERROR":
        parts.append(f"ERROR {span.status.description or ''}".rstrip())
    parts.extend(reward_text(name, value) for name, value in rewards_of(span))
    parts.extend(invalid_reward_texts(span.attributes))
    if same_call is not None:
        parts.append(f"the same call as {same_call.sequence_id}")
    return printable("  ".join(parts))


def _print_resources(update: ResourcesUpdate) -> None:
    line(f"{update.resources_id}  version {update.version}", style="bold")
    line(f"  published  {_when(update.create_time)}")
    line(f"  updated    {_when(update.update_time)}")
    for name, resource in update.resources.items():
        heading(printable(name))
        for text in orjson.dumps(resource.model_dump(), option=orjson.OPT_INDENT_2).decode().splitlines():
            line(f"  {printable(text)}")
