//! Limits: what a claim keeps to, what pods are allotted, and what holds over a whole fleet.

use minutehand::client::{Client, Due, NewTask};
use minutehand::executor::Executor;
use minutehand::model::queue::{
    BreakerSettings, DownstreamName, LimitOwner, LimitSettings, Maintenance, Rate, TryDefaults,
};
use minutehand::model::{Namespace, Priority, QueueName, QueueSettings, State, TaskId};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::due::{Claim, ClaimLimits, Purse, Rule, Spent, Tally};
use minutehand::store::queue::{self, Ask, BreakerAsk, BreakerState, ShareAsk, WindowAsk};
use minutehand::store::run::Outcome;
use minutehand::store::{Birth, Space};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::{self, T0};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const ALL: u8 = 0b111_1111;

fn name(queue: &str) -> QueueName {
    QueueName::new(queue).unwrap()
}

fn spent(spent: u32, denied: u32) -> Spent {
    Spent { spent, denied }
}

#[tokio::test]
async fn a_claim_takes_what_its_purses_allow_and_says_what_stayed_behind() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    for _ in 0..10 {
        fixtures::task(&space, "push", T0).await;
        fixtures::task(&space, "mail", T0).await;
    }
    let push = fixtures::lane(&space, "push", Priority::P3).await.group();
    let with = |purse: Purse| Claim {
        limits: ClaimLimits {
            purses: vec![purse],
            rules: vec![Rule { group: push, tiers: ALL, purse: 0 }],
            ..ClaimLimits::default()
        },
        ..fixtures::claim_all("p1")
    };
    let of_push = |tasks: &[minutehand::store::due::Granted]| {
        tasks.iter().filter(|task| task.lane.group() == push).count()
    };
    // Four may go; the other queue is not held up.
    let first = fixtures::claim(&space, &with(Purse::Tokens(4))).await;
    assert_eq!((of_push(&first.tasks), first.tasks.len()), (4, 14));
    assert_eq!((first.purses.clone(), first.backlog), (vec![spent(4, 6)], 0));
    // Nothing may: what stands aside is still told.
    let none = fixtures::claim(&space, &with(Purse::Tokens(0))).await;
    assert_eq!((none.tasks.len(), none.purses.clone(), none.backlog), (0, vec![spent(0, 6)], 0));
    // Other queues go straight past it.
    fixtures::task(&space, "mail", T0).await;
    let past = fixtures::claim(&space, &with(Purse::Tokens(0))).await;
    assert_eq!((past.tasks.len(), past.purses.clone()), (1, vec![spent(0, 6)]));
    let more = fixtures::claim(&space, &with(Purse::Tokens(5))).await;
    assert_eq!((more.tasks.len(), more.purses.clone()), (5, vec![spent(5, 1)]));
    // Tokens that came too late are none.
    let mut late = with(Purse::Tokens(5));
    late.limits.until = Some(minutehand::model::UnixMs(T0 - 1));
    let none = fixtures::claim(&space, &late).await;
    assert_eq!((none.tasks.len(), none.purses.clone()), (0, vec![spent(0, 1)]));
    // Where there is no limit any more, the last one goes.
    let rest = fixtures::claim(&space, &fixtures::claim_all("p1")).await;
    assert_eq!((rest.tasks.len(), rest.purses.len()), (1, 0));
}

#[tokio::test]
async fn closed_queues_stand_aside_however_many_there_are() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    let own = fixtures::task(&space, "mail", T0).await;
    let push = fixtures::lane(&space, "push", Priority::P3).await.group();
    let held = fixtures::task(&space, "push", T0).await;
    let mut claim = fixtures::claim_all("p1");
    // A quota of its own does not open what is closed.
    claim.quotas = vec![(push, minutehand::store::due::Quota::Open { any: 9, normal: 9 })];
    claim.limits.closed = (50_000..60_000).chain([push]).collect();
    let ids =
        |claimed: &minutehand::store::due::Claimed| claimed.tasks.iter().map(|t| t.id).collect::<Vec<_>>();
    let first = fixtures::claim(&space, &claim).await;
    assert_eq!((ids(&first), first.backlog), (vec![own], 0));
    claim.again();
    assert_eq!(ids(&fixtures::claim(&space, &claim).await), []);
    claim.limits.closed.pop();
    claim.again();
    assert_eq!(ids(&fixtures::claim(&space, &claim).await), [held]);
}

#[tokio::test]
async fn running_tasks_are_counted_until_they_end_or_come_back() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    for _ in 0..9 {
        fixtures::task(&space, "push", T0).await;
    }
    let push = fixtures::lane(&space, "push", Priority::P3).await.group();
    let mut claim = Claim {
        limits: ClaimLimits {
            purses: vec![Purse::Running(5)],
            rules: vec![Rule { group: push, tiers: ALL, purse: 0 }],
            counted: vec![push],
            ..ClaimLimits::default()
        },
        ..fixtures::claim_all("p1")
    };
    let tally = |running, succeeded, failed| vec![Tally { running, succeeded, failed }];
    let first = fixtures::claim(&space, &claim).await;
    assert_eq!((first.tasks.len(), first.purses[0], &first.tallies), (5, spent(5, 4), &tally(5, 0, 0)));
    claim.again();
    let full = fixtures::claim(&space, &claim).await;
    assert_eq!((full.tasks.len(), full.purses[0], &full.tallies), (0, spent(0, 4), &tally(5, 0, 0)));
    // Two succeed, one fails and is tried later, one is given back: one still runs.
    let mut rows: Vec<_> =
        first.tasks[..2].iter().map(|t| fixtures::ack_row(t, Outcome::Succeeded)).collect();
    minutehand::store::run::ack(&space, fixtures::bucket(), "x", &rows, false).await.unwrap();
    rows = vec![fixtures::ack_row(&first.tasks[2], Outcome::Failed { error: "no".into() })];
    minutehand::store::run::ack(&space, fixtures::bucket(), "x", &rows, false).await.unwrap();
    let back = [(first.tasks[3].id, first.tasks[3].grant)];
    minutehand::store::due::release(&space, fixtures::bucket(), "p1", "test", &back).await.unwrap();
    claim.again();
    let next = fixtures::claim(&space, &claim).await;
    assert_eq!((next.tasks.len(), next.purses[0], &next.tallies), (4, spent(4, 1), &tally(5, 2, 1)));
    // Leases that lapse count as well: the last five do, and five were waiting or came back.
    space.inject_now(Some(T0 + 60_000));
    claim.again();
    let last = fixtures::claim(&space, &claim).await;
    assert_eq!((last.reaped, &last.tallies), (5, &tally(5, 2, 1)));
}

#[tokio::test]
async fn no_retries_means_fresh_tasks_only() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    fixtures::task(&space, "push", T0).await;
    let first = fixtures::claim(&space, &fixtures::claim_all("p1")).await;
    let row = fixtures::ack_row(&first.tasks[0], Outcome::Failed { error: "no".into() });
    minutehand::store::run::ack(&space, fixtures::bucket(), "x", &[row], false).await.unwrap();
    space.inject_now(Some(T0 + 6_000));
    let fresh = fixtures::task(&space, "push", T0 + 6_000).await;
    let mut claim = fixtures::claim_all("p1");
    claim.limits.no_retries = true;
    let only = fixtures::claim(&space, &claim).await;
    claim.again();
    assert_eq!(only.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [fresh]);
    let again = fixtures::claim(&space, &claim).await;
    assert_eq!((again.tasks.len(), again.backlog), (0, 0));
    let all = fixtures::claim(&space, &fixtures::claim_all("p1")).await;
    assert_eq!(all.tasks.iter().map(|task| task.failures).collect::<Vec<_>>(), [1]);
}

/// Random pods ask for one window: at no time more than the limit was spent within its length.
#[tokio::test]
async fn a_window_is_never_overspent_whatever_pods_do() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    let owner = LimitOwner::Queue(name("push"));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..6 {
        let rate = Rate { count: random.u32(1..60), per_ms: 1_000, burst: None };
        let window = format!("w{round}");
        let (mut now, mut held) = (T0 + round * 100_000, [0u32; 3]);
        // One that died comes back under another name.
        let mut lives = [0; 3];
        let mut unsaid: [Vec<(minutehand::model::UnixMs, u32)>; 3] = Default::default();
        // Until when a pod may use what it holds; a pod that died says nothing more.
        let mut until = [0i64; 3];
        let mut spends: Vec<(i64, u32)> = Vec::new();
        for _ in 0..400 {
            now += random.i64(1..25);
            space.inject_now(Some(now));
            let pod = random.usize(0..3);
            if random.u32(0..40) == 0 {
                (held[pod], unsaid[pod]) = (0, Vec::new());
                lives[pod] += 1;
                continue;
            }
            if now > until[pod] {
                held[pod] = 0;
            }
            if held[pod] > 0 && random.bool() {
                let count = random.u32(1..=held[pod]);
                held[pod] -= count;
                unsaid[pod].push((minutehand::model::UnixMs(now), count));
                spends.push((now, count));
            }
            if random.u32(0..3) > 0 {
                let wanted = random.u32(0..40);
                if wanted == 0 {
                    held[pod] = 0;
                }
                let asked = WindowAsk {
                    name: window.clone(),
                    rate,
                    kept: held[pod],
                    wanted,
                    spent: std::mem::take(&mut unsaid[pod]),
                };
                let ask = Ask { windows: vec![asked], ..Ask::default() };
                let name = format!("p{pod}-{}", lives[pod]);
                let told = queue::allot(&space, &owner, &name, &ask).await.unwrap();
                let (granted, wait) = told.windows[0];
                assert!(granted <= wanted && wait >= 1, "{granted} of {wanted}, wait {wait}");
                held[pod] += granted;
                until[pod] = now + 1_800;
            }
        }
        let total: u32 = spends.iter().map(|(_, count)| count).sum();
        assert!(total > 0, "nothing was granted at {rate:?}");
        for (from, _) in &spends {
            let within: u32 = spends
                .iter()
                .filter(|(at, _)| (*from..from + 1_000).contains(at))
                .map(|(_, count)| count)
                .sum();
            assert!(within <= rate.count, "{within} of {} within a second of {from}", rate.count);
        }
    }
}

/// Random buckets of random pods: shares together never pass the limit, and every bucket that waits gets its turn.
#[tokio::test]
async fn shares_never_pass_the_limit_and_everyone_has_a_turn() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    let owner = LimitOwner::Queue(name("push"));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for most in [1, 3, 10] {
        // Pod 0 has buckets 0 to 2, pod 1 buckets 3 to 5. Each has work without end.
        let (mut runs, mut share, mut turns) = ([0u32; 6], [0u32; 6], [0u32; 6]);
        let owner = LimitOwner::Queue(name(&format!("{}-{most}", owner.key().replace(':', "-"))));
        let (mut now, mut scarce) = (T0, [false; 2]);
        for _ in 0..600 {
            now += random.i64(1..30);
            space.inject_now(Some(now));
            let pod = random.usize(0..2);
            for bucket in 3 * pod..3 * pod + 3 {
                // Some end, and a claim fills up to the share.
                let ended = random.u32(0..=runs[bucket]);
                runs[bucket] -= ended;
                let more = share[bucket].saturating_sub(runs[bucket]);
                turns[bucket] += more;
                runs[bucket] += more;
                if scarce[pod] {
                    share[bucket] = share[bucket].min(runs[bucket]);
                }
            }
            assert!(runs.iter().sum::<u32>() <= most, "{runs:?} run of {most}");
            let asked = |bucket: usize| ShareAsk { bucket: bucket as u16, kept: runs[bucket], wanted: 4 };
            let shares: Vec<ShareAsk> = (3 * pod..3 * pod + 3).map(asked).collect();
            let ask = Ask { running: Some(most), shares, ..Ask::default() };
            let told = queue::allot(&space, &owner, &format!("p{pod}"), &ask).await.unwrap();
            share[3 * pod..3 * pod + 3].copy_from_slice(&told.shares);
            scarce[pod] = told.scarce;
        }
        let (least, best) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
        assert!(*least > 0 && *best < 20 * least, "{turns:?} turns with {most}");
    }
}

#[tokio::test]
async fn a_breaker_opens_is_tried_and_closes() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    let owner = LimitOwner::Downstream(DownstreamName::new("apns").unwrap());
    let settings: BreakerSettings = "50%:20:30s".parse().unwrap();
    let hear = async |pod: &str, at: i64, succeeded, failed, probes_wanted| {
        space.inject_now(Some(T0 + at));
        let breaker = Some(BreakerAsk { settings, succeeded, failed, probes_wanted });
        let told = queue::allot(&space, &owner, pod, &Ask { breaker, ..Ask::default() }).await.unwrap();
        let (view, probes) = told.breaker.unwrap();
        (view.state, view.since.0 - T0, probes, view.reason)
    };
    use BreakerState::{Closed, HalfOpen, Open};
    assert_eq!(hear("a", 0, 0, 19, 9).await.0, Closed, "too few to say");
    assert_eq!(hear("b", 100, 20, 0, 9).await.0, Closed, "just below half");
    let opened = (Open, 9_000, 0, "21 of 41 outcomes within 10 s failed".to_owned());
    assert_eq!(hear("a", 9_000, 0, 2, 9).await, opened);
    assert_eq!(queue::breaker(&space, &owner).await.unwrap().reason, opened.3);
    assert_eq!(hear("b", 38_999, 50, 0, 9).await.0, Open, "what ran meanwhile does not close it");
    // Five may try, over all pods.
    assert_eq!(hear("a", 39_000, 0, 0, 3).await.2, 3);
    assert_eq!(hear("b", 39_010, 0, 0, 3).await.2, 2);
    assert_eq!(hear("a", 39_020, 2, 1, 3).await.2, 0);
    let failed = hear("b", 39_030, 0, 2, 1).await;
    assert_eq!((failed.0, failed.1, &*failed.3), (Open, 39_030, "3 of 5 probes failed"));
    assert_eq!(hear("b", 69_030, 0, 0, 9).await.2, 5);
    // Their pod died: after a while others may try.
    assert_eq!(hear("a", 80_000, 0, 0, 9).await.2, 0);
    assert_eq!(hear("a", 99_030, 0, 0, 9).await, (HalfOpen, 69_030, 5, "3 of 5 probes failed".into()));
    let closed = hear("a", 99_100, 4, 1, 0).await;
    assert_eq!((closed.0, closed.1, &*closed.3), (Closed, 99_100, "4 of 5 probes succeeded"));
    assert_eq!(hear("a", 99_200, 0, 19, 0).await.0, Closed, "it begins anew");
}

/// Whatever pods say, the script answers what the models do.
#[tokio::test]
async fn windows_and_breakers_are_kept_as_their_models_say() {
    use minutehand::model::breaker::Breaker;
    use minutehand::model::window::{Window, Wish};
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    let seed = std::env::var("MINUTEHAND_MODEL_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("MINUTEHAND_MODEL_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..8 {
        let owner = LimitOwner::Queue(name(&format!("q{round}")));
        // A rate and two retry windows, of tiers with other lengths.
        let rates = [(random.u32(1..500), 1_000), (random.u32(1..100), 5_000), (random.u32(1..200), 25_000)]
            .map(|(count, per_ms)| Rate { count, per_ms, burst: None });
        let mut settings: BreakerSettings = "50%:20:2s".parse().unwrap();
        settings.error_percent = random.u8(1..=100);
        settings.min_outcomes = random.u32(1..40);
        let mut windows: [Window; 3] = Default::default();
        let mut now = T0 + round * 1_000_000;
        let mut breaker: Option<Breaker> = None;
        let mut held = [[0u32; 3]; 3];
        for step in 0..250 {
            // Mostly on, sometimes far on, sometimes back.
            now += match random.u8(0..20) {
                0 => random.i64(1_000..40_000),
                1 => -random.i64(0..3_000),
                _ => random.i64(0..60),
            };
            space.inject_now(Some(now));
            let pod = random.usize(0..3);
            let asked: Vec<WindowAsk> = (0..3)
                .map(|at| {
                    let had = held[pod][at];
                    let spent = random.u32(0..=had);
                    let at_ms = now - random.i64(0..200);
                    let said =
                        if spent > 0 { vec![(minutehand::model::UnixMs(at_ms), spent)] } else { vec![] };
                    let kept = random.u32(0..=had - spent);
                    let wanted = random.u32(0..600);
                    WindowAsk { name: format!("w{at}"), rate: rates[at], kept, wanted, spent: said }
                })
                .collect();
            let (good, bad, probes) = (random.u64(0..9), random.u64(0..9), random.u32(0..8));
            let heard = BreakerAsk { settings, succeeded: good, failed: bad, probes_wanted: probes };
            let ask = Ask { windows: asked.clone(), breaker: Some(heard), ..Ask::default() };
            let id = format!("p{pod}");
            let told = queue::allot(&space, &owner, &id, &ask).await.unwrap();
            for at in 0..3 {
                let spent: Vec<(i64, u32)> = asked[at].spent.iter().map(|(ms, many)| (ms.0, *many)).collect();
                let (kept, wanted) = (asked[at].kept, asked[at].wanted);
                let wish = Wish { pod: &id, kept, wanted, spent: &spent };
                let expected = windows[at].ask(now, &rates[at], minutehand::limits::ALLOTMENT_MS, &wish);
                assert_eq!(told.windows[at], expected, "round {round}, step {step}, window {at}");
                held[pod][at] = kept + told.windows[at].0;
            }
            let model = breaker.get_or_insert_with(|| Breaker::new(now));
            let granted = model.hear(now, &settings, good, bad, probes);
            let (view, probes) = told.breaker.unwrap();
            let got = (view.state, view.since.0, view.until.0, probes);
            let expected = (model.state, model.since_ms, model.until_ms, granted);
            assert_eq!(got, expected, "round {round}, step {step}, {settings:?}");
        }
    }
}

// ---- a whole fleet ----

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(40), async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain until {what}");
}

/// A pod on a runtime of its own, so that it can die at any moment.
struct Lone {
    runtime: Option<tokio::runtime::Runtime>,
    stop: CancellationToken,
    done: std::sync::mpsc::Receiver<()>,
}

impl Lone {
    async fn start(bed: &Bed, id: &str) -> Self {
        let namespace = Namespace::new(bed.namespace()).unwrap();
        let (settings, id) = (bed.settings(), id.to_owned());
        let (stop, (tell, done)) = (CancellationToken::new(), std::sync::mpsc::channel());
        let token = stop.clone();
        let runtime = tokio::task::spawn_blocking(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.spawn(async move {
                let store = minutehand::store::Store::connect(settings).await.unwrap();
                let space = Space::open(store, namespace).await.unwrap();
                Pod::new(space, PodSettings { id, ..PodSettings::default() }).run(token).await.unwrap();
                tell.send(()).unwrap();
            });
            runtime
        });
        Self { runtime: Some(runtime.await.unwrap()), stop, done }
    }

    /// It ends between two instructions, as by kill -9.
    fn kill(mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }

    fn stop(mut self) {
        self.stop.cancel();
        self.done.recv_timeout(Duration::from_secs(10)).expect("pods stop in seconds");
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for Lone {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

struct Fleet {
    client: Client,
    pods: Vec<Lone>,
    stop: CancellationToken,
}

impl Fleet {
    async fn start(bed: &Bed, pods: usize) -> Self {
        let namespace = Namespace::new(bed.namespace()).unwrap();
        let space = Space::open_as(bed.store().await.unwrap(), namespace, Birth::default()).await.unwrap();
        let client = Client::new(space);
        let mut own = Vec::new();
        for n in 0..pods {
            own.push(Lone::start(bed, &format!("pod-{n}")).await);
        }
        Self { client, pods: own, stop: CancellationToken::new() }
    }

    fn executor<F, R>(&self, slots: u32, handler: F)
    where
        F: Fn(u32) -> R + Send + Sync + 'static,
        R: Future<Output = bool> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let run = move |task: minutehand::executor::Task, _| {
            let handler = Arc::clone(&handler);
            async move {
                if handler(task.attempt).await { Ok(()) } else { Err(std::io::Error::other("no").into()) }
            }
        };
        let executor =
            Executor::builder(self.client.space().clone()).slots(slots).handle_any(run).build().unwrap();
        tokio::spawn(executor.run(self.stop.child_token()));
    }

    async fn submit(&self, queue: &str, count: usize) -> Vec<TaskId> {
        let tasks = (0..count).map(|_| NewTask { due: Due::Now, ..NewTask::to(name(queue)) }).collect();
        self.client.submit_batch(tasks).await.unwrap().into_iter().map(|answer| answer.unwrap().id).collect()
    }

    async fn limit(&self, queue: &str, limits: LimitSettings) {
        self.client
            .queue_set(&name(queue), |settings| {
                settings.limits = Some(limits.clone());
                Ok(())
            })
            .await
            .unwrap();
    }

    /// When tasks were handed out that were not given back unstarted, in ms by Redis's clock, by fence and pod.
    async fn claims(&self) -> Vec<(i64, u32, String)> {
        use minutehand::model::event::Move;
        let mut tail = self.client.events();
        let (mut out, mut back) = (Vec::new(), HashSet::new());
        loop {
            let events = tail.next().await.unwrap();
            if events.is_empty() {
                break;
            }
            for event in events {
                match event.event {
                    Move::Claimed => out.push((event.at.0, event.fence.unwrap(), event.actor, event.id)),
                    Move::HandedBack => _ = back.insert((event.id, event.fence.unwrap())),
                    _ => {}
                }
            }
        }
        out.sort_unstable();
        out.retain(|(_, fence, _, id)| !back.contains(&(*id, *fence)));
        out.into_iter().map(|(at, fence, actor, _)| (at, fence, actor)).collect()
    }

    fn end(self) {
        self.stop.cancel();
        self.pods.into_iter().for_each(Lone::stop);
    }
}

/// The most within any stretch of so many ms.
fn most_within(times: &[i64], ms: i64) -> usize {
    let mut first = 0;
    (0..times.len())
        .map(|last| {
            while times[last] - times[first] >= ms {
                first += 1;
            }
            last - first + 1
        })
        .max()
        .unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_holds_over_three_pods_and_eight_buckets_and_outlives_a_dead_pod() {
    let bed = Bed::shared().await.unwrap();
    let mut fleet = Fleet::start(&bed, 3).await;
    fleet
        .limit("push", LimitSettings { rate: Some("500/s".parse().unwrap()), ..LimitSettings::default() })
        .await;
    fleet.executor(200, |_| std::future::ready(true));
    fleet.submit("warm", 30).await;
    until("the fleet works", async || fleet.client.counts().await.unwrap().0.succeeded == 30).await;
    fleet.submit("push", 4_000).await;
    until("half is done", async || fleet.client.counts().await.unwrap().0.succeeded > 2_000).await;
    // It dies with what it was allotted.
    fleet.pods.remove(0).kill();
    until("all is done", async || fleet.client.counts().await.unwrap().0.succeeded == 4_030).await;
    let claims = fleet.claims().await;
    let warm = 30;
    let times: Vec<i64> = claims.iter().map(|(at, ..)| *at).collect();
    let times = &times[warm..];
    let most = most_within(times, 1_000);
    assert!(most <= 500, "{most} within a second");
    // While all three lived: from the first to the two thousandth.
    let rate = 1_999.0 * 1_000.0 / (times[1_999] - times[0]) as f64;
    let whole = times.len() as f64 * 1_000.0 / (times[times.len() - 1] - times[0]) as f64;
    let mut by_pod: BTreeMap<&str, u32> = BTreeMap::new();
    claims[warm..].iter().for_each(|(_, _, pod)| *by_pod.entry(pod).or_default() += 1);
    println!(
        "rate {rate:.0}/s with three pods, {whole:.0}/s in all, at most {most} in a second, by pod {by_pod:?}"
    );
    assert!((475.0..=526.0).contains(&rate), "{rate}");
    assert_eq!(by_pod.len(), 3, "{by_pod:?}");
    fleet.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_run_at_once_than_a_downstream_allows() {
    let bed = Bed::shared().await.unwrap();
    let fleet = Fleet::start(&bed, 3).await;
    let apns = DownstreamName::new("apns").unwrap();
    for queue in ["push", "badge"] {
        let change = |settings: &mut QueueSettings| {
            settings.downstream = Some(apns.clone());
            Ok(())
        };
        fleet.client.queue_set(&name(queue), change).await.unwrap();
    }
    fleet
        .client
        .downstream_set(&apns, |settings| {
            settings.limits.running = Some(5);
            Ok(())
        })
        .await
        .unwrap();
    let running: Arc<Mutex<(i32, i32)>> = Arc::default();
    let count = Arc::clone(&running);
    fleet.executor(100, move |_| {
        let count = Arc::clone(&count);
        async move {
            {
                let mut count = count.lock();
                count.0 += 1;
                count.1 = count.1.max(count.0);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            count.lock().0 -= 1;
            true
        }
    });
    fleet.submit("push", 60).await;
    fleet.submit("badge", 60).await;
    until("all is done", async || fleet.client.counts().await.unwrap().0.succeeded == 120).await;
    let most = running.lock().1;
    println!("at most {most} ran at once");
    assert!((2..=5).contains(&most), "{most} ran at once");
    fleet.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_retries_is_spread() {
    let bed = Bed::shared().await.unwrap();
    let fleet = Fleet::start(&bed, 3).await;
    let window = Rate { count: 1_000, per_ms: 2_000, burst: None };
    fleet.limit("push", LimitSettings { retry_windows: vec![window], ..LimitSettings::default() }).await;
    fleet
        .client
        .queue_set(&name("push"), |settings| {
            settings.retry = Some(TryDefaults { retries: Some(3), backoff: Some("fixed:500ms".into()) });
            Ok(())
        })
        .await
        .unwrap();
    // All fail at once: nothing comes back before the last has failed.
    fleet.executor(500, |attempt| std::future::ready(attempt > 1));
    fleet.submit("push", 3_000).await;
    until("all have come back", async || fleet.client.counts().await.unwrap().0.succeeded == 3_000).await;
    let second: Vec<i64> =
        fleet.claims().await.into_iter().filter(|(_, fence, _)| *fence > 1).map(|(at, ..)| at).collect();
    assert_eq!(second.len(), 3_000);
    let most = most_within(&second, 2_000);
    assert!(most <= 1_000, "{most} within two seconds");
    let seconds = (second[2_999] - second[0]) as f64 / 1_000.0;
    // Any second, wherever it begins, against the mean over the whole of the wave.
    let (largest, mean) = (most_within(&second, 1_000) as f64, 3_000.0 / seconds);
    println!("second wave: {seconds:.1} s, largest second {largest}, mean {mean:.0}, at most {most} in 2 s");
    assert!(largest <= 3.0 * mean, "{largest} in a second, {mean:.0} in the mean");
    assert!(seconds < 7.5, "{seconds} s for what may take 6");
    fleet.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_breaker_holds_what_failed_and_says_so() {
    let bed = Bed::shared().await.unwrap();
    let fleet = Fleet::start(&bed, 2).await;
    let breaker = Some("50%:20:1s:fresh".parse().unwrap());
    fleet.limit("push", LimitSettings { breaker, ..LimitSettings::default() }).await;
    let sound = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let switch = Arc::clone(&sound);
    fleet.executor(20, move |_| std::future::ready(switch.load(std::sync::atomic::Ordering::SeqCst)));
    fleet.submit("push", 60).await;
    let open = async || {
        let breakers = fleet.client.status().await.unwrap().breakers;
        breakers.iter().any(|breaker| breaker.state == BreakerState::Open)
    };
    until("the breaker opens", open).await;
    let id = fleet.submit("push", 1).await[0];
    // A pod that has not heard of it yet may take it once.
    let why = async || fleet.client.get(id).await.unwrap().unwrap().held.unwrap_or_default();
    until("it is held", async || !why().await.is_empty()).await;
    let view = fleet.client.get(id).await.unwrap().unwrap();
    let held = view.held.unwrap_or_default();
    assert_eq!((view.state, view.view), (State::Pending, "held"), "{held}");
    assert!(held.starts_with("breaker of queue push ") && held.contains("failed"), "{held}");
    // Others are not held up.
    let mail = minutehand::clock::mono();
    sound.store(true, std::sync::atomic::Ordering::SeqCst);
    fleet.submit("mail", 20).await;
    until("mail goes", async || fleet.client.counts().await.unwrap().0.succeeded >= 20).await;
    println!("mail took {:?}", mail.elapsed());
    until("all have come back", async || fleet.client.counts().await.unwrap().0.succeeded == 81).await;
    let closed = fleet.client.status().await.unwrap().breakers;
    assert_eq!(closed[0].state, BreakerState::Closed, "{closed:?}");

    // By hand: at once, whatever happens.
    let owner = LimitOwner::Queue(name("push"));
    let (changed, behind) = fleet.client.force_breaker(&owner, Some(true), "op", "apns moves").await.unwrap();
    assert!(changed && behind.is_empty());
    let id = fleet.submit("push", 1).await[0];
    let held = fleet.client.get(id).await.unwrap().unwrap().held.unwrap();
    assert!(
        held.starts_with("breaker of queue push open by hand since 2")
            && held.ends_with(" by op: apns moves"),
        "{held}"
    );
    fleet.submit("mail", 1).await;
    until("mail goes on", async || fleet.client.counts().await.unwrap().0.succeeded == 82).await;
    fleet.client.force_breaker(&owner, None, "op", "").await.unwrap();
    until("it goes on", async || fleet.client.counts().await.unwrap().0.succeeded == 83).await;
    fleet.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_off_and_maintenance_hold_and_let_go() {
    let bed = Bed::shared().await.unwrap();
    let fleet = Fleet::start(&bed, 1).await;
    fleet
        .client
        .queue_set(&name("push"), |settings| {
            settings.retry = Some(TryDefaults { retries: Some(3), backoff: Some("fixed:10ms".into()) });
            Ok(())
        })
        .await
        .unwrap();
    fleet.executor(20, |attempt| std::future::ready(attempt > 1));
    let change = fleet.client.set_retries(false, "op", "storm").await.unwrap();
    assert!(change.changed && change.pods_behind.is_empty());
    let ids = fleet.submit("push", 5).await;
    let held = async |id: &TaskId| fleet.client.get(*id).await.unwrap().unwrap().held.unwrap_or_default();
    until("they have failed", async || held(&ids[0]).await.starts_with("no retries now since 2")).await;
    assert!(fleet.client.status().await.unwrap().no_retries.unwrap().ends_with("by op: storm"));
    let always: Maintenance = "00:00-00:00".parse().unwrap();
    let change = |settings: &mut QueueSettings| {
        settings.maintenance = vec![always.clone()];
        Ok(())
    };
    fleet.client.queue_set(&name("mail"), change).await.unwrap();
    let id = fleet.submit("mail", 1).await[0];
    let why = "queue mail is in maintenance until 2";
    until("mail is held", async || held(&id).await.starts_with(why)).await;
    assert_eq!(fleet.client.counts().await.unwrap().0.succeeded, 0);
    fleet.client.set_retries(true, "op", "").await.unwrap();
    until("they go on", async || fleet.client.counts().await.unwrap().0.succeeded == 5).await;
    let none = |settings: &mut QueueSettings| {
        settings.maintenance.clear();
        Ok(())
    };
    fleet.client.queue_set(&name("mail"), none).await.unwrap();
    until("mail goes on", async || fleet.client.counts().await.unwrap().0.succeeded == 6).await;
    fleet.end();
}
