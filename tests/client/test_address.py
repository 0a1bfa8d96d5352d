"""URLs of servers: valid forms, and errors for invalid ones."""

from __future__ import annotations

import pytest

from store.errors import Invalid
from store.wire.server_url import parse


@pytest.mark.parametrize(
    "url,base",
    [
        ("http://localhost:4747", "http://localhost:4747"),
        ("http://localhost:4747/", "http://localhost:4747"),
        ("https://example.org", "https://example.org"),
        ("http://[::1]:4747", "http://[::1]:4747"),
        ("http://host:1/p/tuning", "http://host:1/p/tuning"),
        ("http://host:1/p/tuning/", "http://host:1/p/tuning"),
        ("http://host:1?partition=tuning", "http://host:1/p/tuning"),
        ("http://host:1/?partition=tuning", "http://host:1/p/tuning"),
        ("http://host:1/p/tuning?partition=tuning", "http://host:1/p/tuning"),
        ("http://host:1?partition=default", "http://host:1"),
        ("https://host/behind/a/proxy", "https://host/behind/a/proxy"),
        ("https://host/behind?partition=tuning", "https://host/behind/p/tuning"),
        ("http://host:1/v1/agl", "http://host:1"),
        ("http://host:1/a b", "http://host:1/a%20b"),
    ],
)
def test_a_server_is_named_by_its_url_and_a_partition_by_its_path_or_query(url: str, base: str) -> None:
    address = parse(url)
    assert address.base == base
    assert address.otlp_traces == f"{base}/v1/traces"


@pytest.mark.parametrize(
    "url,reason",
    [
        ("http://", "has no host"),
        ("http:///p/x", "has no host"),
        ("ftp://host", "not the URL of a server"),
        ("sqlite:///run.db", "not the URL of a server"),
        ("host:4747", "not the URL of a server"),
        ("http://host:port", "not a URL"),
        ("http://host:99999", "not a URL"),
        ("http://[::1", "not a URL"),
        ("http://user@host", "ROLLBOOK_API_KEY"),
        ("http://user:secret@host", "ROLLBOOK_API_KEY"),
        ("http://host#part", "#part"),
        ("http://host?partition=../other", "must match"),
        ("http://host?partition=", "must match"),
        ("http://host?durability=full", "known: partition"),
        ("http://host/p/one?partition=two", "names another partition"),
    ],
)
def test_invalid_server_url_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason) as refused:
        parse(url)
    assert refused.value.field == "url"


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://user:secret@host",
            "postgresql://user:secret@host/db",
            "user:secret@host",
            "http://user:secret@[host",
        ),
        *(f"https://user:secret{character}secret@host" for character in "#/?@[]"),
        *(
            "http://user:1#secret@host",
            "http://user:1/secret@host",
            "http://user:1?secret@host",
            "http://u:secret\u2100@h",
        ),
        *("ftp://user:secret/secret@secret@host", "https:user:secret#secret@host"),
    ],
)
def test_a_password_in_a_url_is_not_repeated(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(url)
    assert "secret" not in str(refused.value)
