"""A changing call: a rollout is put at the end of the queue again, in process and over HTTP."""

from tests.recipes.scratch import Recipe, Scratch

_VALUE = '''@_value
class RequeueRolloutCall(ChangingCall[Rollout]):
    """Put a rollout at the end of the queue again."""

    method: ClassVar = "requeue_rollout"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/requeue", role="algorithm", tag="Rollouts", is_addition=True, is_body_optional=True
    )

    rollout_id: str


'''
_METHOD = '''    async def requeue_rollout(self, rollout_id: str) -> Rollout:
        """Put a rollout at the end of the queue again and return it. Sweeps.

        Raises:
            NotFound: the rollout does not exist.
        """
        return await self.call(RequeueRolloutCall(rollout_id))

'''
_COMMAND = '''def requeue(call: RequeueRolloutCall) -> AmendRollout:
    """Return the command that puts a rollout at the end of the queue."""
    return AmendRollout(rollout_id=_id(call.rollout_id, "rollout_id"), fields=[], status="requeuing")


'''
_LINE = "    RequeueRolloutCall: CommandCall(commands.requeue, mapping.rollout_of_view, replies.rollout),\n"


def _apply(scratch: Scratch) -> None:
    interface, calls = "store/interface/store.py", "store/sql/calls.py"
    scratch.replace(
        "store/models/calls.py", "@_value\nclass StartAttemptCall", f"{_VALUE}@_value\nclass StartAttemptCall"
    )
    scratch.insert(interface, "    NextSpansCall,\n", "    RequeueRolloutCall,\n")
    scratch.replace(interface, "    async def query_attempts(\n", f"{_METHOD}    async def query_attempts(\n")
    scratch.insert(
        interface,
        "    update_rollout = blocking(Store.update_rollout)\n",
        "    requeue_rollout = blocking(Store.requeue_rollout)\n",
    )
    commands = "store/sql/commands/rollouts.py"
    scratch.insert(commands, "    NextSpansCall,\n", "    RequeueRolloutCall,\n")
    scratch.replace(commands, "def claim(", f"{_COMMAND}def claim(")
    scratch.insert(calls, "    NextSpansCall,\n", "    RequeueRolloutCall,\n")
    scratch.replace(calls, "    UpdateAttemptCall: CommandCall", f"{_LINE}    UpdateAttemptCall: CommandCall")


RECIPE = Recipe(
    "changing call",
    4,
    _apply,
    '''"""The call works in process, over HTTP, without await, and on a store that passes calls on."""

import pytest

from store import NotFound, Store, open_store
from store.integrations.collections import CollectionBasedLightningStore, InMemoryLightningCollections
from store.server import StoreServer
from store.server.app import ROUTES


async def check(store: Store) -> None:
    rollout = (await store.start_rollout("task")).rollout_id
    await store.update_rollout(rollout, status="failed")
    assert (await store.requeue_rollout(rollout)).status == "requeuing"
    claimed = await store.dequeue_rollout("w-1")
    assert claimed is not None and claimed.rollout_id == rollout
    with pytest.raises(NotFound):
        await store.requeue_rollout("ro-none")


async def test_a_rollout_is_queued_again(tmp_path):
    async with await open_store(f"sqlite:///{tmp_path / 'run.db'}") as store, StoreServer(store, port=0) as server:
        await check(store)
        await check(server)
        async with await open_store(server.endpoint) as client:
            await check(client)
        rollout = (await store.start_rollout("task")).rollout_id
        assert store.sync.requeue_rollout(rollout).status == "requeuing"
        assert (await store.log.verify()).ok


async def test_collections_have_the_call():
    async with CollectionBasedLightningStore(InMemoryLightningCollections()) as store:
        await check(store)


def test_the_route_has_its_role():
    (route,) = [route for route in ROUTES if route.path.endswith("/requeue")]
    assert (route.method, route.role) == ("POST", "algorithm")
''',
)
