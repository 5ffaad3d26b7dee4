//! Claiming and giving back.

use bytes::Bytes;
use minutehand::model::{Priority, State};
use minutehand::store::At;
use minutehand::store::due::{self, Claim, ClaimAnswer, Quota, ReleaseAnswer};
use minutehand::store::intake::RowAnswer;
use minutehand::store::read;
use minutehand::store::run::{self, AckAnswer, Outcome, StartAnswer, StartRow};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;

#[tokio::test]
async fn a_task_lives_from_submit_to_ack() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = task(&space, "push", T0 + 5_000).await;

    let before = claim(&space, &claim_all("p1")).await;
    assert!(before.tasks.is_empty());
    assert_eq!(before.next_due.map(|due| due.0), Some(T0 + 5_000));
    assert_eq!(read::get(&space, id).await.unwrap().unwrap().state, State::Pending);

    space.inject_now(Some(T0 + 5_000));
    let claimed = claim(&space, &claim_all("p1")).await;
    assert_eq!(claimed.tasks.len(), 1);
    assert_eq!(
        (claimed.tasks[0].id, claimed.tasks[0].due.0, claimed.tasks[0].grant.fence()),
        (id, T0 + 5_000, 1)
    );
    assert_eq!(claimed.next_due, None);
    assert_eq!(read::get(&space, id).await.unwrap().unwrap().state, State::Running);

    let rows = [StartRow { id, grant: claimed.tasks[0].grant, lease_ms: 30_000 }];
    let started = run::start(&space, bucket(), "ex-1", &rows).await.unwrap();
    assert_eq!(started, [StartAnswer::Ok { deadline: (T0 + 35_000).into(), cancel: false }]);
    assert_eq!(ack_done(&space, &claimed.tasks).await, [AckAnswer::Succeeded]);
    assert_eq!(ack_done(&space, &claimed.tasks).await, [AckAnswer::Stale]);

    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("submitted"), counts.count("succeeded")), (1, 1));
    assert_eq!((counts.count("pending"), counts.count("running")), (0, 0));
    assert_eq!((counts.lags.count(), counts.lags.max_ms), (1, 1));
    assert_eq!(read::get(&space, id).await.unwrap().unwrap().state, State::Succeeded);
}

/// A small hash is searched from its start for each field: with some hundred running tasks that costs more than all else.
#[tokio::test]
async fn what_runs_is_found_at_once_as_soon_as_some_do() {
    for (first, more, form) in [(15, 0, "listpack"), (16, 0, "hashtable"), (9, 7, "hashtable")] {
        let bed = Bed::shared().await.unwrap();
        let space = space(&bed).await;
        let lane = lane(&space, "push", Priority::P3).await;
        for tasks in [first, more] {
            submit(&space, &(0..tasks).map(|_| row(spec(lane, T0))).collect::<Vec<_>>()).await;
            assert_eq!(claim(&space, &claim_all("p1")).await.tasks.len(), tasks);
        }
        let run = space.guard(bucket()).key("run");
        let args = vec![Bytes::from_static(b"ENCODING"), run.clone()];
        let found = space.store().command("OBJECT", At::Key(&run), args).await.unwrap();
        assert_eq!(found.bytes("ENCODING").unwrap(), form, "{first} and {more}");
    }
}

#[tokio::test]
async fn a_lost_reply_is_asked_for_again() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    for n in 0..5 {
        task(&space, "push", T0 - n).await;
    }
    let call = claim_all("p1");
    let first = claim(&space, &call).await;
    let again = claim(&space, &call).await;
    assert_eq!(first.tasks.len(), 5);
    let ids = |c: &due::Claimed| c.tasks.iter().map(|t| (t.id, t.grant, t.spec.clone())).collect::<Vec<_>>();
    assert_eq!(ids(&first), ids(&again));
    assert_eq!(claim(&space, &claim_all("p1")).await.tasks.len(), 0);
}

#[tokio::test]
async fn only_as_many_pods_as_allowed_hold_a_bucket() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    task(&space, "push", T0).await;
    claim(&space, &Claim { limit: 0, ..claim_all("p1") }).await;
    let answer = due::claim(&space, bucket(), &claim_all("p2")).await.unwrap();
    assert!(matches!(answer, ClaimAnswer::NotHolder { until } if until.0 == T0 + 3_000), "{answer:?}");
    space.inject_now(Some(T0 + 3_000));
    assert_eq!(claim(&space, &claim_all("p2")).await.tasks.len(), 1);
    let answer = due::claim(&space, bucket(), &claim_all("p1")).await.unwrap();
    assert!(matches!(answer, ClaimAnswer::NotHolder { .. }), "a pod that slept finds itself replaced");
    let two = Claim { holders: 2, ..claim_all("p1") };
    assert!(matches!(due::claim(&space, bucket(), &two).await.unwrap(), ClaimAnswer::Held(_)));
}

#[tokio::test]
async fn failures_are_tried_again_and_then_die() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = task(&space, "push", T0).await;
    let mut now = T0;
    for (attempt, wait) in [5_000, 25_000].into_iter().enumerate() {
        let claimed = claim(&space, &claim_all("p1")).await;
        assert_eq!(claimed.tasks[0].failures as usize, attempt);
        let row = ack_row(&claimed.tasks[0], Outcome::Failed { error: format!("boom {attempt}") });
        let acked = run::ack(&space, bucket(), "ex-1", &[row], false).await.unwrap();
        assert_eq!(acked, [AckAnswer::Retrying { due: (now + wait).into() }]);
        now += wait;
        space.inject_now(Some(now - 1));
        assert!(claim(&space, &claim_all("p1")).await.tasks.is_empty());
        space.inject_now(Some(now));
    }
    let claimed = claim(&space, &claim_all("p1")).await;
    assert_eq!(claimed.tasks[0].grant.fence(), 3);
    let row = ack_row(&claimed.tasks[0], Outcome::Failed { error: "boom 2".into() });
    assert_eq!(run::ack(&space, bucket(), "ex-1", &[row], false).await.unwrap(), [AckAnswer::Dead]);
    let found = read::get(&space, id).await.unwrap().unwrap();
    assert_eq!(found.state, State::Dead);
    assert_eq!(found.dead.unwrap().0, "handler_error");
    let errors: Vec<_> =
        found.attempts.iter().map(|a| (a.fence, a.error.as_str(), a.executor.as_str())).collect();
    assert_eq!(errors, [(1, "boom 0", "ex-1"), (2, "boom 1", "ex-1"), (3, "boom 2", "ex-1")]);
}

#[tokio::test]
async fn lapsed_grants_come_back_uncounted_unless_started() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = task(&space, "push", T0).await;
    let first = claim(&space, &claim_all("p1")).await;
    assert_eq!(first.tasks.len(), 1);
    space.inject_now(Some(T0 + 14_999));
    assert_eq!(claim(&space, &claim_all("p1")).await.reaped, 0);
    space.inject_now(Some(T0 + 16_000));
    let second = claim(&space, &claim_all("p1")).await;
    assert_eq!((second.reaped, second.tasks.len()), (1, 1), "{second:?}");
    assert_eq!((second.tasks[0].grant.fence(), second.tasks[0].failures), (2, 0));
    // The first grant is fenced off.
    assert_eq!(ack_done(&space, &first.tasks).await, [AckAnswer::Stale]);
    let rows = [StartRow { id, grant: second.tasks[0].grant, lease_ms: 2_000 }];
    run::start(&space, bucket(), "ex-1", &rows).await.unwrap();
    space.inject_now(Some(T0 + 20_000));
    let third = claim(&space, &claim_all("p1")).await;
    assert_eq!((third.reaped, third.tasks.len()), (1, 0), "a lapse after the start waits for its back-off");
    let found = read::get(&space, id).await.unwrap().unwrap();
    assert_eq!(
        (found.state, found.place.unwrap().failures, found.place.unwrap().due.0),
        (State::Pending, 1, T0 + 25_000)
    );
}

#[tokio::test]
async fn a_release_goes_to_the_front_of_its_lane() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(task(&space, "push", T0 - 10 + n).await);
    }
    let two = Claim { limit: 2, normal_limit: 2, ..claim_all("p1") };
    let first = claim(&space, &two).await;
    assert_eq!(first.tasks.iter().map(|t| t.id).collect::<Vec<_>>(), ids[..2]);
    assert!(first.backlog >= 2);
    let rows = [(first.tasks[0].id, first.tasks[0].grant)];
    let gone = due::release(&space, bucket(), "p1", "no room", &rows).await.unwrap();
    assert_eq!(gone, [ReleaseAnswer::HandedBack]);
    assert_eq!(due::release(&space, bucket(), "p1", "no room", &rows).await.unwrap(), [ReleaseAnswer::Stale]);
    let rest = claim(&space, &claim_all("p1")).await;
    assert_eq!(rest.tasks.iter().map(|t| t.id).collect::<Vec<_>>(), [ids[0], ids[2], ids[3]]);
    assert_eq!(rest.tasks[0].grant.fence(), 2);
    ack_done(&space, &rest.tasks).await;
    ack_done(&space, &first.tasks[1..]).await;
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("succeeded"), counts.count("ready"), counts.count("pending")), (4, 0, 0));
}

#[tokio::test]
async fn priorities_share_by_weight_and_closed_queues_stand_aside() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let mut rows = Vec::new();
    for priority in Priority::ALL {
        let lane = lane(&space, "push", priority).await;
        for n in 0..300 {
            rows.push(row(spec(lane, T0 - 1_000 + n)));
        }
    }
    for piece in rows.chunks(900) {
        submit(&space, piece).await;
    }
    let stuck = task(&space, "nobody", T0 - 2_000).await;
    let nobody = lane(&space, "nobody", Priority::P3).await;
    let closed = vec![(nobody.group(), Quota::Closed)];
    let hundred = Claim { limit: 100, normal_limit: 100, quotas: closed.clone(), ..claim_all("p1") };
    let claimed = claim(&space, &hundred).await;
    let share = |p| claimed.tasks.iter().filter(|t| t.lane.priority() == p).count();
    assert_eq!(Priority::ALL.map(share), [40, 25, 15, 10, 6, 4]);
    let mut taken = claimed.tasks.len();
    loop {
        let next = claim(&space, &Claim { quotas: closed.clone(), ..claim_all("p1") }).await;
        assert!(next.tasks.iter().all(|t| t.id != stuck));
        taken += next.tasks.len();
        if next.tasks.is_empty() {
            break;
        }
    }
    assert_eq!(taken, 1_800);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!(counts.parked, [(nobody, 1)]);
    assert!(read::get(&space, stuck).await.unwrap().unwrap().held);
    let open = claim(&space, &claim_all("p1")).await;
    assert_eq!(open.tasks.iter().map(|t| t.id).collect::<Vec<_>>(), [stuck]);
}

#[tokio::test]
async fn each_outcome_of_a_mixed_ack_stands_where_its_row_does() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    // Two home minutes, two claims, so several stretches; rows are sent in an order that is none of theirs.
    for n in 0..3 {
        task(&space, "push", T0 - 60_000 + n).await;
        task(&space, "push", T0 + n).await;
    }
    space.inject_now(Some(T0 + 10));
    let two = Claim { limit: 2, normal_limit: 2, ..claim_all("p1") };
    let mut tasks = claim(&space, &two).await.tasks;
    tasks.extend(claim(&space, &claim_all("p1")).await.tasks);
    tasks.reverse();
    let outcomes = [
        Outcome::Succeeded,
        Outcome::Failed { error: "boom".into() },
        Outcome::Succeeded,
        Outcome::Cancelled,
        Outcome::RetryAfter { ms: 7_000, counted: false, error: "busy".into() },
        Outcome::Fatal { error: "no".into() },
    ];
    let mut rows: Vec<_> = tasks.iter().zip(outcomes).map(|(task, outcome)| ack_row(task, outcome)).collect();
    rows.push(ack_row(&tasks[0], Outcome::Succeeded));
    let wanted = [
        AckAnswer::Succeeded,
        AckAnswer::Retrying { due: (T0 + 5_010).into() },
        AckAnswer::Succeeded,
        AckAnswer::Cancelled,
        AckAnswer::Retrying { due: (T0 + 7_010).into() },
        AckAnswer::Dead,
        AckAnswer::Stale,
    ];
    assert_eq!(run::ack(&space, bucket(), "ex-1", &rows, false).await.unwrap(), wanted);
    let again = run::ack(&space, bucket(), "ex-1", &rows, true).await.unwrap();
    assert_eq!(again[0], AckAnswer::Known);
    let counts = read::counts(&space, bucket()).await.unwrap();
    let count = |state| counts.count(state);
    assert_eq!(
        (count("succeeded"), count("cancelled"), count("dead"), count("pending"), count("running")),
        (2, 1, 1, 2, 0)
    );
    assert_eq!(counts.lags.count(), 6);
}

#[tokio::test]
async fn a_plain_ack_over_minutes_and_claims_clears_all_away() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    for n in 0..40 {
        task(&space, "push", T0 - n * 20_000).await;
    }
    let mut tasks = Vec::new();
    while tasks.len() < 40 {
        tasks.extend(claim(&space, &Claim { limit: 7, normal_limit: 7, ..claim_all("p1") }).await.tasks);
    }
    let stale = ack_row(&tasks[3], Outcome::Succeeded);
    assert_eq!(ack_done(&space, &tasks[..5]).await, [AckAnswer::Succeeded; 5]);
    // One stale row among good ones does not stop those.
    let mut rows: Vec<_> = tasks[5..].iter().map(|task| ack_row(task, Outcome::Succeeded)).collect();
    rows.insert(9, stale);
    let answers = run::ack(&space, bucket(), "ex-1", &rows, false).await.unwrap();
    assert_eq!(answers.iter().filter(|answer| **answer == AckAnswer::Succeeded).count(), 35);
    assert_eq!(answers[9], AckAnswer::Stale);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("succeeded"), counts.count("running"), counts.lags.count()), (40, 0, 40));
    for key in ["run", "task"] {
        let found = bed.server().run(&["KEYS", &format!("{{{}*}}:{key}*", bed.namespace())]).unwrap();
        assert_eq!(found, minutehand::dev::wire::Answer::List(vec![]), "{key}");
    }
}

#[tokio::test]
async fn a_batch_with_keys_keeps_each_for_its_window() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let push = lane(&space, "push", Priority::P3).await;
    let rows = || {
        let keyed = |n: i64| {
            let window_ms = [0, 3_600_000, 86_400_000][n as usize % 3];
            // Short ones lie under their own name, long ones under a digest.
            let len = if n % 2 == 0 { 3 } else { 30 };
            let key = minutehand::model::Key::new(format!("key-{n:0len$}"), window_ms).unwrap();
            row(minutehand::model::Spec { key: Some(key), ..spec(push, T0 - n * 7_000) })
        };
        (0..60).map(keyed).collect::<Vec<_>>()
    };
    let first = rows();
    assert_eq!(submit(&space, &first).await, [RowAnswer::Created; 60]);
    let plain = task(&space, "push", T0).await;
    let tasks = claim(&space, &claim_all("p1")).await.tasks;
    assert!(tasks.iter().any(|task| task.id == plain) && tasks.len() == 61);
    assert_eq!(ack_done(&space, &tasks).await, [AckAnswer::Succeeded; 61]);
    let free =
        |answers: Vec<RowAnswer>| answers.iter().filter(|answer| **answer == RowAnswer::Created).count();
    let again = submit(&space, &rows()).await;
    assert_eq!(again[1], RowAnswer::Duplicate(first[1].id));
    assert_eq!(free(again), 20, "keys without a window are free at once");
    ack_done(&space, &claim(&space, &claim_all("p1")).await.tasks).await;
    // The claims of two hours later forget the keys whose hour is over, and then the hour.
    space.inject_now(Some(T0 + 2 * 3_600_000 + 60_000));
    claim(&space, &claim_all("p1")).await;
    claim(&space, &claim_all("p1")).await;
    assert_eq!(free(submit(&space, &rows()).await), 40);
    let pattern = format!("{{{}*}}:keyend:*", bed.namespace());
    let minutehand::dev::wire::Answer::List(hours) = bed.server().run(&["KEYS", &pattern]).unwrap() else {
        panic!("no list");
    };
    assert_eq!(hours.len(), 1, "only the hour of the long window is left: {hours:?}");
}

#[tokio::test]
async fn what_is_due_soon_is_claimed_ahead_if_all_of_it_may_go() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    // The look-ahead reaches over the end of a minute: T0 is the start of one.
    space.inject_now(Some(T0 - 30));
    let ids = [
        task(&space, "push", T0 - 40).await,
        task(&space, "push", T0 - 10).await,
        task(&space, "push", T0 + 20).await,
    ];
    let later = task(&space, "push", T0 + 80).await;
    let ahead = |ahead_ms, limit| Claim { ahead_ms, limit, normal_limit: limit, ..claim_all("p1") };
    // Room for two: what is not due yet waits, rather than a part of it going.
    let ripe = claim(&space, &ahead(60, 2)).await;
    assert_eq!(ripe.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), ids[..1]);
    assert_eq!((ripe.next_due.map(|due| due.0), ripe.backlog), (Some(T0 - 10), 0));
    let soon = claim(&space, &ahead(60, 2)).await;
    assert_eq!(
        soon.tasks.iter().map(|task| (task.id, task.due.0)).collect::<Vec<_>>(),
        [(ids[1], T0 - 10), (ids[2], T0 + 20)]
    );
    assert_eq!(soon.next_due.map(|due| due.0), Some(T0 + 80));
    // Handed back it is pending again, at its time.
    let back: Vec<_> = soon.tasks.iter().map(|task| (task.id, task.grant)).collect();
    let answers = due::release(&space, bucket(), "p1", "test", &back).await.unwrap();
    assert_eq!(answers, [ReleaseAnswer::HandedBack, ReleaseAnswer::HandedBack]);
    assert!(claim(&space, &ahead(0, 10)).await.tasks.is_empty(), "nothing is due");
    // Queues that may not be claimed stay, however far it looks.
    let closed = Claim { default_quota: Quota::Closed, ..ahead(200, 10) };
    assert!(claim(&space, &closed).await.tasks.is_empty());
    let all = claim(&space, &ahead(200, 10)).await;
    assert_eq!(all.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [ids[1], ids[2], later]);
    assert_eq!(ack_done(&space, &all.tasks).await, [AckAnswer::Succeeded; 3]);
}

#[tokio::test]
async fn looking_ahead_into_the_next_minute_fires_no_timer_early() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    space.inject_now(Some(T0 - 30));
    let mut spec = spec(lane(&space, "push", Priority::P3).await, T0 + 3_600_000);
    spec.deadline = Some((T0 + 10).into());
    let row = row(spec);
    submit(&space, std::slice::from_ref(&row)).await;
    let claim_ahead = Claim { ahead_ms: 200, ..claim_all("p1") };
    claim(&space, &claim_ahead).await;
    assert_eq!(read::get(&space, row.id).await.unwrap().unwrap().state, State::Pending);
    space.inject_now(Some(T0 + 10));
    claim(&space, &Claim { ahead_ms: 200, ..claim_all("p1") }).await;
    assert_eq!(read::get(&space, row.id).await.unwrap().unwrap().state, State::Expired);
}

#[tokio::test]
async fn urgent_tasks_are_claimed_ahead_beside_a_backlog() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let (low, high) = (lane(&space, "push", Priority::P5).await, lane(&space, "push", Priority::P0).await);
    let many = |lane, due_ms, count| (0..count).map(|_| row(spec(lane, due_ms))).collect::<Vec<_>>();
    submit(&space, &many(low, T0 - 1_000, 100)).await;
    let ask = |any, normal| Claim { ahead_ms: 60, limit: any, normal_limit: normal, ..claim_all("p1") };
    let of = |claimed: &due::Claimed, priority| {
        claimed.tasks.iter().filter(|task| task.lane.priority() == priority).count()
    };
    assert_eq!(claim(&space, &ask(10, 10)).await.backlog, 90);
    // Two that are due soon go first, and the rest of the room is for others.
    let soon = many(high, T0 + 50, 2);
    submit(&space, &soon).await;
    let claimed = claim(&space, &ask(10, 10)).await;
    let first: Vec<_> = claimed.tasks[..2].iter().map(|task| (task.id, task.due)).collect();
    let mut expected: Vec<_> = soon.iter().map(|row| (row.id, row.spec.due)).collect();
    expected.sort_unstable();
    assert_eq!(first, expected);
    assert_eq!((of(&claimed, Priority::P5), claimed.backlog), (8, 82));
    // P5 has had seven more than its share of 4 in 44, and gets none where P0 takes it all.
    submit(&space, &many(high, T0 + 50, 2)).await;
    let claimed = claim(&space, &ask(2, 2)).await;
    assert_eq!((of(&claimed, Priority::P0), of(&claimed, Priority::P5)), (2, 0));
    // Room for urgent ones alone: they go, and what P5 is owed is not forgotten.
    for _ in 0..44 {
        submit(&space, &many(high, T0 + 50, 2)).await;
        let claimed = claim(&space, &ask(2, 0)).await;
        assert_eq!((of(&claimed, Priority::P0), claimed.tasks.len()), (2, 2));
    }
    submit(&space, &many(high, T0 + 50, 2)).await;
    let claimed = claim(&space, &ask(2, 2)).await;
    assert_eq!((of(&claimed, Priority::P0), of(&claimed, Priority::P5)), (0, 2), "P5's turn");
    space.inject_now(Some(T0 + 50));
    let claimed = claim(&space, &ask(2, 2)).await;
    assert_eq!((of(&claimed, Priority::P0), of(&claimed, Priority::P5)), (1, 1), "what it was owed before");
}
