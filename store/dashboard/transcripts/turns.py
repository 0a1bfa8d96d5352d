"""The transcript of an attempt as blocks: prompts, turns with tool calls, rewards; and its outline. Decision 112."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from store.dashboard.transcripts.tool_calls import Arguments, arguments_of, summary_of
from store.dashboard.views.media import Medium
from store.dashboard.views.transcript import Entry, RequestedTool, Text, ToolResult
from store.model_calls.tool_failures import failure_in

BlockKind = Literal["system", "user", "message", "turn", "tool", "reward", "log", "error", "spans"]

_FOLDED_FROM: Final = 30
"""The minimum number of turns of a transcript in which runs of quiet turns are folded."""
_SHORTEST_RUN: Final = 4
"""The minimum number of turns of a folded run."""
_OPEN_START: Final = 3
"""The number of turns at the start of a transcript that are never folded."""
_OPEN_END: Final = 5
"""The number of turns at the end of a transcript that are never folded."""
_SYSTEM_ROLES: Final = frozenset({"system", "developer"})


@dataclass(slots=True)
class ToolCall:
    """One call of a tool: the request of the model, the span of the execution, and the result, as far as recorded."""

    anchor: str
    name: str
    call_id: str | None
    arguments: Text
    """The arguments as recorded."""
    text: Arguments
    """The arguments as the page shows them."""
    result: Text | None = None
    seen: Text | None = None
    """The result in the prompt of the next call, if it differs from the result of the execution."""
    media: tuple[Medium, ...] = ()
    failure: str = ""
    """The failure in a few words, such as `exit 1`; empty if no failure is recorded."""
    error: Text | None = None
    """The message of the exception that the span of the execution recorded."""
    span_id: str | None = None
    """The span of the execution."""
    sequence_id: int | None = None
    at: float | None = None
    seconds: float | None = None

    @property
    def summary(self) -> str:
        """The size and the first line of the result."""
        return "" if self.result is None else summary_of(self.result.shown)


@dataclass(slots=True)
class Block:
    """One block of a transcript. A field is empty if its value is unknown or if the kind of block has none."""

    kind: BlockKind
    anchor: str
    span_id: str
    sequence_id: int
    title: str
    at: float | None = None
    seconds: float | None = None
    number: int | None = None
    """The number of a turn, from 1."""
    text: Text | None = None
    thinking: Text | None = None
    tools: list[ToolCall] = field(default_factory=list[ToolCall])
    media: tuple[Medium, ...] = ()
    model: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    rewards: tuple[tuple[str, float], ...] = ()
    invalid_rewards: tuple[tuple[str, str], ...] = ()
    errors: list[Entry] = field(default_factory=list[Entry])
    """The exceptions of a turn, or the exception of a block of the kind `error`."""
    span_anchor: str = ""
    """The anchor `entry-<span_id>`; empty if another block or tool call has this anchor."""
    spans: list[Entry] = field(default_factory=list[Entry])
    """For a turn, the other spans that recorded the same call. For a block of the kind `spans`, its spans."""

    @property
    def words(self) -> int:
        """The number of words of the reasoning."""
        return 0 if self.thinking is None else len(self.thinking.shown.split())

    @property
    def failures(self) -> int:
        """The number of errors in the block."""
        return sum(bool(tool.failure) for tool in self.tools) + len(self.errors)

    @property
    def is_quiet(self) -> bool:
        """Whether the block is a turn, tools or spans, without edits, errors, rewards and media."""
        return (
            self.kind in {"turn", "tool", "spans"}
            and not any(span.is_error or span.rewards for span in self.spans)
            and not self.failures
            and not self.media
            and not any(tool.text.edit or tool.media for tool in self.tools)
        )


@dataclass(frozen=True, slots=True)
class Section:
    """Consecutive blocks. The page folds them if there is a summary."""

    blocks: Sequence[Block]
    summary: str = ""


@dataclass(frozen=True, slots=True)
class OutlineItem:
    """A line of the outline. The kind selects its icon."""

    anchor: str
    kind: str
    title: str
    detail: str = ""
    note: str = ""
    is_failure: bool = False
    is_inner: bool = False
    """Whether the line belongs to the turn above it."""


@dataclass(slots=True)
class _Reader:
    """The state while entries are read: the blocks so far, and the tool calls that may still get a result."""

    blocks: list[Block] = field(default_factory=list[Block])
    by_call_id: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    by_span_id: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    turns: dict[str, Block] = field(default_factory=dict[str, Block])
    """The turns by the id of their span."""
    waiting: list[ToolCall] = field(default_factory=list[ToolCall])
    """The tool calls of the last turn."""
    unanswered: list[ToolCall] = field(default_factory=list[ToolCall])
    """The tool calls of the last turn whose results are not yet in a prompt."""
    count: int = 0
    """The number of turns so far."""

    def read(self, entry: Entry) -> None:
        """Add an entry to the blocks."""
        match entry.kind:
            case "message":
                self.add_message(entry)
            case "tool":
                self.add_execution(entry)
            case "error":
                self.add_error(entry)
            case "same" if entry.same_as in self.turns:
                self.turns[entry.same_as].spans.append(entry)
            case "span" | "same":
                self.add_span(entry)
            case kind:
                self.blocks.append(_block(entry, kind, f"entry-{entry.span_id}"))

    def add_message(self, entry: Entry) -> None:
        """Add the results in a message to their tool calls, and the rest of the message as a block."""
        for result in entry.results:
            self.add_result(entry, result)
        if entry.results and entry.speech is None and not entry.media and not entry.calls:
            return
        text = entry.speech if entry.results else entry.text
        last = self.turns.get(entry.span_id)
        is_turn = entry.is_answer or (entry.title == "assistant" and entry.text is None and not entry.calls)
        if is_turn and last is None:
            self.count += 1
            block = _block(entry, "turn", f"entry-{entry.span_id}")
            block.number, self.turns[entry.span_id], self.waiting = self.count, block, []
            self.unanswered = []
        elif entry.title in _SYSTEM_ROLES:
            block = _block(entry, "system", f"message-{len(self.blocks)}")
        else:
            block = _block(entry, "user" if entry.title == "user" else "message", f"message-{len(self.blocks)}")
        block.text, block.thinking, block.media = text, entry.thinking, entry.media
        self.blocks.append(block)
        for call in entry.calls:
            block.tools.append(self.add_request(call))

    def add_request(self, call: RequestedTool) -> ToolCall:
        """Add a tool call that the model requested."""
        anchor = f"call-{len(self.blocks)}-{len(self.waiting)}"
        tool = ToolCall(anchor, call.name, call.call_id, call.arguments, arguments_of(call.arguments.shown))
        if call.call_id is not None:
            self.by_call_id[call.call_id] = tool
        self.waiting.append(tool)
        self.unanswered.append(tool)
        return tool

    def add_execution(self, entry: Entry) -> None:
        """Add the execution of a tool to its request, or to a block of its own."""
        call = entry.calls[0]
        text = arguments_of(call.arguments.shown)
        tool = self.find_request(entry.tool_call_id, call.name, text)
        if tool is None:
            tool = ToolCall("", call.name, entry.tool_call_id, call.arguments, text)
            if entry.tool_call_id is not None:
                self.by_call_id[entry.tool_call_id] = tool
            self._container(entry).tools.append(tool)
        elif not tool.arguments.length:
            tool.arguments, tool.text = call.arguments, text
        tool.anchor = f"entry-{entry.span_id}"
        tool.span_id, tool.sequence_id, tool.at, tool.seconds = (
            entry.span_id,
            entry.sequence_id,
            entry.at,
            entry.seconds,
        )
        self.by_span_id[entry.span_id] = tool
        if entry.result is not None:
            tool.seen = tool.result
            tool.result = entry.result
        tool.media = tool.media or entry.media
        failure = "error" if entry.is_error else ""
        tool.failure = (failure_in(tool.result.shown) if tool.result is not None else "") or failure or tool.failure

    def find_request(self, call_id: str | None, name: str, text: Arguments) -> ToolCall | None:
        """Return the request of an execution: by the id of the call, or else by name and arguments in the last turn."""
        if call_id is not None and (tool := self.by_call_id.get(call_id)) is not None:
            return tool if tool.span_id is None else None
        matches = [
            tool
            for tool in self.waiting
            if tool.span_id is None and tool.name == name and None in (call_id, tool.call_id)
        ]
        return next((tool for tool in matches if tool.text == text), next(iter(matches), None))

    def _container(self, entry: Entry) -> Block:
        """Return the block for an execution without a request: the last block if its kind is `tool`, or a new one."""
        if not self.blocks or self.blocks[-1].kind != "tool":
            self.blocks.append(_block(entry, "tool", f"tools-{len(self.blocks)}"))
        return self.blocks[-1]

    def add_result(self, entry: Entry, result: ToolResult) -> None:
        """Add a result in a prompt to its tool call."""
        tool = self.by_call_id.get(result.call_id) if result.call_id is not None else None
        if tool is None and result.call_id is None:
            tool = next(iter(self.unanswered), None)
        if tool is None:
            nothing = Text("", 0)
            tool = ToolCall(f"result-{len(self.blocks)}", "tool", result.call_id, nothing, arguments_of(""))
            self._container(entry).tools.append(tool)
        self.unanswered = [other for other in self.unanswered if other is not tool]
        if tool.result is None:
            tool.result = result.text if result.text.length or not result.media else None
        elif result.text.length and result.text.shown.strip() not in tool.result.shown:
            tool.seen = result.text
        tool.media = tool.media or result.media
        tool.failure = tool.failure or failure_in(result.text.shown) or ("error" if result.is_error else "")

    def add_error(self, entry: Entry) -> None:
        """Add the exception of a span to its tool call or to its turn, or as a block."""
        tool, turn = self.by_span_id.get(entry.span_id), self.turns.get(entry.span_id)
        if tool is not None:
            tool.error = entry.text
            tool.failure = tool.failure if tool.failure not in {"", "error"} else entry.title
        elif turn is not None:
            turn.errors.append(entry)
        else:
            block = _block(entry, "error", f"error-{entry.span_id}")
            block.errors.append(entry)
            self.blocks.append(block)

    def add_span(self, entry: Entry) -> None:
        """Add a span without messages."""
        if not self.blocks or self.blocks[-1].kind != "spans":
            self.blocks.append(_block(entry, "spans", f"spans-{len(self.blocks)}"))
        self.blocks[-1].spans.append(entry)


def _block(entry: Entry, kind: BlockKind, anchor: str) -> Block:
    return Block(
        kind,
        anchor,
        entry.span_id,
        entry.sequence_id,
        entry.title,
        entry.at,
        entry.seconds,
        text=entry.text if kind == "log" else None,
        model=entry.model,
        tokens_in=entry.tokens_in,
        tokens_out=entry.tokens_out,
        rewards=entry.rewards,
        invalid_rewards=entry.invalid_rewards,
    )


def blocks_of(entries: Iterable[Entry]) -> list[Block]:
    """Return the blocks of a transcript. The request, the execution and the result of a tool call are one block.

    The id of the call joins these three. Without an id, an execution belongs to the first call of its turn with the
    same name and arguments, and a result to the first call of its turn without a result.
    """
    reader = _Reader()
    for entry in entries:
        reader.read(entry)
    _place_anchors(reader.blocks)
    return reader.blocks


def _place_anchors(blocks: Sequence[Block]) -> None:
    """Set `span_anchor` for each span whose anchor `entry-<span_id>` is missing, in the first block of the span."""
    anchors = {block.anchor for block in blocks} | {tool.anchor for block in blocks for tool in block.tools}
    anchors |= {f"entry-{span.span_id}" for block in blocks for span in block.spans}
    for block in blocks:
        anchor = f"entry-{block.span_id}"
        if anchor not in anchors:
            anchors.add(anchor)
            block.span_anchor = anchor


def sections_of(blocks: Sequence[Block]) -> list[Section]:
    """Return the blocks in sections. In a long transcript, a run of quiet turns is a folded section."""
    turns = [block for block in blocks if block.kind == "turn"]
    if len(turns) < _FOLDED_FROM:
        return [Section(blocks)]
    always = {id(turn) for turn in (*turns[:_OPEN_START], *turns[-_OPEN_END:])}
    sections: list[Section] = []
    run: list[Block] = []
    rest: list[Block] = []
    for block in blocks:
        if block.is_quiet and id(block) not in always:
            run.append(block)
            continue
        _close(run, rest, sections)
        run = []
        rest.append(block)
    _close(run, rest, sections)
    return [*sections, Section(rest)] if rest else sections


def _close(run: list[Block], rest: list[Block], sections: list[Section]) -> None:
    """Add a section of the blocks before a run of quiet turns, and a section of the run. A short run joins `rest`."""
    turns = [block for block in run if block.kind == "turn"]
    if len(turns) < _SHORTEST_RUN:
        rest.extend(run)
        return
    if rest:
        sections.append(Section(tuple(rest)))
        rest.clear()
    counts = Counter(tool.name for block in run for tool in block.tools)
    tools = ", ".join(f"{name} × {count}" if count > 1 else name for name, count in counts.most_common(4))  # noqa: RUF001
    summary = f"Turns {turns[0].number} to {turns[-1].number}" + (f" · {tools}" if tools else "")
    sections.append(Section(tuple(run), summary))


def outline_of(blocks: Sequence[Block]) -> list[OutlineItem]:
    """Return the outline of a transcript: its prompts, turns, tool calls, errors and rewards."""
    items: list[OutlineItem] = []
    for block in blocks:
        items += _outlined(block)
        for tool in block.tools:
            note, headline = tool.failure or ("edit" if tool.text.edit else ""), tool.text.headline[:80]
            items.append(OutlineItem(tool.anchor, "tool", tool.name, headline, note, bool(tool.failure), is_inner=True))
        if block.kind != "error":
            items += [
                OutlineItem(block.anchor, "error", error.title, is_failure=True, is_inner=True)
                for error in block.errors
            ]
    return items


def _outlined(block: Block) -> list[OutlineItem]:
    note = ""
    if block.media:
        note = "1 image" if len(block.media) == 1 and block.media[0].kind == "image" else f"{len(block.media)} attached"
    match block.kind:
        case "turn":
            note = note if block.tokens_out is None else f"{block.tokens_out:,} out"
            return [OutlineItem(block.anchor, "turn", f"Turn {block.number}", note=note, is_failure=bool(block.errors))]
        case "reward":
            values = ", ".join(f"{value:.3f}" for _, value in block.rewards[:1])
            return [OutlineItem(block.anchor, "reward", "Reward", note=values or "no valid reward")]
        case "error":
            return [OutlineItem(block.anchor, "error", block.title, is_failure=True)]
        case "system" | "user" | "message" | "log":
            return [OutlineItem(block.anchor, block.kind, block.title.capitalize(), note=note)]
        case _:
            return []


def renumbered(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks of a later page. Their turns have no numbers, because the turns before them are not read."""
    return [replace(block, number=None) if block.kind == "turn" else block for block in blocks]
