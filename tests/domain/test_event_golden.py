"""Every form of every event since the first version can be read; one file for each form."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from store.domain.events import FACTS, UPCASTERS, encode, upcast
from store.errors import Incompatible

GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.json"))


def form(path: Path) -> tuple[str, int]:
    """Return type and shape from a file's name, `<type>.<shape>.json`."""
    type_, _, shape = path.stem.rpartition(".")
    return type_, int(shape)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8").removesuffix("\n")


def test_there_is_a_file_for_every_form_of_every_type() -> None:
    written = {(type_, shape) for type_, fact in FACTS.items() for shape in range(1, fact.shape + 1)}
    assert {form(path) for path in GOLDEN} == written
    assert {(type_, shape) for type_, shape in written if shape < FACTS[type_].shape} == set(UPCASTERS)


@pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_every_form_ever_written_can_be_read(path: Path) -> None:
    type_, shape = form(path)
    fact = upcast(type_, shape, orjson.loads(text(path)))
    assert type(fact) is FACTS[type_]


@pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_the_current_form_is_written_as_it_always_was(path: Path) -> None:
    type_, shape = form(path)
    if shape != FACTS[type_].shape:
        pytest.skip("an old form is only read")
    assert encode(upcast(type_, shape, orjson.loads(text(path)))) == text(path)


@pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_a_golden_file_has_a_value_for_every_field(path: Path) -> None:
    type_, shape = form(path)
    if shape != FACTS[type_].shape or type_ == "rollout.started":
        pytest.skip("an old form, or the one that shows fields left out")
    fact = upcast(type_, shape, orjson.loads(text(path)))
    assert [name for name in fact.__slots__ if getattr(fact, name) is None] == []


def test_the_words_of_the_log_are_not_those_of_python() -> None:
    changed = next(path for path in GOLDEN if form(path)[0] == "rollout.status_changed")
    assert '"from":' in text(changed)
    assert "from_" not in text(changed)


@pytest.mark.parametrize("type_, shape", [("rollout.vanished", 1), ("worker.seen", 99)])
def test_event_of_a_newer_version_is_refused_by_type(type_: str, shape: int) -> None:
    with pytest.raises(Incompatible, match=type_):
        upcast(type_, shape, {})
