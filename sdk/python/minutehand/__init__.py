"""Submit tasks to Minutehand and run them, over HTTP. Standard library only."""

from ._client import (
    AckState,
    ApiError,
    Client,
    NewTask,
    Outcome,
    RowAnswer,
    RowError,
    Submitted,
    Subscription,
    TaskView,
)
from ._worker import Fatal, RetryAfter, Task, Worker, WorkerReport

__all__ = [
    "AckState",
    "ApiError",
    "Client",
    "Fatal",
    "NewTask",
    "Outcome",
    "RetryAfter",
    "RowAnswer",
    "RowError",
    "Submitted",
    "Subscription",
    "Task",
    "TaskView",
    "Worker",
    "WorkerReport",
]
