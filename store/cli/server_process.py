"""The server process: its database, its application and its limits.

Several server processes can share one port; then each process is a worker of one parent process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI

from store import open_store
from store.cli.import_string import pipeline_named
from store.cli.serve_options import RunOptions, ServeSettings
from store.cli.store_context import check_server
from store.db.schema.sealed import is_sealed
from store.db.url import parse
from store.interface.liveness import close_orphans, live_runners
from store.interface.store import Store
from store.models.prices import PriceTable
from store.runtime.loop_thread import new_loop
from store.server.app import build_app
from store.server.auth.keyring import KeyRing
from store.server.auth.tls import Certificate
from store.server.indexes import filled_indexes
from store.server.partitions import Partitions
from store.server.process.peers import Peers
from store.server.process.scheduler import Scheduler
from store.server.process.serve import Server
from store.server.process.workers import Seat
from store.server.quotas import Quotas
from store.server.routes.operations import own_metrics
from store.server.streaming.slots import StreamSlots
from store.server.webhooks import delivered_webhooks
from store.sql.database import database_of
from store.sql.store import SQLStore
from store.webhooks.management import WebhookService
from store.wire.listener import is_loopback

if TYPE_CHECKING:
    from store.training.execution.parts import End

logger = logging.getLogger("store.server")

_FILES: Final = 65_536
_PIPELINE_SECONDS: Final = 15.0
"""The maximum time to wait until the pipeline's runner has started, and at the end until the runner has stopped."""
_LOOK_SECONDS: Final = 0.02


def run(
    settings: ServeSettings,
    listener: socket.socket,
    seat: Seat | None = None,
    on_started: Callable[[], None] | None = None,
) -> None:
    """Serve on a socket until a signal or the parent process stops the server.

    Args:
        settings: the settings of the server.
        listener: the listening socket.
        seat: the connection of a worker process to the parent process; None for the only server process, which handles
            signals itself.
        on_started: a function that is called when the server accepts requests.
    """
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(settings, listener, seat, on_started or (lambda: None)))


async def _serve(
    settings: ServeSettings, listener: socket.socket, seat: Seat | None, on_started: Callable[[], None]
) -> None:
    server, is_private = settings.server, parse(settings.db).scheme == "memory"
    try:
        await check_server(settings.db)
        root = await open_store(
            settings.db,
            scan_debounce_seconds=server.scan_debounce,
            create=not settings.read_only,
            read_only=settings.read_only,
        )
    except BaseException:
        listener.close()
        raise
    is_first = seat is None or seat.number == 0
    partitions = _partitions(settings, root, is_private=is_private, surveys=is_first and not settings.read_only)
    ring: KeyRing | None = None
    # Another process cannot open a private store, and a read-only server stores no results.
    has_schedule = not is_private and not settings.read_only and database_of(root) is not None
    scheduler = Scheduler(partitions, settings.db, settings.schedule) if has_schedule else None
    is_local = is_loopback(server.host)
    try:
        if not is_private:
            # With `always`, requests need a key even after the last key was revoked.
            always = not (is_local or server.insecure)
            ring = await KeyRing.open(settings.db, always=always, read_only=settings.read_only)
        app = build_app(
            partitions,
            cors_origins=server.cors_origin or (),
            max_body_bytes=server.max_body_bytes,
            ring=ring,
            is_local=is_local,
            front_end=settings.runs.front_end(),
            is_read_only=settings.read_only,
            stream_slots=StreamSlots(server.max_streams, server.max_streams_per_key),
            scheduler=scheduler,
            prices=PriceTable.read(server.prices),
            webhook_service=WebhookService(settings.db, server.allow_private_webhooks) if has_schedule else None,
        )
        if is_first and not settings.read_only:
            await close_orphans(root)
        _allow_many_sockets()
        _tune_collector()
        async with (
            _executing(root, settings.runs if is_first else None),
            _scheduling(scheduler, is_first=is_first),
            filled_indexes(partitions, is_first=is_first),
            delivered_webhooks(
                partitions,
                settings.db,
                server.base_url(listener.getsockname()[1]),
                allow_private=server.allow_private_webhooks,
                is_first=is_first and has_schedule,
            ),
        ):
            if seat is None:
                await Server(app, on_started, takes_signals=True, certificate=server.certificate).serve([listener])
            else:
                await _serve_seated(app, seat, server.certificate)
    finally:
        if ring is not None:
            await ring.close()
        await partitions.close()
        await root.close()


def _partitions(settings: ServeSettings, root: Store, *, is_private: bool, surveys: bool) -> Partitions:
    async def open_partition(url: str, *, create: bool = False) -> Store:
        # A partition that is a backup or an archive is opened read-only.
        is_fixed = settings.read_only or await is_sealed(parse(url))
        return await SQLStore.open(
            url,
            scan_debounce_seconds=settings.server.scan_debounce,
            create=create and not is_fixed,
            read_only=is_fixed,
            beside=database_of(root),
        )

    return Partitions(
        root,
        None if is_private else settings.db,
        open_partition,
        make_partition=partial(open_partition, create=True),
        surveys=surveys,
        quotas=Quotas(*settings.server.quotas()),
    )


@asynccontextmanager
async def _executing(store: Store, options: RunOptions | None) -> AsyncGenerator[None]:
    """Execute runs with the pipeline that the options name, until the end of the `async with` block.

    The pipeline runs in a separate thread, so it cannot block requests. Nothing is executed if `options` is None or
    names no pipeline.
    """
    if options is None or options.pipeline is None:
        yield
        return
    from store.pipelines.pipeline_runner import PipelineBundle
    from store.training.execution.parts import ThreadPart
    from store.training.running.stop_event import StopEvent

    pipeline = pipeline_named("--pipeline", options.pipeline)
    bundle = PipelineBundle(pipeline, options.pipeline_options)
    stopped = StopEvent()
    part = ThreadPart("pipeline", partial(bundle, store, 0, stopped), stopped)
    part.start()
    part.ended.add_done_callback(lambda ended: _log_end(ended.result()))
    try:
        # The server accepts requests only after this wait, so the first request for a re-run finds a live runner.
        with suppress(TimeoutError):
            async with asyncio.timeout(_PIPELINE_SECONDS):
                while not part.ended.done() and not await live_runners(store, pipeline.graph.name):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)
        yield
    finally:
        # The next runner of the pipeline resumes the runs that are interrupted here.
        part.drain()
        part.interrupt()
        await asyncio.wait({part.ended}, timeout=_PIPELINE_SECONDS)


@asynccontextmanager
async def _scheduling(scheduler: Scheduler | None, *, is_first: bool) -> AsyncGenerator[None]:
    """Run the scheduled operations until the end of the `async with` block, if this is the first worker."""
    if scheduler is None:
        yield
        return
    running = asyncio.create_task(scheduler.run()) if is_first else None
    try:
        yield
    finally:
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await scheduler.close()


def _log_end(end: End) -> None:
    if end.error is not None:
        logger.error("the pipeline has ended; runs are no longer executed here: %s", end.error, exc_info=end.error)


async def _serve_seated(app: FastAPI, seat: Seat, certificate: Certificate | None) -> None:
    server = Server(app, seat.ready, certificate=certificate)
    seat.attend(server.stop, lambda: server.stop(now=True))
    peers = app.state.peers = Peers(seat.directory, seat.number, seat.count, partial(own_metrics, app))
    await peers.open()
    try:
        await server.serve([seat.listener])
    finally:
        await peers.close()


def _allow_many_sockets() -> None:
    # The default limit is 1,024 open files, and every runner needs one or two connections.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _tune_collector() -> None:
    # The objects that exist now live until the process ends. Garbage collections skip these objects, because examining
    # them would delay responses.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
