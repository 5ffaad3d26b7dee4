//! Tasks that kill their executors, and work that waits for a week.

use super::*;
use minutehand::client::{Due, NewTask};
use minutehand::model::{QueueName, State};

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
