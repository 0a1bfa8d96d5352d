"""One call on its way through the proxy: what was asked, what came back, and the span that tells of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import orjson
from starlette.datastructures import Headers

from store.llm_proxy import attributes as names
from store.llm_proxy.addresses import CallAddress, Endpoint
from store.llm_proxy.attributes import Attributes
from store.llm_proxy.backends import Backend
from store.llm_proxy.headers import keys_of, secrets
from store.llm_proxy.parts import Json, as_object, as_text
from store.llm_proxy.readings import read
from store.llm_proxy.recorder import Recording
from store.llm_proxy.streams import ASSEMBLIES, Assembly
from store.models import TraceStatus

_DESCRIPTION: Final = 200


class Whole:
    """An answer that is no stream, as far as `limit` allows to keep it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0
        self.is_complete = False
        self.error: Json | None = None

    @property
    def is_truncated(self) -> bool:
        """Whether it was too long."""
        return self._size > self._limit

    @property
    def body(self) -> bytes:
        """The bytes."""
        return b"".join(self._chunks)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self._size += len(chunk)
        if self.is_truncated:
            self._chunks.clear()
        else:
            self._chunks.append(chunk)

    def answer(self) -> Json:
        """Return it parsed; empty if it is no object of JSON."""
        return parsed(self.body)


def parsed(body: bytes) -> Json:
    """Return a body as an object; empty if it is none."""
    try:
        return as_object(orjson.loads(body))
    except orjson.JSONDecodeError:
        return {}


class ProxiedCall:
    """What is known of one call so far."""

    def __init__(
        self,
        address: CallAddress,
        query: bytes,
        headers: Headers,
        body: bytes,
        recording: Recording | None,
    ) -> None:
        self.endpoint = address.endpoint
        self.path = address.path + (f"?{query.decode('latin-1')}" if query else "")
        self.headers = headers
        self.body = body
        self.request = parsed(body)
        self.model = as_text(self.request.get("model"))
        self.recording = recording
        self.backend: Backend | None = None
        self.tries = 0
        self.status: int | None = None
        self.is_cached = False
        self.tee: Assembly | Whole | None = None
        self._error: tuple[str, str] | None = None
        self._is_unreadable = False
        self.is_recorded = False
        self._start_time = time.time()
        self._started = time.perf_counter()
        self._first_byte: float | None = None

    def body_for(self, backend: Backend) -> bytes:
        """Return what is sent: the client's own bytes unless the backend has another name for the model, or is asked
        for more because the call is recorded. What the client says itself always holds.
        """
        asked: Json = {}
        if self.model is not None and backend.own_name(self.model) != self.model:
            asked["model"] = backend.own_name(self.model)
        if self.recording is not None and self.endpoint in {Endpoint.CHAT, Endpoint.COMPLETIONS}:
            if backend.supports_token_ids and "return_token_ids" not in self.request:
                asked["return_token_ids"] = True
            if backend.supports_logprobs and "logprobs" not in self.request:
                asked["logprobs"] = True if self.endpoint is Endpoint.CHAT else 1
        if not asked or not self.request:
            return self.body
        if "model" in asked:
            return orjson.dumps({**self.request, **asked})
        # Put in front, so that the client's own bytes stay as they are: its numbers may be longer than ours.
        return b"{" + orjson.dumps(asked)[1:-1] + b"," + self.body[self.body.index(b"{") + 1 :]

    def answered(self, status: int, content_type: str, content_encoding: str, limit: int) -> None:
        """Take the head of the answer.

        Args:
            status: of HTTP.
            content_type: decides whether it is read as a stream.
            content_encoding: anything but plain bytes passes unread; the proxy asked for none.
            limit: how many bytes of the answer may be kept.
        """
        self.status = status
        if content_encoding not in {"", "identity"}:
            self._is_unreadable = True
            return
        if content_type == "text/event-stream" and self.endpoint in ASSEMBLIES:
            self.tee = ASSEMBLIES[self.endpoint](limit)
        else:
            self.tee = Whole(limit)

    def came(self, chunk: bytes) -> bool:
        """Take the next bytes of the answer; return whether the end of what it says is among them."""
        if self._first_byte is None:
            self._first_byte = time.perf_counter()
        if self.tee is None:
            return False
        self.tee.feed(chunk)
        return self.tee.is_complete

    def failed(self, kind: str, message: str) -> None:
        """Note what went wrong; what is noted first stays."""
        self._error = self._error or (kind, message)

    # -- its span ----------------------------------------------------------------------------------------------------

    async def record(self, keys: Sequence[str | None], limit: int) -> None:
        """Write the span of a call with a recording, once.

        Args:
            keys: that must not be in it, besides the client's.
            limit: how many bytes of the prompt it may hold.
        """
        if self.recording is None or self.is_recorded:
            return
        self.is_recorded = True
        ended = time.perf_counter()
        kept = Attributes(secrets(*keys, *keys_of(self.headers)), limit)
        names.put_request(kept, self.endpoint, self.request)
        answer = self.tee.answer() if self.tee is not None else {}
        if self.status is not None and self.status < 400:
            names.put_reading(kept, read(self.endpoint, answer))
        self._note_failure(answer)
        self._put_circumstances(kept, ended)
        await self.recording.write(
            names.EMBEDDINGS_SPAN if self.endpoint is Endpoint.EMBEDDINGS else names.CALL_SPAN,
            kept.values,
            self._start_time,
            self._start_time + (ended - self._started),
            self._trace_status(kept),
        )

    def _note_failure(self, answer: Json) -> None:
        within = self.tee.error if self.tee is not None else None
        if within is not None:
            self.failed("stream_error", as_text(within.get("message")) or "the backend ended the stream with an error")
        if self.status is not None and self.status >= 400:
            said = answer.get("error")
            message = as_text(as_object(said).get("message")) or as_text(said) or as_text(answer.get("message"))
            self.failed(str(self.status), f"{self.status}: {message or 'the backend refused the call'}")

    def _put_circumstances(self, kept: Attributes, ended: float) -> None:
        if self.backend is not None:
            kept.put(names.BACKEND, self.backend.name)
            kept.put(names.VERSION, self.backend.version)
        kept.put(names.LATENCY, ended - self._started)
        kept.put(names.FIRST_BYTE, None if self._first_byte is None else self._first_byte - self._started)
        kept.put(names.STATUS, self.status)
        kept.put(names.TRIES, self.tries)
        kept.put(names.CACHED, self.is_cached)
        kept.put(names.ERROR, self._error[0] if self._error else None)
        cut = [("prompt", kept.is_truncated), ("answer", self._is_cut())]
        kept.put(names.TRUNCATED, ", ".join(name for name, is_cut in cut if is_cut) or None)

    def _is_cut(self) -> bool:
        return self._is_unreadable or (self.tee is not None and self.tee.is_truncated)

    def _trace_status(self, kept: Attributes) -> TraceStatus:
        if self._error is None:
            return TraceStatus(status_code="OK")
        return TraceStatus(status_code="ERROR", description=kept.clean(self._error[1])[:_DESCRIPTION])
