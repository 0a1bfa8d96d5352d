"""An event type: a rollout is pinned, with a reason, by a command that a method of the store makes."""

from tests.recipes.scratch import Recipe, Scratch

_FACT = '''@dataclass(slots=True)
class RolloutPinned:
    """A rollout was pinned."""

    type: ClassVar = "rollout.pinned"
    shape: ClassVar = 1
    reason: str


'''
_COMMAND = '''@dataclass(slots=True, kw_only=True)
class PinRollout(Command):
    """Pin a rollout."""

    rollout_id: str
    reason: str

    def request_rows(self, request: LoadRequest) -> None:
        request.rollouts.add(self.rollout_id)


'''
_DECISION = """def _pin(command: PinRollout, working_set: WorkingSet) -> int:
    working_set.existing_rollout(command.rollout_id)
    return working_set.record_rollout(
        command.rollout_id, RolloutPinned(reason=command.reason), actor=command.actor
    ).position


"""
_METHOD = '''
    async def pin(self, rollout_id: str, reason: str) -> int:
        """Pin a rollout and return the position of the event.

        Raises:
            NotFound: no such rollout.
        """
        command = PinRollout(rollout_id=rollout_id, reason=arguments.text(reason, "reason"))
        return await self.core.call(command)
'''


def _apply(scratch: Scratch) -> None:
    events, rollout = "store/domain/events.py", "store/domain/rollout.py"
    scratch.replace(
        events, "@dataclass(slots=True)\nclass BodyDropped:", f"{_FACT}@dataclass(slots=True)\nclass BodyDropped:"
    )
    scratch.insert(events, "    | RolloutAnnotated\n", "    | RolloutPinned\n")
    scratch.insert(events, "        RolloutAnnotated,\n", "        RolloutPinned,\n")
    scratch.insert(rollout, "    RolloutScanned,\n    RolloutStarted,\n", "    RolloutPinned,\n")
    scratch.insert(
        rollout, "    RolloutAnnotated: _annotated,\n", "    RolloutPinned: lambda state, event, fact: None,\n"
    )
    annotations = "store/domain/annotations.py"
    scratch.replace(
        annotations,
        "@dataclass(frozen=True, slots=True)\nclass AnnotationView",
        f"{_COMMAND}@dataclass(frozen=True, slots=True)\nclass AnnotationView",
    )
    scratch.replace(annotations, "import RolloutAnnotated\n", "import RolloutAnnotated, RolloutPinned\n")
    scratch.replace(annotations, "DECIDERS: dict", f"{_DECISION}DECIDERS: dict")
    scratch.replace(annotations, "{AnnotateRollout: annotate}", "{AnnotateRollout: annotate, PinRollout: _pin}")
    method = "store/sql/annotations.py"
    scratch.replace(method, "import AnnotationView\n", "import AnnotationView, PinRollout\n")
    scratch.replace(method, "\n    async def query(\n", f"{_METHOD}\n    async def query(\n")
    sentence = "store/narration/events.py"
    scratch.insert(
        sentence,
        '        "rollout.annotated": _annotated,\n',
        '        "rollout.pinned": lambda _narrator, _event, data: f"pinned: {data[\'reason\']}",\n',
    )


RECIPE = Recipe(
    "event type",
    5,
    _apply,
    '''"""A new event is recorded, read, verified, rebuilt, and told by the command line."""

import pytest
from typer.testing import CliRunner

from store import NotFound, open_store
from store.cli.app import app


async def test_a_pinned_rollout(tmp_path):
    url = f"sqlite:///{tmp_path / 'run.db'}"
    async with await open_store(url) as store:
        rollout = await store.enqueue_rollout("task")
        position = await store.annotations.pin(rollout.rollout_id, "a good example")
        with pytest.raises(NotFound):
            await store.annotations.pin("ro-none", "missing")
        event = (await store.log.history(rollout.rollout_id))[-1]
        assert (event.position, event.type, event.data) == (position, "rollout.pinned", {"reason": "a good example"})
        report = await store.log.verify()
        assert report.ok
        assert (await store.log.rebuild()).state_hash == report.state_hash
    return url, rollout.rollout_id


def test_the_command_line_has_a_sentence_for_it(tmp_path):
    import asyncio

    url, rollout_id = asyncio.run(test_a_pinned_rollout(tmp_path))
    shown = CliRunner().invoke(app, ["history", rollout_id, "--db", url])
    assert "pinned: a good example" in shown.output
''',
)
