"""What the Python adapters share: arguments, payloads, and a summary of starts."""
import contextlib
import json
import os
import sys
import threading
import time


def arguments():
    numbers = [int(word) for word in sys.argv[2:6]]
    return [sys.argv[1], *numbers, *[0] * (4 - len(numbers))]


def now_ms():
    return time.time() * 1000


def due_of(n, tasks, due, span):
    return due + n * span // tasks if due else 0


def payload(at):
    return [at, "x" * 80]


@contextlib.contextmanager
def produced():
    start = time.monotonic()
    yield
    print(json.dumps({"ms": (time.monotonic() - start) * 1000}), flush=True)


def leave():
    """Ends the process although threads of the library may not."""
    time.sleep(0.2)
    os._exit(0)


class Counter:
    def __init__(self, tasks):
        self.tasks, self.count, self.first, self.last, self.lags = tasks, 0, None, None, []
        self.lock, self.done = threading.Lock(), threading.Event()

    def entered(self, due):
        at = now_ms()
        with self.lock:
            self.first = self.first or at
            if due:
                self.lags.append(at - due)
            self.count += 1
            if self.count == self.tasks:
                self.last = at
                self.done.set()

    def wait(self):
        self.done.wait()
        self.lags.sort()
        at = lambda share: self.lags[int((len(self.lags) - 1) * share)] if self.lags else None
        print(json.dumps({"ms": self.last - self.first, "first": self.first, "last": self.last,
                          "early": sum(lag < 0 for lag in self.lags),
                          "min": at(0), "p50": at(0.5), "p99": at(0.99), "max": at(1)}), flush=True)
