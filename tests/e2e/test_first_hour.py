"""The first hour of a new user: README, docs, project, types, notebook and commands, with the installed wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.first_hour import first_hour

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("install")]


def test_a_new_user_gets_through_the_first_hour(installed: Path, postgres_url: str, tmp_path: Path) -> None:
    taken = first_hour(installed, tmp_path, postgres_url)
    print({name: round(seconds, 1) for name, seconds in taken.items()})
    assert set(taken) == {"every_command", "types", "project", "notebook", "examples"}
