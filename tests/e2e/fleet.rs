//! A real day of 1,014 pushes on two pods and two executors; with and without deaths.

use super::*;
use std::collections::HashMap;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_of_flights_runs_once_each() {
    a_day_of_flights(Town::new(&[]).await).await;
}

/// The whole suite runs on a cluster and on sentinels as well (`make e2e-cluster`, `make e2e-sentinel`); this is a taste.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_of_flights_runs_once_each_on_a_cluster() {
    let town = Town::on(Redis::cluster().await, &[]).await;
    let store = town.space.store().clone();
    // What is shown of the nodes is what the nodes say.
    let Redis::Cluster(cluster) = &town.redis else { unreachable!() };
    let mut shares = std::collections::BTreeMap::<String, usize>::new();
    for number in 0..town.space.spread().buckets {
        let slot = minutehand::store::slot_of(&town.space.guard(Bucket::new(number).unwrap()).keys[0]);
        let node = store.node_of_slot(slot).unwrap();
        assert_eq!(node, format!("127.0.0.1:{}", cluster.owner(slot).unwrap().port().unwrap()));
        *shares.entry(node).or_default() += 1;
    }
    println!("buckets by node: {shares:?}");
    assert_eq!((shares.len(), shares.values().sum::<usize>()), (3, 8));
    assert!(shares.values().all(|share| (2..=3).contains(share)), "{shares:?}");
    a_day_of_flights(town).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_of_flights_runs_once_each_with_sentinels() {
    a_day_of_flights(Town::on(Redis::sentinel().await, &[]).await).await;
}

async fn a_day_of_flights(town: Town) {
    let pods = [town.pod("pod-1"), town.pod("pod-2")];
    let executors = [town.executor("ex-1", &["--discard"]), town.executor("ex-2", &["--discard"])];
    town.until_members(2, 2).await;
    import_flights(&town.program, "14400");
    town.until_succeeded(FLIGHTS).await;
    town.each_once().await;
    town.check().await;
    let status = town.program.json(&["status"]);
    println!("lag {}", status["lag_ms"]);
    assert_eq!(
        (&status["counts"]["succeeded"], &status["lag_ms"]["count"]),
        (&FLIGHTS.into(), &FLIGHTS.into())
    );
    // Both pods and both executors had a part in it, and all end in order.
    for process in executors.iter().chain(&pods) {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
    for executor in &executors {
        let said = executor.out();
        let succeeded = said.split(", ").find_map(|part| part.strip_suffix(" succeeded")).unwrap();
        assert_ne!(succeeded, "0", "{said}");
        assert!(said.ends_with("0 failed, 0 handed back\n"), "{said}");
    }
    town.until_members(0, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_see_each_task_once() {
    let town = Town::new(&[]).await;
    let diary = Diary::new(&town);
    let command = diary.command();
    let _pods = [town.pod("pod-1"), town.pod("pod-2")];
    let _executors =
        [town.executor("ex-1", &["--exec", &command]), town.executor("ex-2", &["--exec", &command])];
    town.until_members(2, 2).await;
    import_flights(&town.program, "14400");
    town.until_succeeded(FLIGHTS).await;
    let runs = diary.runs();
    assert_eq!(runs.len() as i64, FLIGHTS);
    assert_eq!(distinct(runs.iter().map(|run| &run.task)), runs.len());
    assert_eq!(distinct(runs.iter().map(|run| &run.execution)), runs.len());
    let lives = town.lives().await;
    assert!(runs.iter().all(|run| lives[&run.task.parse().unwrap()].1 == 1));
    town.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_and_an_executor_die_and_nothing_is_lost() {
    const LOCK_MS: i64 = 2_000;
    let settings = [
        ("pod.lock", "2s"),
        ("pod.poll", "250ms"),
        ("defaults.dispatch_timeout", "1500ms"),
        ("defaults.lease", "2s"),
    ];
    let town = Town::new(&settings).await;
    let diary = Diary::new(&town);
    let command = diary.command();
    let pods = [town.pod("pod-1"), town.pod("pod-2")];
    let executors =
        [town.executor("ex-1", &["--exec", &command]), town.executor("ex-2", &["--exec", &command])];
    town.until_members(2, 2).await;
    let stalls = Stalls::watch();
    import_flights(&town.program, "7200");

    town.until("a third is done", |counts| counts.succeeded >= FLIGHTS / 3).await;
    let pod_died_ms = town.space.clock().now_ms();
    pods[0].kill9();
    town.until("two thirds are done", |counts| counts.succeeded >= FLIGHTS * 2 / 3).await;
    let executor_died_ms = town.space.clock().now_ms();
    executors[0].kill9();
    town.until_succeeded(FLIGHTS).await;
    town.check().await;

    // At least once, and each outcome is accepted once.
    let lives = town.lives().await;
    assert_eq!(lives.len() as i64, FLIGHTS);
    assert!(lives.values().all(|(_, accepted)| *accepted == 1));
    let runs = diary.runs();
    assert_eq!(distinct(runs.iter().map(|run| &run.task)) as i64, FLIGHTS);
    assert_eq!(distinct(runs.iter().map(|run| &run.execution)), runs.len(), "no execution runs twice");

    // How late the first start of a task was that was due after the pod's death and before the executor's.
    let mut first: HashMap<&str, (i64, i64)> = HashMap::new();
    for run in &runs {
        let started = run.started_ms;
        let start = first.entry(&run.task).or_insert((run.due_ms, started));
        start.1 = start.1.min(started);
    }
    let late = |from: i64, to: i64| {
        let lags = first.values().filter(|(due, start)| (from..to).contains(due) && *start < to);
        lags.map(|(due, start)| start - due).max().unwrap_or(0)
    };
    let (pod, executor) = (late(pod_died_ms, executor_died_ms), late(executor_died_ms, i64::MAX));
    let (twice, stall) = (runs.len() as i64 - FLIGHTS, stalls.end());
    println!(
        "{twice} ran twice; latest start {pod} ms after due once a pod had died, {executor} ms once an executor \
         had; the machine stalled for up to {stall} ms"
    );
    // Its permits end, another pod takes its buckets, and what it had claimed is handed out again.
    assert!(pod <= LOCK_MS + 1_000 + 2 * stall, "{pod} ms, with stalls of {stall} ms");
    for process in [&executors[1], &pods[1]] {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_drops_what_runs_and_hands_it_back() {
    let town = Town::new(&[("executor.drain", "40s")]).await;
    let _pod = town.pod("pod-1");
    let executor = town.executor("ex-1", &["--exec", "cat >/dev/null; exec sleep 60"]);
    let submitted = town.program.run(&["submit", "--queue", "flights", "--payload", "x"]);
    let id: TaskId = submitted.out.trim().parse().unwrap();
    let started =
        |view: Option<minutehand::client::TaskView>| view.is_some_and(|task| task.view == "started");
    while !started(town.client.get(id).await.unwrap()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    executor.signal(libc::SIGINT);
    executor.until_said("executor drains", NEVER);
    assert!(executor.is_alive(), "it waits for its task");
    let asked = minutehand::clock::mono();
    executor.signal(libc::SIGINT);
    assert_eq!(executor.wait(NEVER), Some(0), "{}", executor.log());
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert!(executor.out().ends_with("0 failed, 1 handed back\n"), "{}", executor.log());
    // A pod that has not heard of the end yet may claim it once more, and gives it back as well.
    town.until("it is pending", |counts| (counts.pending, counts.running) == (1, 0)).await;
    let task = town.client.get(id).await.unwrap().unwrap();
    assert_eq!((task.failures, task.fence.unwrap_or(1) >= 1), (0, true));
    town.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_drains_lets_its_task_end() {
    let town = Town::new(&[]).await;
    let _pod = town.pod("pod-1");
    let gate = town.redis.dir().join("gate");
    let command = format!("until [ -e {} ]; do sleep 0.01; done", gate.display());
    let executor = town.executor("ex-1", &["--slots", "1", "--exec", &command]);
    for _ in 0..5 {
        assert_eq!(town.program.run(&["submit", "--queue", "flights"]).code, Some(0));
    }
    town.until("one runs", |counts| counts.running >= 1).await;
    executor.signal(libc::SIGTERM);
    executor.until_said("executor drains", NEVER);
    std::fs::write(&gate, "").unwrap();
    assert_eq!(executor.wait(NEVER), Some(0), "{}", executor.log());
    // The one that ran has succeeded; the others are as they were.
    let counts = town.until("the rest is back", |counts| counts.running == 0).await;
    assert_eq!((counts.succeeded, counts.pending), (1, 4), "{}", executor.log());
    let _other = town.executor("ex-2", &["--discard"]);
    town.until_succeeded(5).await;
    town.check().await;
}
