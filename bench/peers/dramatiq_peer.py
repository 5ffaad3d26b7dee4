"""dramatiq: one message a call, since it has no bulk call; 16 threads; hiredis.

    python dramatiq_peer.py produce PORT TASKS DUE SPAN
    python dramatiq_peer.py work PORT TASKS
"""
import sys

import kit

role, port, tasks, due, span = kit.arguments()
import dramatiq
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=f"redis://127.0.0.1:{port}/0")
dramatiq.set_broker(broker)
count = kit.Counter(tasks)


@dramatiq.actor(max_retries=0, queue_name="default")
def bench(at, pad):
    count.entered(at)


if role == "produce":
    with kit.produced():
        for n in range(tasks):
            at = kit.due_of(n, tasks, due, span)
            # Its delay is relative, in ms.
            late = max(0, at - kit.now_ms()) if at else None
            bench.send_with_options(args=kit.payload(at), delay=late)
else:
    worker = dramatiq.Worker(broker, worker_threads=16)
    worker.start()
    print("ready", flush=True)
    count.wait()
    sys.stdout.flush()
    kit.leave()
