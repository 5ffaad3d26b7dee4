//! Redis's clock leaps, and Redis forgets: what a bucket makes of it.

use minutehand::limits;
use minutehand::model::{Priority, State, UnixMs};
use minutehand::store::due::{self, Claim, Expected};
use minutehand::store::intake::{self, RowAnswer, Sending, SubmitAnswer};
use minutehand::store::run::{self, StartRow};
use minutehand::store::{Space, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;

const YEAR: i64 = 365 * 86_400_000;
const LEASE: i64 = limits::LEASE_MS;

/// A claim as a pod makes it, whose own clock says that it should be `expected`.
async fn at(space: &Space, now: i64, expected: i64) -> due::Claimed {
    space.inject_now(Some(now));
    claim(space, &Claim { expected: Expected::Now(UnixMs(expected)), ..claim_all("p1") }).await
}

async fn start(space: &Space, task: &due::Granted) {
    let row = StartRow { id: task.id, grant: task.grant, lease_ms: LEASE };
    run::start(space, bucket(), "ex-1", &[row]).await.unwrap();
}

/// Claims once a second from `from` on until the task's lease has lapsed; answers after how many ms.
async fn lapses_after(space: &Space, task: &due::Granted, from: i64) -> i64 {
    for second in 1..=10 * LEASE / 1_000 {
        at(space, from + second * 1_000, from + second * 1_000).await;
        let run = read::get(space, task.id).await.unwrap().and_then(|found| found.run);
        if run.is_none_or(|run| run.grant != task.grant) {
            return second * 1_000;
        }
    }
    panic!("its lease has not lapsed in ten leases")
}

#[tokio::test]
async fn leases_do_not_stand_still_after_a_leap_ahead_and_back() {
    for leap in [30_000, 3_600_000, YEAR] {
        let bed = Bed::shared().await.unwrap();
        let space = space(&bed).await;
        task(&space, "push", T0).await;
        let before = at(&space, T0, T0).await.tasks.remove(0);
        start(&space, &before).await;
        // Ahead, for a moment; reaping pauses, so nothing lapses for it.
        let ahead = at(&space, T0 + 1_000 + leap, T0 + 1_000).await;
        assert_eq!((ahead.leap_ms, ahead.reaped), (leap, 0));
        let back = at(&space, T0 + 2_000, T0 + 2_000 + leap).await;
        assert_eq!((back.leap_ms, back.reaped), (-leap, 0));
        // One that is granted after the leap back, and one of before; then their executor dies.
        task(&space, "push", T0 + 2_000).await;
        let after = at(&space, T0 + 2_001, T0 + 2_001).await.tasks.remove(0);
        start(&space, &after).await;
        for granted in [&before, &after] {
            let took = lapses_after(&space, granted, T0 + 2_001).await;
            println!("leap of {leap} ms: lapsed after {took} ms");
            assert!(took <= 2 * LEASE + 2_000, "{took}");
        }
        sound(&space).await;
    }
}

/// While Redis is away neither outcomes nor renewals arrive. Whoever is back first must not take for lost what executors
/// are about to report.
#[tokio::test]
async fn leases_do_not_lapse_the_moment_pods_are_back_from_an_outage() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    task(&space, "push", T0).await;
    task(&space, "push", T0).await;
    let mut granted = at(&space, T0, T0).await.tasks;
    start(&space, &granted[0]).await;
    let visit = async |now: i64| at(&space, now, now).await;
    // A pod that is a permit late pauses nothing.
    let lapsed = T0 + limits::DISPATCH_TIMEOUT_MS + 1_000;
    visit(lapsed - 2 * limits::LOCK_MS).await;
    assert_eq!(visit(lapsed - limits::LOCK_MS).await.reaped, 0);
    let again = visit(lapsed).await;
    assert_eq!((again.reaped, again.tasks.len()), (1, 1), "the one that was never started");
    // Nobody comes for a lease and more. The first who does waits a moment, and so does everybody else.
    granted[1] = again.tasks.into_iter().next().unwrap();
    let back = lapsed + LEASE + 10_000;
    assert_eq!(visit(back).await.reaped, 0);
    assert_eq!(visit(back + limits::RETURN_MS / 2).await.reaped, 0);
    assert_eq!(visit(back + limits::RETURN_MS - 1).await.reaped, 0);
    // The first outcome arrives in time; who does not come back is reaped.
    ack_done(&space, &granted[..1]).await;
    assert_eq!(visit(back + limits::RETURN_MS).await.reaped, 1);
    assert_eq!(read::get(&space, granted[0].id).await.unwrap().unwrap().state, State::Succeeded);
    // A leap ahead that is found at the same time pauses for longer, as ever.
    let leapt = back + limits::RETURN_MS + 100_000;
    assert_eq!(at(&space, leapt, leapt - 50_000).await.leap_ms, 50_000);
    assert_eq!(visit(leapt + limits::RETURN_MS).await.reaped, 0);
    sound(&space).await;
}

/// Buckets change hands when pods come back, and so do pods themselves.
#[tokio::test]
async fn a_pod_that_is_new_to_a_bucket_waits_as_well_where_it_was_away_itself() {
    for (expected, reaped) in [(Expected::Away, 0), (Expected::Nothing, 1)] {
        let bed = Bed::shared().await.unwrap();
        let space = space(&bed).await;
        task(&space, "push", T0).await;
        let granted = at(&space, T0, T0).await.tasks;
        let back = T0 + limits::DISPATCH_TIMEOUT_MS + 10_000;
        space.inject_now(Some(back));
        let visit = claim(&space, &Claim { expected, ..claim_all("p2") }).await;
        assert_eq!((visit.reaped, visit.leap_ms), (reaped, 0), "{expected:?}");
        let late = claim(&space, &Claim { expected, ..claim_all("p2") }).await;
        assert_eq!(late.reaped, 0, "nothing more of it");
        ack_done(&space, &granted).await;
        let state = read::get(&space, granted[0].id).await.unwrap().unwrap().state;
        assert_eq!(state, if reaped == 0 { State::Succeeded } else { State::Running }, "{expected:?}");
        sound(&space).await;
    }
}

#[tokio::test]
async fn a_clock_that_was_ahead_is_caught_up_with() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    at(&space, T0 + 30_000, T0 + 30_000).await;
    for second in 0..70 {
        at(&space, T0 + second * 1_000, T0 + second * 1_000).await;
    }
    // Half a second a second: after a minute the lease clock is the server's again, and leases have their length.
    let now = T0 + 70_000;
    task(&space, "push", now).await;
    let task = at(&space, now, now).await.tasks.remove(0);
    start(&space, &task).await;
    let took = lapses_after(&space, &task, now).await;
    assert!((LEASE..=LEASE + 1_000).contains(&took), "{took}");
}

#[tokio::test]
async fn total_time_outs_go_by_the_clock_as_it_is() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    at(&space, T0 + 3_600_000, T0 + 3_600_000).await;
    at(&space, T0, T0).await;
    let mut spec = spec(lane(&space, "push", Priority::P3).await, T0 + 60_000);
    spec.deadline = Some(UnixMs(T0 + 90_000));
    let row = row(spec);
    assert_eq!(submit(&space, std::slice::from_ref(&row)).await, [RowAnswer::Created]);
    let state = async || read::get(&space, row.id).await.unwrap().unwrap().state;
    let closed = Claim { limit: 0, normal_limit: 0, ..claim_all("p1") };
    for (now, expected) in [(1_000, State::Pending), (89_999, State::Pending), (90_000, State::Expired)] {
        space.inject_now(Some(T0 + now));
        claim(&space, &closed).await;
        assert_eq!(state().await, expected, "at {now}");
    }
}

#[tokio::test]
async fn a_row_sent_again_is_known_though_the_clock_leapt_ahead() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    for (leap, claimed_since) in [(30_000, false), (30_000, true), (300_000, false), (300_000, true)] {
        let now = space.clock().now_ms().max(T0);
        space.inject_now(Some(now));
        let row = row(spec(lane(&space, "push", Priority::P3).await, now));
        assert_eq!(submit(&space, std::slice::from_ref(&row)).await, [RowAnswer::Created]);
        let task = at(&space, now, now).await.tasks.remove(0);
        ack_done(&space, &[task]).await;
        // Its answer was lost; by the sender's clock that was a second ago.
        let later = now + 1_000 + leap;
        if claimed_since {
            at(&space, later, now + 1_000).await;
        }
        space.inject_now(Some(later));
        let again = Sending { again_after_ms: Some(1_000), ..Sending::default() };
        let SubmitAnswer::Rows { answers, .. } =
            intake::submit(&space, bucket(), std::slice::from_ref(&row), again).await.unwrap()
        else {
            panic!("the bucket is closed")
        };
        assert_eq!(answers, [RowAnswer::Created], "what stands is answered");
        assert_eq!(at(&space, later, later).await.tasks.len(), 0, "it does not run twice");
    }
}

#[tokio::test]
async fn a_bucket_knows_its_last_claim() {
    let bed = Bed::own_server(Default::default()).await.unwrap();
    let space = space(&bed).await;
    assert_eq!(at(&space, T0, T0).await.remembered, None);
    assert_eq!(at(&space, T0 + 5, T0 + 5).await.remembered, Some(UnixMs(T0)));
    // After a leap back it still does not know less than that.
    assert_eq!(at(&space, T0 - 9_000, T0 + 10).await.remembered, Some(UnixMs(T0 + 5)));
    assert!(at(&space, T0 - 8_000, T0 - 8_000).await.remembered >= Some(UnixMs(T0 + 5)));
    let born = space.refresh_spread().await.unwrap();
    bed.server().run(&["FLUSHALL"]).unwrap();
    assert_eq!(at(&space, T0 + 20, T0 + 20).await.remembered, None);
    // The namespace is made again as it was, and known to be another.
    space.inject_now(Some(T0 + 30));
    let again = space.refresh_spread().await.unwrap();
    assert_eq!(
        (again.key_buckets, again.buckets, again.holders),
        (born.key_buckets, born.buckets, born.holders)
    );
    assert_eq!((born.born_ms > 0, again.born_ms), (true, T0 + 30));
}
