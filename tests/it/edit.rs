//! Editing a task in every state.

use minutehand::client::{Client, Due, Edit, Edited, NewTask};
use minutehand::dev::redis::ServerOptions;
use minutehand::model::event::Move;
use minutehand::model::replay::Replay;
use minutehand::model::{ExecutionId, Grant, Key, Nonce, Priority, QueueName, Spec, State, TaskId, UnixMs};
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::dead::{self, RedriveAnswer};
use minutehand::store::intake::{self, EditAnswer};
use minutehand::store::run::{self, AckAnswer, Outcome};
use minutehand::store::{events, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use minutehand::testing::snapshot::names;

#[tokio::test]
async fn an_edit_reaches_a_task_in_every_state_and_an_old_grant_reaches_none() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let one = row(Spec { key: Some(Key::new("k", 60_000).unwrap()), ..spec(lane, T0 + 1_000) });
    submit(&space, std::slice::from_ref(&one)).await;
    let id = one.id;
    let read = async || read::get(&space, id).await.unwrap().unwrap();
    let edits = async || read().await.place.map_or(0, |place| place.edits);
    let edit = async |grant: Option<Grant>, spec: &Spec| {
        let seen = edits().await;
        intake::edit(&space, "op", id, grant, seen, spec, "edited: all").await.unwrap()
    };
    // Pending.
    let first = Spec { payload: "first".into(), deadline: Some(UnixMs(T0 + 600_000)), ..one.spec.clone() };
    assert_eq!(edit(None, &first).await, EditAnswer::Done(State::Pending));
    assert_eq!(read().await.spec, Some(first.encode()));
    // What somebody else changed meanwhile stands.
    let unseen = intake::edit(&space, "op", id, None, 0, &one.spec, "").await.unwrap();
    assert_eq!(unseen, EditAnswer::Changed);
    // It may not move the task.
    let moved = Spec { lane: lane.at_priority(Priority::P0), ..first.clone() };
    let error = intake::edit(&space, "op", id, None, 1, &moved, "").await.unwrap_err().to_string();
    assert!(error.contains("may not move"), "{error}");
    assert_eq!(edits().await, 1);
    // Running: the copy of the run stays, the next attempt gets the new one.
    space.inject_now(Some(T0 + 2_000));
    let granted = claim(&space, &claim_all("p")).await.tasks.remove(0);
    assert_eq!(granted.spec, first.encode());
    let old = Grant::new(7, Nonce::new(1));
    let second = Spec { payload: "second".into(), deadline: None, ..first.clone() };
    assert_eq!(edit(Some(old), &second).await, EditAnswer::Stale);
    assert_eq!(read().await.spec, Some(first.encode()));
    assert_eq!(edit(Some(granted.grant), &second).await, EditAnswer::Done(State::Running));
    let report = check(&space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{report:#?}");
    let failed = Outcome::Fatal { error: "no".into() };
    let told = run::ack(&space, bucket(), "ex", &[ack_row(&granted, failed)], false).await.unwrap();
    assert_eq!(told, [AckAnswer::Dead]);
    // Dead: the letter is redriven with what it was edited to.
    assert_eq!(edit(Some(granted.grant), &first).await, EditAnswer::Stale);
    let third = Spec { payload: "third".into(), deadline: Some(UnixMs(T0 + 900_000)), ..first.clone() };
    assert_eq!(edit(None, &third).await, EditAnswer::Done(State::Dead));
    assert_eq!(
        dead::redrive(&space, bucket(), "op", &[(id, UnixMs(0))]).await.unwrap(),
        [RedriveAnswer::Pending]
    );
    let report = check(&space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{report:#?}");
    let granted = claim(&space, &claim_all("p")).await.tasks.remove(0);
    assert_eq!(granted.spec, third.encode());
    // A deadline that an edit brings to a running task ends it, and its key with it.
    let fourth = Spec { deadline: Some(UnixMs(T0 + 3_000)), ..third.clone() };
    assert_eq!(edit(Some(granted.grant), &fourth).await, EditAnswer::Done(State::Running));
    assert_eq!(ack_done(&space, &[granted]).await, [AckAnswer::Succeeded]);
    let ended = intake::edit(&space, "op", id, None, 0, &third, "").await.unwrap();
    assert_eq!(ended, EditAnswer::Ended(State::Succeeded));
    let report = check(&space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{report:#?}");
    let kept = names(&space).await;
    assert!(!kept.iter().any(|key| key.windows(6).any(|part| part == b"timer:")), "no timer is left");
    let events = events::trace(&space, id).await.unwrap().events;
    let edits = events.iter().filter(|event| event.event == Move::Edited).map(|event| event.fence);
    assert_eq!(edits.collect::<Vec<_>>(), [None, Some(1), None, Some(2)]);
    let mut replay = Replay::new(false);
    events.iter().for_each(|event| replay.feed(event));
    let report = replay.finish(true);
    assert!(report.ok, "{report:#?}");
}

#[tokio::test]
async fn a_client_edits_by_what_it_names_and_repeats_are_harmless() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    space.inject_now(None);
    let client = Client::new(space.clone());
    let task = NewTask {
        due: Due::In(3_600_000),
        payload: "old".into(),
        ..NewTask::to(QueueName::new("q").unwrap())
    };
    let id = client.submit(task).await.unwrap().id;
    let edit = Edit { payload: Some("new".into()), retries: Some(7), ..Edit::default() };
    let done = client.edit(id, &edit, None, "op").await.unwrap();
    assert_eq!(done, Edited { state: State::Pending, changed: true });
    assert_eq!(client.edit(id, &edit, None, "op").await.unwrap(), Edited { changed: false, ..done });
    let view = client.get(id).await.unwrap().unwrap();
    assert_eq!((view.payload.as_deref(), view.retries), (Some(&b"new"[..]), Some(7)));
    let old = ExecutionId { id, grant: Grant::new(1, Nonce::new(1)) };
    let error =
        client.edit(id, &Edit { retries: Some(1), ..Edit::default() }, Some(old), "ex").await.unwrap_err();
    assert!(error.to_string().contains("not under that grant any more"), "{error}");
    client.cancel(id, "op", "").await.unwrap();
    let error = client.edit(id, &edit, None, "op").await.unwrap_err().to_string();
    assert!(error.contains("is cancelled; it has ended"), "{error}");
    // Eight who change different things at once: nobody's change is lost.
    let id = client
        .submit(NewTask { due: Due::In(60_000), ..NewTask::to(QueueName::new("q").unwrap()) })
        .await
        .unwrap()
        .id;
    let edits = [
        Edit { payload: Some("x".into()), ..Edit::default() },
        Edit { retries: Some(9), ..Edit::default() },
        Edit { timeout_ms: Some(5_000), ..Edit::default() },
        Edit { lease_ms: Some(45_000), ..Edit::default() },
    ];
    let told = all_at_once(&client, id, edits).await;
    assert!(told.iter().all(|one| one.changed), "{told:?}");
    let found = read::get(&space, id).await.unwrap().unwrap();
    let spec = Spec::decode(&found.spec.unwrap(), id.home().start()).unwrap();
    assert_eq!((&spec.payload[..], spec.retry.retries), (&b"x"[..], 9));
    assert_eq!((spec.timeout_ms, spec.lease_ms), (Some(5_000), Some(45_000)));
}

async fn all_at_once(client: &Client, id: TaskId, edits: [Edit; 4]) -> Vec<Edited> {
    let mut all = tokio::task::JoinSet::new();
    for edit in edits {
        let client = client.clone();
        all.spawn(async move { client.edit(id, &edit, None, "op").await.unwrap() });
    }
    all.join_all().await
}

#[tokio::test]
async fn an_edit_is_refused_when_memory_is_full() {
    let bed = Bed::own_server(ServerOptions::default()).await.unwrap();
    let space = space(&bed).await;
    let id = task(&space, "push", T0 + 1_000).await;
    let found = read::get(&space, id).await.unwrap().unwrap();
    let spec = Spec::decode(&found.spec.unwrap(), id.home().start()).unwrap();
    bed.server().run(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let error = intake::edit(&space, "op", id, None, 0, &spec, "").await.unwrap_err();
    assert_eq!(error.cause(), "oom", "{error}");
    bed.server().run(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    assert_eq!(
        intake::edit(&space, "op", id, None, 0, &spec, "").await.unwrap(),
        EditAnswer::Done(State::Pending)
    );
}
