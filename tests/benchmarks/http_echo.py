"""The cost of the framework: FastAPI on uvicorn with the model of a span as request and response, without a store."""

from __future__ import annotations

import argparse

import uvicorn
from fastapi import FastAPI

from store.models import Span
from store.wire.paths import HEALTH, SPANS

app = FastAPI()


@app.get(HEALTH)
async def health() -> dict[str, str]:
    """Answer."""
    return {"status": "ok"}


@app.post(SPANS, status_code=201)
async def add_span(span: Span) -> Span:
    """Return the span that was sent."""
    return span


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    config = uvicorn.Config(
        app, port=parser.parse_args().port, loop="auto", http="httptools", log_config=None, access_log=False
    )
    uvicorn.Server(config).run()
