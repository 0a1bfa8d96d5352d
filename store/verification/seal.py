"""Seals. A seal is a file with the id and the hash of the last commit of the log at one moment.

Store a seal where a person who can change the database cannot change the seal. A later verification then shows whether
the log still contains this commit.
"""

import os
import time
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from store.db.dialect import ReadSession
from store.db.queries import log as log_queries
from store.errors import Invalid
from store.journal.log_rows import GENESIS
from store.models import Seal


async def head(session: ReadSession, store_id: str) -> Seal:
    """Return a seal of the present log."""
    commit = await log_queries.last_commit(session)
    return Seal(
        store_id=store_id,
        commit_id=0 if commit is None else commit.commit_id,
        position=0 if commit is None else commit.last_position,
        chain_head=bytes(GENESIS if commit is None else commit.chain_hash).hex(),
        sealed_at=time.time() if session.dialect.clock is None else session.dialect.clock() / 1_000_000,
    )


def write(seal: Seal, path: str | os.PathLike[str]) -> None:
    """Write a seal to a new file, completely or not at all.

    Raises:
        FileExistsError: the file exists.
    """
    target = Path(path)
    if target.exists():
        raise FileExistsError(f"{target} exists, and a seal is never overwritten; choose another name")
    unfinished = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(seal.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # Another process may have created the file by now. A rename would replace this file; a link fails instead.
        os.link(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> Seal:
    """Return the seal in a file.

    Raises:
        FileNotFoundError: the file does not exist.
        Invalid: the file does not contain a seal.
    """
    text = Path(path).read_bytes()
    try:
        return Seal.model_validate_json(text)
    except ValidationError as error:
        reason = f"{path} is not a seal: {error.errors()[0]['msg']}; give a file that `rollbook seal` wrote"
        raise Invalid("seal", reason) from None
