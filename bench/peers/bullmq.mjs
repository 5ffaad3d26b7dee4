// BullMQ: bulk calls of 1,000, four in flight; one worker of concurrency 100; nothing kept.
import { Queue, Worker } from 'bullmq';
import IORedis from 'ioredis';
import { counter, dueOf, inFlight, payload, port, produced, role } from './kit.mjs';

const connection = new IORedis({ host: '127.0.0.1', port, maxRetriesPerRequest: null });
if (role === 'produce') {
  const queue = new Queue('bench', { connection, defaultJobOptions: { removeOnComplete: true, removeOnFail: true } });
  await queue.waitUntilReady();
  await produced(() =>
    inFlight(1000, 4, (from, to) => {
      const now = Date.now();
      const jobs = [];
      for (let n = from; n < to; n += 1) {
        const at = dueOf(n);
        jobs.push({ name: 't', data: payload(at), opts: at ? { delay: Math.max(0, at - now) } : {} });
      }
      return queue.addBulk(jobs);
    }),
  );
  await queue.close();
  connection.disconnect();
} else {
  const count = counter(() => setTimeout(() => process.exit(0), 100));
  const worker = new Worker('bench', async (job) => count.entered(job.data), { connection, concurrency: 100 });
  worker.on('completed', () => count.ended());
  await worker.waitUntilReady();
  console.log('ready');
}
