// What the Node adapters share: arguments, payloads, and a summary of starts.
//
//   node PEER.mjs produce PORT TASKS DUE SPAN    due at DUE (ms since 1970; 0: at once), spread over SPAN ms
//   node PEER.mjs work PORT TASKS                until so many were handled
//
// One line of JSON comes out at the end; a worker says `ready` before.

export const [role, port, tasks, due, span] = [process.argv[2], ...process.argv.slice(3).map(Number)];

export const payload = (at) => {
  const text = JSON.stringify({ due: at, pad: '' });
  return { due: at, pad: 'x'.repeat(100 - text.length) };
};

export const dueOf = (n) => (due === 0 ? 0 : due + Math.floor((n * span) / tasks));

/** Calls `send(from, to)` for chunks of rows, so many at the same time. */
export async function inFlight(chunk, most, send) {
  let next = 0;
  const lane = async () => {
    while (next < tasks) {
      const from = next;
      next = Math.min(next + chunk, tasks);
      await send(from, next);
    }
  };
  await Promise.all(Array.from({ length: most }, lane));
}

export async function produced(work) {
  const start = performance.now();
  await work();
  console.log(JSON.stringify({ ms: performance.now() - start }));
}

const now = () => performance.timeOrigin + performance.now();

/** Notes starts; `entered(data)` in the handler, `done()` after the last one. */
export function counter(end) {
  const lags = [];
  let [first, count] = [0, 0];
  return {
    entered(data) {
      const at = now();
      first ||= at;
      if (data.due) lags.push(at - data.due);
    },
    ended() {
      count += 1;
      if (count < tasks) return;
      const last = now();
      lags.sort((a, b) => a - b);
      const at = (share) => (lags.length ? lags[Math.floor((lags.length - 1) * share)] : null);
      const early = lags.filter((lag) => lag < 0).length;
      console.log(JSON.stringify({ ms: last - first, first, last, early, min: at(0), p50: at(0.5), p99: at(0.99), max: at(1) }));
      end();
    },
  };
}
