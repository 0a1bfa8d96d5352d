"""The parts of a transcript that a comparison matches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from store.dashboard.diff.transcripts import SideMessage
from store.dashboard.transcripts.turns import Block
from store.dashboard.views.transcript import Text


def messages(blocks: Sequence[Block]) -> list[SideMessage]:
    """Return the parts of a transcript that are compared: messages, tool calls, rewards, log lines and errors.

    A tool call with its result is one message.
    """
    return [message for block in blocks if block.kind != "spans" for message in _messages_of(block)]


def _messages_of(block: Block) -> Iterator[SideMessage]:
    texts = [text for text in (block.thinking, block.text) if text is not None and text.length]
    parts = [f"(thinking) {text.shown}" if text is block.thinking else text.shown for text in texts]
    match block.kind:
        case "reward":
            values = "\n".join(f"{name}: {value:g}" for name, value in block.rewards)
            yield SideMessage(f"reward {block.title}", values, block.span_id)
        case "log":
            yield SideMessage(f"log {block.title}", "\n".join(parts), block.span_id, _unread(*texts))
        case _ if parts or not (block.tools or block.errors):
            yield SideMessage(block.title, "\n".join(parts), block.span_id, _unread(*texts))
        case _:
            pass
    for tool in block.tools:
        call = f"{tool.name}({tool.arguments.shown})"
        results = [text for text in (tool.result, tool.error) if text is not None]
        text = "\n".join([call, *(text.shown for text in results)])
        yield SideMessage(f"tool {tool.name}", text, tool.span_id or block.span_id, _unread(tool.arguments, *results))
    for error in block.errors:
        text = Text("", 0) if error.text is None else error.text
        yield SideMessage(error.title, text.shown, error.span_id, _unread(text))


def _unread(*texts: Text) -> int:
    return sum(text.length - len(text.shown) for text in texts)
