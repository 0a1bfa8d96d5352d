"""The first hour of a new user: README, docs, project, types, notebook and commands, with the installed wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.first_hour import first_hour

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("install")]


def test_a_new_user_gets_through_the_first_hour_in_short(installed: Path, postgres_url: str, tmp_path: Path) -> None:
    seconds = first_hour(installed, tmp_path, postgres_url, is_short=True)
    assert set(seconds) == {"every_command", "notebook", "examples"}


@pytest.mark.torture_only
def test_a_new_user_gets_through_the_first_hour(installed: Path, postgres_url: str, tmp_path: Path) -> None:
    seconds = first_hour(installed, tmp_path, postgres_url)
    print({name: round(duration, 1) for name, duration in seconds.items()})
    assert set(seconds) == {"every_command", "types", "project", "notebook", "examples"}
