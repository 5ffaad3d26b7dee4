//! A pod with the executor beside it: broadcasts, and tasks that name a web address.

use crate::executor::{NEVER, Town, start, task};
use axum::http::{HeaderMap, StatusCode};
use minutehand::client::NewTask;
use minutehand::embed::house::House;
use minutehand::executor::{HandlerError, WebhookSettings};
use minutehand::model::queue::Routing;
use minutehand::model::spec::Extras;
use minutehand::model::{QueueName, Retry, State};
use minutehand::store::member;
use minutehand::store::run::{self, AckAnswer, AckRow, Outcome};
use minutehand::testing::bed::Bed;
use minutehand::webhook::{Allowed, SenderSettings};
use std::collections::BTreeSet;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// An executor beside the town's pod; it may call this machine.
async fn house(town: &Town, bed: &Bed) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let space = minutehand::store::Space::open(bed.store().await.unwrap(), town.space.namespace().clone());
    let sender =
        SenderSettings { allowed: Allowed::read("127.0.0.0/8").unwrap(), ..SenderSettings::default() };
    let settings = WebhookSettings { sender, ..WebhookSettings::default() };
    let house = House::new(space.await.unwrap(), "house", settings).unwrap();
    let stop = CancellationToken::new();
    let halt = stop.clone();
    let running = tokio::spawn(async move {
        let _ = house.run(halt).await.unwrap();
    });
    let there = async { while member::roll(&town.space).await.unwrap().live.is_empty() {} };
    tokio::time::timeout(NEVER, there).await.unwrap();
    (stop, running)
}

async fn by_broadcast(town: &Town) {
    let set = |settings: &mut minutehand::model::QueueSettings| {
        settings.routing = Some(Routing("broadcast".to_owned()));
        Ok(())
    };
    town.client.queue_set(&QueueName::new("q").unwrap(), set).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broadcast_runs_once_on_every_executor_and_is_done_when_all_are() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    by_broadcast(&town).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut running = Vec::new();
    for name in ["a", "b", "c"] {
        let tell = tell.clone();
        let builder = town.executor(&bed).await.name(name).handle("q", move |task, ctx| {
            let _ = tell.send((task.extras.part.clone().unwrap(), ctx.executor().to_owned(), task.payload));
            async { Ok(()) }
        });
        running.push(start(builder));
    }
    let (stop, house) = house(&town, &bed).await;
    let there = async { while member::executors(&town.space).await.unwrap().len() < 3 {} };
    tokio::time::timeout(NEVER, there).await.unwrap();
    let id = town.submit(task("q")).await;
    town.until(id, State::Succeeded).await;
    let (mut parts, mut at) = (BTreeSet::new(), BTreeSet::new());
    while let Ok((part, executor, payload)) = told.try_recv() {
        assert_eq!((part.of.as_str(), part.total, &part.to), (id.as_str(), 3, &executor));
        assert_eq!(payload, "hello");
        assert!(parts.insert(part.index) && at.insert(executor));
    }
    assert_eq!(parts, BTreeSet::from([0, 1, 2]));
    assert_eq!(at, running.iter().map(|one| one.id.clone()).collect());
    // The executor beside the pod is no executor of the queue, and is not counted among them.
    assert_eq!(town.client.executor_views().await.unwrap().len(), 4);
    for one in running {
        one.end().await;
    }
    stop.cancel();
    house.await.unwrap();
    town.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broadcast_that_fails_on_one_executor_says_where() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    by_broadcast(&town).await;
    let good = start(town.executor(&bed).await.name("good").handle("q", |_, _| async { Ok(()) }));
    let bad = town.executor(&bed).await.name("bad");
    let bad = start(bad.handle("q", |_, _| async { Err(HandlerError::fatal("no room on the disk")) }));
    let (stop, house) = house(&town, &bed).await;
    let there = async { while member::executors(&town.space).await.unwrap().len() < 2 {} };
    tokio::time::timeout(NEVER, there).await.unwrap();
    let id = town.submit(NewTask { retries: Some(0), ..task("q") }).await;
    town.until(id, State::Dead).await;
    let view = town.client.get(id).await.unwrap().unwrap();
    let error = &view.attempts[0].error;
    assert_eq!(*error, format!("1 of 2 executors failed: {}", bad.id));
    good.end().await;
    bad.end().await;
    stop.cancel();
    house.await.unwrap();
    town.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_names_an_address_is_called_and_may_be_acked_later() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let (stop, house) = house(&town, &bed).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let answer = |tell: mpsc::UnboundedSender<String>, status: StatusCode| {
        move |headers: HeaderMap| {
            let _ = tell.send(headers["idempotency-key"].to_str().unwrap().to_owned());
            async move { status }
        }
    };
    let router = axum::Router::new()
        .route("/now", axum::routing::post(answer(tell.clone(), StatusCode::OK)))
        .route("/later", axum::routing::post(answer(tell, StatusCode::ACCEPTED)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let to = |path: &str| {
        let extras = Extras { url: Some(format!("{url}{path}")), ..Extras::default() };
        NewTask { extras, ..task("hooks") }
    };
    let now = town.submit(to("/now")).await;
    town.until(now, State::Succeeded).await;
    assert!(told.recv().await.unwrap().starts_with(now.as_str()));

    let later = town.submit(to("/later")).await;
    let execution = told.recv().await.unwrap();
    // It stays granted until somebody reports under the execution id.
    let begun =
        async { while town.client.get(later).await.unwrap().is_none_or(|view| view.view != "started") {} };
    tokio::time::timeout(NEVER, begun).await.unwrap();
    let execution: minutehand::model::ExecutionId = execution.parse().unwrap();
    let row = AckRow {
        id: execution.id,
        grant: execution.grant,
        outcome: Outcome::Succeeded,
        lag_ms: 0,
        took_ms: 9,
    };
    let acked = run::ack(&town.space, later.bucket(), "receiver", &[row], false).await.unwrap();
    assert_eq!(acked, [AckAnswer::Succeeded]);
    town.until(later, State::Succeeded).await;

    // Refused before anything is sent: a dead letter at once.
    let inside = Extras { url: Some("http://10.0.0.1/".into()), ..Extras::default() };
    let id = town.submit(NewTask { extras: inside, ..task("hooks") }).await;
    town.until(id, State::Dead).await;
    stop.cancel();
    house.await.unwrap();
    town.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_keeps_is_found_by_the_next_attempt_and_gone_at_the_end() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let running = start(town.executor(&bed).await.handle("q", move |task, ctx| {
        let tell = tell.clone();
        async move {
            let before = ctx.last_checkpoint().await?;
            let _ = tell.send((task.attempt, before));
            ctx.checkpoint(format!("after {}", task.attempt)).await?;
            assert!(ctx.checkpoint(vec![0; 300_000]).await.is_err(), "more than a task may keep");
            if task.attempt < 3 { Err(HandlerError::failed("again")) } else { Ok(()) }
        }
    }));
    let retry = "fixed:20ms".parse::<Retry>().unwrap();
    let id = town.submit(NewTask { backoff: Some(retry), retries: Some(2), ..task("q") }).await;
    town.until(id, State::Succeeded).await;
    let mut seen = Vec::new();
    while let Ok(one) = told.try_recv() {
        seen.push(one);
    }
    let text = |text: &str| Some(bytes::Bytes::from(text.to_owned()));
    assert_eq!(seen, [(1, None), (2, text("after 1")), (3, text("after 2"))]);
    let gone = async { while run::marked(&town.space, id, b"c").await.unwrap().is_some() {} };
    tokio::time::timeout(NEVER, gone).await.unwrap();
    running.end().await;
    town.end().await;
}
