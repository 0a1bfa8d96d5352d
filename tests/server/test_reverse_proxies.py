"""The files of docs/deploy for nginx and Caddy, with the real programs in front of a server."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from store import open_store
from store.server.store_server import StoreServer
from store.server.streaming.paths import LOG_SOCKET
from tests.postgres import free_port
from tests.server.stream_clients import Socket
from tests.server.test_tls import openssl

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
HANG = 20.0

pytestmark = pytest.mark.slow


def _site(name: str, directory: Path, upstream: str, port: int) -> str:
    """Return a documented file with the addresses and the certificate of a test in place of the documented ones."""
    text = (DEPLOY / name).read_text()
    for documented, tested in (
        ("127.0.0.1:4747", upstream),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("server_name rollbook.example.com", "server_name 127.0.0.1"),
        ("rollbook.example.com {", f"https://127.0.0.1:{port} {{\n\ttls {directory}/cert.pem {directory}/key.pem"),
        ("/etc/rollbook/tls/server.crt", f"{directory}/cert.pem"),
        ("/etc/rollbook/tls/server.key", f"{directory}/key.pem"),
    ):
        text = text.replace(documented, tested)
    return text


def _nginx(directory: Path, upstream: str, port: int) -> list[str]:
    """Write the configuration of nginx, and return its command."""
    paths = "".join(
        f"{kind}_temp_path {directory}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # Its workers have another user by default, who cannot read the directory of the test.
    user = "user root;\n" if os.geteuid() == 0 else ""
    (directory / "nginx.conf").write_text(
        f"{user}daemon off;\npid {directory}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}{_site('nginx.conf', directory, upstream, port)}}}\n"
    )
    return ["nginx", "-p", str(directory), "-e", "stderr", "-c", str(directory / "nginx.conf")]


def _caddy(directory: Path, upstream: str, port: int) -> list[str]:
    """Write the configuration of Caddy, and return its command."""
    options = "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n"
    (directory / "Caddyfile").write_text(options + _site("Caddyfile", directory, upstream, port))
    return ["caddy", "run", "--config", str(directory / "Caddyfile"), "--adapter", "caddyfile"]


PROXIES = {"nginx": _nginx, "caddy": _caddy}


@asynccontextmanager
async def _proxy(name: str, directory: Path, upstream: str) -> AsyncGenerator[str]:
    """Run a proxy in front of `upstream`, and yield its URL."""
    # Debian keeps nginx where only root looks for programs.
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    program = shutil.which(name, path=search)
    if program is None:
        pytest.skip(f"this machine has no {name}")
    port = free_port()
    _, *arguments = PROXIES[name](directory, upstream, port)
    environment = {**os.environ, "HOME": str(directory), "XDG_DATA_HOME": str(directory)}
    with (directory / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(program, *arguments, stderr=log, stdout=log, env=environment)
    try:
        async with asyncio.timeout(HANG):
            while True:
                assert process.returncode is None, (directory / "log").read_text()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.02)
                    continue
                writer.close()
                await writer.wait_closed()
                break
        yield f"https://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.mark.parametrize("name", PROXIES)
async def test_store_streams_and_pages_work_behind_the_documented_proxy(name: str, tmp_path: Path) -> None:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    openssl(
        *("req", "-x509", *curve, "-nodes", "-days", "2", "-subj", "/CN=rollbook test"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"),
    )
    certificate = tmp_path / "cert.pem"
    async with (
        StoreServer(await open_store("memory://"), port=0) as server,
        _proxy(name, tmp_path, server.endpoint.partition("://")[2]) as url,
        await open_store(url, ca_file=certificate) as store,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=certificate))
        ) as http,
        asyncio.timeout(HANG),
    ):
        # A body may be larger than the proxies' defaults, and a waiting claim ends when a rollout arrives.
        await store.enqueue_rollout({"text": "x" * 3_000_000})
        await store.dequeue_rollout("w")
        claim = asyncio.ensure_future(store.dequeue_rollout("w", wait_seconds=10))
        rollout = await store.enqueue_rollout(1)
        claimed = await claim
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id
        # An event of a stream arrives when it is committed.
        events = store.log.tail(follow=True)
        assert (await anext(events)).type == "rollout.enqueued"
        await events.aclose()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - a generator
        async with http.ws_connect(f"{url}{LOG_SOCKET}", headers={"Origin": url}) as connection:
            (event,) = await Socket(connection).events(1)
            assert event["type"] == "rollout.enqueued"
        # Pages of the proxy's address may change data, pages of other addresses may not.
        path = f"{url}/v1/agl/queues/rollouts/enqueue"
        for origin, status in ((url, 201), ("https://elsewhere.test", 403), (url.replace("https", "http"), 403)):
            async with http.post(path, json={"rollouts": [{"input": 1}]}, headers={"Origin": origin}) as answer:
                assert answer.status == status, (origin, await answer.text())
