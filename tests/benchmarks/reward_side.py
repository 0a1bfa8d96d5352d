"""Reward functions, and the bare loop that runs one over the same inputs from a file, in two processes."""

from __future__ import annotations

import difflib
import time
from multiprocessing import get_context
from pathlib import Path

import orjson

from store.models import AttemptedRollout, Span
from store.rescoring import AttemptRecord

PROCESSES = 2


def similarity(record: AttemptRecord) -> float:
    """Compare the last answer with the expected one by characters. A comparison takes a millisecond or two."""
    answer = str(record.spans[-2].attributes["gen_ai.completion.0.content"])
    return difflib.SequenceMatcher(None, answer, str(record.rollout.input["answer"]), autojunk=False).ratio()


def trivial(record: AttemptRecord) -> float:
    """Return a number that is at hand."""
    return float(record.rollout.input["n"])


def bare(file: Path, name: str) -> float:
    """Return the rollouts per second of two processes that each score every second line of a file."""
    began = time.perf_counter()
    with get_context("spawn").Pool(PROCESSES) as pool:
        counts = pool.starmap(_score_lines, [(file, name, number) for number in range(PROCESSES)])
    return sum(counts) / (time.perf_counter() - began)


def _score_lines(file: Path, name: str, number: int) -> int:
    function = globals()[name]
    count, total = 0, 0.0
    with file.open("rb") as lines:
        for index, line in enumerate(lines):
            if index % PROCESSES == number:
                fields = orjson.loads(line)
                rollout = AttemptedRollout.model_validate(fields["rollout"])
                spans = [Span.model_validate(span) for span in fields["spans"]]
                total += function(AttemptRecord(rollout, rollout.attempt, spans))
                count += 1
    return count
