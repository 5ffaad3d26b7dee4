//! Whatever is said under a grant that no longer stands changes nothing, and is told so.

use crate::pair::{Pair, space_on};
use minutehand::model::{Durability, Priority, Spec, State, TaskId};
use minutehand::store::due::{self, Granted, ReleaseAnswer};
use minutehand::store::intake::{self, EditAnswer, RowAnswer, Sending, SubmitAnswer};
use minutehand::store::run::{self, AckAnswer, MarkAnswer, Outcome, StartAnswer, StartRow};
use minutehand::store::{Space, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use minutehand::testing::snapshot::snapshot;

fn outcomes() -> [Outcome; 7] {
    let error = || "late".to_owned();
    [
        Outcome::Succeeded,
        Outcome::Cancelled,
        Outcome::Skipped,
        Outcome::Failed { error: error() },
        Outcome::Fatal { error: error() },
        Outcome::RetryAfter { ms: 5, counted: true, error: error() },
        Outcome::RetryAfter { ms: 5, counted: false, error: error() },
    ]
}

/// Says everything that can be said under `old`, by `who`, and compares the whole namespace: start, renewal, offer,
/// outcome, hand-back, progress, and a change of the task.
async fn says_in_vain(space: &Space, old: &Granted, who: &str) {
    let before = snapshot(space).await;
    let row = StartRow { id: old.id, grant: old.grant, lease_ms: 30_000 };
    let rows = std::slice::from_ref(&row);
    let stale = [StartAnswer::Stale];
    assert_eq!(run::start(space, bucket(), who, rows).await.unwrap(), stale, "start");
    assert_eq!(run::renew(space, bucket(), who, rows).await.unwrap(), stale, "renew");
    assert_eq!(run::offer(space, bucket(), "p1", &[(row, who)]).await.unwrap(), stale, "offer");
    for outcome in outcomes() {
        for again in [false, true] {
            let row = ack_row(old, outcome.clone());
            let answers = run::ack(space, bucket(), who, std::slice::from_ref(&row), again).await.unwrap();
            assert_eq!(answers, [AckAnswer::Stale], "{outcome:?}, again: {again}");
        }
    }
    let back = due::release(space, bucket(), who, "drain", &[(old.id, old.grant)]).await.unwrap();
    assert_eq!(back, [ReleaseAnswer::Stale], "release");
    // How far it is, where to go on, and a change of its own task.
    for field in [&b"p"[..], b"c", b"o:step"] {
        let kept = run::mark(space, old.id, old.grant, field, "late".into()).await.unwrap();
        assert_eq!(kept, MarkAnswer::Stale, "{}", String::from_utf8_lossy(field));
    }
    let mut spec = Spec::decode(&old.spec, old.id.home().start()).unwrap();
    spec.payload = "late".into();
    for seen in [0, 1] {
        let told = intake::edit(space, who, old.id, Some(old.grant), seen, &spec, "late").await.unwrap();
        assert_eq!(told, EditAnswer::Stale, "edit");
    }
    assert_eq!(snapshot(space).await, before, "nothing may have changed");
}

/// The same in one call with a row that is current: that one counts, whatever its neighbours are.
async fn counts_among_the_stale(space: &Space, old: &Granted, new: &Granted) {
    let rows = [old, new].map(|task| ack_row(task, Outcome::Succeeded));
    let answers = run::ack(space, bucket(), "ex-1", &rows, false).await.unwrap();
    assert_eq!(answers, [AckAnswer::Stale, AckAnswer::Succeeded]);
}

async fn start(space: &Space, task: &Granted, who: &str, lease_ms: i64) {
    let rows = [StartRow { id: task.id, grant: task.grant, lease_ms }];
    let answers = run::start(space, bucket(), who, &rows).await.unwrap();
    assert!(matches!(answers[..], [StartAnswer::Ok { cancel: false, .. }]), "{answers:?}");
}

/// A task of which everything hangs on something: key, deadline, latest start.
async fn laden(space: &Space) -> TaskId {
    let mut spec = spec(lane(space, "push", Priority::P3).await, T0);
    spec.key = Some(minutehand::model::Key::new("order-17", 60_000).unwrap());
    spec.deadline = Some((T0 + 3_600_000).into());
    spec.start_before = Some((T0 + 3_600_000).into());
    let row = row(spec);
    assert_eq!(submit(space, std::slice::from_ref(&row)).await, [RowAnswer::Created]);
    row.id
}

async fn one(space: &Space) -> Granted {
    let mut claimed = claim(space, &claim_all("p1")).await;
    assert_eq!(claimed.tasks.len(), 1, "{claimed:?}");
    claimed.tasks.remove(0)
}

#[tokio::test]
async fn a_grant_that_lapsed_is_worth_nothing_also_to_the_same_executor() {
    for (lasts, keyed) in [(false, false), (false, true), (true, false), (true, true)] {
        let bed = Bed::shared().await.unwrap();
        let space = space(&bed).await;
        let id = if keyed { laden(&space).await } else { task(&space, "push", T0).await };
        let old = one(&space).await;
        if lasts {
            start(&space, &old, "ex-1", 2_000).await;
        }
        space.inject_now(Some(T0 + 60_000));
        let reaped = claim(&space, &due::Claim { limit: 0, ..claim_all("p1") }).await.reaped;
        assert_eq!(reaped, 1);
        // It is nobody's: the old grant does not come alive again.
        let row = StartRow { id, grant: old.grant, lease_ms: 30_000 };
        let before = snapshot(&space).await;
        assert_eq!(run::start(&space, bucket(), "ex-1", &[row]).await.unwrap(), [StartAnswer::Stale]);
        assert_eq!(ack_done(&space, std::slice::from_ref(&old)).await, [AckAnswer::Stale]);
        assert_eq!(snapshot(&space).await, before);
        // It is granted anew, to the same pod and executor.
        space.inject_now(Some(T0 + 120_000));
        let new = one(&space).await;
        assert_eq!((new.id, new.grant.fence()), (id, old.grant.fence() + 1));
        says_in_vain(&space, &old, "ex-1").await;
        start(&space, &new, "ex-1", 30_000).await;
        says_in_vain(&space, &old, "ex-1").await;
        says_in_vain(&space, &old, "ex-2").await;
        counts_among_the_stale(&space, &old, &new).await;
        // And it has ended.
        says_in_vain(&space, &old, "ex-1").await;
        let before = snapshot(&space).await;
        assert_eq!(ack_done(&space, std::slice::from_ref(&new)).await, [AckAnswer::Stale], "twice");
        assert_eq!(snapshot(&space).await, before);
        let counts = read::counts(&space, bucket()).await.unwrap();
        assert_eq!((counts.count("succeeded"), counts.count("running"), counts.count("pending")), (1, 0, 0));
        if !lasts {
            assert_eq!(new.failures, 0, "never started: not counted");
        }
    }
}

#[tokio::test]
async fn a_grant_that_was_handed_back_or_failed_is_worth_nothing() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = laden(&space).await;
    let first = one(&space).await;
    let rows = [(first.id, first.grant)];
    let answers = due::release(&space, bucket(), "ex-1", "drain", &rows).await.unwrap();
    assert_eq!(answers, [ReleaseAnswer::HandedBack]);
    let second = one(&space).await;
    says_in_vain(&space, &first, "ex-1").await;
    let failed = [ack_row(&second, Outcome::Failed { error: "boom".into() })];
    let answers = run::ack(&space, bucket(), "ex-1", &failed, false).await.unwrap();
    assert!(matches!(answers[..], [AckAnswer::Retrying { .. }]));
    let again = run::ack(&space, bucket(), "ex-1", &failed, true).await.unwrap();
    assert_eq!(again, [AckAnswer::Known], "sent again, it is known");
    says_in_vain(&space, &first, "ex-1").await;
    space.inject_now(Some(T0 + 5_000));
    let third = one(&space).await;
    assert_eq!((third.grant.fence(), third.failures), (3, 1));
    for old in [&first, &second] {
        says_in_vain(&space, old, "ex-1").await;
    }
    // Dead, and redriven: its old grants stay what they are.
    let fatal = [ack_row(&third, Outcome::Fatal { error: "no such flight".into() })];
    assert_eq!(run::ack(&space, bucket(), "ex-1", &fatal, false).await.unwrap(), [AckAnswer::Dead]);
    for old in [&first, &second] {
        says_in_vain(&space, old, "ex-1").await;
    }
    assert_eq!(read::get(&space, id).await.unwrap().unwrap().state, State::Dead);
}

/// A fail-over that lost the last claims: the new master hands the task out under a fence that was
/// there before. The nonce tells the two apart.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_lost_the_last_claims_does_not_bring_a_grant_to_life() {
    let pair = Pair::start(None, None).await;
    let old_master = space_on(&pair.master).await;
    old_master.inject_now(Some(T0));
    let lane = lane(&old_master, "push", Priority::P3).await;
    let row = row(spec(lane, T0));
    let rows = std::slice::from_ref(&row);
    let sending = Sending { durability: Durability::Wait { replicas: 1 }, ..Sending::default() };
    let answer = intake::submit(&old_master, bucket(), rows, sending).await.unwrap();
    assert!(matches!(answer, SubmitAnswer::Rows { lacks: None, .. }), "{answer:?}");

    // The link breaks; the old master grants the task, and dies with that.
    pair.promote();
    let lost = one(&old_master).await;
    start(&old_master, &lost, "ex-1", 30_000).await;
    pair.master.kill9();

    let space = space_on(&pair.replica).await;
    space.inject_now(Some(T0));
    says_in_vain(&space, &lost, "ex-1").await;
    let granted = one(&space).await;
    assert_eq!((granted.id, granted.grant.fence()), (lost.id, lost.grant.fence()), "the same fence");
    assert_ne!(granted.grant, lost.grant, "another nonce");
    says_in_vain(&space, &lost, "ex-1").await;
    start(&space, &granted, "ex-1", 30_000).await;
    says_in_vain(&space, &lost, "ex-1").await;
    counts_among_the_stale(&space, &lost, &granted).await;
    let before = snapshot(&space).await;
    assert_eq!(ack_done(&space, std::slice::from_ref(&lost)).await, [AckAnswer::Stale]);
    assert_eq!(snapshot(&space).await, before);
}
