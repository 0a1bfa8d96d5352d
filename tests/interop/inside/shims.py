"""Our adapters of Agent-lightning's type in Agent-lightning's trainer."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import asyncio
import logging
import pickle
from typing import Any

from agentlightning import Algorithm, OtelTracer, Trainer
from agentlightning.adapter import TraceAdapter
from agentlightning.types import Triplet

from store.adapters import messages, triplets
from store.training.agentlightning import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from tests.interop.inside import traces
from tests.interop.inside.claims import arguments, claims_of, hold, stay_on_this_machine

_SHIMS: dict[type[Any], type[Any]] = {
    TracerTraceToTriplet: triplets.TracerTraceToTriplet,
    LlmProxyTraceToTriplet: triplets.LlmProxyTraceToTriplet,
    TraceToMessages: messages.TraceToMessages,
}


class _Adapting(Algorithm):
    """Keeps what the adapter that the trainer hands it makes of a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        del train_dataset, val_dataset
        self.made = self.get_adapter().adapt(traces.example())


def _taken(adapter: Any) -> Any:
    return Trainer(algorithm=_Adapting(), tracer=OtelTracer(), adapter=adapter).adapter


async def its_trainer_takes_all_of_them_under_every_name(_: None) -> None:
    for shim in _SHIMS:
        path = f"{shim.__module__}.{shim.__name__}"
        for named in (shim(), shim, path, {"type": path}):
            assert type(_taken(named)) is shim, named


async def its_trainer_takes_none_of_those_they_come_from(_: None) -> None:
    """What the shims are for; if this ends, so may they."""
    for ours in _SHIMS.values():
        try:
            _taken(ours())
        except (TypeError, ValueError):
            continue
        raise AssertionError(f"{ours} is taken as it is")


async def arguments_reach_ours(_: None) -> None:
    shim = _taken({"type": "store.training.agentlightning.TracerTraceToTriplet", "agent_match": "writer"})
    assert {triplet.metadata["agent_name"] for triplet in shim.adapt(traces.example())} == {"writer"}


async def they_return_our_results_as_its_records(_: None) -> None:
    for shim, ours in _SHIMS.items():
        assert isinstance(shim(), TraceAdapter)
        for seed in range(20):
            spans = traces.by_lot(seed, proxy=bool(seed % 2))
            adapted, expected = shim().adapt(spans), ours().adapt(spans)
            assert [_plain(item) for item in adapted] == [_plain(item) for item in expected], seed
            assert shim()(spans) == adapted
            if shim is not TraceToMessages:
                assert all(type(item) is Triplet for item in adapted)


async def they_can_be_sent_to_its_processes(_: None) -> None:
    for shim in _SHIMS:
        assert pickle.loads(pickle.dumps(shim())).adapt(traces.example()) == shim().adapt(traces.example())


async def an_algorithm_is_handed_one(_: None) -> None:
    algorithm = _Adapting()
    strategy = {"type": "shm", "main_thread": "algorithm"}
    trainer = Trainer(algorithm=algorithm, tracer=OtelTracer(), adapter=TracerTraceToTriplet(), strategy=strategy)
    await asyncio.to_thread(trainer.fit, _idle(), train_dataset=[])
    assert [triplet.reward for triplet in algorithm.made] == [0.1, None, 1.0]


def _idle() -> Any:
    from agentlightning import LitAgent

    return LitAgent()


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else value


async def _main() -> None:
    options = arguments()
    logging.disable(logging.CRITICAL)
    await hold(claims_of(__name__), None, options)


if __name__ == "__main__":
    stay_on_this_machine()
    asyncio.run(_main())
