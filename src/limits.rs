//! Every maximum of Minutehand, with its unit in its name and the reason for it.
//!
//! A number that bounds a queue, a batch, a retry, a buffer or a key stands here and nowhere else.
//! `docs/limits.md` shows the same table to users; `tests/tree.rs` keeps the two equal.

/// Largest payload of one task. Larger things belong in an object store; the task carries the reference.
pub const PAYLOAD_MAX_BYTES: usize = 1 << 20;
/// Longest queue name.
pub const QUEUE_MAX_BYTES: usize = 128;
/// Longest idempotency or placement key.
pub const KEY_MAX_BYTES: usize = 512;
/// Longest plan name.
pub const PLAN_MAX_BYTES: usize = 128;
/// Longest namespace: it is part of every key name, so it costs memory in each.
pub const NAMESPACE_MAX_BYTES: usize = 32;
/// Most labels a task may require.
pub const LABELS_MAX: usize = 8;
/// Longest label.
pub const LABEL_MAX_BYTES: usize = 64;
/// How far ahead a task may be due: 10 years of 366 days.
pub const DUE_AHEAD_MAX_MS: i64 = 10 * 366 * 86_400_000;
/// End of the year 9999, the last instant that RFC 3339 can write.
pub const DUE_MAX_MS: i64 = 253_402_300_799_999;

/// Most rows in one submit, claim or ack: keeps a script under 5 ms and under Lua's limit of 8,000 unpacked values.
pub const BATCH_MAX_ROWS: usize = 1_000;
/// Most rows of one script call that touches each task by itself (cancel, release, redrive, delete): 10 to 20 µs each, twice
/// that with a key and a time-out to clear. Longer lists are sent in pieces.
pub const SINGLE_MAX_ROWS: usize = 125;
/// Most weight of one ack, where an outcome that ends its task weighs 1: 2 µs, or 8 with a key and a time-out to clear.
pub const ACK_MAX_WEIGHT: usize = 500;
/// Weight of an outcome that sets its task back or buries it: about 40 µs with a long error text.
pub const ACK_FAILURE_WEIGHT: usize = 4;
/// Most bytes in one submit: keeps one call from holding Redis's network buffers, and its script below 10 ms (2.6 ms a MiB).
pub const BATCH_MAX_BYTES: usize = 3 << 20;
/// Most bytes of one claim, offer or take, unless it is a single task: what Lua answers costs 2.6 ms a MiB, and they shall
/// take less than 10 ms. An inbox is taken by the average size of what lies in it, so a take is about as large.
pub const CALL_MAX_BYTES: usize = 2 << 20;
/// Most ids moved from due sets into lanes by one claim.
pub const RIPEN_MAX_ROWS: usize = 2_000;
/// Most due sets one claim looks into.
pub const DUE_SETS_VISITED_MAX: usize = 32;
/// From this size on a due set is split: first by second, then by sixteen parts of a second.
pub const DUE_SET_SPLIT_ROWS: usize = 10_000;
/// Most lapsed leases and fired timers handled by one claim.
pub const REAP_MAX_ROWS: usize = 250;
/// Most lanes with a quota of their own in one claim.
pub const QUOTAS_MAX: usize = 256;

/// Most buckets of a namespace.
pub const BUCKETS_MAX: u16 = 1_024;
/// Buckets that exist from the start and never close: the home of keyed tasks.
pub const KEY_BUCKETS_DEFAULT: u16 = 8;
/// Most holders of one bucket's lock.
pub const HOLDERS_MAX: usize = 8;
/// Most buckets with a number of holders of their own.
pub const HOT_BUCKETS_MAX: usize = 8;
/// How long a closed bucket stays at least before it vanishes: until then its events and its finished tasks are known,
/// and a submit that is sent again is told what became of it.
pub const BUCKET_LINGER_MIN_MS: i64 = 120_000;
/// Decisions on the number of buckets that are kept with their figures: 20 minutes of windows of 5 s, up to 5 KB each.
pub const DECISIONS_MAX: usize = 240;
/// Changes of the number of buckets that are kept with their figures.
pub const CHANGES_MAX: usize = 200;
/// Buckets that a decision lists with their figures: those that are worst off.
pub const DECISION_BUCKETS_MAX: usize = 8;
/// Coming minutes that a decision looks at.
pub const DECISION_AHEAD_MINUTES: usize = 10;
/// Most combinations of queue and required labels in a namespace (18 bits, capped).
pub const LANE_GROUPS_MAX: u32 = 65_536;

/// Longest time before it is due that a task is claimed, so that it can start on its millisecond. So long it can be
/// lost with an executor that dies, and so long a cancel is a wish instead of a deed.
pub const LOOK_AHEAD_MAX_MS: i64 = 200;
/// How long before it is due a task is claimed by default: pays the way to the executor, and lets calls carry more.
pub const LOOK_AHEAD_MS: i64 = 60;
/// How long a pod's permit for a bucket lasts without renewal.
pub const LOCK_MS: i64 = 3_000;
/// A claimed task must have started by then, else it is handed back, uncounted.
pub const DISPATCH_TIMEOUT_MS: i64 = 15_000;
/// How long a started task is good without renewal.
pub const LEASE_MS: i64 = 30_000;
/// Shortest and longest lease a user may ask for.
pub const LEASE_MIN_MS: i64 = 1_000;
/// Longest lease: a day; longer work renews.
pub const LEASE_MAX_MS: i64 = 86_400_000;
/// How often pods and executors report.
pub const HEARTBEAT_MS: i64 = 3_000;
/// Where a bucket that has running tasks was not claimed from for this long, and for longer than a permit lasts, something
/// kept the pods away: they poll it each second. `lua/due/claim.lua` has the same.
pub const AWAY_MS: i64 = 2_000;
/// How long leases do not lapse once somebody is back there: what kept the pods away kept outcomes and renewals away as
/// well, and these come back with pauses of up to [`RECONNECT_MAX_MS`], for the connection and for the call.
/// `lua/due/claim.lua` has the same.
pub const RETURN_MS: i64 = 4_000;
/// A pod or executor silent for this long is lost.
pub const LOST_AFTER_MS: i64 = 9_000;
/// Longest sleep of a claim loop: the poll that backs up every wake-up.
pub const POLL_MS: i64 = 1_000;
/// Longest sleep of a claim loop whose bucket has nothing in hand, while its wake-ups are known to arrive.
/// `lua/lib/calm.lua` plans with the same.
pub const REST_MS: i64 = 30_000;
/// How often it is made sure that wake-ups arrive. One that does not is made up for within twice this.
pub const WAKES_PROVED_MS: u64 = 500;
/// Rows at which waiting acks are sent at once.
pub const ACK_ROWS: usize = 256;
/// Shortest gathering of acks.
pub const ACK_GATHER_MIN_MS: u64 = 5;
/// Longest gathering of acks, while their calls would be small.
pub const ACK_GATHER_MAX_MS: u64 = 250;
/// Longest gathering of a claim loop when its bucket is busy.
pub const CLAIM_GATHER_MAX_MS: u64 = 5;
/// Grants lost without a start, after which a task is dead: it kills its executors.
pub const UNCOUNTED_LOSSES_MAX: u32 = 20;
/// Most retries of a task.
pub const RETRIES_MAX: u32 = 254;
/// Longest back-off.
pub const BACKOFF_MAX_MS: i64 = 86_400_000 * 7;
/// Longest error text kept of one attempt.
pub const ERROR_TAIL_MAX_BYTES: usize = 1_024;
/// Attempts kept in a dead letter: the first and the latest ones.
pub const ATTEMPTS_KEPT_MAX: usize = 16;

/// Default window in which an idempotency key is remembered after its task ended.
pub const KEY_WINDOW_MS: i64 = 86_400_000;
/// The same for imports.
pub const IMPORT_KEY_WINDOW_MS: i64 = 7 * 86_400_000;
/// Longest row of an import: a full payload with room for its other columns and for quoting.
pub const IMPORT_ROW_MAX_BYTES: usize = 4 << 20;
/// Most columns of an import.
pub const IMPORT_COLUMNS_MAX: usize = 1_024;
/// Deepest nesting of a JSON value in an import.
pub const IMPORT_DEPTH_MAX: usize = 64;
/// Rows that travel together from an import's reader to its sender: some 500 for each of eight buckets. Also bounded by bytes.
pub const IMPORT_CHUNK_ROWS: usize = 4_000;
/// Bytes of payload at which such a chunk is passed on.
pub const IMPORT_CHUNK_BYTES: usize = 1 << 20;
/// Chunks that wait between an import's reader and its sender.
pub const IMPORT_CHUNKS_WAITING: usize = 4;
/// Chunks of an import that are with Redis at the same time.
pub const IMPORT_IN_FLIGHT: usize = 4;
/// Bad rows that are shown; all are counted.
pub const BAD_ROWS_SHOWN_MAX: usize = 20;
/// Longest key window.
pub const KEY_WINDOW_MAX_MS: i64 = 31 * 86_400_000;
/// Ids of finished tasks are remembered at least this long.
pub const RECENT_MIN_MS: i64 = 120_000;
/// Ids of finished tasks are remembered at most this long.
pub const RECENT_MAX_MS: i64 = 900_000;
/// Bytes of finished ids kept per bucket beyond the shortest time.
pub const RECENT_MAX_BYTES: usize = 4 << 20;
/// Dead letters older than this are deleted.
pub const DEAD_KEEP_MS: i64 = 7 * 86_400_000;
/// Dead letters beyond this number, over all buckets, are deleted, oldest first.
pub const DEAD_KEEP_ROWS: usize = 100_000;
/// Least time between two digests of a queue's dead letters, unless set otherwise.
pub const DIGEST_EVERY_MS: i64 = 300_000;
/// Dead letters that one round of digests looks through.
pub const DIGEST_LETTERS_MAX: usize = 20_000;
/// Task ids named in a digest.
pub const DIGEST_IDS_MAX: usize = 10;
/// Different reasons counted in a digest; there are five.
pub const DIGEST_REASONS_MAX: usize = 32;
/// Runs from which on a lease is suggested.
pub const LEASE_AUTO_RUNS: u64 = 20;
/// Counts of runs are halved this often: what ran yesterday says little.
pub const RUNS_FADE_MS: i64 = 3_600_000;
/// Queues of which one executor adds up the runs in one call.
pub const RUNS_QUEUES_MAX: usize = 64;
/// Bytes of events kept per namespace, shared by its buckets.
pub const EVENTS_MAX_BYTES: usize = 512 << 20;

/// Connections to the HTTP port that are open at the same time; further ones wait to be accepted.
pub const HTTP_CONNECTIONS_MAX: usize = 2_048;
/// Longest time for the answer to one HTTP request; streams and long polls have bounds of their own.
pub const HTTP_TIMEOUT_MS: i64 = 10_000;
/// Longest time in which an HTTP request tries again where Redis is away or refuses; then its caller hears of it, with the
/// cause and when to ask again.
pub const HTTP_REPEAT_MS: i64 = 1_000;
/// Longest time for the head of an HTTP request, or for a TLS handshake.
pub const HTTP_HEADERS_MS: i64 = 10_000;
/// Longest head of an HTTP request, with room for a Last-Event-ID of 1,024 buckets.
pub const HTTP_HEADERS_MAX_BYTES: usize = 64 << 10;
/// How long a stopping HTTP port waits for the requests under way.
pub const HTTP_STOP_MS: i64 = 1_000;
/// Longest body of an HTTP request, and longest row of a bulk request: the largest payload in base64, and the rest.
pub const HTTP_BODY_MAX_BYTES: usize = 2 << 20;
/// Longest pause within a bulk request, on either side.
pub const HTTP_IDLE_MS: i64 = 30_000;
/// Bulk requests that are under way at a time in one pod: each may hold some 20 MiB.
pub const HTTP_BULKS_MAX: usize = 16;
/// Streams of events that are open at a time in one pod: each asks every bucket at least once a second.
pub const HTTP_STREAMS_MAX: usize = 64;
/// Polls of workers that wait at a time in one pod.
pub const HTTP_POLLS_MAX: usize = 1_024;
/// Longest wait of a poll: below the time after which most proxies give up.
pub const POLL_WAIT_MAX_MS: i64 = 30_000;
/// How long outcomes that a worker reports are tried to be reported when Redis is away.
pub const POLL_PATIENCE_MS: i64 = 5_000;
/// Most queues that one polling worker names.
pub const POLL_QUEUES_MAX: usize = 1_024;
/// Bytes of tasks that one pod keeps for polling workers that will ask in a moment; beyond it they stay in their inboxes.
pub const POLL_SHELVES_MAX_BYTES: usize = 32 << 20;
/// Workers that one pod remembers, so as to report them to Redis no more often than needed.
pub const POLL_WORKERS_MAX: usize = 8_192;
/// Most rows of one answer to a list, and most that one request touches by a filter.
pub const HTTP_PAGE_MAX_ROWS: usize = 1_000;
/// Most tokens of a namespace: every pod keeps all of them in memory.
pub const TOKENS_MAX: usize = 1_000;
/// Longest name of a token.
pub const TOKEN_NAME_MAX_BYTES: usize = 64;
/// Most patterns of queues of one token.
pub const TOKEN_QUEUES_MAX: usize = 64;
/// Failed logins of one address within [`LOGIN_WINDOW_MS`] after which further ones are refused unseen.
pub const LOGIN_FAILURES_MAX: u32 = 10;
/// Time in which failed logins are counted.
pub const LOGIN_WINDOW_MS: i64 = 60_000;
/// Addresses whose failed logins are counted at a time.
pub const LOGIN_PEERS_MAX: usize = 4_096;
/// Largest quota of a namespace, in tasks or bytes: far from where numbers of Lua lose digits.
pub const QUOTA_MAX: u64 = 1_000_000_000_000;
/// Notes kept of what operators did.
pub const NOTES_KEEP_ROWS: usize = 10_000;
/// Answers shorter than this are not compressed: they would gain nothing.
pub const HTTP_GZIP_MIN_BYTES: u64 = 1_024;
/// Causes of not being ready that are kept.
pub const READY_CAUSES_MAX: usize = 16;
/// Most queues that are frozen at a time; freezing all needs one.
pub const FROZEN_MAX: usize = 256;
/// Most queues and downstreams of a namespace for which something is set: pods read them all at a change.
pub const QUEUE_RECORDS_MAX: usize = 4_096;
/// Longest record of what is set for one queue or downstream.
pub const QUEUE_RECORD_MAX_BYTES: usize = 8 << 10;
/// Age at which what is set for queues is asked for again, where no news came.
pub const QUEUE_SETTINGS_KEPT_MS: u64 = 1_000;
/// Longest text that says who did something or why.
pub const CAUSE_MAX_BYTES: usize = 256;
/// Most tasks that a limit may allow in its time.
pub const RATE_MAX_ROWS: u32 = 10_000_000;
/// Shortest time over which a rate is meant: shorter ones are lost in the way to an executor and back.
pub const RATE_MIN_MS: i64 = 1_000;
/// Longest time over which a rate is meant, and longest time a breaker stays open: a day.
pub const RATE_MAX_MS: i64 = 86_400_000;
/// Most tasks of one placement key that may run at a time where that is bounded: their ids are kept in one string.
pub const PLACEMENT_RUNNING_MAX: u32 = 64;
/// Most tasks of one placement key in a time or a day where that is bounded: the times of so many are kept.
pub const PLACEMENT_LOG_MAX: u32 = 100;
/// Largest bound for the tasks of a queue that have not ended.
pub const BACKLOG_MAX_ROWS: u64 = 1_000_000_000;
/// Buckets that a submit of a task without a key tries, where the queue's share of one is used up.
pub const BACKLOG_TRIES_MAX: usize = 16;
/// Most times of the day at which one queue is held.
pub const MAINTENANCE_MAX: usize = 16;
/// Most lanes by queue, labels and tier with a limit of their own in one claim.
pub const RULES_MAX: usize = 512;
/// How long a pod may use what it was granted of a limit; what a dead pod had comes back after that.
pub const ALLOTMENT_MS: i64 = 2_000;
/// Shortest wait of a pod that wants more of a limit before it asks again.
pub const ALLOT_EVERY_MS: i64 = 10;
/// Stretches into which the time of a rate is cut to be counted: what counts for one stretch longer is lost to the limit.
pub const RATE_STRETCHES: i64 = 100;
/// Longest address of a webhook.
pub const URL_MAX_BYTES: usize = 2_048;

/// Longest exchange of a web call, unless the task's own time-out is shorter.
pub const WEBHOOK_TIMEOUT_MS: i64 = 10_000;
/// Bytes of an answer to a web call that are kept: outcomes of a thousand tasks.
pub const WEBHOOK_ANSWER_MAX_BYTES: usize = 256 << 10;
/// Hosts whose calls are counted at a time; idle ones are forgotten.
pub const WEBHOOK_HOSTS_MAX: usize = 1_024;
/// A wait asked for by a server beyond this is cut; it may ask again.
pub const WEBHOOK_RETRY_AFTER_MAX_MS: i64 = 3_600_000;

/// Most subscriptions to outcomes of a namespace: each reads what lies in every outbox.
pub const SUBSCRIPTIONS_MAX: usize = 256;
/// Longest name of a subscription.
pub const SUBSCRIPTION_NAME_MAX_BYTES: usize = 64;
/// Outcomes that wait in the outbox of one bucket, about 200 bytes each; beyond them the oldest goes, and is counted.
pub const OUTBOX_MAX_ROWS: usize = 20_000;
/// Most outcomes of one delivery.
pub const OUTCOME_BATCH_MAX_ROWS: usize = 100;
/// Outcomes that one call reads from an outbox.
pub const OUTCOME_READ_MAX_ROWS: usize = 500;
/// Longest wait between two tries of a delivery, unless the receiver asks for a longer one.
pub const OUTCOME_WAIT_MAX_MS: i64 = 300_000;
/// Times in a row that a receiver may say that a delivery is wrong (a 4xx that does not pass by itself) before it is given
/// up: with the waits between them, some eight minutes.
pub const OUTCOME_REFUSALS_MAX: u32 = 9;
/// Deliveries of one pod that are under way at a time; those to one host are bounded as all web calls are.
pub const OUTCOME_DELIVERIES_MAX: usize = 64;
/// Subscriptions that a pod reports as not delivered; further ones are in its log.
pub const OUTCOME_TROUBLES_MAX: usize = 16;
/// Longest cause that it reports of each: it is a part of every heartbeat.
pub const OUTCOME_WHY_MAX_BYTES: usize = 200;

/// Bytes that handlers may keep for one task.
pub const MARK_MAX_BYTES: usize = 256 << 10;
/// Parts in which they may be kept: progress, checkpoint, and steps that are done.
pub const MARK_FIELDS_MAX: usize = 64;
/// Subjects whose bits of a day lie in one string: 128 KiB at most.
pub const DAILY_SEGMENT_ROWS: u64 = 1 << 20;
/// How long the bits of a day stay: its end, and whoever still runs then, is covered.
pub const DAILY_KEEP_MS: i64 = 2 * 86_400_000;
/// Longest name under which subjects are counted.
pub const DAILY_NAME_MAX_BYTES: usize = 64;
/// What is kept for a task that nobody touches goes after this long: as long as dead letters stay.
pub const MARK_KEEP_MS: i64 = DEAD_KEEP_MS;
/// Longest text of a progress.
pub const PROGRESS_TEXT_MAX_CHARS: usize = 200;

/// Most routing decisions that a pod keeps with their inputs; one among 256 executors has some 30 KB.
pub const ROUTE_SAMPLE_MAX: u32 = 10_000;

/// Most task slots of one executor.
pub const SLOTS_MAX: usize = 10_000;
/// Largest journal of an executor; one that cannot be kept below is switched off. All that may be open at once,
/// with the longest errors, has about 45 MB.
pub const JOURNAL_MAX_BYTES: u64 = 128 << 20;
/// A journal is written anew once it is this large and twice as large as what is open in it.
pub const JOURNAL_COMPACT_BYTES: u64 = 1 << 20;
/// Largest record of a journal: a batch of ids, or one outcome with its error.
pub const JOURNAL_RECORD_MAX_BYTES: usize = 64 << 10;
/// Executions that may be open in a journal: running in all slots, and waiting for their acks.
pub const JOURNAL_OPEN_MAX: usize = 65_536;
/// Bytes waiting in one executor's inbox.
pub const INBOX_MAX_BYTES: usize = 16 << 20;
/// Commands that may wait in one connection's buffer before calls are refused.
pub const COMMAND_BUFFER_MAX: usize = 20_000;
/// Time-out of one Redis call.
pub const CALL_TIMEOUT_MS: u64 = 2_000;
/// Time-out of opening a connection.
pub const CONNECT_TIMEOUT_MS: u64 = 500;
/// Longest wait between two tries to reach Redis.
pub const RECONNECT_MAX_MS: u64 = 1_000;
/// Most replicas that a submit may wait for.
pub const REPLICAS_MAX: u32 = 16;
/// Longest wait of one call for replicas or disks, beside its time-out: files that are forced to the disk every
/// second, here and there, take up to two seconds; a replica that reconnects is back within this too.
pub const DURABLE_WAIT_MS: u32 = 3_000;
/// Calls to one server that may wait for replicas or disks at the same time; each has a connection of its own.
pub const DURABLE_CALLS_MAX: usize = 8;
/// What a server said of its persistence is asked again after this long, and at every new connection.
pub const PERSISTENCE_KEPT_MS: u64 = 5_000;
/// How long a process goes by what it last read of a namespace's buckets before it reads it anew: so
/// late who submits uses new buckets.
pub const SPREAD_KEPT_MS: i64 = 3_000;
/// Times a call is tried again by the store when the server says "not now".
pub const CALL_RETRIES_MAX: u32 = 5;

const _: () = assert!(BATCH_MAX_ROWS * 2 < 7_000, "a batch of pairs must fit Lua's unpack");
const _: () = assert!(ACK_MAX_WEIGHT <= BATCH_MAX_ROWS && SINGLE_MAX_ROWS <= BATCH_MAX_ROWS);
const _: () = assert!(RETURN_MS >= 4 * RECONNECT_MAX_MS as i64, "who was away has found back by then");
const _: () = assert!(AWAY_MS >= 2 * POLL_MS, "a late poll is no absence");
const _: () = assert!(LOST_AFTER_MS >= 3 * HEARTBEAT_MS, "two lost heartbeats must not kill");
const _: () = assert!(POLL_MS < LOCK_MS, "a sleeping pod must wake up before its permit ends");
const _: () = assert!(CALL_MAX_BYTES <= BATCH_MAX_BYTES && PAYLOAD_MAX_BYTES + 4_096 <= CALL_MAX_BYTES);
const _: () = assert!(PAYLOAD_MAX_BYTES + 4_096 <= BATCH_MAX_BYTES, "one full payload must fit in a batch");
const _: () = assert!(IMPORT_ROW_MAX_BYTES >= 2 * PAYLOAD_MAX_BYTES, "a full payload may double by quoting");
const _: () =
    assert!(JOURNAL_RECORD_MAX_BYTES > BATCH_MAX_ROWS * 34 + 1, "a batch of ids must fit in a record");
const _: () = assert!(KEY_BUCKETS_DEFAULT.is_power_of_two() && BUCKETS_MAX.is_power_of_two());
const _: () =
    assert!((UNCOUNTED_LOSSES_MAX as i64) < 256 && RETRIES_MAX < 255, "both are two hex digits in Redis");
