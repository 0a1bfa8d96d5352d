"""The URL of a store selects the driver, database and partition; a wrong name is reported with the existing ones."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from urllib.parse import unquote

import pytest

from store.db.url import parse, passwords, sqlite_url, with_partition
from store.errors import Invalid


@pytest.mark.parametrize(
    "url,path",
    [
        ("sqlite:///run.db", "run.db"),
        ("sqlite:///runs/one.db", "runs/one.db"),
        ("sqlite:////var/lib/run.db", "/var/lib/run.db"),
        ("sqlite:///../run.sqlite3", "../run.sqlite3"),
        ("sqlite:///run.db?partition=default", "run.db"),
    ],
)
def test_three_slashes_are_a_relative_path_and_four_an_absolute_one(url: str, path: str) -> None:
    parsed = parse(url)
    assert (parsed.scheme, parsed.path, parsed.dsn, parsed.partition) == ("sqlite", Path(path), None, "default")


def test_a_partition_of_sqlite_is_a_file_beside_the_first() -> None:
    assert parse("sqlite:////data/run.db?partition=blue_2").path == Path("/data/run.blue_2.db")


@pytest.mark.parametrize(
    "main,file",
    [
        ("exp.2026-01-01", "exp.2026-01-01.run_7.db"),
        ("exp.sqlite", "exp.sqlite.run_7.db"),
        ("exp.db", "exp.run_7.db"),
        ("exp.db.db", "exp.db.run_7.db"),
    ],
)
def test_partition_file_keeps_every_suffix_but_db(main: str, file: str) -> None:
    assert parse(f"sqlite:///{main}?partition=run_7").path == Path(file)


@pytest.mark.parametrize(
    "url,encoded",
    [
        ("sqlite:///exp#1.db", "%23 for it: sqlite:///exp%231.db"),
        ("sqlite:///a/exp#%23.db?partition=a", "%23 for it: sqlite:///a/exp%23%2523.db?partition=a"),
        ("sqlite:///tab\there.db", "%09 for it: sqlite:///tab%09here.db"),
        ("sqlite:///line\nend.db", "%0A for it: sqlite:///line%0Aend.db"),
        ("sqlite:///run.db\r\n", "%0D for it: sqlite:///run.db%0D%0A"),
        ("sqlite:///run.db?partition=a#b", "%23 for it"),
        ("sqlite:///a\0.db", "leave it out"),
    ],
)
def test_character_that_urls_drop_is_refused_with_its_code(url: str, encoded: str) -> None:
    with pytest.raises(Invalid, match=re.escape(encoded)):
        parse(url)
    with pytest.raises(Invalid, match=re.escape(encoded)):
        with_partition(url, "a")


@pytest.mark.parametrize(
    "name", ["exp#1.db", "a?b.db", "100%.db", "my%20run.db", "%23.db", "%2523.db", "%3f.db", "a\tb\r\n.db", "ü [x].db"]
)
def test_every_file_name_has_a_url_that_names_it(name: str) -> None:
    assert parse(sqlite_url(Path("/data", name))).path == Path("/data", name)


def test_percent_sign_stands_for_itself_except_before_a_code() -> None:
    assert parse("sqlite:///my%20run.db").path == Path("my%20run.db")
    assert parse("sqlite:///exp%231.db?partition=a").path == Path("exp#1.a.db")
    assert with_partition("sqlite:///exp%231.db", "a") == "sqlite:///exp%231.db?partition=a"


def test_a_partition_of_postgres_is_no_part_of_the_address() -> None:
    parsed = parse("postgresql://me@host:5433/db?partition=blue&sslmode=require")
    assert parsed.partition == "blue"
    assert parsed.dsn == "postgresql://me@host:5433/db?sslmode=require"
    assert parsed.path is None


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg", "postgresql+psycopg"])
def test_other_spellings_of_postgres_are_understood(scheme: str) -> None:
    parsed = parse(f"{scheme}://host/db")
    assert (parsed.scheme, parsed.dsn, parsed.partition) == ("postgresql", "postgresql://host/db", "default")


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite3", "sqlite+aiosqlite"])
def test_other_spellings_of_sqlite_are_understood(scheme: str) -> None:
    assert parse(f"{scheme}:///run.db").path == Path("run.db")


def test_memory_has_neither_path_nor_address() -> None:
    parsed = parse("memory://")
    assert (parsed.scheme, parsed.path, parsed.dsn) == ("memory", None, None)


@pytest.mark.parametrize(
    "url,told",
    [
        ("run.db", "has no scheme"),
        ("", "has no scheme"),
        ("sqlite:run.db", "has no scheme"),
        ("sqlite://", "needs a file"),
        ("sqlite:///", "needs a file"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite://run.db", "contains a host; a SQLite URL has only a path: sqlite:///run.db"),
        ("sqlite:///run.db?durabilty=full", "option 'durabilty' is not known for sqlite:// (known: durability, "),
        ("sqlite:///run.db?durability=fast", "durability 'fast' must be full or normal"),
        ("memory://?partition=a", "option 'partition' is not known for memory:// (known: none)"),
        (
            "postgresql://host/db?durability=full",
            (
                "option 'durability' is not known for postgresql:// (known: application_name, dbname, direct, host, "
                "partition, password, port, sslcert, sslkey, sslmode, sslrootcert, user)"
            ),
        ),
    ],
)
def test_typo_in_a_url_is_answered_with_the_valid_names(url: str, told: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(url)
    assert told in str(refused.value)
    assert refused.value.field == "url"


@pytest.mark.parametrize("name", ["", "Blue", "1st", "a-b", "a.b", "a/b", 'a"b', "a" * 41, "ä", "_a"])
@pytest.mark.parametrize("address", ["sqlite:///run.db", "postgresql://host/db"])
def test_a_partitions_name_is_safe_in_file_names_and_in_sql(address: str, name: str) -> None:
    with pytest.raises(Invalid, match="must match"):
        parse(f"{address}?partition={name}")


@pytest.mark.parametrize("name", ["a", "blue_2", "a" * 40])
@pytest.mark.parametrize("address", ["sqlite:///run.db", "postgresql://host/db"])
def test_a_partitions_name_may_have_forty_characters(address: str, name: str) -> None:
    assert parse(f"{address}?partition={name}").partition == name


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_durability_is_an_option_of_sqlite(durability: str) -> None:
    assert parse(f"sqlite:///run.db?durability={durability}").options["durability"] == durability


def test_a_password_is_never_shown() -> None:
    display = parse("postgresql://me:se%40cret:x@host:5433/db?partition=blue").shown
    assert display == "postgresql://me:***@host:5433/db?partition=blue"


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    assert parse("postgresql://me@host:5433/db").shown == "postgresql://me@host:5433/db"
    assert parse("sqlite:///a:b@c.db").shown == "sqlite:///a:b@c.db"


@pytest.mark.parametrize(
    "text",
    [
        "me:secret@host/db",
        "postgresql:/me:secret@host/db",
        "postgresql:me:secret@host:5432/db",
        "sqlite://me:secret@host/run.db",
        "host/db?password=secret",
    ],
)
def test_the_error_of_a_malformed_url_contains_no_password(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(text)
    assert "secret" not in str(refused.value)
    assert "***" in str(refused.value)


_SECRET = "S3cret"


@pytest.mark.parametrize(
    "text",
    [
        *(
            f"postgresql://u:{_SECRET}{character}{_SECRET}@127.0.0.1:1/db"
            for character in "#/?@[]\n\t\x00\ud800\uff03\u2100"
        ),
        *(f"postgresql://u:1{character}{_SECRET}@127.0.0.1:1/db" for character in "#/?@[]"),
        f"postgresql://u:{_SECRET}@@h/db",
        f"postgresql://u:[{_SECRET}]@h/db",
        f"postgresql://u:{_SECRET}",
        f"postgresql://h:{_SECRET}/db",
        f"postgresql://h:70000/{_SECRET}@h/db",
        f"postgresql:///u:{_SECRET}@h/db",
        f"postgresql://h/db?user=u&password=a#{_SECRET}",
        f"postgresql://h/db?user=u&password=a&{_SECRET}",
        f"postgresql://h/db?user=u&password=a&s3cret={_SECRET}",
        f"postgresql://h/db?password={_SECRET}&port=x",
        f"postgresql://h/db?password={_SECRET}&host=a:{_SECRET}",
        f"postgresql://u:{_SECRET}%00@h/db",
        f"postgresql://h/db?direct=postgresql://u:p#{_SECRET}@h/db",
        f"postgresql://h/db?direct=postgresql://u:p&{_SECRET}@h/db",
        f"postgresql://h/db?direct=postgresql://u:{_SECRET}%2Fx@h/db",
        f"postgresql://h/db?direct=mysql://u:{_SECRET}@h/db",
        f"POSTGRES://u:{_SECRET}#@h/db",
        f"postgresql+asyncpg://u:{_SECRET}[@h/db",
        f"postgresql:u:{_SECRET}@{_SECRET}@h/db",
        f"postgresql ://u:{_SECRET}@{_SECRET}@h/db",
        f"u:{_SECRET}/{_SECRET}:{_SECRET}@h/db",
        f"sqlite://u:{_SECRET}@{_SECRET}@h/run.db",
        f"sqlite://u:[{_SECRET}@h/run.db",
        f"memory://u:{_SECRET}]@h?password={_SECRET}&x",
    ],
)
def test_no_part_of_a_password_is_in_an_error(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(text)
    message = "".join(traceback.format_exception(refused.value))
    assert "s3cret" not in message.lower().replace(text.lower(), "")
    assert refused.value.field == "url"


def test_refusal_of_a_password_names_the_encoded_form() -> None:
    with pytest.raises(Invalid, match="as %23 %2F %3F %3A %40 %5B %5D %25 %26"):
        parse("postgresql://u:a#b@h/db")


def test_encoded_password_is_accepted_and_hidden() -> None:
    url = parse(
        "postgresql://u:%23%2F%3F%40%5B@h:5433/db?password=x%26y&direct=postgresql://u:%2523@h:1/db&partition=a"
    )
    assert url.dsn == "postgresql://u:%23%2F%3F%40%5B@h:5433/db?password=x%26y"
    assert url.options["direct"] == "postgresql://u:%23@h:1/db"
    assert url.shown == "postgresql://u:***@h:5433/db?password=***&direct=***&partition=a"
    assert passwords(url) == {"%23%2F%3F%40%5B", "#/?@[", "x&y", "x%26y", "%23", "#"}
    assert "%23" not in repr(url)


@pytest.mark.parametrize(
    "address",
    [
        "user@[::1]:5432,h2,h3:5433/db",
        "%2Ftmp%2Fpg:5432/db",
        "/db?host=/tmp/pg&port=6432",
        "me%40corp:p%25w@h",
        "h/db?user=me@corp&host=a,b&port=1,2",
        "u:a:b=c&d$e!f*(g)~@h/d:b",
    ],
)
def test_address_of_any_valid_form_reaches_the_driver(address: str) -> None:
    url = parse(f"postgresql://{address}")
    assert url.dsn is not None
    assert unquote(url.dsn) == unquote(f"postgresql://{address}")
