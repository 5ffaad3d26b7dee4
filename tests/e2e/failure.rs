//! Tasks that kill their executors, and work that waits for a week.

use super::*;
use minutehand::client::{Due, NewTask};
use minutehand::model::{QueueName, State, UnixMs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_kills_its_executors_is_dead_after_its_tries() {
    let settings = [("defaults.lease", "1s"), ("defaults.dispatch_timeout", "2s"), ("pod.poll", "250ms")];
    let town = Town::new(&settings).await;
    let diary = Diary::new(&town);
    // It runs long enough to be known as started, and then ends the executor that runs it.
    let command = format!("{}; sleep 0.6; kill -9 $PPID", diary.command());
    let _pod = town.pod("pod-1");
    let words = ["submit", "--queue", "flights", "--retries", "2", "--backoff", "fixed:50ms"];
    let id: TaskId = town.program.json(&words)["id"].as_str().unwrap().parse().unwrap();
    let (start, mut deaths) = (minutehand::clock::mono(), 0);
    let view = loop {
        let view = town.client.get(id).await.unwrap().unwrap();
        if view.state == State::Dead {
            break view;
        }
        assert!(start.elapsed() < NEVER, "after {deaths} deaths it is {}", view.view);
        let executor = town.executor("ex", &["--exec", &command]);
        // It dies of the task, or the task is dead.
        while executor.is_alive() && town.client.get(id).await.unwrap().unwrap().state != State::Dead {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        deaths += u32::from(!executor.is_alive());
    };
    assert_eq!((view.reason.as_deref(), view.failures, view.attempts.len()), (Some("lease_expired"), 3, 3));
    assert_eq!(deaths, 3);
    let runs = diary.runs();
    assert_eq!((runs.len(), distinct(runs.iter().map(|run| &run.execution))), (3, 3), "never a fourth start");
    for attempt in &view.attempts {
        assert!(attempt.error.starts_with("lease lapsed: "), "{}", attempt.error);
    }
    // The trace says in words what happened.
    let trace = town.program.json(&["trace", id.as_str()]);
    let causes: Vec<&str> =
        trace.as_array().unwrap().iter().filter_map(|event| event["cause"].as_str()).collect();
    assert_eq!(causes.iter().filter(|cause| cause.contains("lease lapsed at ")).count(), 3, "{causes:?}");
    town.check().await;
}

/// Memory of a process that is its own, in KiB.
fn resident_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_week_costs_a_pod_nothing() {
    let settings = [("pod.lock", "1s"), ("pod.poll", "250ms")];
    let town = Town::new(&settings).await;
    let pod = town.pod("pod-1");
    let _executor = town.executor("ex-1", &["--discard"]);
    town.until_members(1, 1).await;
    let before = resident_kib(pod.pid());
    let queue = QueueName::new("flights").unwrap();
    let task =
        |wait| NewTask { due: Due::In(wait), payload: "x".repeat(100).into(), ..NewTask::to(queue.clone()) };
    for part in 0..20 {
        let batch = (0..10_000).map(|n| task(7 * 86_400_000 + part * 10_000 + n)).collect();
        let told = town.client.submit_batch(batch).await.unwrap();
        assert!(told.iter().all(Result::is_ok));
    }
    // Nothing lives in the pod alone: it ends right before work is due, and the next one does it.
    town.client.submit_batch((0..1_000).map(|n| task(1_500 + n % 10)).collect()).await.unwrap();
    let after = resident_kib(pod.pid());
    assert!(after < before + 10 * 1_024, "{before} KiB before, {after} KiB after 200,000 tasks");
    pod.kill9();
    let _next = town.pod("pod-2");
    let counts = town.until("what is due is done", |counts| counts.succeeded == 1_000).await;
    assert_eq!((counts.pending, counts.running), (200_000, 0));
    let lives = town.lives().await;
    assert!(lives.values().all(|(grants, accepted)| *accepted == u32::from(*grants > 0)), "once each");
}

/// The grants of a task: when, by Redis's clock.
async fn grants(town: &Town, id: TaskId) -> Vec<i64> {
    let events = events::trace(&town.space, id).await.unwrap().events;
    events.iter().filter(|event| event.event == Move::Claimed).map(|event| event.at.0).collect()
}

/// Two executors of one name. One is frozen for longer than its lease, then killed: each time its task is missed when the
/// lease has run out, although its namesake lives, and what the frozen one says afterwards is worth nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_freezes_or_dies_is_missed_by_its_leases_and_not_by_its_name() {
    const LEASE_MS: i64 = 2_000;
    let settings = [("defaults.lease", "2s"), ("pod.poll", "250ms"), ("defaults.dispatch_timeout", "2s")];
    let town = Town::new(&settings).await;
    let _pod = town.pod("pod-1");
    let diary = Diary::new(&town);
    // Longer than the time after which a task is started in Redis, shorter than its lease.
    let command = format!("{}; sleep 1", diary.command());
    let submit = ["submit", "--queue", "flights", "--backoff", "fixed:0s"];
    let mut old = town.executor("w1", &["--exec", &command]);
    for (round, signal) in [(1, libc::SIGSTOP), (2, libc::SIGKILL)] {
        let id: TaskId = town.program.json(&submit)["id"].as_str().unwrap().parse().unwrap();
        let started = async || town.client.get(id).await.unwrap().unwrap().view == "started";
        while !started().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (stalls, gone_ms) = (Stalls::watch(), town.space.clock().now_ms());
        old.signal(signal);
        let namesake = town.executor("w1", &["--exec", &command]);
        while grants(&town, id).await.len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (again_ms, stall) = (grants(&town, id).await[1] - gone_ms, stalls.end());
        println!("granted again {again_ms} ms after signal {signal}, with stalls of {stall} ms");
        // It was started or renewed at most a third of a lease before; then there is a poll.
        assert!(again_ms <= LEASE_MS + 250 + 100 + 2 * stall, "{again_ms} ms, with stalls of {stall} ms");
        assert!(again_ms >= LEASE_MS * 2 / 3 - 100 - stall, "{again_ms} ms, with stalls of {stall} ms");
        town.until_succeeded(round).await;
        if signal == libc::SIGSTOP {
            old.signal(libc::SIGCONT);
            // What it reports, or what it renews first.
            old.until_said("no longer stand", NEVER);
            assert_eq!(old.stop(NEVER), Some(0), "{}", old.log());
            assert!(old.out().contains("0 succeeded"), "{}", old.log());
        }
        assert_eq!(town.client.get(id).await.unwrap().unwrap().state, State::Succeeded);
        let told = events::trace(&town.space, id).await.unwrap().events;
        let lapses = told.iter().filter(|event| event.cause.starts_with("lease lapsed at "));
        assert_eq!(lapses.count(), 1, "{told:?}");
        old = namesake;
    }
    let lives = town.lives().await;
    assert!(lives.values().all(|life| *life == (2, 1)), "granted twice and accepted once: {lives:?}");
    let runs = diary.runs();
    assert_eq!((runs.len(), distinct(runs.iter().map(|run| &run.execution))), (4, 4));
    town.check().await;
}

/// A pod is frozen for longer than its permits last: another one takes its buckets, and when it goes on it does nothing
/// with what it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_pod_is_replaced_and_finds_itself_replaced() {
    let settings = [("pod.lock", "1s"), ("pod.poll", "250ms"), ("defaults.dispatch_timeout", "1s")];
    let town = Town::new(&settings).await;
    let pods = [town.pod("pod-1"), town.pod("pod-2")];
    let executor = town.executor("ex-1", &["--discard"]);
    town.until_members(2, 1).await;
    let queue = QueueName::new("flights").unwrap();
    let spread = |from: i64| -> Vec<NewTask> {
        (0..400).map(|n| NewTask { due: Due::In(from + n * 10), ..NewTask::to(queue.clone()) }).collect()
    };
    town.client.submit_batch(spread(0)).await.unwrap();
    town.until("some are done", |counts| counts.succeeded >= 50).await;
    let stalls = Stalls::watch();
    pods[0].signal(libc::SIGSTOP);
    // Half as long again as a permit lasts, as a machine that swaps.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    pods[0].signal(libc::SIGCONT);
    town.until_succeeded(400).await;
    let (_, lag) = town.counts().await;
    let stall = stalls.end();
    println!("lag: {lag:?}, with stalls of {stall} ms");
    // A permit and a poll; what it had claimed and not delivered comes back by its dispatch time-out.
    assert!(lag.max.unwrap() <= 1_000 + 1_000 + 500 + 2 * stall, "{lag:?}, with stalls of {stall} ms");
    let lives = town.lives().await;
    assert!(lives.values().all(|(_, accepted)| *accepted == 1), "{lives:?}");
    let report = town.client.replay(true).await.unwrap();
    assert!(report.ok, "{:?}", report.findings);
    town.check().await;
    for process in pods.iter().chain([&executor]) {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

/// Processor time that a process has used, in ms.
fn used_ms(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    // Ticks of user and system time, of which there are a hundred a second.
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}

/// Tasks due at the ends of time neither start at once nor keep a pod busy; those of the past are done and over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_due_times_keep_no_pod_busy() {
    let town = Town::new(&[]).await;
    let pod = town.pod("pod-1");
    let _executor = town.executor("ex-1", &["--discard"]);
    town.until_members(1, 1).await;
    let task = |due| NewTask { due, ..NewTask::to(QueueName::new("flights").unwrap()) };
    let past = [0, 1, town.space.clock().now_ms() - 10 * 365 * 86_400_000].map(UnixMs);
    for due in past {
        town.client.submit(task(Due::At(due))).await.unwrap();
    }
    for wait in [i64::from(i32::MAX), i64::from(i32::MAX) + 1, 1 << 32, 3_650 * 86_400_000] {
        town.client.submit(task(Due::In(wait))).await.unwrap();
    }
    for due in [Due::In(-1), Due::At(UnixMs(-1)), Due::At(UnixMs(i64::MAX)), Due::At(UnixMs(i64::MIN))] {
        let refused = town.client.submit(task(due)).await;
        assert!(refused.is_err(), "{due:?}: {refused:?}");
    }
    town.until("the past is done", |counts| (counts.succeeded, counts.pending) == (3, 4)).await;
    let before = used_ms(pod.pid());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = used_ms(pod.pid()) - before;
    println!("{used} ms of processor time in 2 s");
    assert!(used <= 100, "{used} ms in 2 s");
    assert_eq!(town.counts().await.0.submitted, 7);
    town.check().await;
}
