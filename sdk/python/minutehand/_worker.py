"""The worker: long polls, a thread for each slot, batched acks, renewed leases, an orderly end."""

from __future__ import annotations

import base64
import os
import queue
import signal
import socket
import threading
import time
import traceback
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from ._client import ApiError, Client

_ACK_ROWS = 256
_ACK_GATHER = 0.01
_RENEW_EVERY = 1.0
_HEARD_AFTER = 0.2
_POLL_MS = 2_000
_POLL_BUSY_MS = 500


class Fatal(Exception):
    """A failure that no retry can cure: the task becomes a dead letter at once."""


class RetryAfter(Exception):
    """Not now: to be tried again in `ms` milliseconds; counted as a failure only if `counted`."""

    def __init__(self, ms: int, message: str = "", counted: bool = False):
        super().__init__(message or f"again in {ms} ms")
        self.ms = ms
        self.counted = counted


@dataclass
class Task:
    """One attempt at a task."""

    id: str
    execution_id: str
    queue: str
    payload: bytes
    priority: str
    due: str
    attempt: int
    lag_ms: int
    lease_ms: int
    key: Optional[str]
    timeout_ms: Optional[int]
    traceparent: Optional[str]
    sealed: Optional[str]
    """Name of the key that the payload is encrypted with."""
    raw: Dict[str, Any] = field(repr=False)
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False)
    """Set when the handler shall stop: somebody cancelled the task, or its lease was lost."""
    _tell: Optional[Callable[[str, float, str], bool]] = field(default=None, repr=False)
    _told: float = field(default=0.0, repr=False)
    _taken: float = field(default_factory=time.monotonic, repr=False)
    _renewed: float = field(default_factory=time.monotonic, repr=False)
    _heard: bool = field(default=False, repr=False)

    def progress(self, part: float, text: str = "") -> None:
        """Says how far the handler is, 0 to 1, for those who look at the task; at most once a second, but for the end.

        Failing to is no failure of the task. Where the attempt counts no longer, `cancelled` is set.
        """
        part = min(max(part, 0.0), 1.0)
        now = time.monotonic()
        if self._tell is None or (part < 1.0 and now - self._told < 1.0):
            return
        self._told = now
        if not self._tell(self.execution_id, part, text):
            self.cancelled.set()


Handler = Callable[[Task], None]




@dataclass
class WorkerReport:
    """What a worker has done."""

    succeeded: int = 0
    failed: int = 0
    stale: int = 0


class Worker:
    """Runs tasks of some queues. `run` works until `stop` is called or a signal comes."""

    def __init__(
        self,
        client: Client,
        handlers: Mapping[str, Handler],
        *,
        slots: int = 16,
        name: Optional[str] = None,
        labels: Sequence[str] = (),
        wait_ms: int = 20_000,
    ):
        if not handlers:
            raise ValueError("a worker needs a handler")
        if slots < 1:
            raise ValueError("slots must be at least 1")
        self._client, self._handlers, self._slots = client, dict(handlers), slots
        host = "".join(c for c in socket.gethostname() if c.isalnum() or c in "._-")[:14].lstrip("-")
        self.id = f"{host or 'py'}-{uuid.uuid4().hex[:12]}"
        self._name, self._labels, self._wait_ms = name or host or "python", list(labels), wait_ms
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._running: Dict[str, Task] = {}
        # Executions that arrived, of which the server has not heard yet.
        self._arrived: Set[str] = set()
        self._room = threading.Condition(self._lock)
        self._jobs: "queue.SimpleQueue[Optional[Task]]" = queue.SimpleQueue()
        self._acks: "queue.SimpleQueue[Optional[Dict[str, Any]]]" = queue.SimpleQueue()
        self.report = WorkerReport()

    def stop(self) -> None:
        """Takes nothing more; what runs may end."""
        self._stop.set()
        with self._lock:
            self._room.notify_all()

    def run(self, signals: bool = True) -> WorkerReport:
        """Works until `stop`, SIGTERM or Ctrl-C; then lets running handlers end and reports every outcome."""
        if signals and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())
        slots = [threading.Thread(target=self._slot, daemon=True) for _ in range(self._slots)]
        acker = threading.Thread(target=self._report_all, daemon=True)
        renewing = threading.Event()
        renewer = threading.Thread(target=self._renew_all, args=(renewing,), daemon=True)
        poller = threading.Thread(target=self._poll_all, daemon=True)
        for thread in (*slots, acker, renewer, poller):
            thread.start()
        try:
            # Signals are heard between two waits.
            while poller.is_alive():
                poller.join(0.2)
        finally:
            self.stop()
            poller.join()
            for _ in slots:
                self._jobs.put(None)
            for thread in slots:
                thread.join()
            self._acks.put(None)
            acker.join()
            renewing.set()
            renewer.join()
            try:
                self._client.call("DELETE", f"/v1/workers/{self.id}", timeout=5.0)
            except (ApiError, ConnectionError):
                pass
        return self.report

    def _poll_all(self) -> None:
        pause = 0.1
        while not self._stop.is_set():
            with self._lock:
                while len(self._running) >= self._slots and not self._stop.is_set():
                    # A worker without room says that it lives by renewing.
                    self._room.wait(1.0)
                in_hand = len(self._running)
                arrived = list(self._arrived)
            if self._stop.is_set():
                break
            # While something runs, room becomes free that the server should hear of; and a poll delays the end.
            wait_ms = min(self._wait_ms, _POLL_MS if in_hand == 0 else _POLL_BUSY_MS)
            body = {
                "worker": self.id,
                "name": self._name,
                "queues": sorted(self._handlers),
                "labels": self._labels,
                "slots": self._slots,
                "in_hand": in_hand,
                "max": self._slots - in_hand,
                "wait_ms": wait_ms,
                "version": f"python {os.getpid()}",
                "arrived": arrived,
            }
            try:
                answer = self._client.call("POST", "/v1/poll", body, repeat=False, timeout=wait_ms / 1_000 + 15)
                pause = 0.1
            except (ApiError, ConnectionError) as error:
                if isinstance(error, ApiError) and error.status in (401, 403, 422):
                    self._stop.set()
                    raise
                self._stop.wait(pause)
                pause = min(pause * 2, 5.0)
                continue
            self._heard(arrived)
            for said in answer["tasks"]:
                task = _task(said)
                task._tell = self._progress
                with self._lock:
                    self._running[task.execution_id] = task
                    self._arrived.add(task.execution_id)
                self._jobs.put(task)

    def _heard(self, executions: Sequence[str]) -> None:
        with self._lock:
            self._arrived.difference_update(executions)
            for execution in executions:
                task = self._running.get(execution)
                if task is not None:
                    task._heard = True

    def _slot(self) -> None:
        while True:
            task = self._jobs.get()
            if task is None:
                return
            ack: Dict[str, Any] = {"execution_id": task.execution_id, "outcome": "succeeded", "lag_ms": task.lag_ms}
            begun = time.monotonic()
            try:
                handler = self._handlers.get(task.queue)
                if handler is None:
                    raise RetryAfter(5_000, f"no handler for queue {task.queue}")
                handler(task)
            except Fatal as error:
                ack.update(outcome="fatal", error=str(error))
            except RetryAfter as error:
                ack.update(outcome="retry_after", retry_after_ms=error.ms, counted=error.counted, error=str(error))
            except Exception as error:  # whatever a handler raises is an outcome
                said = "".join(traceback.format_exception_only(type(error), error)).strip()
                ack.update(outcome="cancelled" if task.cancelled.is_set() else "failed", error=said)
            ack["took_ms"] = int((time.monotonic() - begun) * 1_000)
            self._acks.put(ack)
            with self._lock:
                self._running.pop(task.execution_id, None)
                if ack["outcome"] == "succeeded":
                    self.report.succeeded += 1
                else:
                    self.report.failed += 1
                self._room.notify()

    def _report_all(self) -> None:
        ended = False
        while not ended:
            rows: List[Dict[str, Any]] = []
            row = self._acks.get()
            until = time.monotonic() + _ACK_GATHER
            while True:
                if row is None:
                    ended = True
                    break
                rows.append(row)
                left = until - time.monotonic()
                if len(rows) >= _ACK_ROWS or left <= 0:
                    break
                try:
                    row = self._acks.get(timeout=left)
                except queue.Empty:
                    break
            if rows:
                self._report(rows)

    def _report(self, rows: List[Dict[str, Any]]) -> None:
        pause, until, again = 0.1, time.monotonic() + 25, False
        while True:
            body = {"worker": self.id, "acks": rows, "again": again}
            try:
                answer = self._client.call("POST", "/v1/acks", body, repeat=False)
            except (ApiError, ConnectionError) as error:
                lost = isinstance(error, ApiError) and error.status < 500 and error.status != 429
                if lost or time.monotonic() > until:
                    # Their leases lapse, and they are tried again.
                    with self._lock:
                        self.report.stale += len(rows)
                    return
                again = True
                time.sleep(pause)
                pause = min(pause * 2, 2.0)
                continue
            self._heard([row["execution_id"] for row in rows])
            stale = sum(1 for ack in answer["acks"] if ack["state"] == "stale")
            with self._lock:
                self.report.stale += stale
            return

    def _progress(self, execution_id: str, part: float, text: str) -> bool:
        row = {"execution_id": execution_id, "part": part, "text": text}
        try:
            answer = self._client.call("POST", "/v1/progress", {"worker": self.id, "executions": [row]}, repeat=False)
        except (ApiError, ConnectionError):
            return True
        return bool(answer["executions"][0]["state"] != "stale")

    def _renew_all(self, done: threading.Event) -> None:
        while not done.wait(_RENEW_EVERY):
            now = time.monotonic()
            with self._lock:
                # One that the server has not heard of yet counts as not begun.
                due = [
                    task
                    for task in self._running.values()
                    if now - task._renewed > (task.lease_ms / 3_000 if task._heard else _HEARD_AFTER)
                ]
                # Somebody's wish to stop is heard within seconds, whatever the lease.
                if not due:
                    due = [task for task in self._running.values() if now - task._renewed > 3]
            for start in range(0, len(due), 1_000):
                part = due[start : start + 1_000]
                rows = [{"execution_id": task.execution_id, "lease_ms": task.lease_ms} for task in part]
                try:
                    answer = self._client.call("POST", "/v1/renew", {"worker": self.id, "executions": rows})
                except (ApiError, ConnectionError):
                    for task in part:
                        if time.monotonic() - task._renewed > task.lease_ms / 1_000:
                            task.cancelled.set()
                    continue
                self._heard([task.execution_id for task in part])
                for task, said in zip(part, answer["executions"]):
                    task._renewed = now
                    if said["state"] == "stale" or said["cancel"]:
                        task.cancelled.set()


def _task(said: Dict[str, Any]) -> Task:
    return Task(
        id=said["id"],
        execution_id=said["execution_id"],
        queue=said["queue"],
        payload=base64.b64decode(said.get("payload_base64") or ""),
        priority=said["priority"],
        due=said["due"],
        attempt=said["attempt"],
        lag_ms=said["lag_ms"],
        lease_ms=said["lease_ms"],
        key=said.get("key"),
        timeout_ms=said.get("timeout_ms"),
        traceparent=said.get("traceparent"),
        sealed=said.get("sealed"),
        raw=said,
    )
