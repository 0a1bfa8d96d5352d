from store.training.execution.client_server import ClientServerExecutionStrategy as ClientServerExecutionStrategy
from store.training.execution.ray_strategy import RayExecutionStrategy as RayExecutionStrategy
from store.training.execution.replaying import ReplayExecutionStrategy as ReplayExecutionStrategy
from store.training.execution.shared_memory import SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy
from store.training.execution.strategy import (
    ExecutionReport as ExecutionReport,
    ExecutionStrategy as ExecutionStrategy,
    RunnersGone as RunnersGone,
)
