from store.replaying.queueing import ReplayReport as ReplayReport, replay_as_queue as replay_as_queue
from store.replaying.replay_store import ReplayStore as ReplayStore
