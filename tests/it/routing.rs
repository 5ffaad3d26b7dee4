//! Who gets a task, and what becomes of it when that one goes: on a real server, with pods and executors.

use crate::executor::{NEVER, Running, Town, start, task};
use minutehand::client::{Client, NewTask};
use minutehand::executor::{Context, Executor, ExecutorBuilder, HandlerFuture, Task};
use minutehand::model::event::Move;
use minutehand::model::queue::Routing;
use minutehand::model::spec::Extras;
use minutehand::model::{Labels, QueueName, State};
use minutehand::pod::PodSettings;
use minutehand::store::events;
use minutehand::store::member::{self, ExecutorRecord};
use minutehand::testing::bed::{Bed, start_pod};
use minutehand::testing::fixtures::{self, T0};
use minutehand::testing::process::Program;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::mpsc;

/// A handler that tells which executor it ran on.
fn telling(tell: &mpsc::UnboundedSender<(Task, String)>) -> impl Fn(Task, Context) -> HandlerFuture + use<> {
    let tell = tell.clone();
    move |task, ctx| {
        let _ = tell.send((task, ctx.executor().to_owned()));
        Box::pin(async { Ok(()) })
    }
}

/// Three executors of a queue, called a, b and c.
async fn three(town: &Town, bed: &Bed) -> (Vec<Running>, mpsc::UnboundedReceiver<(Task, String)>) {
    let (tell, told) = mpsc::unbounded_channel();
    let mut running = Vec::new();
    for name in ["a", "b", "c"] {
        let builder = town.executor(bed).await.name(name).slots(20).handle("q", telling(&tell));
        running.push(start(builder));
    }
    let all_there = async { while member::executors(&town.space).await.unwrap().len() < 3 {} };
    tokio::time::timeout(NEVER, all_there).await.unwrap();
    (running, told)
}

async fn route(town: &Town, policy: &str) {
    let queue = QueueName::new("q").unwrap();
    let change = |settings: &mut minutehand::model::QueueSettings| {
        settings.routing = Some(Routing(policy.to_owned()));
        Ok(())
    };
    let change = town.client.queue_set(&queue, change).await.unwrap();
    assert!(change.pods_behind.is_empty(), "{policy}");
}

async fn heard(told: &mut mpsc::UnboundedReceiver<(Task, String)>, count: usize) -> Vec<(Task, String)> {
    let mut out = Vec::new();
    while out.len() < count {
        out.push(tokio::time::timeout(NEVER, told.recv()).await.unwrap().unwrap());
    }
    out
}

fn by_name(runs: &[(Task, String)]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, executor) in runs {
        *counts.entry(executor[..1].to_owned()).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_routed_as_it_is_set() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let (running, mut told) = three(&town, &bed).await;
    for (policy, expected) in
        [("first", Some("a")), ("last", Some("c")), ("failover", Some("a")), ("round_robin", None)]
    {
        route(&town, policy).await;
        // One after the other, so that there is always room.
        let mut runs = Vec::new();
        for _ in 0..12 {
            town.submit(task("q")).await;
            runs.extend(heard(&mut told, 1).await);
        }
        let counts = by_name(&runs);
        match expected {
            Some(name) => assert_eq!(counts, BTreeMap::from([(name.to_owned(), 12)]), "{policy}"),
            None => assert_eq!(counts.into_values().collect::<Vec<_>>(), [4, 4, 4], "{policy}"),
        }
    }
    for one in running {
        one.end().await;
    }
    town.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_routing_key_run_on_one_executor() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let (running, mut told) = three(&town, &bed).await;
    route(&town, "consistent_hash").await;
    for _ in 0..3 {
        for key in 0..12 {
            let extras = Extras { routing_key: Some(format!("user-{key}")), ..Extras::default() };
            town.submit(NewTask { extras, ..task("q") }).await;
        }
        // A round at a time, so that nobody is full.
        town.until_count("running", 0).await;
    }
    let runs = heard(&mut told, 36).await;
    let mut at: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (task, executor) in &runs {
        at.entry(task.extras.routing_key.clone().unwrap()).or_default().insert(executor.clone());
    }
    assert_eq!(at.len(), 12);
    assert!(at.values().all(|executors| executors.len() == 1), "{at:?}");
    let used: BTreeSet<_> = at.values().flatten().collect();
    assert!(used.len() > 1, "12 keys on one of three executors");
    for one in running {
        one.end().await;
    }
    town.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_nobody_can_serve_says_which_label_is_missing() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let plain = start(town.executor(&bed).await.handle("q", telling(&tell)));
    let wants_gpu = NewTask { labels: Labels::new(["gpu"]).unwrap(), ..task("q") };
    let id = town.submit(wants_gpu).await;
    // It blocks nobody.
    town.submit(task("q")).await;
    assert_eq!(heard(&mut told, 1).await.len(), 1);
    let view = town.client.get(id).await.unwrap().unwrap();
    assert_eq!((view.view, view.unserved.as_deref()), ("ready", Some("no executor has label gpu")));
    // Its pod had not heard of its queue with that label, and does not take it again before it has.
    let history = events::trace(&town.space, id).await.unwrap().events;
    let claims = history.iter().filter(|event| event.event == Move::Claimed).count();
    assert!(claims <= 2, "claimed {claims} times: {history:?}");
    let gpu = start(town.executor(&bed).await.label("gpu").label("fast").handle("q", telling(&tell)));
    let runs = heard(&mut told, 1).await;
    assert_eq!((runs[0].0.id, runs[0].1.as_str()), (id, gpu.id.as_str()));
    town.until(id, State::Succeeded).await;
    gpu.end().await;
    plain.end().await;
    town.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_executor_gets_nothing_until_it_is_resumed() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let (running, mut told) = three(&town, &bed).await;
    for one in &running[..2] {
        let done = town.client.drain_executor(&one.id, "test").await.unwrap().unwrap();
        assert!(done.changed);
    }
    assert!(!town.client.drain_executor(&running[0].id, "test").await.unwrap().unwrap().changed);
    assert_eq!(town.client.drain_executor("nobody", "test").await.unwrap(), None);
    let states: Vec<_> =
        town.client.executor_views().await.unwrap().into_iter().map(|view| view.state).collect();
    assert_eq!(states, ["drained", "drained", "live"]);
    // What was on its way there comes back; everything runs on the third.
    for _ in 0..30 {
        town.submit(task("q")).await;
    }
    let runs = heard(&mut told, 30).await;
    let late: BTreeSet<_> = runs.iter().skip(20).map(|(_, executor)| executor.as_str()).collect();
    assert_eq!(late, BTreeSet::from([running[2].id.as_str()]));
    assert!(town.client.resume_executor(&running[0].id).await.unwrap().unwrap().changed);
    route(&town, "first").await;
    town.submit(task("q")).await;
    assert_eq!(heard(&mut told, 1).await[0].1, running[0].id);
    for one in running {
        one.end().await;
    }
    town.end().await;
}

/// An executor that registers and then does nothing, as one that was killed.
async fn ghost(town: &Town, id: &str, name: &str, pid: u32) -> ExecutorRecord {
    let record = ExecutorRecord {
        id: id.into(),
        name: name.into(),
        queues: vec!["q".into()],
        slots: 4,
        capacity: 4,
        pid,
        ..ExecutorRecord::default()
    };
    member::beat_executor(&town.space, &record).await.unwrap();
    record
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_in_the_inbox_of_a_killed_executor_comes_back_when_it_is_missed() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    ghost(&town, "ghost-1", "ghost", 1).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(town.submit(task("q")).await);
    }
    town.until_count("running", 4).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let begin = tokio::time::Instant::now();
    let heir = start(town.executor(&bed).await.handle("q", telling(&tell)));
    let runs = tokio::time::timeout(Duration::from_secs(14), heard(&mut told, 4)).await.unwrap();
    let waited = begin.elapsed();
    // Silent for 9 s; a pod looks every second. The dispatch time-out would take 15 s.
    assert!((Duration::from_secs(8)..Duration::from_millis(11_500)).contains(&waited), "{waited:?}");
    assert_eq!(runs.iter().map(|(task, _)| task.id).collect::<BTreeSet<_>>(), ids.into_iter().collect());
    assert!(runs.iter().all(|(task, executor)| *executor == heir.id && task.attempt == 1), "uncounted");
    assert!(member::roll(&town.space).await.unwrap().lost.is_empty(), "somebody has looked after it");
    heir.end().await;
    town.end().await;
}

fn named(builder: ExecutorBuilder, tell: &mpsc::UnboundedSender<(Task, String)>) -> ExecutorBuilder {
    builder.name("worker").handle("q", telling(tell))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_executor_signs_its_predecessor_off() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    // Learn what the executor says of this machine, then play one that was killed here.
    let first = start(named(town.executor(&bed).await, &tell));
    let there = async { while member::executors(&town.space).await.unwrap().is_empty() {} };
    tokio::time::timeout(NEVER, there).await.unwrap();
    let mine = member::executors(&town.space).await.unwrap().remove(0);
    first.end().await;
    assert!(!mine.machine.is_empty() && mine.began > 0);
    let dead = ExecutorRecord { id: "worker-dead".into(), pid: u32::MAX, capacity: 4, ..mine.clone() };
    let sibling = ExecutorRecord { id: "worker-lives".into(), draining: true, ..mine.clone() };
    for record in [&dead, &sibling] {
        member::beat_executor(&town.space, record).await.unwrap();
    }
    for _ in 0..4 {
        town.submit(task("q")).await;
    }
    town.until_count("running", 4).await;
    let begin = tokio::time::Instant::now();
    let second = start(named(town.executor(&bed).await, &tell));
    let runs = heard(&mut told, 4).await;
    assert!(begin.elapsed() < Duration::from_secs(4), "long before it is missed: {:?}", begin.elapsed());
    assert!(runs.iter().all(|(_, executor)| *executor == second.id));
    let live: Vec<_> = member::executors(&town.space).await.unwrap().into_iter().map(|one| one.id).collect();
    assert!(!live.contains(&dead.id) && live.contains(&sibling.id), "{live:?}");
    second.end().await;
    town.end().await;
}

#[tokio::test]
async fn who_is_lost_is_remembered_until_somebody_has_looked_after_it() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    let record =
        ExecutorRecord { id: "ex-1".into(), queues: vec!["q".into()], capacity: 2, ..Default::default() };
    member::beat_executor(&space, &record).await.unwrap();
    assert_eq!(member::drain(&space, "ex-1", true).await.unwrap(), Some(true));
    let offer = |n: u8| bytes::Bytes::from(vec![n; 9]);
    assert!(matches!(
        member::offer(&space, "pod", "ex-1", &[], &[offer(1)], 0, 0).await.unwrap(),
        member::OfferAnswer::Accepted { normal: 1, .. }
    ));
    let roll = member::roll(&space).await.unwrap();
    assert_eq!((roll.live.len(), roll.live[0].draining, roll.lost.len()), (1, true, 0));
    space.inject_now(Some(T0 + 9_001));
    for _ in 0..2 {
        // Whoever hears of it: nobody has looked after it yet.
        let roll = member::roll(&space).await.unwrap();
        assert_eq!((roll.live.len(), roll.lost, roll.drained.len()), (0, vec!["ex-1".to_owned()], 0));
    }
    // It was only slow: it lives again, not drained.
    member::beat_executor(&space, &record).await.unwrap();
    let roll = member::roll(&space).await.unwrap();
    assert_eq!((roll.live[0].draining, roll.lost.len()), (false, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_are_written_down_and_come_out_the_same() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let file = bed.server().dir().join(format!("{}.ndjson", bed.namespace()));
    let settings =
        PodSettings { route_sample: 1_000, route_record: Some(file.clone()), ..PodSettings::default() };
    let (stop, pod) = start_pod(&space, settings);
    let (tell, mut told) = mpsc::unbounded_channel();
    let running: Vec<_> = [2, 8]
        .map(|slots| start(Executor::builder(space.clone()).slots(slots).handle("q", telling(&tell))))
        .into();
    let client = Client::new(space.clone());
    for n in 0..40 {
        let extras = Extras { cost_ms: Some(n % 7 * 10 + 1), ..Extras::default() };
        client.submit(NewTask { extras, ..task("q") }).await.unwrap();
    }
    heard(&mut told, 40).await;
    for one in running {
        one.end().await;
    }
    stop.cancel();
    pod.await.unwrap();

    let program = Program::bare(env!("CARGO_BIN_EXE_minutehand"));
    let path = file.to_str().unwrap();
    let again = program.json(&["executor", "replay", path]);
    let stand = again["stand"].as_u64().unwrap();
    assert!(again["ok"] == true && stand >= 40 && again["differ"] == serde_json::json!([]), "{again}");
    // One that says something else is told of.
    let text = std::fs::read_to_string(&file).unwrap();
    let mut first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    first["chosen"] = "somebody".into();
    std::fs::write(&file, format!("{first}\n")).unwrap();
    let ended = program.run(&["executor", "replay", path, "--output", "json"]);
    assert_eq!(
        (ended.code, &ended.json()["ok"], &ended.json()["stand"]),
        (Some(1), &false.into(), &0.into())
    );
}
