// bee-queue: saveAll of 100, four in flight; concurrency 100; no events, no stored jobs. Its debounce of delayed jobs is
// a setting: 1 s by default, 1 ms when tuned for precision (BEE_DEBOUNCE).
import Queue from 'bee-queue';
import { counter, dueOf, inFlight, payload, port, produced, role } from './kit.mjs';

const shared = { redis: { host: '127.0.0.1', port }, getEvents: false, sendEvents: false, storeJobs: false, removeOnSuccess: true, removeOnFailure: true };
if (role === 'produce') {
  const queue = new Queue('bench', { ...shared, isWorker: false });
  await queue.ready();
  await produced(() =>
    inFlight(100, 4, async (from, to) => {
      const jobs = [];
      for (let n = from; n < to; n += 1) {
        const at = dueOf(n);
        const job = queue.createJob(payload(at));
        jobs.push(at ? job.delayUntil(at) : job);
      }
      const errors = await queue.saveAll(jobs);
      if (errors.size) throw [...errors.values()][0];
    }),
  );
  await queue.close();
} else {
  const delayedDebounce = Number(process.env.BEE_DEBOUNCE ?? 1000);
  const queue = new Queue('bench', { ...shared, activateDelayedJobs: true, delayedDebounce });
  const count = counter(() => setTimeout(() => process.exit(0), 100));
  await queue.ready();
  queue.on('succeeded', () => count.ended());
  queue.process(100, async (job) => count.entered(job.data));
  console.log('ready');
}
