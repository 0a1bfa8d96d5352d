"""BM25F: ranking of documents with several weighted fields. Rare words of the query count more than common words.

The score of a document is the sum of `idf * x / (k1 + x)` over the distinct words of the query. `idf` is greater for
rarer words. `x` is a sum over the fields of the document: the number of the word's occurrences in the field, times the
weight of the field, divided by `1 - b + b * length / average`. `length` is the number of words of the field, and
`average` is the mean length of this field in all documents. See Robertson, Zaragoza and Taylor, 2004; here, all fields
have the same `b`.
"""

from __future__ import annotations

import heapq
import json
import math
from array import array
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Ranking:
    """The parameters that are tuned: the weight of each field, and the numbers `k1` and `b`.

    With a greater `k1`, repeated words count more. With a greater `b`, words in long fields count less.
    """

    weights: tuple[float, ...]
    k1: float
    b: float

    @classmethod
    def plain(cls, fields: int) -> Ranking:
        """Return the textbook default: equal weights, k1 1.2, b 0.75."""
        return cls((1.0,) * fields, 1.2, 0.75)

    @classmethod
    def from_json(cls, text: str) -> Ranking:
        """Return the ranking in a text that `to_json` returned."""
        read = json.loads(text)
        return cls(tuple(read["weights"]), read["k1"], read["b"])

    def to_json(self) -> str:
        """Return the ranking as JSON text. The numbers are not rounded."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class WordIndex:
    """Inverted index. It contains how often each word occurs in each field of each document.

    Words, fields and documents have numbers from 0. The entries for word number `w` in field number `f` begin at
    `starts[w * fields + f]` in `documents` and `counts`, and end before the next start. Each entry is the number of a
    document and the number of occurrences.
    """

    words: dict[str, int]
    """The number of each word."""
    lengths: tuple[array[int], ...]
    """For each field, the number of words of this field in each document."""
    starts: array[int]
    documents: array[int]
    counts: array[int]
    spread: array[int]
    """For each word, the number of documents that contain the word in any field."""

    @classmethod
    def build(cls, documents: Iterable[Sequence[list[str]]], fields: int) -> WordIndex:
        """Return the index of documents. Each document is given as one list of words for each of its fields."""
        postings_by_word: defaultdict[str, list[list[tuple[int, int]]]] = defaultdict(
            lambda: [[] for _ in range(fields)]
        )
        lengths = tuple(array("I") for _ in range(fields))
        for number, texts in enumerate(documents):
            for field, text in enumerate(texts):
                lengths[field].append(len(text))
                for word, count in Counter(text).items():
                    postings_by_word[word][field].append((number, count))
        starts, numbers, counts, spread = array("I"), array("I"), array("I"), array("I")
        for postings in postings_by_word.values():
            spread.append(len({number for posting in postings for number, _ in posting}))
            for posting in postings:
                starts.append(len(numbers))
                numbers.extend(number for number, _ in posting)
                counts.extend(count for _, count in posting)
        starts.append(len(numbers))
        return cls(
            {word: index for index, word in enumerate(postings_by_word)}, lengths, starts, numbers, counts, spread
        )

    @property
    def size(self) -> int:
        """The number of documents."""
        return len(self.lengths[0])


class Searcher:
    """Search in an index with one ranking. The scores of each word are cached, because many queries share words."""

    def __init__(self, index: WordIndex, ranking: Ranking) -> None:
        self._index = index
        self._ranking = ranking
        self._shares: dict[int, dict[int, float]] = {}
        self._scales = _scales(index, ranking)

    def retrieve(self, words: Iterable[str], limit: int = 10) -> dict[int, float]:
        """Return scores by document number. The best `limit` documents are included, and their scores are exact.

        Rare words are processed first. At some point, documents that have not been found yet can no longer be among the
        best. From then on, the scores of the remaining, common words are added only to documents already found. This
        does not change the best documents, and saves most of the work for common words.
        """
        index = self._index
        numbers = {index.words[word] for word in words if word in index.words}
        rare_first = sorted((index.spread[word], word) for word in numbers)
        remaining_rarity = sum(self._rarity(word) for _, word in rare_first)
        scores: dict[int, float] = {}
        for _, word in rare_first:
            shares = self._share(word)
            if len(scores) >= limit and (threshold := heapq.nlargest(limit, scores.values())[-1]) > remaining_rarity:
                scores = {
                    document: score + shares.get(document, 0.0)
                    for document, score in scores.items()
                    if score + remaining_rarity >= threshold
                }
            else:
                for document, share in shares.items():
                    scores[document] = scores.get(document, 0.0) + share
            remaining_rarity -= self._rarity(word)
        return scores

    @staticmethod
    def rank(scores: dict[int, float], limit: int = 10) -> list[tuple[int, float]]:
        """Return the best documents with their scores, best first. Documents with equal scores are sorted by number."""
        return heapq.nsmallest(limit, scores.items(), key=lambda scored: (-scored[1], scored[0]))

    def _rarity(self, word: int) -> float:
        spread = self._index.spread[word]
        return math.log(1 + (self._index.size - spread + 0.5) / (spread + 0.5))

    def _share(self, word: int) -> dict[int, float]:
        """Return, by document, the part that a word adds to the score. The part is always less than `_rarity(word)`."""
        share = self._shares.get(word)
        if share is not None:
            return share
        index, k1, rarity = self._index, self._ranking.k1, self._rarity(word)
        occurrences: defaultdict[int, float] = defaultdict(float)
        fields = len(index.lengths)
        for field, scale in enumerate(self._scales):
            start, end = index.starts[word * fields + field], index.starts[word * fields + field + 1]
            for document, count in zip(index.documents[start:end], index.counts[start:end], strict=True):
                occurrences[document] += count * scale[document]
        shares = {document: rarity * x / (k1 + x) for document, x in occurrences.items()}
        self._shares[word] = shares
        return shares


def _scales(index: WordIndex, ranking: Ranking) -> list[list[float]]:
    """Return, by field and document, the weight of one occurrence of a word."""
    b = ranking.b
    scales: list[list[float]] = []
    for weight, lengths in zip(ranking.weights, index.lengths, strict=True):
        average = sum(lengths) / len(lengths) or 1.0
        worth = {length: weight / (1 - b + b * length / average) for length in set(lengths) if length}
        scales.append([worth.get(length, 0.0) for length in lengths])
    return scales
