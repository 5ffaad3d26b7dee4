//! The decision loop on real pods: buckets come when claim loops are too slow, and go when nothing needs them.

use minutehand::client::{Client, Due, NewTask};
use minutehand::executor::Executor;
use minutehand::model::decide::{Action, Reason, Record, Rules};
use minutehand::model::spread::Bounds;
use minutehand::model::{Bucket, Namespace, QueueName};
use minutehand::pod::decider::DeciderSettings;
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::bucket::{self, Change};
use minutehand::store::{Birth, ConnectSettings, Space, Store, decider, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fault::{Behind, Fault, FaultProxy};
use minutehand::testing::fixtures;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const NEVER: Duration = Duration::from_secs(60);

#[tokio::test]
async fn decider_has_one_leader_and_keeps_what_was_decided() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    let lead = async |pod: &str, ms| decider::lead(&space, pod, ms).await.unwrap();
    let first = lead("a", 15_000).await;
    assert!(first.mine && first.state.is_empty());
    let second = lead("b", 15_000).await;
    assert_eq!((second.mine, second.leader.as_str()), (false, "a"));
    let note = async |pod: &str, n: usize, changes| {
        decider::note(&space, pod, format!("s{n}").as_bytes(), format!("r{n}").as_bytes(), changes)
            .await
            .unwrap()
    };
    assert!(note("a", 1, true).await);
    assert!(!note("b", 2, true).await, "only the leader notes");
    for n in 0..minutehand::limits::DECISIONS_MAX + 5 {
        assert!(note("a", n, false).await);
    }
    let windows = decider::notes(&space, false, 10_000).await.unwrap();
    assert_eq!(windows.len(), minutehand::limits::DECISIONS_MAX, "as many as are kept");
    assert_eq!(decider::notes(&space, true, 10_000).await.unwrap(), ["r1"]);
    // The lead lapses, or is given up.
    space.inject_now(Some(fixtures::T0 + 15_000));
    assert!(lead("b", 15_000).await.mine);
    lead("b", 0).await;
    let third = lead("c", 15_000).await;
    assert!(third.mine && third.state.starts_with(b"s"), "what was remembered is handed on");
}

#[tokio::test]
async fn decider_reads_what_waits_and_what_comes() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    let at = |ms| fixtures::T0 + ms;
    for due in [-500, -300, 10, 61_000, 62_000, 9 * 60_000] {
        fixtures::task(&space, "push", at(due)).await;
    }
    let load = decider::load(&space, fixtures::bucket()).await.unwrap();
    assert_eq!((load.ripe, load.pending, load.running, load.closed, load.gone), (2, 6, 0, false, false));
    // What lies in the past when it is submitted keeps its time here; a client would have set it to now.
    assert_eq!(load.oldest.map(|due| due.0), Some(at(-500)));
    assert_eq!(load.coming.len(), minutehand::limits::DECISION_AHEAD_MINUTES);
    assert_eq!((load.coming[1], load.coming[9]), (2, 1));
    let tasks = fixtures::claim(&space, &fixtures::claim_all("pod")).await.tasks;
    fixtures::ack_done(&space, &tasks).await;
    let load = decider::load(&space, fixtures::bucket()).await.unwrap();
    assert_eq!((load.ripe, load.oldest), (0, None));
    let minute = fixtures::T0.div_euclid(60_000);
    assert_eq!(load.lags[&minute].values().sum::<u64>(), 2);
    assert!(load.lags[&(minute - 1)].is_empty());
}

/// Pods behind a slow network, so that one claim loop is slow while Redis has nothing to do.
struct Slow {
    bed: Bed,
    proxy: FaultProxy,
    stop: CancellationToken,
    running: Vec<JoinHandle<()>>,
}

impl Slow {
    async fn start() -> Self {
        let bed = Bed::own_server(Default::default()).await.unwrap();
        let proxy = FaultProxy::start(Behind::Unix(bed.server().socket())).await.unwrap();
        Self { bed, proxy, stop: CancellationToken::new(), running: Vec::new() }
    }

    fn namespace(&self) -> Namespace {
        Namespace::new(self.bed.namespace()).unwrap()
    }

    /// A space without the slow network, one bucket if it is new.
    async fn near(&self) -> Space {
        let birth = Birth { key_buckets: 1, buckets: 1, holders: 1 };
        Space::open_as(self.bed.store().await.unwrap(), self.namespace(), birth).await.unwrap()
    }

    async fn pod(&mut self, id: &str, settings: PodSettings) {
        let url = self.proxy.url();
        let store = Store::connect(ConnectSettings { url, ..ConnectSettings::default() }).await.unwrap();
        let space = Space::open(store, self.namespace()).await.unwrap();
        let pod = Pod::new(space, PodSettings { id: id.into(), ..settings });
        let stop = self.stop.clone();
        self.running.push(tokio::spawn(async move { pod.run(stop).await.unwrap() }));
    }

    async fn end(self) {
        self.proxy.set(Fault::default());
        self.stop.cancel();
        for handle in self.running {
            tokio::time::timeout(NEVER, handle).await.expect("ends in time").unwrap();
        }
    }
}

async fn records(space: &Space, changes: bool) -> Vec<Record> {
    let notes = decider::notes(space, changes, 1_000).await.unwrap();
    notes.iter().rev().map(|note| serde_json::from_slice(note).unwrap()).collect()
}

/// Slow dispatch, one bucket, four pods: lag grows, buckets double, the lag falls below its target; the load ends,
/// buckets close, drain and vanish; a submitter with an old spread loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decider_adds_buckets_under_load_and_takes_them_back() {
    let mut town = Slow::start().await;
    let space = town.near().await;
    let rules = Rules { target_ms: 250, window_ms: 400, calm_windows: 5, ..Rules::default() };
    let settings = PodSettings {
        // Ten tasks a claim, and a network that takes 20 ms there and back: a loop claims some 500 a second.
        claim_rows: 10,
        decider: DeciderSettings { enabled: true, rules, linger_ms: 1_000 },
        ..PodSettings::default()
    };
    for n in 1..=4 {
        town.pod(&format!("pod-{n}"), settings.clone()).await;
    }
    let executor = Executor::builder(town.near().await).slots(512).handle("push", |_, _| async { Ok(()) });
    let executor = executor.build().unwrap();
    let stop = town.stop.clone();
    town.running.push(tokio::spawn(async move { executor.run(stop).await.map(|_| ()).unwrap() }));
    town.proxy.set(Fault { delay: Duration::from_millis(10), ..Fault::default() });

    // 900 tasks a second: more than one loop can claim, little for Redis.
    let client = Client::new(space.clone());
    let (load, ended) = (client.clone(), CancellationToken::new());
    let end = ended.clone();
    let submitter = tokio::spawn(async move {
        let mut submitted = 0u64;
        let mut every = tokio::time::interval(Duration::from_millis(20));
        while !end.is_cancelled() {
            every.tick().await;
            let tasks = (0..18).map(|_| NewTask::to(QueueName::new("push").unwrap())).collect();
            let answers = load.submit_batch(tasks).await.unwrap();
            submitted += answers.into_iter().filter(|answer| answer.is_ok()).count() as u64;
        }
        submitted
    });
    let grown = async {
        loop {
            let windows = records(&space, false).await;
            let last = windows.last().map(|record| &record.inputs);
            // Several buckets, and all on target for a few windows.
            let calm =
                windows.iter().rev().take(3).filter(|r| r.inputs.late == 0 && r.inputs.starts > 0).count();
            if last.is_some_and(|inputs| inputs.buckets >= 2) && calm == 3 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let grown = tokio::time::timeout(NEVER, grown).await;
    let windows = records(&space, false).await;
    for record in &windows {
        let (inputs, decision) = (&record.inputs, &record.decision);
        println!(
            "{} buckets, {} starts, p99 {:?} ms, backlog {}, redis {:?}: {} {:?}",
            inputs.buckets,
            inputs.starts,
            inputs.p99_ms,
            inputs.backlog,
            inputs.redis_permille,
            decision.action,
            decision.reason
        );
    }
    grown.expect("buckets come and the lag falls");
    let worst = windows.iter().filter_map(|record| record.inputs.p99_ms).max().unwrap();
    assert!(worst > rules.target_ms, "the lag had grown");
    let changes = records(&space, true).await;
    let first = &changes[0];
    assert_eq!(first.decision.action, Action::Double { from: 1, to: 2 });
    assert_eq!(first.decision.reason, Reason::LoopsSaturated, "{}", first.decision.why);
    // Within three windows of the first in which the loop was saturated and late.
    let late = windows.iter().position(|record| record.inputs.overloaded()).unwrap();
    let acted = windows.iter().position(|record| record.decision.action.changes()).unwrap();
    assert_eq!(acted - late, 2, "the third late window acts");

    // A submitter that has not heard of the new buckets yet, and one that will not hear of their end.
    let stale = town.near().await;
    assert!(stale.spread().buckets >= 2);
    ended.cancel();
    let mut submitted = submitter.await.unwrap();
    let peak = space.refresh_spread().await.unwrap().peak;
    let gone = async {
        loop {
            let spread = space.refresh_spread().await.unwrap();
            if spread.buckets == 1 && spread.closing.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(NEVER, gone).await.expect("buckets close, drain and vanish");
    let tasks = (0..200).map(|_| NewTask { due: Due::Now, ..NewTask::to(QueueName::new("push").unwrap()) });
    let answers = Client::new(stale.clone()).submit_batch(tasks.collect()).await.unwrap();
    submitted += answers.into_iter().filter(|answer| answer.is_ok()).count() as u64;
    let done = async {
        while client.counts().await.unwrap().0.succeeded != submitted as i64 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(NEVER, done).await.is_err() {
        panic!("{submitted} submitted, but {:?}", client.counts().await.unwrap());
    }
    let counts = client.counts().await.unwrap().0;
    assert_eq!(
        (counts.submitted, counts.is_quiet()),
        (submitted as i64, true),
        "nothing lost, nothing doubled"
    );
    for number in 1..peak {
        let left = read::counts(&space, Bucket::new(number).unwrap()).await.unwrap();
        assert!(left.closed && left.agenda == 0, "bucket {number}");
    }
    let report = minutehand::store::check::check(&space, Default::default()).await.unwrap();
    assert!(report.ok, "{:?}", report.violations);
    // Whoever asks later gets the same decisions from the same figures.
    for record in records(&space, false).await.iter().chain(&records(&space, true).await) {
        assert_eq!(record.again(), record.decision);
    }
    println!("{submitted} tasks, at most {peak} buckets, p99 at worst {worst} ms");
    town.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decider_finishes_what_another_left_half_done_and_obeys_a_pin() {
    let mut town = Slow::start().await;
    let space = town.near().await;
    // A growth to two that broke off: bucket 1 is watched and open, and no tasks are sent there.
    let half = Change { closing: Some(vec![1]), ..Change::default() };
    assert!(bucket::resize(&space, &space.spread(), &half).await.unwrap());
    // A bucket of the spread that someone closed.
    bucket::mark(&space, Bucket::default(), true).await.unwrap();
    let rules = Rules { window_ms: 100, calm_windows: 3, ..Rules::default() };
    let decider = DeciderSettings { enabled: true, rules, linger_ms: 100 };
    town.pod("pod-1", PodSettings { decider, ..PodSettings::default() }).await;
    let settled = async {
        loop {
            let spread = space.refresh_spread().await.unwrap();
            let open = !read::counts(&space, Bucket::default()).await.unwrap().closed;
            if spread.closing.is_empty() && open {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(NEVER, settled).await.expect("put right");
    let pin = |pin| Change { bounds: Some(Bounds { pin, ..Bounds::default() }), ..Change::default() };
    for goal in [8, 2] {
        let pinned = async {
            loop {
                let spread = space.refresh_spread().await.unwrap();
                if spread.buckets == goal {
                    return;
                }
                if spread.bounds.pin != Some(goal) {
                    bucket::resize(&space, &spread, &pin(Some(goal))).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(NEVER, pinned).await.expect("follows the pin");
    }
    town.end().await;
}
