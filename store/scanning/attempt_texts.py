"""Texts of one attempt, and conditions on them in the language of search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from store.domain.events import RolloutEnqueued, SpanRecorded
from store.errors import Invalid
from store.indexing.search.documents import DocumentKind, EventTexts, SearchText, documents_of
from store.indexing.search.query_language import Clause, parse_query
from store.indexing.search.regex import Regex
from store.indexing.search.words import word_texts, words_of
from store.rescoring.attempt_record import AttemptRecord
from store.validation.scanners import MAX_SCAN_EXPLANATION_BYTES

_AROUND: Final = 80
"""The number of characters before and after a match in an explanation."""
_END: Final = "\0"


def texts_of(record: AttemptRecord) -> Iterator[SearchText]:
    """Yield the texts of an attempt: the input of its rollout, and those of its spans in their order."""
    yield from documents_of(EventTexts(RolloutEnqueued.type, {}, {"input": record.rollout.input}))
    for span in record.spans:
        status = {"status_code": span.status.status_code, "status_message": span.status.description}
        events = [{"name": event.name, "attributes": event.attributes} for event in span.events]
        body = {"attributes": span.attributes, "events": events}
        yield from documents_of(EventTexts(SpanRecorded.type, {"name": span.name, **status}, body))


class TextCondition:
    """A query of search, evaluated on the texts of one attempt.

    Args:
        query: the query; empty only with `pattern`.
        pattern: a regular expression of RE2 that the text of the first term must match; None for none.

    Raises:
        Invalid: the query or the pattern is malformed, the query uses `note:`, or RE2 is not installed.
    """

    def __init__(self, query: str, pattern: str | None = None) -> None:
        terms = parse_query(query, pattern)
        if any(DocumentKind.NOTE in clause.kinds for clause in (*terms.required, *terms.excluded)):
            raise Invalid("query", "note: selects texts that people add later; a scanner reads only the attempt")
        self._required, self._excluded = terms.required, terms.excluded
        self._regex = None if terms.regex is None else Regex(terms.regex)

    def __call__(self, record: AttemptRecord) -> dict[str, Any]:
        """Return 1 as `value` if the texts match, otherwise 0, and the text of the first term as `explanation`."""
        places: dict[int, str] = {}
        for text in texts_of(record):
            words = _END + _END.join(word_texts(text.text)) + _END
            if any(_matches(clause, text, words) for clause in self._excluded):
                return {"value": 0.0}
            for number, clause in enumerate(self._required):
                if number not in places and _matches(clause, text, words):
                    start = self._start(text.text, clause) if number == 0 else 0
                    if start is not None:
                        places[number] = _excerpt(text, start)
        if len(places) < len(self._required):
            return {"value": 0.0}
        return {"value": 1.0, "explanation": places[0]}

    def _start(self, text: str, clause: Clause) -> int | None:
        """Return the first character of the match of the first term; None if the pattern does not match."""
        if self._regex is not None:
            ranges = self._regex.ranges(text, 1)
            if ranges:
                return ranges[0][0]
            return 0 if self._regex.matches(text) else None
        if not clause.phrases:
            return 0
        first = clause.phrases[0].words[0]
        return next((word.start for word in words_of(text) if word.text.startswith(first)), 0)


def _matches(clause: Clause, text: SearchText, words: str) -> bool:
    """Return whether a text meets a clause. `words` are its words, with a NUL before, between and after them."""
    if clause.kinds and text.kind not in clause.kinds:
        return False
    if clause.name is not None and text.name.casefold() != clause.name:
        return False
    return all(
        _END + _END.join(phrase.words) + ("" if phrase.is_prefix else _END) in words for phrase in clause.phrases
    )


def _excerpt(text: SearchText, start: int) -> str:
    excerpt = text.text[max(0, start - _AROUND) : start + _AROUND].strip()
    name = f" {text.name}" if text.name else ""
    return f"{text.kind.name.lower()}{name}: {excerpt}"


def shortened(explanation: str | None) -> str | None:
    """Return an explanation as the log can store it, cut to `MAX_SCAN_EXPLANATION_BYTES`."""
    if explanation is None:
        return None
    storable = explanation.encode("utf-8", "replace").decode().replace("\x00", "�")
    return storable.encode()[:MAX_SCAN_EXPLANATION_BYTES].decode(errors="ignore")
