"""The client: one keep-alive connection for each thread, typed answers, repeats where that is safe."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

AckState = str
"""succeeded, retrying, dead, cancelled, skipped, handed_back, known or stale."""

_REPEATS = 4
_BULK_ROWS = 5_000
_BULK_BYTES = 4 << 20


class ApiError(Exception):
    """The server refused or failed."""

    def __init__(self, status: int, code: str, message: str, field: Optional[str], retry_after: Optional[float]):
        super().__init__(f"{field}: {message} ({code})" if field else f"{message} ({code})")
        self.status = status
        self.code = code
        self.message = message
        self.field = field
        self.retry_after = retry_after


@dataclass(frozen=True)
class Submitted:
    """A task that stands."""

    id: str
    created: bool
    due: str
    now: str


@dataclass(frozen=True)
class NewTask:
    """A task for `Client.submit_bulk`. All but the queue has a default."""

    queue: str
    payload: Union[bytes, str] = b""
    in_ms: Optional[int] = None
    at: Optional[str] = None
    key: Optional[str] = None
    priority: Optional[str] = None
    labels: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields as the API names them: retries, backoff, timeout_ms, placement, plan …"""

    def body(self) -> Dict[str, Any]:
        """The task as the API reads it."""
        out: Dict[str, Any] = {"queue": self.queue, **self.options}
        payload = self.payload.encode() if isinstance(self.payload, str) else self.payload
        if payload:
            out["payload_base64"] = base64.b64encode(payload).decode()
        for name in ("in_ms", "at", "key", "priority"):
            value = getattr(self, name)
            if value is not None:
                out[name] = value
        if self.labels:
            out["labels"] = list(self.labels)
        return out


@dataclass(frozen=True)
class RowError:
    """Why a row was not taken."""

    code: str
    message: str
    field: Optional[str] = None


@dataclass(frozen=True)
class RowAnswer:
    """What became of a row of `Client.submit_bulk`."""

    row: int
    id: Optional[str] = None
    created: Optional[bool] = None
    error: Optional[RowError] = None


@dataclass(frozen=True)
class TaskView:
    """A task as it stands."""

    id: str
    state: str
    view: str
    queue: Optional[str]
    due: Optional[str]
    failures: int
    payload: Optional[bytes]
    raw: Dict[str, Any]
    """Everything the server said."""


@dataclass(frozen=True)
class Subscription:
    """Of which tasks somebody wants to hear how they end, and where it goes."""

    name: str
    version: int
    queue: Optional[str]
    plan: Optional[str]
    key: Optional[str]
    task: Optional[str]
    url: Optional[str]
    """Where outcomes are sent; without one they are fetched by `Client.outcomes`."""


@dataclass(frozen=True)
class Outcome:
    """How a task ended."""

    delivery: str
    """Names this end of the task, however often it comes."""
    task: str
    state: str
    """succeeded, dead, cancelled, expired or skipped."""
    at: str
    queue: str
    key: Optional[str]
    plan: Optional[str]
    attempt: int
    reason: str


class Client:
    """A connection to a pod's HTTP port. May be used by several threads."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8700",
        token: Optional[str] = None,
        timeout: float = 15.0,
        context: Optional[ssl.SSLContext] = None,
    ):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address such as http://host:8700")
        self._scheme, self._host = parts.scheme, parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._base = parts.path.rstrip("/")
        self._token, self._timeout, self._context = token, timeout, context
        self._local = threading.local()

    def submit(
        self,
        queue: str,
        payload: Union[bytes, str] = b"",
        *,
        in_ms: Optional[int] = None,
        at: Optional[str] = None,
        key: Optional[str] = None,
        priority: Optional[str] = None,
        labels: Sequence[str] = (),
        **options: Any,
    ) -> Submitted:
        """Submits one task. With a key it is safe to repeat, and is repeated when no answer comes."""
        task = NewTask(queue, payload, in_ms, at, key, priority, labels, options)
        answer = self.call("POST", "/v1/tasks", task.body(), repeat=key is not None)
        return Submitted(answer["id"], answer["created"], answer["due"], answer["now"])

    def submit_bulk(self, tasks: Iterable[NewTask]) -> Iterator[RowAnswer]:
        """Submits any number of tasks, some thousand a request; yields an answer for each, in order.

        A request that breaks off raises: what it held may or may not stand, and rows with a key may be sent again.
        """
        first = 0
        lines: List[bytes] = []
        size = 0
        for task in tasks:
            line = json.dumps(task.body(), separators=(",", ":")).encode()
            lines.append(line)
            size += len(line)
            if len(lines) >= _BULK_ROWS or size >= _BULK_BYTES:
                yield from self._bulk(lines, first)
                first, lines, size = first + len(lines), [], 0
        if lines:
            yield from self._bulk(lines, first)

    def _bulk(self, lines: List[bytes], first: int) -> Iterator[RowAnswer]:
        headers = {"Content-Type": "application/x-ndjson"}
        text = self._send("POST", "/v1/tasks:bulk", b"\n".join(lines), headers, self._timeout, repeat=False)
        count = 0
        for line in text.splitlines():
            said = json.loads(line)
            count += 1
            error = said.get("error")
            yield RowAnswer(
                first + said["row"],
                said.get("id"),
                said.get("created"),
                RowError(error["code"], error["message"], error.get("field")) if error else None,
            )
        if count < len(lines):
            raise ConnectionError(f"only {count} of {len(lines)} rows were answered")

    def get(self, id: str) -> Optional[TaskView]:
        """A task as it stands; nothing when it never was, or ended too long ago."""
        try:
            said = self.call("GET", f"/v1/tasks/{urllib.parse.quote(id, safe='')}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        payload = said.get("payload_base64")
        text = said.get("payload")
        data = base64.b64decode(payload) if payload is not None else text.encode() if text is not None else None
        return TaskView(
            said["id"], said["state"], said["view"], said.get("queue"), said.get("due"), said["failures"], data, said
        )

    def cancel(self, id: str, cause: str = "") -> str:
        """Cancels a task; answers `cancelled`, or `asked` where it runs."""
        return str(self.call("POST", f"/v1/tasks/{urllib.parse.quote(id, safe='')}/cancel", {"cause": cause})["state"])

    def reschedule(self, id: str, *, in_ms: Optional[int] = None, at: Optional[str] = None) -> str:
        """Gives a pending task another due time; answers the one that stands."""
        body = {"in_ms": in_ms} if at is None else {"at": at}
        return str(self.call("POST", f"/v1/tasks/{urllib.parse.quote(id, safe='')}/reschedule", body)["due"])

    def edit(self, id: str, payload: Union[bytes, str, None] = None, **options: Any) -> bool:
        """Changes a task that is pending, running or dead; answers whether that changed something.

        Options as the API names them: retries, backoff, timeout_ms, lease_ms, notify … What is not named stays.
        """
        body = dict(options)
        if payload is not None:
            data = payload.encode() if isinstance(payload, str) else payload
            body["payload_base64"] = base64.b64encode(data).decode()
        return bool(self.call("PATCH", f"/v1/tasks/{urllib.parse.quote(id, safe='')}", body)["changed"])

    def subscribe(
        self,
        name: str,
        *,
        queue: Optional[str] = None,
        plan: Optional[str] = None,
        key: Optional[str] = None,
        task: Optional[str] = None,
        url: Optional[str] = None,
        version: Optional[int] = None,
    ) -> Subscription:
        """Hears of the ends of tasks that are submitted from now on, or of one that stands already.

        With a version only where that one stands; 0 where there is none yet.
        """
        named = {"queue": queue, "plan": plan, "key": key, "task": task, "url": url, "version": version}
        body = {field: value for field, value in named.items() if value is not None}
        # Sent again it would find another version.
        return _subscription(self.call("PUT", _named(name), body, repeat=version is None))

    def subscriptions(self) -> List[Subscription]:
        """All subscriptions, by name."""
        return [_subscription(said) for said in self.call("GET", "/v1/subscriptions")["subscriptions"]]

    def unsubscribe(self, name: str) -> bool:
        """Takes a subscription away; answers whether there was one."""
        try:
            self.call("DELETE", _named(name), repeat=False)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def outcomes(self, name: str, *, once: bool = False) -> Iterator[Outcome]:
        """Fetches the outcomes of a subscription without an address, for ever; with `once` those there are now.

        Each comes at least once: those of a batch are confirmed when the next one is asked for, and what was not
        confirmed comes again another time. Raises `ConnectionError` where the stream breaks off: begin anew.
        """
        stream = Client(f"{self._scheme}://{self._host}:{self._port}{self._base}", self._token, 30.0, self._context)
        try:
            connection = stream._connection(30.0)
            headers = {"Accept": "text/event-stream"}
            if self._token:
                headers["Authorization"] = f"Bearer {self._token}"
            connection.request("GET", f"{self._base}{_named(name)}/outcomes{'?once=true' if once else ''}", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise _error(response, response.read())
            batch: List[Outcome] = []
            while True:
                line = response.readline()
                if not line:
                    break
                kind, _, text = line.decode().rstrip("\n").partition(": ")
                if kind == "data":
                    said = json.loads(text)
                    if "delivery" in said:
                        batch.append(_outcome(said))
                elif kind == "id":
                    yield from batch
                    batch = []
                    self.call("POST", f"{_named(name)}/confirm", {"place": text})
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(f"the stream broke off: {error}") from error
        finally:
            stream.close()
        if not once:
            raise ConnectionError("the stream broke off")

    def call(
        self,
        method: str,
        path: str,
        body: Optional[Mapping[str, Any]] = None,
        *,
        repeat: bool = True,
        timeout: Optional[float] = None,
    ) -> Dict[str, Any]:
        """Any call of the API, with JSON both ways. Raises `ApiError`, or `ConnectionError` when nobody answers."""
        headers: Dict[str, str] = {}
        data: Optional[bytes] = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body, separators=(",", ":")).encode()
        text = self._send(method, path, data, headers, timeout or self._timeout, repeat)
        answer: Dict[str, Any] = json.loads(text)
        return answer

    def close(self) -> None:
        """Closes this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        connection: Optional[http.client.HTTPConnection] = getattr(self._local, "connection", None)
        if connection is None:
            if self._scheme == "https":
                connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=timeout, context=self._context or ssl.create_default_context()
                )
            else:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
            self._local.connection = connection
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        return connection

    def _send(
        self,
        method: str,
        path: str,
        data: Optional[bytes],
        headers: Dict[str, str],
        timeout: float,
        repeat: bool,
    ) -> bytes:
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        headers.setdefault("Accept", "application/json")
        pause = 0.1
        for attempt in range(_REPEATS):
            last = attempt == _REPEATS - 1
            reused = getattr(self._local, "connection", None) is not None
            try:
                connection = self._connection(timeout)
                connection.request(method, self._base + path, body=data, headers=headers)
                response = connection.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # A connection that was kept open may have been closed just then: nothing was read of the request.
                closed = reused and isinstance(error, (http.client.RemoteDisconnected, BrokenPipeError))
                if last or not (repeat or closed):
                    raise ConnectionError(f"no answer from {self._host}:{self._port}: {error}") from error
            else:
                if response.status < 300:
                    return text
                failed = _error(response, text)
                # What was refused for being too much was not done.
                if last or not (response.status == 429 or (repeat and response.status == 503)):
                    raise failed
                pause = max(pause, min(failed.retry_after or 0.0, 5.0))
            time.sleep(pause)
            pause *= 2
        raise AssertionError("unreachable")


def _named(name: str) -> str:
    return f"/v1/subscriptions/{urllib.parse.quote(name, safe='')}"


def _subscription(said: Dict[str, Any]) -> Subscription:
    named = (said.get(field) for field in ("queue", "plan", "key", "task", "url"))
    return Subscription(said["name"], said["version"], *named)


def _outcome(said: Dict[str, Any]) -> Outcome:
    return Outcome(
        said["delivery"],
        said["task"],
        said["state"],
        said["at"],
        said["queue"],
        said.get("key"),
        said.get("plan"),
        said["attempt"],
        said["reason"],
    )


def _error(response: http.client.HTTPResponse, text: bytes) -> ApiError:
    try:
        said = json.loads(text)
        code, message, name = said["code"], said["message"], said.get("field")
    except (ValueError, KeyError, TypeError):
        code, message, name = "unknown", text[:200].decode(errors="replace"), None
    after = response.headers.get("Retry-After", "")
    return ApiError(response.status, code, message, name, float(after) if after.isdigit() else None)
