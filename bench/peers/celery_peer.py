"""Celery: one producer reused, since it has no bulk call; a pool of one thread, which was its fastest; results ignored.

    python celery_peer.py produce PORT TASKS DUE SPAN
    python celery_peer.py work PORT TASKS
"""
import datetime
import sys
import threading

import kit

role, port, tasks, due, span = kit.arguments()
from celery import Celery

app = Celery("bench", broker=f"redis://127.0.0.1:{port}/0")
app.conf.update(
    task_ignore_result=True,
    task_serializer="json",
    worker_prefetch_multiplier=100,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
    task_default_queue="default",
)
count = kit.Counter(tasks)


@app.task(name="bench")
def bench(at, pad):
    count.entered(at)


if role == "produce":
    with app.producer_or_acquire() as producer, kit.produced():
        for n in range(tasks):
            at = kit.due_of(n, tasks, due, span)
            eta = datetime.datetime.fromtimestamp(at / 1000, datetime.timezone.utc) if at else None
            bench.apply_async(args=kit.payload(at), producer=producer, eta=eta)
else:
    from celery.signals import worker_ready

    @worker_ready.connect
    def said(**_):
        print("ready", flush=True)

    def end():
        count.wait()
        sys.stdout.flush()
        kit.leave()

    threading.Thread(target=end, daemon=True).start()
    app.worker_main(["--quiet", "worker", "--pool=threads", "--concurrency=1", "--without-gossip", "--without-mingle",
                     "--without-heartbeat", "--loglevel=ERROR", "--queues=default"])
