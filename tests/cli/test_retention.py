"""`rollbook retention`: the advice in its output."""

from __future__ import annotations

from tests.cli.conftest import ON_BOTH, Filled, Rollbook


@ON_BOTH
def test_advice_about_free_space_names_the_way_of_the_database(rollbook: Rollbook, filled: Filled) -> None:
    printed = rollbook("retention", "--status", "succeeded,failed,cancelled", "--yes")
    assert printed.code == 0
    is_file = filled.url.startswith("sqlite")
    way = "--vacuum" if is_file else "`rollbook compact --full`"
    assert f"reuses the free space for new data; {way} returns it to the operating system" in printed.err
    assert ("--vacuum" in printed.err) == is_file
