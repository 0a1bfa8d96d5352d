"""Recording of responses that a caller reads piece by piece: streams of events, and bodies of raw responses.

The caller gets the client's objects. The iterator in a stream, or the body in an HTTP response, is replaced by an
object that also records the events or bytes. Decision 76 contains the reasons.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from copy import copy
from functools import cache
from typing import Any, Final, Protocol, cast

_DONE: Final = "[DONE]"
_BYTE_STREAMS: Final = ("SyncByteStream", "AsyncByteStream")


class Reading(Protocol):
    """Receiver of the parts of a response that a caller reads. Its methods do not raise."""

    events: list[Any]
    """The events that the caller received."""
    body: list[bytes]
    """The bytes that the caller received, if the caller reads the body itself; they may be compressed."""
    is_busy: bool
    """Whether the client is waiting for an event or processing one."""
    is_parsed: bool
    """Whether the caller reads events, not the body."""
    is_done: bool
    """Whether the client received an end mark that it does not return as an event."""

    def end(self, error: BaseException | None = None) -> None:
        """Record the response; `error` is the exception that the caller gets instead of the rest. Later calls of this
        method have no effect.
        """
        ...


def record_stream(stream: Any, reading: Reading, *, is_raw: bool = False) -> None:
    """Record the events that a caller reads from a stream of a client.

    Args:
        stream: the stream. Its type and identity do not change.
        reading: the receiver of the events.
        is_raw: whether the caller may read the body of the response instead of this stream.
    """
    # Only this attribute gives access to the events without a change of the stream's type.
    stream._iterator = _Events(_source(stream), reading, is_raw=is_raw)  # noqa: SLF001
    decoder = getattr(stream, "_decoder", None)
    decode = getattr(decoder, "decode", None)
    if decode is not None:

        def decode_line(line: str) -> Any:
            # The client does not return the end mark of chats as an event.
            if _DONE in line and line.startswith(("data:[DONE]", "data: [DONE]")):
                reading.is_done = True
            return decode(line)

        cast("Any", decoder).decode = decode_line
    if not is_raw:
        record_body(stream.response, reading)


def _source(stream: Any) -> Any:
    """Return the client's iterator over the events of a stream."""
    if "_iterator" not in vars(stream) or not type(stream).__module__.endswith("._streaming"):
        return stream._iterator  # noqa: SLF001
    # In `openai`, a stream and its generator refer to each other, so only the garbage collector frees them. The
    # recording must end as soon as the caller drops the stream. So the generator gets a copy of the stream, and only
    # the copy waits for the collector. The collector also closes the response, as without a recording.
    stream_copy = copy(stream)
    stream_copy._iterator = stream_copy.__stream__()  # noqa: SLF001
    return stream_copy._iterator  # noqa: SLF001


class _Events:
    """Iterator over the events of a stream, for both kinds of clients."""

    def __init__(self, source: Any, reading: Reading, *, is_raw: bool) -> None:
        self._source = source
        self._reading = reading
        self._is_raw = is_raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        reading = self._reading
        reading.is_busy = reading.is_parsed = True
        try:
            event = next(self._source)
        except StopIteration:
            reading.end()
            raise
        except BaseException as error:
            reading.end(error)
            raise
        finally:
            reading.is_busy = False
        reading.events.append(event)
        return event

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        reading = self._reading
        reading.is_busy = reading.is_parsed = True
        try:
            event = await anext(self._source)
        except StopAsyncIteration:
            reading.end()
            raise
        except BaseException as error:
            reading.end(error)
            raise
        finally:
            reading.is_busy = False
        reading.events.append(event)
        return event

    def __del__(self) -> None:
        # The caller may drop a stream before its end. If a raw response was parsed for the recording only, the caller
        # may still read its body.
        if self._reading.is_parsed or not self._is_raw:
            self._reading.end()


def record_body(response: Any, reading: Reading, *, keeps: bool = False) -> None:
    """Record the end of an HTTP response and, with `keeps`, its bytes.

    Args:
        response: the response of `httpx` or its successor.
        reading: the receiver.
        keeps: whether to record the bytes that the caller reads.
    """
    body = response.stream
    recorded = _body_class(body.__class__)
    if recorded is not None:
        response.stream = recorded(body, reading, keeps=keeps)


class _Body:
    """The body of an HTTP response."""

    def __init__(self, body: Any, reading: Reading, *, keeps: bool) -> None:
        self._body = body
        self._reading = reading
        self._keeps = keeps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks() if self._keeps else iter(self._body)

    def _chunks(self) -> Generator[bytes]:
        reading = self._reading
        try:
            for chunk in self._body:
                reading.body.append(chunk)
                yield chunk
        except GeneratorExit:
            raise
        except BaseException as error:
            self._end(error)
            raise
        self._end()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks_async() if self._keeps else aiter(self._body)

    async def _chunks_async(self) -> AsyncGenerator[bytes]:
        reading, chunks = self._reading, aiter(self._body)
        try:
            async for chunk in chunks:
                reading.body.append(chunk)
                yield chunk
        except GeneratorExit:
            raise
        except BaseException as error:
            self._end(error)
            raise
        finally:
            # The client's body also closes its iterator, so that the connection is released at once.
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()
        self._end()

    def _end(self, error: BaseException | None = None) -> None:
        # A client closes the response before it signals the end of a stream or raises an exception.
        if not self._reading.is_busy:
            self._reading.end(error)

    def close(self) -> None:
        try:
            self._body.close()
        finally:
            self._end()

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            self._end()

    def __del__(self) -> None:
        self._end()


@cache
def _body_class(kind: type[Any]) -> Any:
    """Return a subclass of `_Body` with the abstract base classes of a body, because `httpx` checks these classes.

    Return None for a body without these base classes, for example in a test double of a response.
    """
    bases = [base for base in inspect.getmro(kind) if base.__name__ in _BYTE_STREAMS]
    return type("RecordedBody", (_Body, *bases), {}) if bases else None
