//! The runtime against an in-memory Redis, mostly with stopped time: what runs, when, how often,
//! and what is said about it.

use super::fake::{Draft, EPOCH_MS, Fail, Fake, spec};
use super::handler::{Context, HandlerError, HandlerResult, Stop, Task};
use super::link::Outcome;
use super::*;
use crate::model::{Priority, Spec, TaskId};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// An executor under test.
struct Bed {
    fake: Fake,
    shutdown: CancellationToken,
    now: CancellationToken,
    running: tokio::task::JoinHandle<Result<ExecutorReport, ExecutorError>>,
}

fn settings(slots: u32) -> ExecutorSettings {
    ExecutorSettings { name: "test".into(), slots, urgent_slots: 0, ..ExecutorSettings::default() }
}

fn start<F, Fut>(settings: ExecutorSettings, handler: F) -> Bed
where
    F: Fn(Task, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send + 'static,
{
    let plan = Plan {
        settings,
        queues: vec![("q".into(), Plan::handler(handler))],
        threads: Some(tokio::runtime::Handle::current()),
        ..Plan::default()
    };
    start_plan(plan)
}

fn start_plan(plan: Plan) -> Bed {
    start_on(Fake::new(), plan)
}

fn start_on(fake: Fake, plan: Plan) -> Bed {
    let (shutdown, now) = (CancellationToken::new(), CancellationToken::new());
    let parts = plan.build().unwrap();
    let running = tokio::spawn(run(fake.clone(), parts, shutdown.clone(), now.clone()));
    Bed { fake, shutdown, now, running }
}

impl Bed {
    async fn end(self) -> ExecutorReport {
        self.shutdown.cancel();
        self.running.await.unwrap().unwrap()
    }

    fn outcome(&self, id: TaskId) -> Option<Outcome> {
        let state = self.fake.state.lock();
        let mut found = state.accepted.iter().filter(|(execution, _)| execution.id == id);
        let outcome = found.next().map(|(_, row)| row.outcome.clone());
        assert!(found.next().is_none(), "accepted twice");
        outcome
    }

    async fn accepted(&self, count: usize) {
        self.fake.until(&format!("{count} outcomes"), |state| state.accepted.len() >= count).await;
    }
}

fn draft(spec: Spec) -> Draft {
    Draft { spec, ..Draft::default() }
}

#[tokio::test(start_paused = true)]
async fn each_task_runs_once_and_acks_travel_in_batches() {
    let bed = start(settings(32), |_, _| async { Ok(()) });
    for number in 0..2_000 {
        bed.fake.offer(Draft { bucket: number % 4, ..Draft::default() });
    }
    bed.accepted(2_000).await;
    let calls = bed.fake.state.lock().ack_calls.len();
    assert!(calls <= 40, "{calls} calls for 2,000 acks in 4 buckets");
    let starts = bed.fake.state.lock().starts.len();
    assert_eq!(starts, 0, "short tasks need no start");
    let fake = bed.fake.clone();
    let report = bed.end().await;
    assert_eq!((report.started, report.succeeded, report.failed), (2_000, 2_000, 0));
    assert!(fake.state.lock().left, "it left the registry");
}

#[tokio::test(start_paused = true)]
async fn an_offer_that_comes_twice_runs_once() {
    let entered = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&entered);
    let bed = start(settings(8), move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async {
            sleep(Duration::from_millis(30)).await;
            Ok(())
        }
    });
    let offer = bed.fake.offer(Draft::default());
    bed.fake.offer_again(&offer);
    bed.accepted(1).await;
    bed.fake.offer_again(&offer);
    bed.fake.until("the second copy is taken", |state| state.inbox.is_empty()).await;
    let last = bed.fake.offer(Draft::default());
    bed.accepted(2).await;
    assert_eq!(bed.outcome(last.id), Some(Outcome::Succeeded));
    assert_eq!(entered.load(Ordering::SeqCst), 2);
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn lag_is_the_handlers_entry_minus_due_in_redis_time_and_never_negative() {
    let bed = start(settings(1), |_, _| async {
        sleep(Duration::from_millis(100)).await;
        Ok(())
    });
    let first = bed.fake.offer(Draft::default());
    bed.fake.until("the first is taken", |state| state.inbox.is_empty()).await;
    let second = bed.fake.offer(Draft::default());
    bed.accepted(2).await;
    let lag = |id| {
        let state = bed.fake.state.lock();
        state
            .accepted
            .iter()
            .find(|(execution, _)| execution.id == id)
            .map(|(_, row)| (row.lag_ms, row.took_ms))
    };
    let (first, second) = (lag(first.id).unwrap(), lag(second.id).unwrap());
    assert!(first.0 <= 10 && (100..103).contains(&first.1), "{first:?}");
    assert!((90..120).contains(&second.0), "it waited for the only slot: {second:?}");
    let report = bed.end().await;
    assert!(report.lag_ms.max >= 90 && report.lag_ms.p50 <= 10, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn outcomes_are_accepted_once_although_calls_fail_and_answers_are_lost() {
    let bed = start(settings(32), |_, _| async { Ok(()) });
    {
        let mut state = bed.fake.state.lock();
        state.fail_acks = [Fail::After, Fail::Before, Fail::Before, Fail::After, Fail::Before].into();
        state.fail_takes = [Fail::Before, Fail::Before, Fail::Before].into();
    }
    let offers: Vec<_> =
        (0..600).map(|n| bed.fake.offer(Draft { bucket: n % 2, ..Draft::default() })).collect();
    bed.accepted(600).await;
    for offer in &offers {
        assert_eq!(bed.outcome(offer.id), Some(Outcome::Succeeded));
    }
    let fake = bed.fake.clone();
    let report = bed.end().await;
    assert_eq!((report.succeeded, report.stale, report.lost), (600, 0, 0));
    assert!(fake.state.lock().refused.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_answers_is_what_is_reported() {
    let bed = start(settings(8), |task, _| async move {
        match &task.payload[..] {
            b"failed" => Err(HandlerError::failed("no")),
            b"error" => Err(std::io::Error::other("disk"))?,
            b"fatal" => Err(HandlerError::fatal("never")),
            b"later" => Err(HandlerError::retry_after(7_000, false, "busy")),
            b"panic" => panic!("at {}", 7),
            b"long" => Err(HandlerError::failed("x".repeat(5_000))),
            _ => Ok(()),
        }
    });
    let send = |payload: &'static [u8]| {
        bed.fake.offer(draft(Spec { payload: bytes::Bytes::from_static(payload), ..spec(Priority::P3) })).id
    };
    let failed = |error: &str| Outcome::Failed { error: error.into() };
    let expected = [
        (send(b""), Outcome::Succeeded),
        (send(b"failed"), failed("no")),
        (send(b"error"), failed("disk")),
        (send(b"fatal"), Outcome::Fatal { error: "never".into() }),
        (send(b"later"), Outcome::RetryAfter { ms: 7_000, counted: false, error: "busy".into() }),
        (send(b"panic"), failed("handler panicked: at 7")),
        (send(b"long"), failed(&"x".repeat(1_024))),
    ];
    bed.accepted(expected.len()).await;
    for (id, outcome) in expected {
        assert_eq!(bed.outcome(id), Some(outcome));
    }
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_handlers_first_wait_is_a_failure_too() {
    let bed = start(settings(1), |_, _| -> std::future::Ready<HandlerResult> { panic!("early") });
    let id = bed.fake.offer(Draft::default()).id;
    bed.accepted(1).await;
    assert_eq!(bed.outcome(id), Some(Outcome::Failed { error: "handler panicked: early".into() }));
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_run_here_is_answered() {
    let bed = start(settings(1), |_, _| async { Ok(()) });
    let mut other = spec(Priority::P3);
    other.lane = crate::model::LaneCode::new(2, Priority::P3, crate::model::Tier::FRESH);
    let astray = bed.fake.offer(draft(other)).id;
    let mut broken = bed.fake.offer(Draft::default());
    bed.fake.state.lock().inbox.pop_back();
    broken.spec = bytes::Bytes::from_static(b"\x09junk");
    bed.fake.offer_again(&broken);
    bed.accepted(2).await;
    let error = "not a task spec: unknown version".to_owned();
    assert_eq!(bed.outcome(broken.id), Some(Outcome::Fatal { error }));
    assert!(matches!(bed.outcome(astray), Some(Outcome::RetryAfter { counted: false, .. })));
    let report = bed.end().await;
    assert_eq!(report.started, 0);
}

#[tokio::test(start_paused = true)]
async fn a_long_handler_is_started_then_renewed_at_a_third_of_its_lease() {
    let bed = start(settings(1), |_, _| async {
        sleep(Duration::from_secs(20)).await;
        Ok(())
    });
    let id = bed.fake.offer(draft(Spec { lease_ms: Some(6_000), ..spec(Priority::P3) })).id;
    bed.accepted(1).await;
    {
        let state = bed.fake.state.lock();
        assert_eq!(state.starts.len(), 1);
        let started = state.starts[0].1 - EPOCH_MS;
        assert!((200..320).contains(&started), "{started}");
        assert_eq!(state.renewals.len(), 9, "every 2 s: {:?}", state.renewals);
        assert!(state.lapsed.is_empty());
    }
    assert_eq!(bed.outcome(id), Some(Outcome::Succeeded));
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_a_slot_is_kept_and_runs_in_the_end() {
    let gate = Arc::new(Notify::new());
    let pass = Arc::clone(&gate);
    let bed = start(settings(1), move |task, _| {
        let pass = Arc::clone(&pass);
        async move {
            if &task.payload[..] == b"first" {
                pass.notified().await;
            }
            Ok(())
        }
    });
    // A quick one, so that work is fetched ahead.
    bed.fake.offer(Draft::default());
    bed.accepted(1).await;
    bed.fake.offer(draft(Spec { payload: "first".into(), ..spec(Priority::P3) }));
    let second = bed.fake.offer(Draft::default());
    bed.fake.until("both are taken", |state| state.inbox.is_empty()).await;
    bed.fake
        .until("a minute of renewals", |state| {
            state.renewals.iter().any(|(id, at)| *id == second.id && *at > EPOCH_MS + 60_000)
        })
        .await;
    gate.notify_one();
    bed.accepted(3).await;
    assert_eq!(bed.outcome(second.id), Some(Outcome::Succeeded));
    assert!(bed.fake.state.lock().lapsed.is_empty());
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn past_its_time_a_task_runs_only_after_an_accepted_start() {
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let bed = start(settings(4), move |task, _| {
        log.lock().push(task.id);
        async { Ok(()) }
    });
    // Good for too short a time to begin without asking; the other one has been granted anew.
    let short = bed.fake.offer(Draft { valid_ms: 300, ..Draft::default() });
    let stale = bed.fake.offer(Draft { valid_ms: 0, ..Draft::default() });
    let flagged = bed.fake.offer(Draft { valid_ms: 300, ..Draft::default() });
    bed.fake.state.lock().runs.get_mut(&flagged.id).unwrap().cancel = true;
    bed.accepted(2).await;
    bed.fake.until("the stale one was asked for", |state| state.lapsed.contains(&stale.id)).await;
    assert_eq!(*seen.lock(), [short.id]);
    assert_eq!(bed.fake.state.lock().starts.len(), 3);
    assert_eq!(bed.outcome(short.id), Some(Outcome::Succeeded));
    assert_eq!(bed.outcome(flagged.id), Some(Outcome::Cancelled));
    let report = bed.end().await;
    assert_eq!((report.started, report.stale, report.cancelled), (1, 1, 1));
}

/// A handler that waits to be told to stop, and says why.
async fn until_stopped(_: Task, ctx: Context) -> HandlerResult {
    ctx.cancelled().await;
    Err(HandlerError::failed(ctx.stop().map_or_else(String::new, |stop| stop.to_string())))
}

#[tokio::test(start_paused = true)]
async fn a_stale_start_stops_the_handler_and_nothing_is_reported() {
    let bed = start(settings(1), until_stopped);
    let offer = bed.fake.offer(Draft::default());
    bed.fake.until("it is taken", |state| state.inbox.is_empty()).await;
    bed.fake.state.lock().runs.remove(&offer.id);
    bed.fake.until("start", |state| state.lapsed.contains(&offer.id)).await;
    let next = bed.fake.offer(Draft::default());
    bed.fake.until("the slot is free again", |state| state.inbox.is_empty()).await;
    bed.fake.state.lock().runs.get_mut(&next.id).unwrap().cancel = true;
    bed.accepted(1).await;
    let fake = bed.fake.clone();
    let report = bed.end().await;
    assert_eq!((report.stale, report.cancelled), (1, 1));
    assert!(fake.state.lock().refused.is_empty(), "no ack was sent for it");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_task_ends_as_cancelled_whatever_its_handler_answers() {
    let bed = start(settings(2), |task, ctx| async move {
        ctx.cancelled().await;
        assert_eq!(ctx.stop(), Some(Stop::Cancelled));
        if &task.payload[..] == b"ok" { Ok(()) } else { Err(HandlerError::failed("no")) }
    });
    let one = bed.fake.offer(draft(Spec { payload: "ok".into(), ..spec(Priority::P3) })).id;
    let two = bed.fake.offer(Draft::default()).id;
    bed.fake.until("both started", |state| state.starts.len() == 2).await;
    let wished = bed.fake.now_ms();
    bed.fake.cancel(one);
    bed.accepted(1).await;
    assert!(bed.fake.now_ms() - wished < 300, "the hint is followed at once");
    // Without a hint the next renewal says it.
    bed.fake.state.lock().runs.values_mut().for_each(|run| run.cancel = true);
    bed.accepted(2).await;
    assert_eq!(bed.outcome(one), Some(Outcome::Cancelled));
    assert_eq!(bed.outcome(two), Some(Outcome::Cancelled));
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_stops_the_handler_before_it_ends() {
    let stopped_at = Arc::new(parking_lot::Mutex::new(None));
    let at = Arc::clone(&stopped_at);
    let bed = start(settings(1), move |_, ctx| {
        let at = Arc::clone(&at);
        async move {
            let entered = Instant::now();
            ctx.cancelled().await;
            *at.lock() = Some(entered.elapsed());
            Err(HandlerError::failed(ctx.stop().map_or_else(String::new, |stop| stop.to_string())))
        }
    });
    bed.fake.state.lock().deaf = true;
    let offer = bed.fake.offer(Draft::default());
    bed.accepted(1).await;
    // The outcome is sent all the same; the script decides.
    assert_eq!(bed.outcome(offer.id), Some(Outcome::Failed { error: "lease lost".into() }));
    let stopped = stopped_at.lock().unwrap();
    assert!(
        stopped > Duration::from_millis(14_600) && stopped < Duration::from_millis(14_900),
        "{stopped:?}"
    );
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_over_its_time_is_told_and_then_dropped() {
    let told = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&told);
    let bed = start(settings(2), move |task, ctx| {
        let count = Arc::clone(&count);
        async move {
            if &task.payload[..] == b"deaf" {
                std::future::pending::<()>().await;
            }
            ctx.cancelled().await;
            assert_eq!(ctx.stop(), Some(Stop::TimedOut));
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let limited = |payload: &'static str| {
        draft(Spec { timeout_ms: Some(1_500), payload: payload.into(), ..spec(Priority::P3) })
    };
    let polite = bed.fake.offer(limited("polite")).id;
    let deaf = bed.fake.offer(limited("deaf")).id;
    bed.accepted(2).await;
    let expected = Outcome::Failed { error: "timed out after 1500 ms".into() };
    assert_eq!(bed.outcome(polite), Some(expected.clone()));
    assert_eq!(bed.outcome(deaf), Some(expected));
    assert_eq!(told.load(Ordering::SeqCst), 1);
    let took: Vec<_> = bed.fake.state.lock().accepted.iter().map(|(_, row)| row.took_ms).collect();
    assert!((1_500..1_600).contains(&took[0]) && (6_500..6_600).contains(&took[1]), "{took:?}");
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_gives_back_what_has_not_started_and_lets_the_rest_finish() {
    let quick = settings(20);
    let bed = start(ExecutorSettings { drain_grace_ms: 5_000, ..quick }, |task, _| async move {
        let ms: u64 = std::str::from_utf8(&task.payload)?.parse()?;
        sleep(Duration::from_millis(ms)).await;
        Ok(())
    });
    let timed = |ms: u64| draft(Spec { payload: ms.to_string().into(), ..spec(Priority::P3) });
    // Quick ones first, so that work is fetched ahead.
    for _ in 0..50 {
        bed.fake.offer(timed(1));
    }
    bed.accepted(50).await;
    let short: Vec<_> = (0..10).map(|_| bed.fake.offer(timed(1_000)).id).collect();
    let long: Vec<_> = (0..10).map(|_| bed.fake.offer(timed(60_000)).id).collect();
    let ahead: Vec<_> = (0..100).map(|_| bed.fake.offer(timed(1)).id).collect();
    bed.fake.until("all are taken", |state| state.inbox.is_empty()).await;
    let (fake, signal) = (bed.fake.clone(), bed.fake.now_ms());
    let takes = fake.state.lock().takes.len();
    bed.shutdown.cancel();
    let late = bed.fake.offer(timed(1)).id;
    let report = bed.running.await.unwrap().unwrap();
    let took = fake.now_ms() - signal;
    let state = fake.state.lock();
    let released =
        |id| state.released.iter().find(|(released, ..)| *released == id).map(|(.., at)| at - signal);
    let done = |id| {
        state.accepted.iter().any(|(execution, row)| execution.id == id && row.outcome == Outcome::Succeeded)
    };
    assert!(short.iter().all(|id| done(*id)), "running ones finish");
    assert!(
        ahead.iter().all(|id| released(*id).is_some_and(|ms| ms <= 200)),
        "unstarted ones go back at once"
    );
    assert!(released(late).is_some_and(|ms| ms <= 200), "what was still in the inbox too");
    assert!(long.iter().all(|id| released(*id).is_some_and(|ms| ms < 5_000)), "long ones at the end");
    assert!(took < 5_000, "{took}");
    assert_eq!(state.takes.len(), takes, "nothing was taken after the signal");
    assert!(state.runs.is_empty() && state.left);
    assert_eq!((report.succeeded, report.failed, report.handed_back), (60, 0, 111));
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_ends_at_once() {
    let bed = start(settings(2), |_, _| std::future::pending());
    let id = bed.fake.offer(Draft::default()).id;
    bed.fake.until("it runs", |state| state.starts.len() == 1).await;
    bed.shutdown.cancel();
    tokio::task::yield_now().await;
    let signal = bed.fake.now_ms();
    bed.now.cancel();
    bed.running.await.unwrap().unwrap();
    assert!(bed.fake.now_ms() - signal < 1_000);
    assert_eq!(bed.fake.state.lock().released.iter().map(|row| row.0).collect::<Vec<_>>(), [id]);
}

#[tokio::test(start_paused = true)]
async fn pods_hear_of_room_soon_after_there_is_some() {
    let bed = start(settings(1), |_, _| async {
        sleep(Duration::from_millis(500)).await;
        Ok(())
    });
    bed.fake.offer(Draft::default());
    bed.fake.until("it is taken", |state| state.inbox.is_empty()).await;
    bed.fake.state.lock().hungry.push("pod-1".into());
    bed.fake.until("told", |state| state.told == ["pod-1"]).await;
    let at = bed.fake.now_ms() - EPOCH_MS;
    assert!((500..515).contains(&at), "{at}");
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_record_says_what_is_in_hand() {
    let bed = start(settings(4), until_stopped);
    let costly = || {
        draft(Spec {
            extras: crate::model::spec::Extras { cost_ms: Some(700), ..Default::default() },
            ..spec(Priority::P3)
        })
    };
    bed.fake.offer(costly());
    bed.fake.offer(costly());
    bed.fake.until("a heartbeat with two", |state| state.beats.iter().any(|beat| beat.busy == 2)).await;
    {
        let state = bed.fake.state.lock();
        let beat = state.beats.last().unwrap();
        assert_eq!((beat.load_ms, beat.capacity, beat.slots), (1_400.0, 4, 4));
        assert_eq!((beat.queues.as_slice(), beat.draining), (["q".to_owned()].as_slice(), false));
        assert!(beat.id.starts_with("test-") && beat.id.len() <= 32);
    }
    let fake = bed.fake.clone();
    let report = bed.end().await;
    assert_eq!(report.handed_back, 2);
    assert!(fake.state.lock().runs.is_empty());
}

/// On real threads: the handler blocks its thread until its lease was renewed three times.
#[test]
fn a_handler_that_blocks_its_thread_keeps_its_lease() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let wait = parking_lot::Mutex::new(wait);
        let handler = Plan::handler(move |_, ctx: Context| {
            // No await: all that this thread could do has to wait.
            wait.lock().recv().unwrap();
            let stopped = ctx.is_cancelled();
            async move { if stopped { Err(HandlerError::failed("stopped")) } else { Ok(()) } }
        });
        let plan = Plan { settings: settings(1), queues: vec![("q".into(), handler)], ..Plan::default() };
        let bed = start_plan(plan);
        let id = bed.fake.offer(draft(Spec { lease_ms: Some(1_000), ..spec(Priority::P3) })).id;
        bed.fake.until("renewals", |state| state.renewals.len() >= 3).await;
        go.send(()).unwrap();
        bed.accepted(1).await;
        assert_eq!(bed.outcome(id), Some(Outcome::Succeeded));
        assert!(bed.fake.state.lock().lapsed.is_empty());
        let report = bed.end().await;
        assert_eq!((report.started, report.succeeded), (1, 1));
    });
}

#[test]
fn settings_and_handlers_are_checked() {
    let ok = || Plan::handler(|_, _| async { Ok(()) });
    let field = |plan: Plan| plan.build().err().map(|error| error.field);
    assert_eq!(field(Plan::default()), Some("queue"));
    assert_eq!(field(Plan { queues: vec![("a b".into(), ok())], ..Plan::default() }), Some("queue"));
    assert_eq!(
        field(Plan { queues: vec![("a".into(), ok()), ("a".into(), ok())], ..Plan::default() }),
        Some("queue")
    );
    let with = |settings| Plan { settings, any: Some(ok()), ..Plan::default() };
    assert_eq!(field(with(settings(0))), None, "what suits the kind of work");
    assert_eq!(
        (WorkKind::Io.slots(4), WorkKind::Cpu.slots(4), WorkKind::Io.slots(usize::MAX)),
        (32, 5, 10_000)
    );
    assert_eq!(field(with(settings(10_001))), Some("slots"));
    assert_eq!(field(with(ExecutorSettings { labels: vec!["a b".into()], ..settings(1) })), Some("labels"));
    assert_eq!(field(with(ExecutorSettings { name: "a b".into(), ..settings(1) })), Some("name"));
    assert_eq!(field(with(ExecutorSettings::default())), None);
    let id = instance_id(&"n".repeat(100));
    assert!(id.len() <= 32 && id != instance_id(&"n".repeat(100)));
}

#[derive(Debug, Default)]
struct Gauge {
    now: [u32; 2],
    most: [u32; 2],
    most_all: u32,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever comes in whatever order and lasts however long: never more handlers than slots, never
    /// more than the normal slots for what is not urgent, everything runs once, and in the end.
    #[test]
    fn slots_are_never_exceeded(
        slots in 1u32..6,
        urgent_slots in 0u32..3,
        tasks in proptest::collection::vec((0u64..60, any::<bool>(), 0u64..20), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let gauge = Arc::new(parking_lot::Mutex::new(Gauge::default()));
        let count = tasks.len();
        let (report, entered_early) = runtime.block_on(async {
            let meter = Arc::clone(&gauge);
            let bed = start(ExecutorSettings { urgent_slots, ..settings(slots) }, move |task, _| {
                let meter = Arc::clone(&meter);
                async move {
                    let class = usize::from(task.priority.is_urgent());
                    {
                        let mut gauge = meter.lock();
                        gauge.now[class] += 1;
                        gauge.most[class] = gauge.most[class].max(gauge.now[class]);
                        gauge.most_all = gauge.most_all.max(gauge.now[0] + gauge.now[1]);
                    }
                    let ms: u64 = std::str::from_utf8(&task.payload)?.parse()?;
                    sleep(Duration::from_millis(ms)).await;
                    meter.lock().now[class] -= 1;
                    Ok(())
                }
            });
            for (ms, urgent, gap) in tasks {
                let priority = if urgent { Priority::P1 } else { Priority::P3 };
                bed.fake.offer(draft(Spec { payload: ms.to_string().into(), ..spec(priority) }));
                sleep(Duration::from_millis(gap)).await;
            }
            bed.accepted(count).await;
            let early = bed.fake.state.lock().accepted.iter().any(|(_, row)| row.lag_ms < 0);
            (bed.end().await, early)
        });
        let gauge = gauge.lock();
        prop_assert!(!entered_early);
        prop_assert!(gauge.most[0] <= slots, "{gauge:?}");
        prop_assert!(gauge.most_all <= slots + urgent_slots, "{gauge:?}");
        prop_assert_eq!((report.started, report.succeeded), (count as u64, count as u64));
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_after_its_latest_start_is_skipped_unrun() {
    let bed = start(settings(8), |task, _| async move {
        assert_eq!(&task.payload[..], b"in time", "this one must not run");
        Ok(())
    });
    let now_ms = bed.fake.now_ms();
    let send = |payload: &'static [u8], latest_ms: i64, valid_ms: i64| {
        let start_before = Some(crate::model::UnixMs(now_ms + latest_ms));
        let spec = Spec { payload: bytes::Bytes::from_static(payload), start_before, ..spec(Priority::P3) };
        bed.fake.offer(Draft { valid_ms, ..draft(spec) }).id
    };
    let (in_time, late) = (send(b"in time", 60_000, 15_000), send(b"late", -1, 15_000));
    // Its grant is nearly over, so it asks before it looks at the clock.
    let asked = send(b"late", -1, 400);
    bed.accepted(3).await;
    assert_eq!(bed.outcome(in_time), Some(Outcome::Succeeded));
    assert_eq!((bed.outcome(late), bed.outcome(asked)), (Some(Outcome::Skipped), Some(Outcome::Skipped)));
    let report = bed.end().await;
    assert_eq!((report.started, report.succeeded, report.skipped), (1, 1, 2));
}

/// A journal in a directory that goes with its test.
struct Paper(std::path::PathBuf);

impl Paper {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("minutehand-paper-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.join("journal")
    }

    /// What a process that is killed now leaves behind.
    fn as_of_now(&self) -> std::path::PathBuf {
        let copy = self.0.join("copy");
        std::fs::copy(self.file(), &copy).unwrap();
        copy
    }
}

impl Drop for Paper {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn journalled<F, Fut>(path: std::path::PathBuf, handler: F) -> Plan
where
    F: Fn(Task, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send + 'static,
{
    Plan {
        settings: ExecutorSettings { journal: Some(path), ..settings(4) },
        queues: vec![("q".into(), Plan::handler(handler))],
        threads: Some(tokio::runtime::Handle::current()),
        ..Plan::default()
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_process_had_done_is_reported_first_and_not_run_again() {
    let paper = Paper::new();
    let first = start_plan(journalled(paper.file(), |_, _| async { Ok(()) }));
    let fake = first.fake.clone();
    // None of its acks gets through.
    fake.state.lock().fail_acks = std::iter::repeat_n(Fail::Before, 1_000).collect();
    let id = fake.offer(Draft::default()).id;
    fake.until("an ack was tried", |state| state.fail_acks.len() < 1_000).await;
    let left = paper.as_of_now();
    first.running.abort();
    let _ = first.running.await;

    // The next one needs four tries to be heard; before that it takes nothing.
    let (before, offered) = (fake.state.lock().takes.len(), Arc::new(AtomicU32::new(0)));
    fake.state.lock().fail_acks = std::iter::repeat_n(Fail::Before, 3).chain([Fail::After]).collect();
    let other = fake.offer(Draft::default()).id;
    let runs = Arc::clone(&offered);
    let second = start_on(
        fake.clone(),
        journalled(left, move |task, _| {
            assert_ne!(task.id, id, "it has been run");
            runs.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        }),
    );
    fake.until("the journal was reported", |state| {
        let reported = !state.accepted.is_empty();
        assert!(reported || state.takes.len() == before, "nothing is taken before");
        reported
    })
    .await;
    second.accepted(2).await;
    assert_eq!(second.outcome(id), Some(Outcome::Succeeded));
    assert_eq!(second.outcome(other), Some(Outcome::Succeeded));
    let report = second.end().await;
    // Its first answer was lost, so Redis knew the outcome when it was sent again.
    assert_eq!((report.started, report.succeeded, report.recovered, report.stale), (1, 1, 0, 0));
    assert_eq!(offered.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_process_was_running_has_failed_unless_others_have_it_by_now() {
    let paper = Paper::new();
    let entered = Arc::new(Notify::new());
    let tell = Arc::clone(&entered);
    let first = start_plan(journalled(paper.file(), move |_, _| {
        tell.notify_one();
        std::future::pending()
    }));
    let fake = first.fake.clone();
    let (one, two) = (fake.offer(Draft::default()).id, fake.offer(Draft::default()).id);
    for _ in 0..2 {
        entered.notified().await;
    }
    let left = paper.as_of_now();
    // The second task's grant has lapsed, and somebody else has it.
    fake.state.lock().runs.remove(&two);
    let second = start_on(fake.clone(), journalled(left, |_, _| async { Ok(()) }));
    second.accepted(1).await;
    let crashed = Outcome::Failed { error: super::recover::CRASHED.into() };
    assert_eq!((second.outcome(one), second.outcome(two)), (Some(crashed), None));
    assert_eq!(fake.state.lock().refused.len(), 1);
    let report = second.end().await;
    assert_eq!((report.recovered, report.stale, report.started), (1, 1, 0));
    assert!(fake.state.lock().beats.iter().all(|beat| beat.journal), "it says that it keeps one");
    first.running.abort();
}

#[tokio::test(start_paused = true)]
async fn an_orderly_end_leaves_nothing_in_the_journal() {
    let paper = Paper::new();
    let bed = start_plan(journalled(paper.file(), |task, ctx| async move {
        if task.payload.is_empty() {
            ctx.cancelled().await;
            return Err(HandlerError::failed("stopped"));
        }
        Err(HandlerError::failed("no"))
    }));
    let empty = draft(Spec { payload: bytes::Bytes::new(), ..spec(Priority::P3) });
    bed.fake.offer(empty);
    for _ in 0..300 {
        bed.fake.offer(Draft::default());
    }
    bed.accepted(300).await;
    let error = {
        let plan = journalled(paper.file(), |_, _| async { Ok(()) });
        start_on(bed.fake.clone(), plan).running.await.unwrap().unwrap_err()
    };
    assert!(matches!(error, ExecutorError::Journal(JournalError::InUse { .. })), "{error}");
    let report = bed.end().await;
    assert_eq!((report.failed, report.handed_back), (300, 1), "{report:?}");
    let (_, found) = Journal::open(&paper.file(), "test", false).unwrap();
    assert_eq!(found, Recovered::default());
}

#[tokio::test(start_paused = true)]
async fn what_comes_ahead_of_its_time_starts_on_it_and_takes_no_slot_until_then() {
    let entered = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (fake, own) = (Fake::new(), Arc::clone(&entered));
    let clock = fake.clone();
    let plan = Plan {
        settings: settings(1),
        queues: vec![(
            "q".into(),
            Plan::handler(move |task: Task, _| {
                own.lock().push((task.id, clock.now_ms() - task.due.0));
                async {
                    sleep(Duration::from_millis(5)).await;
                    Ok(())
                }
            }),
        )],
        threads: Some(tokio::runtime::Handle::current()),
        ..Plan::default()
    };
    let bed = start_on(fake, plan);
    // Until runs are known to be short, one executor of one slot is offered one task at a time.
    let late = bed.fake.offer(Draft { ahead_ms: 80, ..Draft::default() }).id;
    bed.fake.until("the first is taken", |state| state.inbox.is_empty()).await;
    sleep(Duration::from_millis(20)).await;
    assert!(entered.lock().is_empty(), "held");
    bed.accepted(1).await;
    let now = bed.fake.offer(Draft { ahead_ms: 40, ..Draft::default() }).id;
    let at_once = bed.fake.offer(Draft::default()).id;
    bed.accepted(3).await;
    let seen = entered.lock().clone();
    assert_eq!(seen.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [late, at_once, now]);
    assert!(seen.iter().all(|(_, lag)| (0..=5).contains(lag)), "{seen:?}");
    bed.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_held_for_its_time_can_be_cancelled_and_goes_back_at_the_end() {
    let bed = start(settings(8), |_, _| async { Ok(()) });
    let wished = bed.fake.offer(Draft { ahead_ms: 100, ..Draft::default() }).id;
    bed.fake.until("it is taken", |state| state.inbox.is_empty()).await;
    sleep(Duration::from_millis(50)).await;
    bed.fake.cancel(wished);
    bed.accepted(1).await;
    assert_eq!(bed.outcome(wished), Some(Outcome::Cancelled));
    let kept = bed.fake.offer(Draft { ahead_ms: 150, ..Draft::default() }).id;
    bed.fake.until("it is taken", |state| state.inbox.is_empty()).await;
    sleep(Duration::from_millis(10)).await;
    let fake = bed.fake.clone();
    let report = bed.end().await;
    assert_eq!((report.started, report.cancelled, report.handed_back), (0, 1, 1));
    assert_eq!(
        fake.state.lock().released.iter().map(|(id, cause, _)| (*id, *cause)).collect::<Vec<_>>(),
        [(kept, "drain")]
    );
}
