//! Ends of tasks told to who wants to hear: put into outboxes, carried to receivers that fail, fetched and confirmed.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use minutehand::client::{Client, ClientError, Due, NewTask};
use minutehand::executor::{Executor, HandlerError};
use minutehand::limits;
use minutehand::model::outcome::{Outcome as Ended, Place};
use minutehand::model::spec::Extras;
use minutehand::model::{
    Key, Namespace, Priority, QueueName, Spec, State, Subscription, SubscriptionName, UnixMs,
};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::run::{self, Outcome};
use minutehand::store::{At, Birth, Space, bucket as buckets, intake, outcome};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use minutehand::webhook::{Allowed, Keys, SenderSettings};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

fn name(text: &str) -> SubscriptionName {
    SubscriptionName::new(text).unwrap()
}

fn told() -> Extras {
    Extras { notify: Some(String::new()), ..Extras::default() }
}

async fn outbox(space: &Space, reader: &str) -> Vec<Ended> {
    let stretch = outcome::read(space, bucket(), &name(reader), None, None).await.unwrap();
    stretch.entries.into_iter().map(|(_, outcome)| outcome.unwrap()).collect()
}

#[tokio::test]
async fn every_end_is_announced_of_those_of_whom_somebody_wants_to_hear_and_of_no_others() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "mail", Priority::P3).await;
    let announced = |due: i64| Spec { extras: told(), ..spec(lane, T0 + due) };
    let done = row(announced(1_000));
    let keyed = row(Spec { key: Some(Key::new("k", 60_000).unwrap()), ..announced(1_000) });
    let fatal = row(announced(1_000));
    let stopped = row(announced(1_000));
    let quiet = row(spec(lane, T0 + 1_000));
    let failing = row(Spec { retry: spec(lane, 0).retry.with_retries(0).unwrap(), ..announced(1_000) });
    let cancelled = row(announced(60_000));
    let expired = row(Spec { deadline: Some(UnixMs(T0 + 2_000)), ..announced(600_000) });
    let late = row(Spec { start_before: Some(UnixMs(T0 + 3_500)), ..announced(3_000) });
    let all = [&done, &keyed, &fatal, &stopped, &quiet, &failing, &cancelled, &expired, &late];
    submit(&space, &all.map(Clone::clone)).await;
    space.inject_now(Some(T0 + 1_000));
    let granted = claim(&space, &claim_all("p")).await.tasks;
    assert_eq!(granted.len(), 6);
    let of = |row: &intake::Row| granted.iter().find(|task| task.id == row.id).unwrap();
    intake::cancel(&space, bucket(), "me", "no more", &[stopped.id, cancelled.id]).await.unwrap();
    // All with one call, so that those who are told and those who are not meet in one script.
    let rows = [
        ack_row(of(&done), Outcome::Succeeded),
        ack_row(of(&keyed), Outcome::Succeeded),
        ack_row(of(&fatal), Outcome::Fatal { error: "no such address".into() }),
        ack_row(of(&stopped), Outcome::Succeeded),
        ack_row(of(&quiet), Outcome::Succeeded),
    ];
    run::ack(&space, bucket(), "ex", &rows, false).await.unwrap();
    // The last one is started and then never heard of again.
    let started = run::StartRow { id: failing.id, grant: of(&failing).grant, lease_ms: 1_000 };
    run::start(&space, bucket(), "ex", &[started]).await.unwrap();
    space.inject_now(Some(T0 + 5_000));
    assert!(claim(&space, &claim_all("p")).await.tasks.is_empty());

    let found: BTreeMap<_, _> = outbox(&space, "s").await.into_iter().map(|o| (o.task, o)).collect();
    let seen = |row: &intake::Row| {
        let outcome = &found[&row.id];
        (outcome.state, outcome.attempt, outcome.reason.as_str())
    };
    assert_eq!(seen(&done), (State::Succeeded, 1, ""));
    assert_eq!(seen(&keyed), (State::Succeeded, 1, ""));
    assert_eq!(seen(&fatal), (State::Dead, 1, "fatal: no such address"));
    assert_eq!((seen(&stopped).0, seen(&stopped).1), (State::Cancelled, 1));
    let lapsed = "lease_expired: lease lapsed: ex neither renewed nor answered";
    assert_eq!(seen(&failing), (State::Dead, 1, lapsed));
    assert_eq!(seen(&cancelled), (State::Cancelled, 0, "no more"));
    assert_eq!(seen(&expired), (State::Expired, 0, "its total time-out passed"));
    assert_eq!(seen(&late), (State::Skipped, 0, "too late to start"));
    assert_eq!(found.len(), 8, "nobody asked for the other one");
    let outcome = &found[&keyed.id];
    assert_eq!(
        (outcome.queue.as_str(), outcome.key.as_deref(), outcome.plan.as_deref()),
        ("mail", Some("k"), None)
    );
    let report = check(&space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{:?}", report.violations);

    // A repeated ack announces nothing twice.
    run::ack(&space, bucket(), "ex", &rows, true).await.unwrap();
    assert_eq!(outbox(&space, "s").await.len(), 8);
}

/// Ends as many announced tasks.
async fn end(space: &Space, queue: &str, count: usize) {
    let lane = lane(space, queue, Priority::P3).await;
    // The estimate runs on beside a time that is injected: what falls due at its `now` may not be due yet.
    let due = space.clock().now_ms() - 1_000;
    let rows: Vec<_> = (0..count).map(|_| row(Spec { extras: told(), ..spec(lane, due) })).collect();
    submit(space, &rows).await;
    let granted = claim(space, &claim_all("p")).await.tasks;
    assert_eq!(granted.len(), count);
    ack_done(space, &granted).await;
}

#[tokio::test]
async fn an_outbox_has_one_carrier_and_its_readers_only_go_forward() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let names = [name("a"), name("b")];
    let take = async |pod: &str, lease_ms: i64| {
        outcome::take(&space, bucket(), pod, lease_ms, &names).await.unwrap()
    };
    // Nothing lies there: nobody takes a lease, nothing is written.
    assert!(take("p1", 3_000).await.ours && take("p2", 3_000).await.ours);
    end(&space, "mail", 3).await;
    let taken = take("p1", 3_000).await;
    assert_eq!((taken.ours, taken.entries, taken.places.len()), (true, 3, 2));
    assert_eq!(taken.places, [Place::default(), Place::default()]);
    assert!(!take("p2", 3_000).await.ours);

    let entries: Vec<_> = outcome::read(&space, bucket(), &names[0], None, None).await.unwrap().entries;
    let at = |n: usize| entries[n].0;
    let place = |done, planned| Place { done, planned, ..Place::default() };
    let pass = async |pod: Option<&str>, reader: usize, place: Place| {
        outcome::pass(&space, bucket(), pod, &names[reader], &place).await.unwrap()
    };
    // Only who has the turn plans; who got something says so whoever it is.
    assert!(!pass(Some("p2"), 0, place((0, 0), at(1))).await);
    assert!(pass(Some("p1"), 0, place((0, 0), at(1))).await);
    let planned = outcome::read(&space, bucket(), &names[0], None, None).await.unwrap();
    assert_eq!((planned.place, planned.entries.len()), (place((0, 0), at(1)), 3));
    assert!(pass(None, 0, place(at(1), at(1))).await);
    assert!(!pass(None, 0, place(at(0), at(0))).await, "it does not go back");
    assert!(pass(None, 0, place(at(1), at(1))).await, "said again");
    let rest = outcome::read(&space, bucket(), &names[0], None, None).await.unwrap();
    assert_eq!(rest.entries.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [at(2)]);
    // What one has not got stays for it.
    assert_eq!(take("p1", 3_000).await.entries, 3);
    assert!(pass(None, 1, place(at(0), at(0))).await);
    let taken = take("p1", 3_000).await;
    assert_eq!((taken.entries, taken.last, taken.places[1].done), (2, Some(at(2)), at(0)));

    // After its time, or let go, another one carries.
    space.inject_now(Some(T0 + 3_000));
    assert!(take("p2", 3_000).await.ours && !take("p1", 3_000).await.ours);
    assert!(!take("p2", 0).await.ours && take("p1", 3_000).await.ours);

    // A subscription that has gone holds up nobody; with the last one all goes.
    let one = outcome::take(&space, bucket(), "p1", 3_000, &names[..1]).await.unwrap();
    assert_eq!(one.entries, 1);
    let none = outcome::take(&space, bucket(), "p1", 3_000, &[]).await.unwrap();
    assert_eq!((none.ours, none.entries), (true, 0));
    end(&space, "mail", 1).await;
    let fresh = take("p1", 3_000).await;
    assert_eq!((fresh.entries, fresh.places), (1, vec![Place::default(); 2]));

    // A closed bucket waits for it, but not for ever.
    let spread = space.refresh_spread().await.unwrap();
    assert_eq!((spread.buckets, spread.closing.len()), (1, 0));
    buckets::mark(&space, bucket(), true).await.unwrap();
    let vanished = buckets::vanish(&space, bucket(), 0).await.unwrap();
    assert_eq!(vanished, buckets::Vanished::Holds("outbox".to_owned()));
    let report = check(&space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{:?}", report.violations);
}

#[tokio::test]
async fn an_outbox_that_nobody_reads_loses_its_oldest_and_says_how_many() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    end(&space, "mail", 1).await;
    let key = space.guard(bucket()).key("outbox");
    let fill = "local e = redis.call('XRANGE', KEYS[1], '-', '+')[1][2][2]
        for i = 2, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], '*', 'o', e) end";
    let rows = limits::OUTBOX_MAX_ROWS.to_string();
    let args = vec![fill.into(), "1".into(), key.clone(), rows.into()];
    space.store().command("EVAL", At::Key(&key), args).await.unwrap();
    let stretch = outcome::read(&space, bucket(), &name("s"), None, None).await.unwrap();
    assert_eq!((stretch.cut, stretch.lost(UnixMs(0)), stretch.entries.len()), (0, 0, 500));
    space.inject_now(Some(T0 + 1_000));
    end(&space, "mail", 3).await;
    let stretch = outcome::read(&space, bucket(), &name("s"), None, None).await.unwrap();
    assert_eq!((stretch.cut, stretch.lost(UnixMs(0))), (3, 3));
    let len = space.store().command("XLEN", At::Key(&key), vec![key.clone()]).await.unwrap();
    assert_eq!(len.int("XLEN").unwrap(), limits::OUTBOX_MAX_ROWS as i64);
    assert_eq!(
        stretch.lost(UnixMs(stretch.cut_at.0 as i64 + 1)),
        0,
        "it went before somebody wanted to hear"
    );
    // One that had got what was cut off has lost nothing; one that was told is not told again.
    let before = Place { done: stretch.cut_at, ..Place::default() };
    assert!(outcome::pass(&space, bucket(), None, &name("s"), &before).await.unwrap());
    assert_eq!(outcome::read(&space, bucket(), &name("s"), None, None).await.unwrap().lost(UnixMs(0)), 0);
}

/// A pod, an executor and a client on a namespace of their own.
struct House {
    client: Client,
    space: Space,
    running: Vec<tokio::task::JoinHandle<()>>,
    stop: CancellationToken,
    _end: DropGuard,
    _bed: Bed,
}

impl House {
    async fn new(buckets: u16, webhook: SenderSettings) -> Self {
        let bed = Bed::shared().await.unwrap();
        let namespace = Namespace::new(bed.namespace()).unwrap();
        let birth = Birth { key_buckets: buckets, buckets, holders: 1 };
        let space = Space::open_as(bed.store().await.unwrap(), namespace, birth).await.unwrap();
        let stop = CancellationToken::new();
        let pod = Pod::new(space.clone(), PodSettings { webhook, ..PodSettings::default() });
        let executor = Executor::builder(space.clone())
            .handle("good", |_, _| async { Ok(()) })
            .handle("bad", |_, _| async { Err(HandlerError::fatal("no")) })
            .build()
            .unwrap();
        let (at_pod, at_executor) = (stop.clone(), stop.clone());
        let running = vec![
            tokio::spawn(async move { pod.run(at_pod).await.unwrap() }),
            tokio::spawn(async move {
                executor.run(at_executor).await.unwrap();
            }),
        ];
        let client = Client::new(space.clone());
        Self { client, space, running, stop: stop.clone(), _end: stop.drop_guard(), _bed: bed }
    }

    async fn submit(&self, queue: &str, count: usize) -> BTreeSet<String> {
        let task = || NewTask::to(QueueName::new(queue).unwrap());
        let done = self.client.submit_batch((0..count).map(|_| task()).collect()).await.unwrap();
        done.into_iter().map(|answer| answer.unwrap().id.to_string()).collect()
    }

    async fn subscribe(&self, reader: &str, queue: &str, url: Option<&str>) {
        let wish = Subscription {
            queue: Some(queue.into()),
            url: url.map(str::to_owned),
            by: "test".into(),
            ..Subscription::default()
        };
        self.client.subscribe(&name(reader), wish, None).await.unwrap();
    }

    async fn until(&self, what: &str, holds: impl AsyncFn(&Client) -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(30), async {
            while !holds(&self.client).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        assert!(waited.await.is_ok(), "waited in vain until {what}");
    }

    async fn end(self) {
        self.stop.cancel();
        for one in self.running {
            one.await.unwrap();
        }
        let report = check(&self.space, CheckOptions::default()).await.unwrap();
        assert!(report.ok, "{:?}", report.violations);
    }
}

type Seen = mpsc::UnboundedReceiver<(HeaderMap, Bytes, u16)>;

/// A receiver that answers what it is told to, by the number of the request from 0; status 0: never.
async fn receiver(answer: impl Fn(usize) -> Response + Send + Sync + 'static) -> (String, Seen) {
    let (seen, see) = mpsc::unbounded_channel();
    let (answer, number) = (Arc::new(answer), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let handler = move |headers: HeaderMap, body: Bytes| {
        let (answer, seen, number) = (Arc::clone(&answer), seen.clone(), Arc::clone(&number));
        async move {
            let n = number.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let answer = answer(n);
            let slow = answer.headers().get("x-slow").and_then(|v| v.to_str().ok()?.parse().ok());
            let _ = seen.send((headers, body, answer.status().as_u16()));
            tokio::time::sleep(Duration::from_millis(slow.unwrap_or(0))).await;
            answer
        }
    };
    let router = axum::Router::new().route("/done", axum::routing::post(handler));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/done", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, see)
}

fn sender() -> SenderSettings {
    let key = minutehand::webhook::Key::new(b"a secret of 24 bytes....").unwrap();
    SenderSettings {
        timeout: Duration::from_millis(500),
        keys: Keys::new([key]).unwrap(),
        allowed: Allowed::All,
        ..SenderSettings::default()
    }
}

fn header(headers: &HeaderMap, name: &str) -> String {
    headers[name].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_fails_gets_all_in_the_end_and_the_same_under_the_same_name() {
    let house = House::new(1, sender()).await;
    let (url, mut seen) = receiver(|n| match n {
        0 => (StatusCode::OK, [("x-slow", "60000")], "").into_response(),
        1 => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")], "").into_response(),
        2 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        _ => (StatusCode::NO_CONTENT, [("x-slow", "50")]).into_response(),
    })
    .await;
    house.subscribe("s", "good", Some(&url)).await;
    let mut wanted = house.submit("good", 150).await;
    house.submit("bad", 5).await;
    let mut bodies: BTreeMap<String, (Bytes, Vec<u16>)> = BTreeMap::new();
    let mut names = BTreeSet::new();
    while !wanted.is_empty() {
        let next = tokio::time::timeout(Duration::from_secs(30), seen.recv()).await;
        let (headers, body, status) = next.expect("outcomes do not come").unwrap();
        let (id, at) = (header(&headers, "webhook-id"), header(&headers, "webhook-timestamp"));
        let at: i64 = at.parse().unwrap();
        assert!(sender().keys.verify(&id, at, &body, &header(&headers, "webhook-signature"), at, 0));
        assert_eq!(
            (header(&headers, "idempotency-key"), headers["content-type"].as_bytes()),
            (id.clone(), &b"application/json"[..])
        );
        let (first, statuses) = bodies.entry(id.clone()).or_insert_with(|| (body.clone(), Vec::new()));
        assert_eq!(*first, body, "a delivery says the same each time");
        statuses.push(status);
        let told: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&told["subscription"], &told["delivery"], told.get("missed")),
            (&"s".into(), &id.as_str().into(), None)
        );
        let outcomes: Vec<Ended> = serde_json::from_value(told["outcomes"].clone()).unwrap();
        assert!(!outcomes.is_empty() && outcomes.len() <= limits::OUTCOME_BATCH_MAX_ROWS);
        for outcome in outcomes {
            assert_eq!((outcome.state, outcome.queue.as_str()), (State::Succeeded, "good"));
            names.insert(outcome.delivery);
            if status == 204 {
                assert!(wanted.remove(outcome.task.as_str()), "{} comes twice", outcome.task);
            }
        }
    }
    assert_eq!(names.len(), 150);
    // The first one was tried until it arrived: no answer, told to wait, not now, there.
    let tries: Vec<_> = bodies.values().filter(|(_, statuses)| statuses.len() > 1).collect();
    assert_eq!(
        tries.iter().map(|(_, statuses)| statuses.clone()).collect::<Vec<_>>(),
        [[200, 429, 503, 204]]
    );
    house
        .until("all is passed", async |client| {
            client.subscription_behind(&name("s")).await.unwrap().waiting == 0
        })
        .await;
    house.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_receiver_holds_up_neither_tasks_nor_another_receiver() {
    let house = House::new(2, sender()).await;
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = format!("http://{}/done", gone.local_addr().unwrap());
    drop(gone);
    let (url, mut seen) = receiver(|_| StatusCode::OK.into_response()).await;
    house.subscribe("dead", "good", Some(&dead)).await;
    house.subscribe("alive", "good", Some(&url)).await;
    house.subscribe("inner", "bad", Some("http://10.0.0.1/")).await;
    let mut wanted = house.submit("good", 300).await;
    house
        .until("all tasks have ended", async |client| client.counts().await.unwrap().0.succeeded == 300)
        .await;
    while !wanted.is_empty() {
        let next = tokio::time::timeout(Duration::from_secs(30), seen.recv()).await;
        let (_, body, _) = next.expect("outcomes do not come").unwrap();
        let told: Value = serde_json::from_slice(&body).unwrap();
        for outcome in told["outcomes"].as_array().unwrap() {
            assert!(wanted.remove(outcome["task"].as_str().unwrap()));
        }
    }
    let dead = house.client.subscription_behind(&name("dead")).await.unwrap();
    assert_eq!((dead.waiting, dead.missed), (300, 0), "they wait for it");
    // Why, the pod says with its next heartbeat.
    house
        .until("it is known why", async |client| {
            client.subscription_behind(&name("dead")).await.unwrap().why.is_some()
        })
        .await;
    let dead = house.client.subscription_behind(&name("dead")).await.unwrap();
    assert!(dead.tries >= 1 && dead.why.as_deref().unwrap().contains("refused"), "{dead:?}");
    let alive = house.client.subscription_behind(&name("alive")).await.unwrap();
    assert_eq!((alive.tries, alive.why), (0, None));
    // Taken away, it holds nothing any more.
    assert!(house.client.unsubscribe(&name("dead")).await.unwrap());
    assert!(!house.client.unsubscribe(&name("dead")).await.unwrap());
    let outboxes = || async {
        let mut left = 0;
        for number in 0..2 {
            let bucket = minutehand::model::Bucket::new(number).unwrap();
            let key = house.space.guard(bucket).key("outbox");
            let len = house.space.store().command("XLEN", At::Key(&key), vec![key.clone()]).await;
            left += len.unwrap().int("XLEN").unwrap();
        }
        left
    };
    house
        .until("outboxes are empty", async |_| {
            // Subscriptions that hear of nothing pass it all the same.
            outboxes().await == 0
        })
        .await;
    house.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_fetched_and_not_confirmed_comes_again() {
    let house = House::new(4, sender()).await;
    let client = &house.client;
    house.subscribe("s", "bad", None).await;
    let wanted = house.submit("bad", 40).await;
    house.submit("good", 10).await;
    let fetch = async |confirm: bool| {
        let (mut stream, mut names) = (client.outcomes(&name("s")).await.unwrap(), BTreeMap::new());
        while names.len() < wanted.len() {
            let batch = tokio::time::timeout(Duration::from_secs(30), async {
                if confirm { stream.next().await.unwrap() } else { stream.look().await.unwrap() }
            });
            let batch = batch.await.expect("outcomes do not come");
            assert_eq!(batch.missed, 0);
            for outcome in batch.outcomes {
                assert_eq!((outcome.state, outcome.reason.as_str()), (State::Dead, "fatal: no"));
                assert!(
                    names.insert(outcome.delivery, outcome.task.to_string()).is_none(),
                    "twice in one stream"
                );
            }
        }
        (stream, names)
    };
    let (_, first) = fetch(false).await;
    let (mut stream, again) = fetch(true).await;
    assert_eq!(again, first, "the same, under the same names");
    assert_eq!(first.into_values().collect::<BTreeSet<_>>(), wanted);
    stream.confirm().await.unwrap();
    let mut next = client.outcomes(&name("s")).await.unwrap();
    assert_eq!(next.look().await.unwrap().outcomes, []);
    house.subscribe("web", "bad", Some("http://127.0.0.1:1/")).await;
    let refused = client.outcomes(&name("web")).await.unwrap_err();
    assert!(matches!(refused, ClientError::Field(error) if error.field == "subscription"));
    assert!(client.outcomes(&name("none")).await.is_err());
    house.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_names_who_hears_of_it_when_it_is_submitted_or_later() {
    let house = House::new(1, sender()).await;
    let client = &house.client;
    let (url, mut seen) = receiver(|_| StatusCode::OK.into_response()).await;
    let task = |notify: &str, due| NewTask {
        due,
        extras: Extras { notify: Some(notify.to_owned()), ..Extras::default() },
        ..NewTask::to(QueueName::new("good").unwrap())
    };
    let field = async |notify: &str| match client.submit(task(notify, Due::Now)).await {
        Err(ClientError::Field(error)) => (error.field, error.reason.code()),
        other => panic!("{other:?}"),
    };
    assert_eq!(field("nobody").await, ("notify", "unknown"));
    assert_eq!(field("a b").await, ("notify", "bad_name"));
    assert_eq!(field("ftp://x/").await, ("notify", "invalid_type"));
    let own = client.submit(task(&url, Due::Now)).await.unwrap().id;
    // One that stands already is named.
    let plain = NewTask { due: Due::In(3_600_000), ..NewTask::to(QueueName::new("good").unwrap()) };
    let other = client.submit(plain.clone()).await.unwrap().id;
    let unheard = client.submit(plain).await.unwrap().id;
    let wish = Subscription {
        task: Some(other),
        url: Some(url.clone()),
        by: "me".into(),
        ..Subscription::default()
    };
    let made = client.subscribe(&name("one"), wish.clone(), Some(0)).await.unwrap();
    let conflict =
        client.subscribe(&name("one"), Subscription { key: Some("k".into()), ..wish.clone() }, Some(0)).await;
    assert!(matches!(conflict, Err(ClientError::Conflict { stands, .. }) if stands == made.version));
    assert_eq!(client.subscribe(&name("one"), wish, None).await.unwrap(), made, "said again");
    for id in [other, unheard] {
        client.cancel(id, "me", "no more").await.unwrap();
    }
    let mut heard = BTreeMap::new();
    while heard.len() < 2 {
        let next = tokio::time::timeout(Duration::from_secs(30), seen.recv()).await;
        let (_, body, _) = next.expect("outcomes do not come").unwrap();
        let told: Value = serde_json::from_slice(&body).unwrap();
        for outcome in told["outcomes"].as_array().unwrap() {
            let by = told["subscription"].as_str().unwrap().to_owned();
            heard.insert(outcome["task"].as_str().unwrap().to_owned(), (by, outcome["state"].clone()));
        }
    }
    let by_address = SubscriptionName::of_address(&url).to_string();
    let expected = BTreeMap::from([
        (own.to_string(), (by_address.clone(), "succeeded".into())),
        (other.to_string(), ("one".to_owned(), "cancelled".into())),
    ]);
    assert_eq!(heard, expected);
    let names: Vec<_> = client.subscriptions().await.unwrap().into_iter().map(|view| view.name).collect();
    assert_eq!(names, ["one".to_owned(), by_address]);
    // Of one that has ended nobody can hear any more, and no subscription is left of the try.
    let wish = Subscription { task: Some(other), ..Subscription::default() };
    assert!(matches!(client.subscribe(&name("late"), wish, None).await, Err(ClientError::WrongState { .. })));
    assert_eq!(client.subscription(&name("late")).await.unwrap(), None);
    house.end().await;
}
