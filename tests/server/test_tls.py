"""HTTPS: certificates in files, and errors for unusable files."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from store import open_store
from store.client import HTTPStore
from store.errors import Incompatible, Invalid, StoreError
from store.server.app import build_app
from store.server.auth.tls import Certificate
from store.server.partitions import Partitions
from store.server.process.serve import Server
from store.wire.listener import bind
from tests.server.test_serving import run, serving


def openssl(*arguments: str | Path) -> None:
    """Run OpenSSL's own program, which every system has that has Python's ssl."""
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate for 127.0.0.1, its key, another key, and an encrypted one."""
    directory = tmp_path_factory.mktemp("tls")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    openssl(
        *("req", "-x509", *curve, "-nodes", "-days", "2", "-subj", "/CN=rollbook test"),
        *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        *("-keyout", directory / "key.pem", "-out", directory / "cert.pem"),
    )
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", directory / "other.pem")
    openssl("pkey", "-in", directory / "key.pem", "-aes256", "-passout", "pass:x", "-out", directory / "locked.pem")
    (directory / "empty.pem").touch()
    return directory


@asynccontextmanager
async def _https(files: Path) -> AsyncGenerator[str]:
    listener = bind("127.0.0.1", 0)
    started = asyncio.Event()
    async with await open_store("memory://") as store:
        certificate = Certificate(files / "cert.pem", files / "key.pem")
        server = Server(build_app(Partitions(store), is_local=True), started.set, certificate=certificate)
        running = asyncio.ensure_future(server.serve([listener]))
        await started.wait()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


async def test_a_store_works_by_https(files: Path) -> None:
    async with _https(files) as url, await open_store(url, ca_file=files / "cert.pem") as store:
        rollout = await store.enqueue_rollout({"question": 1})
        claimed = await store.dequeue_rollout("w", wait_seconds=1)
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id
        events = store.log.tail(follow=True)
        assert (await anext(events)).type == "rollout.enqueued"
        await events.aclose()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - a generator
        assert store.otlp_traces_endpoint() == f"{url}/v1/traces"


async def test_the_authorities_of_the_environment_are_believed(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(files / "cert.pem"))
    async with _https(files) as url, await open_store(url) as store:
        assert (await store.statistics()).get("total_rollouts") == 0


async def test_untrusted_certificate_is_refused_without_retries(files: Path) -> None:
    async with _https(files) as url:
        with pytest.raises(Incompatible, match=r"not trusted.*ca_file"):
            await open_store(url)
        async with HTTPStore(url) as store:
            with pytest.raises(Incompatible, match="not trusted"):
                await store.statistics()


async def test_http_to_an_https_port_is_an_error_of_the_store(files: Path) -> None:
    async with _https(files) as url, HTTPStore(url.replace("https", "http"), retry_seconds=0) as store:
        with pytest.raises(StoreError):
            await store.statistics()


async def test_a_copy_in_another_process_believes_the_same(files: Path) -> None:
    async with _https(files) as url, HTTPStore(url, ca_file=files / "cert.pem") as store:
        copied: HTTPStore = pickle.loads(pickle.dumps(store))
        async with copied as copy:
            assert (await copy.statistics()).get("total_rollouts") == 0


@pytest.mark.parametrize("name", ["missing.pem", "empty.pem", "key.pem", "."])
def test_a_file_without_certificates_is_named(files: Path, name: str) -> None:
    with pytest.raises(Invalid, match="ca_file") as refused:
        HTTPStore("https://127.0.0.1", ca_file=files / name)
    assert str(files / name) in str(refused.value)


def test_a_file_of_certificates_is_for_https() -> None:
    with pytest.raises(Invalid, match="https"):
        HTTPStore("http://127.0.0.1", ca_file="cert.pem")


@pytest.mark.parametrize(
    "cert,key,field,said",
    [
        ("missing.pem", "key.pem", "--tls-cert", "missing.pem cannot be read: No such file"),
        ("cert.pem", "missing.pem", "--tls-key", "missing.pem cannot be read: No such file"),
        (".", "key.pem", "--tls-cert", "cannot be read: Is a directory"),
        ("cert.pem", "other.pem", "--tls-key", "not the key of the certificate"),
        ("cert.pem", "locked.pem", "--tls-key", "is encrypted"),
        ("cert.pem", "empty.pem", "--tls-key", "does not contain a private key"),
        ("cert.pem", "cert.pem", "--tls-key", "does not contain a private key"),
        ("empty.pem", "key.pem", "--tls-cert", "does not contain a certificate"),
        ("key.pem", "key.pem", "--tls-cert", "does not contain a certificate"),
    ],
)
def test_unusable_certificate_files_are_named_with_the_reason(
    files: Path, cert: str, key: str, field: str, said: str
) -> None:
    with pytest.raises(Invalid) as refused:
        Certificate(files / cert, files / key).check()
    assert refused.value.field == field
    assert said in str(refused.value)


def test_a_pair_that_fits_is_taken(files: Path) -> None:
    Certificate(files / "cert.pem", files / "key.pem").check()


@pytest.mark.slow
async def test_the_command_serves_https(files: Path, tmp_path: Path) -> None:
    options = ("--tls-cert", str(files / "cert.pem"), "--tls-key", str(files / "key.pem"))
    database = ("--db", f"sqlite:///{tmp_path / 'run.db'}", "--port", "0")
    with serving("serve", *database, *options) as (_, url):
        assert url.startswith("https://127.0.0.1:")
        async with await open_store(url, ca_file=files / "cert.pem") as store:
            await store.enqueue_rollout(1)


def test_the_command_refuses_a_certificate_without_its_key(files: Path, tmp_path: Path) -> None:
    options = (
        "serve",
        "--db",
        f"sqlite:///{tmp_path / 'run.db'}",
        "--port",
        "0",
        "--tls-cert",
        str(files / "cert.pem"),
    )
    missing = run(*options)
    assert (missing.exit_code, "--tls-key" in missing.stderr) == (2, True)
    wrong = run(*options, "--tls-key", str(files / "other.pem"))
    assert (wrong.exit_code, "not the key of" in wrong.stderr) == (2, True)
