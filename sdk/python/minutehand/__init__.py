"""Submit tasks to Minutehand and run them, over HTTP. Standard library only."""

from ._client import (
    AckState,
    ApiError,
    Client,
    NewTask,
    RowAnswer,
    RowError,
    Submitted,
    TaskView,
)
from ._worker import Fatal, RetryAfter, Task, Worker, WorkerReport

__all__ = [
    "AckState",
    "ApiError",
    "Client",
    "Fatal",
    "NewTask",
    "RetryAfter",
    "RowAnswer",
    "RowError",
    "Submitted",
    "Task",
    "TaskView",
    "Worker",
    "WorkerReport",
]
