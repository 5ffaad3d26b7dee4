"""Against a real server: MINUTEHAND_URL names it. Run by the project's own tests, or by hand:

    MINUTEHAND_URL=http://127.0.0.1:8700 python3 -m unittest discover -s sdk/python/tests -t sdk/python
"""

import os
import threading
import time
import unittest
import uuid

from minutehand import ApiError, Client, Fatal, NewTask, RetryAfter, Task, Worker

URL = os.environ["MINUTEHAND_URL"]


def until(what: str, look, limit: float = 20.0):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


class Sdk(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client(URL)
        self.queue = f"py.{uuid.uuid4().hex[:8]}"

    def test_submit_look_move_cancel(self) -> None:
        payload = bytes(range(256))
        done = self.client.submit(self.queue, payload, in_ms=3_600_000, key="k" + self.queue, retries=5)
        self.assertTrue(done.created)
        again = self.client.submit(self.queue, "other", key="k" + self.queue)
        self.assertEqual((again.id, again.created), (done.id, False))
        seen = self.client.get(done.id)
        self.assertEqual((seen.state, seen.queue, seen.payload, seen.raw["retries"]), ("pending", self.queue, payload, 5))
        self.assertEqual(self.client.reschedule(done.id, at="2030-01-01T00:00:00Z"), "2030-01-01T00:00:00.000Z")
        self.assertEqual(self.client.cancel(done.id, "no more"), "cancelled")
        with self.assertRaises(ApiError) as refused:
            self.client.reschedule(done.id, in_ms=5)
        self.assertEqual((refused.exception.status, refused.exception.code), (409, "wrong_state"))
        with self.assertRaises(ApiError) as refused:
            self.client.submit("a b")
        self.assertEqual((refused.exception.status, refused.exception.field), (422, "queue"))

    def test_bulk_answers_each_row(self) -> None:
        tasks = [NewTask(self.queue, str(n), in_ms=3_600_000, key=f"{self.queue}-{n}") for n in range(12_000)]
        tasks[7] = NewTask("a b")
        answers = list(self.client.submit_bulk(iter(tasks)))
        self.assertEqual([answer.row for answer in answers], list(range(12_000)))
        self.assertEqual((answers[7].error.code, answers[7].error.field), ("bad_name", "queue"))
        self.assertEqual(sum(1 for answer in answers if answer.created), 11_999)

    def test_a_worker_runs_all_and_reports(self) -> None:
        seen, lock = {}, threading.Lock()

        def handle(task: Task) -> None:
            with lock:
                seen.setdefault(task.payload.decode(), []).append(task.attempt)
            if task.payload == b"fatal":
                raise Fatal("no such recipient")
            if task.payload == b"later" and task.attempt == 1 and len(seen["later"]) == 1:
                raise RetryAfter(1)
            if task.payload == b"boom" and task.attempt == 1:
                raise KeyError("boom")

        worker = Worker(self.client, {self.queue: handle}, slots=8)
        running = threading.Thread(target=worker.run)
        running.start()
        names = [str(n) for n in range(500)]
        ids = {}
        for name, answer in zip(names, self.client.submit_bulk(NewTask(self.queue, name) for name in names)):
            ids[name] = answer.id
        for name in ("fatal", "later", "boom"):
            ids[name] = self.client.submit(self.queue, name, backoff="fixed:1ms", retries=2).id
        ended = ("succeeded", "dead")
        for name, id in ids.items():
            state = until(name, lambda: (lambda task: task and task.state in ended and task.state)(self.client.get(id)))
            self.assertEqual(state, "dead" if name == "fatal" else "succeeded", name)
        worker.stop()
        running.join(30)
        self.assertFalse(running.is_alive())
        self.assertTrue(all(seen[name] == [1] for name in names))
        self.assertEqual((seen["fatal"], seen["later"], seen["boom"]), ([1], [1, 1], [1, 2]))
        self.assertEqual((worker.report.succeeded, worker.report.failed, worker.report.stale), (502, 3, 0))
        dead = self.client.get(ids["fatal"]).raw
        self.assertEqual(dead["attempts"][0]["error"], "no such recipient")

    def test_a_cancelled_task_is_told_to_stop(self) -> None:
        begun = threading.Event()

        def handle(task: Task) -> None:
            begun.set()
            if not task.cancelled.wait(30):
                raise AssertionError("nobody said so")
            raise InterruptedError("stopped")

        worker = Worker(self.client, {self.queue: handle}, slots=1)
        running = threading.Thread(target=worker.run)
        running.start()
        id = self.client.submit(self.queue).id
        self.assertTrue(begun.wait(20))
        self.assertEqual(self.client.cancel(id), "asked")
        until("the end", lambda: self.client.get(id).state == "cancelled")
        worker.stop()
        running.join(30)

    def test_progress_is_shown_and_a_running_task_is_edited(self) -> None:
        seen = {}
        told = threading.Event()

        def handle(task: Task) -> None:
            task.progress(0.25, "a quarter")
            told.set()
            until("somebody to look", lambda: seen.get("progress"))
            task.progress(1.0)

        worker = Worker(self.client, {self.queue: handle}, slots=1)
        running = threading.Thread(target=worker.run)
        running.start()
        id = self.client.submit(self.queue, "old").id
        self.assertTrue(told.wait(20))
        self.assertTrue(self.client.edit(id, "new", retries=9))
        self.assertFalse(self.client.edit(id, "new"))
        shown = self.client.get(id)
        self.assertEqual((shown.payload, shown.raw["retries"]), (b"new", 9))
        self.assertEqual(shown.raw["progress"], {"part": 0.25, "text": "a quarter"})
        seen["progress"] = True
        until("the end", lambda: self.client.get(id).state == "succeeded")
        worker.stop()
        running.join(30)

    def test_outcomes_are_fetched_and_confirmed(self) -> None:
        name = self.queue
        self.assertEqual(list(s for s in self.client.subscriptions() if s.name == name), [])
        made = self.client.subscribe(name, queue=self.queue, version=0)
        self.assertEqual((made.name, made.queue, made.url), (name, self.queue, None))
        with self.assertRaises(ApiError) as refused:
            self.client.subscribe(name, queue="other", version=0)
        self.assertEqual((refused.exception.status, refused.exception.code), (409, "version"))
        ids = [self.client.submit(self.queue, in_ms=3_600_000, key=f"{name}-{n}").id for n in range(3)]
        for id in ids:
            self.client.cancel(id, "no more")
        fetched = list(self.client.outcomes(name, once=True))
        self.assertEqual(sorted(outcome.task for outcome in fetched), sorted(ids))
        self.assertEqual({(o.state, o.queue, o.reason) for o in fetched}, {("cancelled", self.queue, "no more")})
        self.assertEqual(len({outcome.delivery for outcome in fetched}), 3)
        self.assertEqual(list(self.client.outcomes(name, once=True)), [])
        self.assertTrue(self.client.unsubscribe(name))
        self.assertFalse(self.client.unsubscribe(name))
        with self.assertRaises(ApiError):
            next(self.client.outcomes(name))


if __name__ == "__main__":
    unittest.main()
