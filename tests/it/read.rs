//! Reading: what is told of a task and of a bucket.

use minutehand::model::{Phase, Priority, Spec, State, TaskId, UnixMs};
use minutehand::store::due::{Claim, Quota};
use minutehand::store::run::{self, AckRow, Outcome};
use minutehand::store::{intake, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use minutehand::testing::snapshot::snapshot;

#[tokio::test]
async fn a_task_is_told_with_all_that_is_known_of_it() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let get = async |id| read::get(&space, id).await.unwrap();
    let unknown = TaskId::new(UnixMs(T0).minute(), bucket(), 1);
    assert!(get(unknown).await.is_none());

    let lane = lane(&space, "push", Priority::P2).await;
    let one = row(spec(lane, T0));
    submit(&space, std::slice::from_ref(&one)).await;
    let found = get(one.id).await.unwrap();
    assert_eq!((found.state, found.now, found.held), (State::Pending, UnixMs(T0), false));
    assert_eq!((found.spec.as_ref(), found.place, found.run.is_none()), (Some(&one.bytes), None, true));

    let granted = claim(&space, &claim_all("p1")).await.tasks.remove(0);
    let running = get(one.id).await.unwrap();
    let run = running.run.unwrap();
    assert_eq!(
        (running.state, run.phase, run.grant, run.cancel),
        (State::Running, Phase::Claimed, granted.grant, false)
    );

    let failed = ack_row(&granted, Outcome::Failed { error: "line busy".into() });
    run::ack(&space, bucket(), "ex-1", &[failed], false).await.unwrap();
    let retrying = get(one.id).await.unwrap();
    let place = retrying.place.unwrap();
    assert_eq!(
        (retrying.state, place.due.0, place.failures, place.fence),
        (State::Pending, T0 + 5_000, 1, 1)
    );
    assert_eq!((place.lane.priority(), place.lane.tier().number()), (Priority::P2, 1));
    let attempt = &retrying.attempts[0];
    assert_eq!((attempt.at, attempt.fence), (UnixMs(T0), 1));
    assert_eq!((attempt.executor.as_str(), attempt.error.as_str()), ("ex-1", "line busy"));

    space.inject_now(Some(T0 + 5_000));
    let granted = claim(&space, &claim_all("p1")).await.tasks.remove(0);
    let fatal = ack_row(&granted, Outcome::Fatal { error: "no such number".into() });
    run::ack(&space, bucket(), "ex-2", &[fatal], false).await.unwrap();
    let dead = get(one.id).await.unwrap();
    assert_eq!((dead.state, dead.dead), (State::Dead, Some(("fatal".to_owned(), UnixMs(T0 + 5_000)))));
    let errors: Vec<_> = dead.attempts.iter().map(|a| (a.executor.as_str(), a.error.as_str())).collect();
    assert_eq!(errors, [("ex-1", "line busy"), ("ex-2", "no such number")]);
    assert_eq!(dead.spec, Some(one.bytes));
}

#[tokio::test]
async fn an_ended_task_is_remembered_for_a_quarter_of_an_hour() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let (done, gone) = (row(spec(lane, T0)), row(spec(lane, T0 + 1)));
    let late = row(Spec { start_before: Some(UnixMs(T0 - 1)), ..spec(lane, T0) });
    let expiring = row(Spec { deadline: Some(UnixMs(T0)), ..spec(lane, T0 + 1) });
    submit(&space, &[done.clone(), gone.clone(), late.clone(), expiring.clone()]).await;
    intake::cancel(&space, bucket(), "me", "", &[gone.id]).await.unwrap();
    let granted = claim(&space, &claim_all("p1")).await.tasks;
    ack_done(&space, &granted).await;
    let all = [done.id, gone.id, late.id, expiring.id];
    let states = async || {
        let mut out = Vec::new();
        for id in all {
            let found = read::get(&space, id).await.unwrap();
            out.extend(found.map(|found| {
                assert_eq!((found.spec, found.place, found.run), (None, None, None));
                found.state
            }));
        }
        out
    };
    let expected = [State::Succeeded, State::Cancelled, State::Skipped, State::Expired];
    assert_eq!(states().await, expected);
    for at in [120_000, 890_000] {
        space.inject_now(Some(T0 + at));
        claim(&space, &claim_all("p1")).await;
        assert_eq!(states().await, expected);
    }
    space.inject_now(Some(T0 + 910_000));
    claim(&space, &claim_all("p1")).await;
    assert_eq!(states().await, []);
    let left = snapshot(&space).await.into_keys().filter(|key| key.contains("recent")).count();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn counts_lags_holders_and_lanes_are_told_in_one_answer() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let counts = async || read::counts(&space, bucket()).await.unwrap();
    assert_eq!(counts().await.count("submitted"), 0);
    for n in 0..6 {
        task(&space, "push", T0 - 10 + n).await;
        task(&space, "nobody", T0 - 10 + n).await;
    }
    task(&space, "push", T0 + 777).await;
    assert_eq!(counts().await.first_due, Some(UnixMs(T0 - 10)));
    let nobody = lane(&space, "nobody", Priority::P3).await;
    let push = lane(&space, "push", Priority::P3).await;
    let call =
        Claim { limit: 4, normal_limit: 4, quotas: vec![(nobody.group(), Quota::Closed)], ..claim_all("p1") };
    let granted = claim(&space, &call).await.tasks;
    assert_eq!(granted.len(), 4);
    let lags = [3, 40, -1, 70_000];
    let acks: Vec<AckRow> = granted
        .iter()
        .zip(lags)
        .map(|(task, lag_ms)| AckRow { lag_ms, ..ack_row(task, Outcome::Succeeded) })
        .collect();
    run::ack(&space, bucket(), "ex", &acks, false).await.unwrap();

    let told = counts().await;
    assert_eq!(told.holders, [("p1".to_owned(), UnixMs(T0 + call.lock_ms))]);
    assert_eq!((told.parked, told.ready), (vec![(nobody, 6)], vec![(push, 2)]));
    assert_eq!((told.first_due, told.closed, told.now), (Some(UnixMs(T0 + 777)), false, UnixMs(T0)));
    let by_name = ["submitted", "pending", "ready", "running", "succeeded"];
    assert_eq!(by_name.map(|name| told.counts.get(name).copied().unwrap_or(0)), [13, 9, 8, 0, 4]);
    // A handler that was never entered has no lag; the largest is exact.
    assert_eq!((told.lags.count(), told.lags.max_ms), (3, 70_000));
    assert_eq!((told.lags.quantile(0.3), told.lags.quantile(1.0)), (Some(3), Some(70_000)));
    // Five minutes later they are history.
    space.inject_now(Some(T0 + 300_000));
    assert_eq!(counts().await.lags.count(), 0);
    assert_eq!(counts().await.holders, []);
}
