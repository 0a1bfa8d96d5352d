"""Another SQL database: outside of the package one module, in the package a driver and its registration."""

from tests.recipes.scratch import ROOT, Recipe, Scratch

_OUTSIDE = ROOT / "tests" / "backends" / "plain_sqlite.py"
_REGISTRATION = '\n\nregister("sqlite-plain", PlainSQLite)\n'

_TEST = '''"""The whole contract, verification and the migrated schema, on the new database."""

import pytest

from store import open_store
from store.testing.contract import StoreContract
{importing}

class TestNewDatabase(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path, clock):
        url = f"sqlite-plain://{{tmp_path / 'plain.db'}}"
        async with await open_store(url, clock=clock, scan_debounce_seconds=0) as opened:
            yield opened


async def test_verify_finds_a_missing_trigger(tmp_path):
    import sqlite3

    path = tmp_path / "plain.db"
    async with await open_store(f"sqlite-plain://{{path}}") as store:
        await store.enqueue_rollout("task")
        assert (await store.log.verify()).ok
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TRIGGER events_refuse_update")
        report = await store.log.verify()
        assert not report.ok
        assert "events_refuse_update" in str(report.differences)
'''


def _outside(scratch: Scratch) -> None:
    # The copy has the module already: it is one of the tests.
    assert (scratch.root / _OUTSIDE.relative_to(ROOT)).is_file()


def _inside(scratch: Scratch) -> None:
    source = _OUTSIDE.read_text()
    assert source.endswith(_REGISTRATION)
    driver = source.removesuffix(_REGISTRATION) + "\n"
    scratch.create("store/db/drivers/plain_sqlite.py", driver.replace("WriteSession, register\n", "WriteSession\n"))
    scratch.insert(
        "store/db/drivers/__init__.py",
        'register("postgresql", "store.db.drivers.postgres.dialect:Postgres")\n',
        'register("sqlite-plain", "store.db.drivers.plain_sqlite:PlainSQLite")\n',
    )


OUTSIDE = Recipe(
    "SQL dialect outside of the package",
    0,
    _outside,
    _TEST.format(importing="from tests.backends import plain_sqlite as _\n"),
)
INSIDE = Recipe("SQL dialect in the package", 6, _inside, _TEST.format(importing=""))
