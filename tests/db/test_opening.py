"""Opening a database: detection, concurrent creation, and refusals with a remedy."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from store.db.drivers.sqlite.dialect import SQLite
from store.db.schema import (
    DatabaseInfo,
    prepare_postgres,
    prepare_sqlite,
    read_only_uri,
    sqlite_files,
    sqlite_place,
    triggers,
)
from store.db.tables.core import metadata
from store.db.url import parse
from store.errors import Corrupt, Incompatible, Invalid, NotFound, ReadOnly, Unavailable
from tests import databases, postgres
from tests.postgres import PostgresServer
from tests.torture import rounds

UNPRIVILEGED_USER = 65534


def create(path: Path) -> DatabaseInfo:
    return prepare_sqlite(path, create=True, read_only=False)


def edit(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


def tables_of(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    return tables


def run(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own."""
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


# SQLite: what becomes of a path.


def test_a_new_file_becomes_a_store_that_names_itself(tmp_path: Path) -> None:
    info = prepare_sqlite(tmp_path / "run.db", create=True, read_only=False, clock=lambda: 1_234_567)
    assert re.fullmatch(r"[0-9a-f]{16}", info.store_id)
    assert info.created_at == 1_234_567
    assert tables_of(tmp_path / "run.db") >= metadata.tables.keys()
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "run.db").touch()
    assert tables_of(tmp_path / "run.db") == set()
    create(tmp_path / "run.db")
    assert tables_of(tmp_path / "run.db") >= metadata.tables.keys()


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    info = create(tmp_path / "run.db")
    content = (tmp_path / "run.db").read_bytes()
    assert create(tmp_path / "run.db") == info
    assert prepare_sqlite(tmp_path / "run.db", create=False, read_only=True) == info
    assert (tmp_path / "run.db").read_bytes() == content


def test_two_stores_have_two_names(tmp_path: Path) -> None:
    assert create(tmp_path / "one.db").store_id != create(tmp_path / "two.db").store_id


def test_a_file_is_in_wal_mode_from_the_start(tmp_path: Path) -> None:
    create(tmp_path / "run.db")
    connection = sqlite3.connect(tmp_path / "run.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize("create,read_only", [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("has_empty_file", [False, True])
def test_a_missing_file_is_not_made_unasked(
    tmp_path: Path, create: bool, read_only: bool, has_empty_file: bool
) -> None:
    path = tmp_path / "run.db"
    if has_empty_file:
        path.touch()
    with pytest.raises(NotFound, match=f"no store at sqlite:///{path}; `rollbook demo` makes one"):
        prepare_sqlite(path, create=create, read_only=read_only)
    assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [("run.db", 0)] * has_empty_file


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=f"mkdir -p '{tmp_path / 'no' / 'such'}'"):
        create(tmp_path / "no" / "such" / "run.db")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=f"is a directory; choose a file in it: sqlite:///{tmp_path / 'rollbook.db'}"):
        create(tmp_path)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, " * 500)
    with pytest.raises(Incompatible, match=r"is not a SQLite database; choose another file"):
        prepare_sqlite(path, create=True, read_only=read_only)
    assert path.read_text() == "Dear diary, " * 500


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    edit(path, "CREATE TABLE photos (id INTEGER); CREATE TABLE alembic_version (version_num TEXT)")
    content = path.read_bytes()
    with pytest.raises(Incompatible, match=r"not a Rollbook store; choose another file"):
        create(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    "script",
    ["UPDATE alembic_version SET version_num = '9999'", "UPDATE store_info SET log_format = 2"],
    ids=["schema", "log format"],
)
def test_a_file_of_a_newer_program_is_refused(tmp_path: Path, script: str, read_only: bool) -> None:
    create(tmp_path / "run.db")
    edit(tmp_path / "run.db", script)
    with pytest.raises(Incompatible, match="upgrade Rollbook"):
        prepare_sqlite(tmp_path / "run.db", create=True, read_only=read_only)


@pytest.mark.parametrize("table", ["store_info", "alembic_version"])
def test_a_file_that_lost_its_name_or_revision_is_corrupt(tmp_path: Path, table: str) -> None:
    create(tmp_path / "run.db")
    edit(tmp_path / "run.db", f"DELETE FROM {table}")
    with pytest.raises(Corrupt, match=f"{table} of sqlite:///.*found 0 rows"):
        create(tmp_path / "run.db")


def test_symbolic_link_opens_its_target(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    info = create(tmp_path / "elsewhere" / "run.db")
    (tmp_path / "link.db").symlink_to(tmp_path / "elsewhere" / "run.db")
    assert create(tmp_path / "link.db") == info


@pytest.mark.parametrize("name", ["run.db", "second.db", "link.db"])
def test_file_with_two_names_is_refused_for_writing(tmp_path: Path, name: str) -> None:
    create(tmp_path / "run.db")
    (tmp_path / "second.db").hardlink_to(tmp_path / "run.db")
    (tmp_path / "link.db").symlink_to("second.db")
    with pytest.raises(Incompatible, match=r"has 2 names \(hard links\).*delete the other names"):
        create(tmp_path / name)
    prepare_sqlite(tmp_path / name, create=False, read_only=True)
    (tmp_path / "second.db").unlink()
    create(tmp_path / "run.db")


def test_file_that_is_mounted_by_itself_is_refused_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    info = create(tmp_path / "run.db")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\n/dev/vda {tmp_path}/run.db ext4 rw 0 0\n")
    monkeypatch.setattr(sqlite_place, "MOUNTS", mounts)
    with pytest.raises(Incompatible, match=r"is mounted by itself .* mount the directory that contains it"):
        create(tmp_path / "run.db")
    assert prepare_sqlite(tmp_path / "run.db", create=False, read_only=True) == info
    assert "new commits may not be visible here" in caplog.text
    create(tmp_path / "other.db")


async def test_file_of_a_store_in_memory_can_be_read_by_its_user_only() -> None:
    dialect = SQLite(parse("memory://"), None)
    await dialect.open(create=True)
    assert dialect.path.stat().st_mode & 0o777 == 0o600
    await dialect.close()


def test_a_name_with_signs_of_a_uri_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "50% #1?mode=memory.db"
    info = create(path)
    assert path.stat().st_size > 0
    assert prepare_sqlite(path, create=False, read_only=True) == info


# SQLite: permissions and file systems.


AS_ANOTHER_USER = f"""
import os, sqlite3, sys
from pathlib import Path
from store.db.schema import prepare_sqlite, read_only_uri
if os.geteuid() == 0:
    os.setgid({UNPRIVILEGED_USER}), os.setuid({UNPRIVILEGED_USER})
for name in sys.argv[2:]:
    path = Path(sys.argv[1], name, "run.db")
    try:
        info = prepare_sqlite(path, create=True, read_only=name.startswith("read"))
        rows = sqlite3.connect(read_only_uri(path), uri=True).execute("SELECT store_id FROM store_info").fetchall()
        print(info.store_id, rows[0][0])
    except Exception as error:
        print(type(error).__name__, error)
"""
MODES = {
    "write-file": (0o444, 0o777),
    "write-directory": (0o666, 0o555),
    "read": (0o444, 0o555),
    "read-unreadable": (0o000, 0o777),
}
"""The modes of a store's file and of its directory."""


@dataclass(frozen=True)
class AnotherUser:
    """What a user without permissions gets from a store of each mode, in a process of its own."""

    directory: Path
    store_ids: dict[str, str]
    printed: dict[str, str]


@pytest.fixture(scope="module")
def another_user() -> Iterator[AnotherUser]:
    # Pytest's own directories are closed to other users.
    directory = Path(tempfile.mkdtemp(prefix="rollbook-"))
    directory.chmod(0o755)
    store_ids: dict[str, str] = {}
    for name, (file_mode, directory_mode) in MODES.items():
        (directory / name).mkdir()
        store_ids[name] = create(directory / name / "run.db").store_id
        (directory / name / "run.db").chmod(file_mode)
        (directory / name).chmod(directory_mode)
    process = run(AS_ANOTHER_USER, directory, *MODES)
    assert process.returncode == 0, process.stderr
    yield AnotherUser(directory, store_ids, dict(zip(MODES, process.stdout.splitlines(), strict=True)))
    for name in MODES:
        (directory / name).chmod(0o777)
    shutil.rmtree(directory)


@pytest.mark.parametrize("at_fault", ["file", "directory"])
@pytest.mark.slow
def test_read_only_error_names_the_read_only_path(another_user: AnotherUser, at_fault: str) -> None:
    directory, printed = another_user.directory / f"write-{at_fault}", another_user.printed[f"write-{at_fault}"]
    path = directory / "run.db" if at_fault == "file" else directory
    assert printed.startswith(f"ReadOnly the {at_fault} {path} is read-only")
    assert "make it writable, or open" in printed


@pytest.mark.slow
def test_a_reader_needs_no_permission_to_write(another_user: AnotherUser) -> None:
    assert another_user.printed["read"].split() == [another_user.store_ids["read"]] * 2


@pytest.mark.slow
def test_a_file_that_may_not_even_be_read_is_refused(another_user: AnotherUser) -> None:
    assert another_user.printed["read-unreadable"].startswith("Incompatible")
    assert "check its permissions" in another_user.printed["read-unreadable"]


def test_a_reader_of_a_live_file_trusts_its_wal(tmp_path: Path) -> None:
    create(tmp_path / "run.db")
    assert read_only_uri(tmp_path / "run.db").endswith("?mode=ro")


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/export /mnt/shared nfs4 rw 0 0
/dev/vdb /mnt/shared/local\\040disk xfs rw 0 0
sshfs@host:/ /home/me/remote fuse.sshfs rw 0 0
/dev/vdc /home/me/photos fuse.ntfs rw 0 0
"""


@pytest.mark.parametrize(
    "path,mount",
    [
        ("/mnt/shared/run.db", ("/mnt/shared", "nfs4")),
        ("/mnt/shared2/run.db", ("/", "ext4")),
        ("/mnt/shared/local disk/run.db", ("/mnt/shared/local disk", "xfs")),
        ("/home/me/remote/a/b/run.db", ("/home/me/remote", "fuse.sshfs")),
    ],
)
def test_the_longest_mount_point_holds_a_path(path: str, mount: tuple[str, str]) -> None:
    assert sqlite_place.mount_of(Path(path), MOUNTS) == mount


def test_a_later_mount_covers_an_earlier_one() -> None:
    assert sqlite_place.mount_of(Path("/x/run.db"), "a /x ext4 rw 0 0\nb /x nfs rw 0 0") == ("/x", "nfs")


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.s3fs", "ceph", "9p"])
def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, read_only: bool
) -> None:
    (tmp_path / "mounts").write_text(f"/dev/vda / ext4 rw 0 0\nserver:/ {tmp_path} {kind} rw 0 0\n")
    monkeypatch.setattr(sqlite_place, "MOUNTS", tmp_path / "mounts")
    with pytest.raises(Incompatible, match=rf"network file system \({kind}\).*local disk, or use postgresql://"):
        prepare_sqlite(tmp_path / "run.db", create=True, read_only=read_only)
    assert not (tmp_path / "run.db").exists()


@pytest.mark.parametrize("line", ["none / 9p rw 0 0", "/dev/vda / ext4 rw 0 0", "/dev/vda / fuse.ntfs rw 0 0", ""])
def test_a_disk_is_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    (tmp_path / "mounts").write_text(line)
    monkeypatch.setattr(sqlite_place, "MOUNTS", tmp_path / "mounts")
    create(tmp_path / "run.db")


def test_a_system_without_a_list_of_mounts_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_place, "MOUNTS", tmp_path / "no such file")
    create(tmp_path / "run.db")


# SQLite: several at once, and death half-way.

# These programs have one thread, so their children start as clean as they are, without a second import.

OPENERS = """
import multiprocessing, sys
from pathlib import Path
from store.db.schema import prepare_sqlite

def open_each(start, results, directory, rounds):
    for round in range(rounds):
        start.wait(60)
        results.put(prepare_sqlite(Path(directory, f"{round}.db"), create=True, read_only=False).store_id)
        start.wait(60)

directory, processes, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fork = multiprocessing.get_context("fork")
start, results = fork.Barrier(processes + 1), fork.SimpleQueue()
openers = [fork.Process(target=open_each, args=(start, results, directory, rounds)) for _ in range(processes)]
for opener in openers:
    opener.start()
for _ in range(rounds):
    start.wait(60)
    print(*[results.get() for _ in openers], flush=True)
    start.wait(60)
for opener in openers:
    opener.join()
    assert opener.exitcode == 0
"""


@pytest.mark.slow
@pytest.mark.torture
def test_eight_processes_that_open_a_new_file_at_once_find_one_store(tmp_path: Path) -> None:
    process = run(OPENERS, tmp_path, 8, rounds(25, few=5))
    assert process.returncode == 0, process.stderr
    for number, line in enumerate(process.stdout.splitlines()):
        path = tmp_path / f"{number}.db"
        assert line.split() == [create(path).store_id] * 8
        assert tables_of(path) >= metadata.tables.keys()
    assert len(list(tmp_path.glob("*.db"))) == rounds(25, few=5)
    assert list(tmp_path.glob("*.lock")) == []


DIES_HALF_WAY = """
import os, signal, sys
from pathlib import Path
from store.db.schema import ddl, prepare_sqlite
statements = ddl.creation("sqlite")
for done in map(int, sys.argv[2:]):
    def dying(database):
        yield from statements[:done]
        os.kill(os.getpid(), signal.SIGKILL)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    else:
        ddl.creation = dying
        prepare_sqlite(Path(sys.argv[1], f"{done}.db"), create=True, read_only=False)
"""


@pytest.mark.slow
def test_a_process_killed_while_it_creates_a_store_leaves_none(tmp_path: Path) -> None:
    statements = (0, 1, 12, 30)
    process = run(DIES_HALF_WAY, tmp_path, *statements)
    assert process.stdout.split() == ["-9"] * len(statements), process.stderr
    for done in statements:
        path = tmp_path / f"{done}.db"
        assert (tmp_path / f"{done}.db.lock").exists()
        with pytest.raises(NotFound):
            prepare_sqlite(path, create=False, read_only=True)
        create(path)
        assert tables_of(path) >= metadata.tables.keys()
        assert not (tmp_path / f"{done}.db.lock").exists()


def test_creation_lock_of_another_process_raises_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(sqlite_files, "_LOCK_SECONDS", 0.05)
    with (tmp_path / "run.db.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="another process has locked"):
            create(tmp_path / "run.db")
    create(tmp_path / "run.db")


ALEMBIC_LOADED = """
import asyncio, sys
from pathlib import Path
from store.db.schema import prepare_postgres, prepare_sqlite
for _ in range(2):
    prepare_sqlite(Path(sys.argv[1]), create=True, read_only=False)
    asyncio.run(prepare_postgres(sys.argv[2], sys.argv[3], create=True, read_only=False))
print("alembic" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.new_partition
def test_alembic_is_not_imported_to_create_or_open(tmp_path: Path, postgres_url: str) -> None:
    parsed = parse(postgres_url)
    process = run(ALEMBIC_LOADED, tmp_path / "run.db", parsed.dsn, f"rollbook_{parsed.partition}")
    assert process.stdout == "False\n", process.stderr


# Postgres.


async def prepare(url: str, *, create: bool = True, read_only: bool = False) -> DatabaseInfo:
    parsed = parse(url)
    assert parsed.dsn is not None
    return await prepare_postgres(parsed.dsn, f"rollbook_{parsed.partition}", create=create, read_only=read_only)


@pytest.mark.new_partition
async def test_a_new_partition_becomes_a_store_that_names_itself(postgres_url: str) -> None:
    parsed = parse(postgres_url)
    assert parsed.dsn is not None
    schema = f"rollbook_{parsed.partition}"
    info = await prepare_postgres(parsed.dsn, schema, create=True, read_only=False, clock=lambda: 1_234_567)
    assert re.fullmatch(r"[0-9a-f]{16}", info.store_id)
    assert info.created_at == 1_234_567
    assert await prepare(postgres_url) == info
    assert await prepare(postgres_url, create=False, read_only=True) == info


async def test_two_partitions_are_two_stores(postgres_server: str) -> None:
    one, two = postgres.with_partition(postgres_server), postgres.with_partition(postgres_server)
    assert (await prepare(one)).store_id != (await prepare(two)).store_id


@pytest.mark.new_partition
@pytest.mark.parametrize("create,read_only", [(False, False), (False, True), (True, True)])
async def test_a_missing_partition_is_not_made_unasked(postgres_url: str, create: bool, read_only: bool) -> None:
    with pytest.raises(NotFound) as refused:
        await prepare(postgres_url, create=create, read_only=read_only)
    assert f"no store at {postgres_url}" in str(refused.value)
    schema = f"rollbook_{parse(postgres_url).partition}"
    assert postgres.execute(postgres_url, f"SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'") == "0"


@pytest.mark.torture
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_twelve_sessions_that_open_a_new_partition_at_once_find_one_store(
    postgres_database: Callable[..., str], isolation: str
) -> None:
    url = postgres_database(default_transaction_isolation=isolation)
    for number in range(rounds(3, few=1)):
        infos = await asyncio.gather(*(prepare(postgres.with_partition(url, f"p{number}")) for _ in range(12)))
        assert len({info.store_id for info in infos}) == 1


async def test_a_schema_made_beforehand_is_filled_for_a_role_that_may_not_make_one(
    postgres_database: Callable[..., str],
) -> None:
    url = postgres.with_partition(postgres_database(), "mine")
    role = f"owner_{parse(url).text.rpartition('/')[2][:8]}"
    postgres.execute(url, f"CREATE ROLE {role} LOGIN; CREATE SCHEMA rollbook_mine AUTHORIZATION {role}")
    info = await prepare(url.replace("postgres@", f"{role}@"))
    assert await prepare(url) == info
    postgres.execute(url, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.new_partition
async def test_a_schema_of_another_program_is_left_alone(postgres_url: str) -> None:
    schema = f"rollbook_{parse(postgres_url).partition}"
    postgres.execute(postgres_url, f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.photos (id int)")
    with pytest.raises(Incompatible, match=r"not a Rollbook store; choose another partition"):
        await prepare(postgres_url)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    "script",
    ["UPDATE alembic_version SET version_num = '9999'", "UPDATE store_info SET log_format = 2"],
    ids=["schema", "log format"],
)
async def test_a_partition_of_a_newer_program_is_refused(
    postgres_database: Callable[..., str], script: str, read_only: bool
) -> None:
    # In a database of its own: `migrate` elsewhere in the suite would meet it.
    url = postgres.with_partition(postgres_database())
    await prepare(url)
    database = await databases.connect(url)
    await database.execute(script)
    await database.close()
    with pytest.raises(Incompatible, match="upgrade Rollbook"):
        await prepare(url, read_only=read_only)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as bound:
        # Bound and not listening: nobody else can take the port meanwhile.
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match="cannot be reached") as refused:
            await prepare(f"postgresql://me:secret@127.0.0.1:{bound.getsockname()[1]}/db")
    assert "secret" not in str(refused.value)
    assert refused.value.retryable


async def test_a_server_that_is_shutting_down_is_unavailable(private_postgres: PostgresServer) -> None:
    await prepare(private_postgres.url)
    private_postgres.stop()
    with pytest.raises(Unavailable):
        await prepare(private_postgres.url)
    private_postgres.restart()
    await prepare(private_postgres.url)


async def test_a_database_that_does_not_exist_is_named(postgres_server: str) -> None:
    with pytest.raises(NotFound, match=r'"no_such_database" does not exist; make it first: createdb'):
        await prepare(postgres.with_database(postgres_server, "no_such_database"))


async def test_a_role_that_does_not_exist_is_named(postgres_server: str) -> None:
    with pytest.raises(Invalid, match=r'"stranger" does not exist; give the right user and password'):
        await prepare(postgres_server.replace("postgres@", "stranger:secret@"))


async def test_a_server_that_takes_no_writes_is_read_only(postgres_database: Callable[..., str]) -> None:
    url = postgres_database(default_transaction_read_only="on")
    with pytest.raises(ReadOnly, match="use the primary"):
        await prepare(url)


async def test_a_database_that_cannot_hold_all_text_is_refused(postgres_server: str) -> None:
    name = f"t{os.urandom(8).hex()}"
    postgres.execute(postgres_server, f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0")
    url = postgres.with_database(postgres_server, name)
    try:
        with pytest.raises(Incompatible, match=r"SQL_ASCII.*ENCODING 'UTF8'"):
            await prepare(url)
    finally:
        postgres.drop_database(url)


@pytest.mark.new_partition
async def test_a_sound_new_partition_has_every_trigger(postgres_url: str) -> None:
    await prepare(postgres_url)
    database = await databases.connect(postgres_url)
    guards = triggers.guards("postgresql", f"rollbook_{parse(postgres_url).partition}")
    assert triggers.missing(guards, await database.rows(guards.in_place.text, *guards.in_place.args({}))) == []
    await database.close()
