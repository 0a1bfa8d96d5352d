"""What a proof consists of, cut into pieces that another process can do: each needs no more than a snapshot."""

from contextlib import aclosing
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from store.db.dialect import Dialect, ReadSession
from store.models.enums import Frozen
from store.verification.compare import Comparison, Stretch
from store.verification.log_scan import Bounds, Walked, walk
from store.verification.state_hash import Hashed, StateHash

Result = TypeVar("Result", bound=Frozen)


class Job(Frozen, Generic[Result]):
    """One piece of a proof."""

    result: ClassVar[type[Frozen]]

    async def do(self, dialect: Dialect, session: ReadSession) -> Result | None:
        """Return what was found, or None if there is more to say of it than can be told another process."""
        raise NotImplementedError

    def read(self, answer: bytes) -> Result | None:
        """Return what another process found, from its answer; None as `do`, or if it makes no sense."""
        try:
            found: Any = None if answer == b"null\n" else self.result.model_validate_json(answer)
        except ValidationError:
            return None
        return found


class Walk(Job[Walked]):
    """Holding the log against itself."""

    result = Walked
    kind: Literal["walk"] = "walk"
    bounds: Bounds

    async def do(self, dialect: Dialect, session: ReadSession) -> Walked:
        return await walk(dialect, session, self.bounds)


class Sound(Frozen):
    """A stretch of streams whose rows all are what they must be."""

    events: int
    streams: int
    hashed: Hashed


class Compare(Job[Sound]):
    """Holding a stretch of streams against the tables, up to the first thing that is wrong."""

    result = Sound
    kind: Literal["compare"] = "compare"
    stretch: Stretch
    cuts: list[str]
    """Where the state hash cuts the rollouts."""

    async def do(self, dialect: Dialect, session: ReadSession) -> Sound | None:
        state_hash = StateHash(self.cuts)
        comparison = Comparison(dialect, session, lambda: 0, state_hash)
        async with aclosing(comparison.of(self.stretch)) as pages:
            async for compared in pages:
                if not compared.is_sound:
                    return None
        return Sound(events=comparison.events, streams=comparison.streams, hashed=state_hash.found())


_ANY: TypeAdapter[Any] = TypeAdapter(Annotated[Walk | Compare, Field(discriminator="kind")])


def job_of(text: bytes) -> Job[Any]:
    """Return the job that a JSON text describes."""
    return _ANY.validate_json(text)
