//! Fleets under conditions of their own: wrong clocks, backlogs, one crowded minute. Those of full size are left out
//! unless asked for: `make cases`.

use super::*;
use minutehand::client::{Due, NewTask};
use minutehand::dev::redis::ServerOptions;
use minutehand::model::QueueName;
use minutehand::store::Birth;
use minutehand::testing::clock::WrongClock;
use minutehand::testing::fault::{Behind, Fault, FaultProxy};

/// Long enough for those of full size.
const LONG: Duration = Duration::from_secs(240);

fn flight(due: Due) -> NewTask {
    NewTask { due, payload: "x".repeat(100).into(), ..NewTask::to(QueueName::new("flights").unwrap()) }
}

async fn submit(client: &Client, count: usize, due: impl Fn(usize) -> Due) {
    for first in (0..count).step_by(20_000) {
        let batch = (first..count.min(first + 20_000)).map(|n| flight(due(n))).collect();
        let told = client.submit_batch(batch).await.unwrap();
        assert!(told.iter().all(Result::is_ok));
    }
}

/// Waits as long as it takes, and looks seldom: what waits is large.
async fn until_done(town: &Town, what: &str, done: impl Fn(&Counts) -> bool) -> Counts {
    let start = minutehand::clock::mono();
    loop {
        let counts = town.counts().await.0;
        if done(&counts) {
            return counts;
        }
        assert!(start.elapsed() < LONG, "waited in vain until {what}: {counts:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Most memory that a process has had, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Four pods, none of which agrees with Redis on the time: each task is handed out once, and never early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_whose_clocks_are_off_hand_out_each_task_once_and_none_early() {
    const TASKS: usize = 4_000;
    let town = Town::of(Bed::own_server(Default::default()).await.unwrap(), &[("pod.poll", "250ms")]).await;
    let mut clocks = Vec::new();
    let mut pods = Vec::new();
    for (n, ms) in [-900, -300, 0, 900].into_iter().enumerate() {
        let clock = match WrongClock::new(town.redis.dir(), &format!("pod-{n}")) {
            Ok(clock) => clock,
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        };
        clock.shift_ms(ms).unwrap();
        let program =
            clock.env().iter().fold(town.program.clone(), |program, (name, value)| program.env(name, value));
        let name = format!("pod-{n}");
        let pod = program.start(&name, &["serve", "--listen", "127.0.0.1:0"]);
        pod.until_said("listening on http://", NEVER);
        clocks.push(clock);
        pods.push(pod);
    }
    let executors = [town.executor("ex-1", &["--discard"]), town.executor("ex-2", &["--discard"])];
    town.until_members(4, 2).await;
    submit(&town.client, TASKS, |n| Due::In(500 + n as i64)).await;
    town.until_succeeded(TASKS as i64).await;
    let lives = town.lives().await;
    assert_eq!(lives.len(), TASKS);
    assert!(lives.values().all(|life| *life == (1, 1)), "handed out once, accepted once");
    // An executor tells how late it began, by Redis's clock; early would be the largest number there is.
    let (_, lag) = town.counts().await;
    assert_eq!(lag.count, TASKS as u64);
    println!("lag: {lag:?}");
    assert!(lag.max.unwrap() < 2_000, "{lag:?}");
    let report = town.client.replay(true).await.unwrap();
    assert!(report.ok, "{:?}", report.findings);
    town.check().await;
    for process in pods.iter().chain(&executors) {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

/// A backlog stays in Redis: whatever its size, a pod needs no more memory.
async fn a_backlog_of(tasks: usize, drained: i64) {
    let town = Town::of(Bed::own_server(Default::default()).await.unwrap(), &[("pod.poll", "250ms")]).await;
    submit(&town.client, tasks, |_| Due::Now).await;
    let pods = [town.pod("pod-1"), town.pod("pod-2")];
    let executors = [town.executor("ex-1", &["--discard"]), town.executor("ex-2", &["--discard"])];
    let counts = until_done(&town, "much of it is done", |counts| counts.succeeded >= drained).await;
    for pod in &pods {
        assert!(pod.is_alive(), "{}", pod.log());
        let peak = peak_kib(pod.pid());
        println!("{counts:?}: a pod has had {peak} KiB");
        assert!(peak < 256 * 1_024, "{peak} KiB");
    }
    for process in pods.iter().chain(&executors) {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
    let lives = town.client.replay(false).await.unwrap();
    assert!(lives.ok, "{:?}", lives.findings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_stays_in_redis_and_not_in_pods() {
    a_backlog_of(40_000, 10_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "two million tasks: make cases"]
async fn two_million_overdue_tasks_leave_pods_below_256_mib() {
    a_backlog_of(2_000_000, 200_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a million tasks: make cases"]
async fn a_million_tasks_in_a_week_cost_a_pod_less_than_50_mib() {
    let town = Town::of(Bed::own_server(Default::default()).await.unwrap(), &[]).await;
    let pods = [town.pod("pod-1"), town.pod("pod-2")];
    let _executor = town.executor("ex-1", &["--discard"]);
    town.until_members(2, 1).await;
    let before: u64 = pods.iter().map(|pod| peak_kib(pod.pid())).sum();
    submit(&town.client, 1_000_000, |n| Due::In(7 * 86_400_000 + n as i64 % 60_000)).await;
    let grown = pods.iter().map(|pod| peak_kib(pod.pid())).sum::<u64>() - before;
    println!("pods have grown by {grown} KiB in all");
    assert!(grown < 50 * 1_024, "{grown} KiB");
    // All pods are started anew a second before a thousand fall due.
    submit(&town.client, 1_000, |n| Due::In(1_500 + n as i64 % 10)).await;
    pods.iter().for_each(Running::kill9);
    let _heirs = [town.pod("pod-3"), town.pod("pod-4")];
    let counts = until_done(&town, "what is due is done", |counts| counts.succeeded == 1_000).await;
    assert_eq!((counts.pending, counts.running), (1_000_000, 0));
    let (_, lag) = town.counts().await;
    println!("lag: {lag:?}");
    // A lock and two polls.
    assert!(lag.max.unwrap() <= 3_000 + 2_000, "{lag:?}");
}

/// One minute of one bucket, eight pods, and a slow way to Redis: a claim that takes longer than its lock moves nothing
/// twice.
async fn one_crowded_minute(tasks: usize) {
    let bed = Bed::own_server(ServerOptions::default()).await.unwrap();
    let proxy = FaultProxy::start(Behind::Unix(bed.server().socket())).await.unwrap();
    proxy.set(Fault { delay: Duration::from_millis(10), ..Fault::default() });
    let birth = Birth { key_buckets: 1, buckets: 1, holders: 1 };
    let namespace = Namespace::new(bed.namespace()).unwrap();
    Space::open_as(bed.store().await.unwrap(), namespace, birth).await.unwrap();
    let town = Town::of(bed, &[("pod.lock", "1s"), ("pod.poll", "250ms")]).await;
    submit(&town.client, tasks, |_| Due::Now).await;
    let slow = town.program.clone().env("MINUTEHAND_REDIS", proxy.url());
    let pods: Vec<Running> =
        (0..8).map(|n| slow.start(&format!("pod-{n}"), &["serve", "--listen", "127.0.0.1:0"])).collect();
    pods.iter().for_each(|pod| _ = pod.until_said("listening on http://", NEVER));
    let executors = [town.executor("ex-1", &["--discard"]), town.executor("ex-2", &["--discard"])];
    until_done(&town, "all is done", |counts| counts.is_quiet() && counts.succeeded == tasks as i64).await;
    let report = town.client.replay(true).await.unwrap();
    assert!(report.ok && report.accepted == tasks as u64, "{report:?}");
    let (_, lag) = town.counts().await;
    assert_eq!(lag.count, tasks as u64, "starts");
    town.check().await;
    for process in pods.iter().chain(&executors) {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
        assert!(!process.log().contains("unpack"), "{}", process.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_pods_hand_out_one_crowded_minute_once() {
    one_crowded_minute(10_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "200,000 tasks: make cases"]
async fn eight_pods_hand_out_200_000_tasks_of_one_minute_once() {
    one_crowded_minute(200_000).await;
}
