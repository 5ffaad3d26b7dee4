//! Starting, renewing and ending granted tasks; and what holds for all scripts: bounds, memory, restarts.

use std::collections::HashMap;

use minutehand::clock;
use minutehand::dev::redis::ServerOptions;
use minutehand::limits;
use minutehand::model::event::Move;
use minutehand::model::spec::Key;
use minutehand::model::{Grant, Phase, Priority, Retry, Spec, State, TaskId, UnixMs};
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::due::{self, Claim, ClaimAnswer, Granted, ReleaseAnswer};
use minutehand::store::events;
use minutehand::store::intake::{self, Row, RowAnswer, Sending, SubmitAnswer};
use minutehand::store::run::{self, AckAnswer, AckRow, Outcome, StartAnswer, StartRow};
use minutehand::store::{At, Cause, Space, StoreError, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use minutehand::testing::snapshot::{names, snapshot};

use super::foreign::Planted;

const HOUR: i64 = 3_600_000;

fn hold(task: &Granted, lease_ms: i64) -> StartRow {
    StartRow { id: task.id, grant: task.grant, lease_ms }
}

fn held(deadline: i64) -> StartAnswer {
    StartAnswer::Ok { deadline: UnixMs(deadline), cancel: false }
}

async fn ack(space: &Space, rows: &[AckRow], again: bool) -> Vec<AckAnswer> {
    run::ack(space, bucket(), "ex", rows, again).await.unwrap()
}

#[tokio::test]
async fn a_grant_is_offered_started_and_renewed_by_its_holder() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = task(&space, "push", T0).await;
    let task = claim(&space, &claim_all("p1")).await.tasks.remove(0);
    let record = async || {
        let run = read::get(&space, id).await.unwrap().unwrap().run.unwrap();
        (run.phase, run.deadline.0, run.holder)
    };
    let claimed_until = T0 + limits::DISPATCH_TIMEOUT_MS;
    assert_eq!(record().await, (Phase::Claimed, claimed_until, "p1".into()));

    let offered = run::offer(&space, bucket(), "p1", &[(hold(&task, 0), "ex-7")]).await.unwrap();
    assert_eq!(offered, [held(claimed_until)]);
    assert_eq!(record().await, (Phase::Offered, claimed_until, "ex-7".into()));
    // Held in the inbox: renewed without having started.
    space.inject_now(Some(T0 + 1_000));
    let renewed = run::renew(&space, bucket(), "ex-7", &[hold(&task, 20_000)]).await.unwrap();
    assert_eq!(renewed, [held(T0 + 21_000)]);
    assert_eq!(record().await, (Phase::Offered, T0 + 21_000, "ex-7".into()));
    space.inject_now(Some(T0 + 2_000));
    for _ in 0..2 {
        let started = run::start(&space, bucket(), "ex-7", &[hold(&task, 30_000)]).await.unwrap();
        assert_eq!(started, [held(T0 + 32_000)]);
    }
    assert_eq!(record().await, (Phase::Started, T0 + 32_000, "ex-7".into()));
    // What lasts as long as it does needs no number.
    let started = run::start(&space, bucket(), "ex-7", &[hold(&task, 0)]).await.unwrap();
    assert_eq!(started, [held(T0 + 32_000)]);
    // A late note of the offer does not take the start back.
    let late = run::offer(&space, bucket(), "p1", &[(hold(&task, 0), "ex-8")]).await.unwrap();
    assert_eq!(late, [held(T0 + 32_000)]);
    assert_eq!(record().await, (Phase::Started, T0 + 32_000, "ex-7".into()));
    // Leases go by a clock that never runs backwards: that of the last claim.
    space.inject_now(Some(T0 + 10_000));
    claim(&space, &claim_all("p1")).await;
    space.inject_now(Some(T0 + 3_000));
    let renewed = run::renew(&space, bucket(), "ex-7", &[hold(&task, 30_000)]).await.unwrap();
    assert_eq!(renewed, [held(T0 + 40_000)]);
    sound(&space).await;
}

#[tokio::test]
async fn who_takes_a_task_and_may_not_have_begun_it_says_so_itself() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = task(&space, "push", T0).await;
    let task = claim(&space, &claim_all("p1")).await.tasks.remove(0);
    for at in [1_000, 2_000] {
        // Noted by the pod or not: its lease is what the executor says.
        space.inject_now(Some(T0 + at));
        let offered = run::offer(&space, bucket(), "ex", &[(hold(&task, 30_000), "ex")]).await.unwrap();
        assert_eq!(offered, [held(T0 + at + 30_000)]);
        let run = read::get(&space, id).await.unwrap().unwrap().run.unwrap();
        assert_eq!((run.phase, run.holder.as_str()), (Phase::Offered, "ex"));
    }
    let late = run::offer(&space, bucket(), "p1", &[(hold(&task, 1_000), "ex")]).await.unwrap();
    assert_eq!(late, [held(T0 + 32_000)]);
    for _ in 0..2 {
        run::start(&space, bucket(), "ex", &[hold(&task, 30_000)]).await.unwrap();
    }
    let told = events::trace(&space, id).await.unwrap().events;
    let moves: Vec<Move> = told.iter().map(|event| event.event).collect();
    assert_eq!(moves, [Move::Submitted, Move::Claimed, Move::Offered, Move::Started], "each once");
    sound(&space).await;
}

#[tokio::test]
async fn another_grant_holds_nothing_and_changes_nothing() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    task(&space, "push", T0).await;
    let task = claim(&space, &claim_all("p1")).await.tasks.remove(0);
    let nonce = minutehand::model::Nonce::new(77);
    let wrong = [
        Grant::new(task.grant.fence() + 1, task.grant.nonce()),
        Grant::new(task.grant.fence(), nonce),
        Grant::new(0, task.grant.nonce()),
    ];
    let before = snapshot(&space).await;
    for grant in wrong {
        let row = StartRow { grant, ..hold(&task, 9_000) };
        let stale = [StartAnswer::Stale];
        assert_eq!(run::start(&space, bucket(), "ex", &[row]).await.unwrap(), stale);
        assert_eq!(run::renew(&space, bucket(), "ex", &[row]).await.unwrap(), stale);
        assert_eq!(run::offer(&space, bucket(), "p1", &[(row, "ex")]).await.unwrap(), stale);
        for outcome in [
            Outcome::Succeeded,
            Outcome::Cancelled,
            Outcome::Failed { error: String::new() },
            Outcome::Fatal { error: String::new() },
            Outcome::RetryAfter { ms: 1, counted: false, error: String::new() },
        ] {
            for again in [false, true] {
                let row = AckRow { grant, ..ack_row(&task, outcome.clone()) };
                assert_eq!(ack(&space, &[row], again).await, [AckAnswer::Stale]);
            }
        }
        let released = due::release(&space, bucket(), "p1", "", &[(task.id, grant)]).await.unwrap();
        assert_eq!(released, [ReleaseAnswer::Stale]);
    }
    assert_eq!(snapshot(&space).await, before);
}

#[tokio::test]
async fn each_outcome_is_accepted_once_and_known_afterwards() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let retry = Retry { base_ms: 700, jitter_percent: 0, ..Retry::default() };
    let lane = lane(&space, "push", Priority::P3).await;
    let error = || "it did not work".to_owned();
    let cases = [
        (Outcome::Succeeded, AckAnswer::Succeeded, State::Succeeded),
        (Outcome::Cancelled, AckAnswer::Cancelled, State::Cancelled),
        (Outcome::Failed { error: error() }, AckAnswer::Retrying { due: UnixMs(T0 + 700) }, State::Pending),
        (Outcome::Fatal { error: error() }, AckAnswer::Dead, State::Dead),
        (
            Outcome::RetryAfter { ms: 90_000, counted: true, error: error() },
            AckAnswer::Retrying { due: UnixMs(T0 + 90_000) },
            State::Pending,
        ),
        (
            Outcome::RetryAfter { ms: 0, counted: false, error: error() },
            AckAnswer::Retrying { due: UnixMs(T0) },
            State::Pending,
        ),
    ];
    let rows: Vec<Row> = cases.iter().map(|_| row(Spec { retry, ..spec(lane, T0) })).collect();
    submit(&space, &rows).await;
    let tasks: HashMap<TaskId, Granted> =
        claim(&space, &claim_all("p1")).await.tasks.into_iter().map(|task| (task.id, task)).collect();
    let acks: Vec<AckRow> = rows
        .iter()
        .zip(&cases)
        .map(|(row, (outcome, ..))| ack_row(&tasks[&row.id], outcome.clone()))
        .collect();
    let expected: Vec<AckAnswer> = cases.iter().map(|(_, answer, _)| *answer).collect();
    // The same row twice in one call is accepted once.
    let twice: Vec<AckRow> = acks.iter().chain(&acks).cloned().collect();
    let mut answers = expected.clone();
    answers.extend([AckAnswer::Stale; 6]);
    assert_eq!(ack(&space, &twice, false).await, answers);
    for (row, (_, _, state)) in rows.iter().zip(&cases) {
        assert_eq!(read::get(&space, row.id).await.unwrap().unwrap().state, *state);
    }
    let before = snapshot(&space).await;
    assert_eq!(ack(&space, &acks, false).await, [AckAnswer::Stale; 6]);
    assert_eq!(ack(&space, &acks, true).await, [AckAnswer::Known; 6]);
    assert_eq!(snapshot(&space).await, before);

    let place = async |at: usize| {
        let place = read::get(&space, rows[at].id).await.unwrap().unwrap().place.unwrap();
        (place.due.0 - T0, place.failures, place.lane.tier().number(), place.fence)
    };
    assert_eq!(place(2).await, (700, 1, 1, 1));
    assert_eq!(place(4).await, (90_000, 1, 1, 1));
    assert_eq!(place(5).await, (0, 0, 0, 1));
    let counts = read::counts(&space, bucket()).await.unwrap();
    let count = |name| counts.count(name);
    assert_eq!(["succeeded", "cancelled", "dead", "pending", "running"].map(count), [1, 1, 1, 3, 0]);
    sound(&space).await;
}

#[tokio::test]
async fn a_task_asked_to_stop_ends_as_cancelled_whatever_its_handler_says() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    for outcome in [
        Outcome::Succeeded,
        Outcome::Failed { error: String::new() },
        Outcome::Fatal { error: String::new() },
    ] {
        let id = task(&space, "push", T0).await;
        let granted = claim(&space, &claim_all("p1")).await.tasks;
        intake::cancel(&space, bucket(), "me", "", &[id]).await.unwrap();
        let started = run::start(&space, bucket(), "ex", &[hold(&granted[0], 1_000)]).await.unwrap();
        assert_eq!(started, [StartAnswer::Ok { deadline: UnixMs(T0 + 1_000), cancel: true }]);
        assert_eq!(ack(&space, &[ack_row(&granted[0], outcome)], false).await, [AckAnswer::Cancelled]);
    }
    // Nobody answers: it is cancelled when its lease ends, and not tried again.
    let id = task(&space, "push", T0).await;
    let granted = claim(&space, &claim_all("p1")).await.tasks;
    run::start(&space, bucket(), "ex", &[hold(&granted[0], 1_000)]).await.unwrap();
    intake::cancel(&space, bucket(), "me", "", &[id]).await.unwrap();
    space.inject_now(Some(T0 + 2_000));
    let later = claim(&space, &claim_all("p1")).await;
    assert_eq!((later.reaped, later.tasks.len()), (1, 0));
    assert_eq!(read::get(&space, id).await.unwrap().unwrap().state, State::Cancelled);
    // Handed back: there is nothing left to be handed back to.
    let id = task(&space, "push", T0).await;
    let granted = claim(&space, &claim_all("p1")).await.tasks;
    intake::cancel(&space, bucket(), "me", "", &[id]).await.unwrap();
    let rows = [(id, granted[0].grant)];
    assert_eq!(due::release(&space, bucket(), "p1", "", &rows).await.unwrap(), [ReleaseAnswer::Cancelled]);
    assert_eq!(read::counts(&space, bucket()).await.unwrap().count("cancelled"), 5);
    sound(&space).await;
}

#[tokio::test]
async fn a_task_that_is_lost_twenty_times_is_dead() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = task(&space, "push", T0).await;
    let mut now = T0;
    for round in 1..=limits::UNCOUNTED_LOSSES_MAX {
        let granted = claim(&space, &claim_all("p1")).await.tasks;
        assert_eq!((granted.len(), granted[0].grant.fence(), granted[0].failures), (1, round, 0));
        now += limits::DISPATCH_TIMEOUT_MS + 1_000;
        space.inject_now(Some(now));
    }
    assert!(claim(&space, &claim_all("p1")).await.tasks.is_empty());
    let found = read::get(&space, id).await.unwrap().unwrap();
    assert_eq!((found.state, found.dead.unwrap().0.as_str()), (State::Dead, "lost_unstarted"));
    sound(&space).await;
}

#[tokio::test]
async fn nine_thousand_leases_that_lapse_at_once_are_reaped_in_bounded_visits() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let rows: Vec<Row> = (0..9_000).map(|_| row(spec(lane, T0))).collect();
    for piece in rows.chunks(limits::BATCH_MAX_ROWS) {
        submit(&space, piece).await;
        let granted = claim(&space, &claim_all("p1")).await.tasks;
        assert_eq!(granted.len(), piece.len());
        let starts: Vec<_> = granted.iter().map(|task| hold(task, 2_000)).collect();
        run::start(&space, bucket(), "ex", &starts).await.unwrap();
    }
    space.inject_now(Some(T0 + 3_000));
    let mut reaped = 0;
    for _ in 0..9_000 / limits::REAP_MAX_ROWS {
        let visit = claim(&space, &Claim { limit: 0, ..claim_all("p1") }).await;
        // A piece of `run` itself is looked at beside the strings, once a second.
        assert!(visit.reaped as usize <= limits::REAP_MAX_ROWS, "{}", visit.reaped);
        reaped += visit.reaped;
    }
    assert_eq!(reaped, 9_000);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("pending"), counts.count("running")), (9_000, 0));
    sound(&space).await;
}

#[tokio::test]
async fn a_foreign_key_stops_every_move_of_a_granted_task_before_it_writes() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let due = UnixMs(T0).minute();
    let make = || {
        row(Spec {
            key: Some(Key::new("k", HOUR).unwrap()),
            deadline: Some(UnixMs(T0 + HOUR)),
            retry: Retry { base_ms: 600_000, jitter_percent: 0, ..Retry::default() },
            ..spec(lane, T0)
        })
    };
    submit(&space, &[row(spec(lane, T0)), make()]).await;
    let tasks = claim(&space, &claim_all("p1")).await.tasks;
    assert_eq!(tasks.len(), 2);
    let keyed = tasks.iter().find(|task| task.spec[1] != 0).unwrap();

    let starts: Vec<_> = tasks.iter().map(|task| hold(task, 30_000)).collect();
    let lease = format!("lease:{}.0", (T0 + 30_000) / 1_000);
    for name in ["meta", "run", "events", "leases", &lease] {
        let planted = Planted::at(&space, name).await;
        planted.refuses(run::start(&space, bucket(), "ex", &starts).await);
        planted.nothing_changed().await;
        if name != "events" {
            planted.refuses(run::renew(&space, bucket(), "ex", &starts).await);
            planted.nothing_changed().await;
        }
        planted.undo().await;
    }

    let always: Vec<String> =
        ["meta", "run", "events", "counts", "at", "tries", "dead", "agenda", "recents", "lock"]
            .into_iter()
            .map(str::to_owned)
            .chain([
                format!("task:{}", due.0 / 60),
                format!("recent:{}", T0 / 10_000),
                format!("lag:{due}"),
                format!("keys:{}", Key::shard(b"k")),
            ])
            .collect();
    let ends =
        [format!("keyend:{}", (T0 + HOUR) / HOUR + 1), format!("timer:{}", UnixMs(T0 + HOUR).minute())];
    let retry = [format!("due:{}", UnixMs(T0 + 600_000).minute())];
    let letter = [format!("dead:{}", keyed.id)];
    let error = || "no".to_owned();
    let keyless: Vec<String> = always[..always.len() - 1].to_vec();
    for (outcome, places) in [
        (Outcome::Succeeded, [&always[..], &ends].concat()),
        (Outcome::Cancelled, [&always[..], &ends].concat()),
        (Outcome::Failed { error: error() }, [&keyless[..], &retry].concat()),
        (Outcome::Fatal { error: error() }, [&always[..], &ends, &letter].concat()),
        (
            Outcome::RetryAfter { ms: 600_000, counted: false, error: error() },
            [&keyless[..], &retry].concat(),
        ),
    ] {
        let acks: Vec<_> = tasks
            .iter()
            .map(|task| ack_row(task, if task.id == keyed.id { outcome.clone() } else { Outcome::Succeeded }))
            .collect();
        for name in places {
            let planted = Planted::at(&space, &name).await;
            planted.refuses(run::ack(&space, bucket(), "ex", &acks, false).await);
            planted.nothing_changed().await;
            planted.undo().await;
        }
    }

    let ready = format!("ready:{}", lane.as_str());
    let rows: Vec<_> = tasks.iter().map(|task| (task.id, task.grant)).collect();
    for name in ["run", "events", "counts", "at", "lock", "ring:3", &ready, &format!("task:{}", due.0 / 60)] {
        let planted = Planted::at(&space, name).await;
        planted.refuses(due::release(&space, bucket(), "p1", "", &rows).await);
        planted.nothing_changed().await;
        planted.undo().await;
    }
    sound(&space).await;
    assert_eq!(ack_done(&space, &tasks).await, [AckAnswer::Succeeded; 2]);
}

#[tokio::test]
async fn a_foreign_key_stops_a_claim_before_it_moves_a_task() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    // Of a single lane the first may go without a choice.
    let (lane, other) = (lane(&space, "push", Priority::P3).await, lane(&space, "mail", Priority::P3).await);
    let rows = [row(spec(lane, T0)), row(spec(other, T0))];
    submit(&space, &rows).await;
    let minute = UnixMs(T0).minute();
    let one = Claim { limit: 1, normal_limit: 1, ..claim_all("p1") };
    let granting = ["lock", "counts", "events", "run", "at", "agenda", "leases", "dead", "recents"];
    let more = [
        "last:p1".to_owned(),
        format!("due:{minute}"),
        format!("task:{}", minute.0 / 60),
        format!("lease:{}.0", (T0 + limits::DISPATCH_TIMEOUT_MS) / 1_000),
    ];
    // One that takes all goes straight through, and looks at no lane.
    for name in granting.map(str::to_owned).iter().chain(&more) {
        let planted = Planted::at(&space, name).await;
        planted.refuses(due::claim(&space, bucket(), &claim_all("p1")).await);
        planted.nothing_moved().await;
        planted.undo().await;
    }
    // One that must choose ripens first: the tasks may then be in their lane, pending as before.
    let choosing = ["parked", "ring:0", "ring:3"].map(str::to_owned);
    let ready = format!("ready:{}", lane.as_str());
    let others = granting.map(str::to_owned);
    for name in choosing.iter().chain([&ready, &more[0], &more[2], &more[3]]).chain(&others) {
        let planted = Planted::at(&space, name).await;
        planted.refuses(due::claim(&space, bucket(), &one).await);
        planted.undo().await;
        sound(&space).await;
        let counts = read::counts(&space, bucket()).await.unwrap();
        assert_eq!((counts.count("pending"), counts.count("running")), (2, 0), "{name}");
    }
    let planted = Planted::at(&space, "meta").await;
    planted.refuses(due::claim(&space, bucket(), &claim_all("p1")).await);
    planted.nothing_changed().await;
    planted.undo().await;
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("pending"), counts.count("running")), (2, 0));
    assert_eq!(claim(&space, &claim_all("p1")).await.tasks.len(), 2);
}

/// A lapsed grant whose way back is blocked does not spoil the others' accounts.
#[tokio::test]
async fn a_claim_that_meets_a_foreign_key_accounts_for_what_it_moved_before() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let (free, stuck) = (task(&space, "free", T0 - 1).await, task(&space, "stuck", T0).await);
    let granted = claim(&space, &claim_all("p1")).await.tasks;
    assert_eq!(granted.iter().map(|task| task.id).collect::<Vec<_>>(), [free, stuck]);
    space.inject_now(Some(T0 + 20_000));
    let code = lane(&space, "stuck", Priority::P3).await;
    let planted = Planted::at(&space, &format!("ready:{}", code.as_str())).await;
    planted.refuses(due::claim(&space, bucket(), &claim_all("p1")).await);
    planted.undo().await;
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("pending"), counts.count("running")), (1, 1));
    sound(&space).await;
    let again = claim(&space, &claim_all("p1")).await.tasks;
    assert_eq!(again.iter().map(|task| task.grant.fence()).collect::<Vec<_>>(), [2, 2]);
}

#[tokio::test]
async fn with_memory_full_work_drains_to_the_last_task_and_submits_are_refused() {
    let bed = Bed::own_server(ServerOptions::default()).await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let rows: Vec<Row> = (0..500).map(|n| row(spec(lane, T0 - 500 + n))).collect();
    submit(&space, &rows).await;
    bed.server().run(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();

    let more = [row(spec(lane, T0))];
    let before = snapshot(&space).await;
    let refused = intake::submit(&space, bucket(), &more, Sending::default()).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Refused { cause: Cause::Oom, .. }), "{refused}");
    assert!(!refused.fate_unknown() && refused.is_retryable());
    let moved = intake::reschedule(&space, "me", rows[0].id, UnixMs(T0 + 1)).await.unwrap_err();
    assert_eq!(moved.cause(), "oom");
    assert_eq!(snapshot(&space).await, before);

    let cancelled = intake::cancel(&space, bucket(), "me", "", &[rows[499].id]).await.unwrap();
    assert_eq!(cancelled, [intake::WishAnswer::Done]);
    let mut done = 0;
    let mut first = true;
    loop {
        let granted = claim(&space, &Claim { limit: 100, normal_limit: 100, ..claim_all("p1") }).await.tasks;
        if granted.is_empty() {
            break;
        }
        let starts: Vec<_> = granted.iter().map(|task| hold(task, 30_000)).collect();
        assert!(
            run::start(&space, bucket(), "ex", &starts)
                .await
                .unwrap()
                .iter()
                .all(|a| *a != StartAnswer::Stale)
        );
        run::renew(&space, bucket(), "ex", &starts).await.unwrap();
        if std::mem::take(&mut first) {
            let rows: Vec<_> = granted[..10].iter().map(|task| (task.id, task.grant)).collect();
            assert_eq!(
                due::release(&space, bucket(), "p1", "", &rows).await.unwrap(),
                [ReleaseAnswer::HandedBack; 10]
            );
            done += ack_done(&space, &granted[10..]).await.len();
            continue;
        }
        done += ack_done(&space, &granted).await.len();
    }
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!(
        (done, counts.count("succeeded"), counts.count("cancelled"), counts.count("pending")),
        (499, 499, 1, 0)
    );
    sound(&space).await;
    bed.server().run(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    assert_eq!(submit(&space, &more).await, [RowAnswer::Created]);
}

#[tokio::test]
async fn forgotten_scripts_are_loaded_again_wherever_they_are_called() {
    let bed = Bed::own_server(ServerOptions::default()).await.unwrap();
    let space = space(&bed).await;
    let flush = || bed.server().run(&["SCRIPT", "FLUSH"]).unwrap();
    let lane = lane(&space, "push", Priority::P3).await;
    let mut done = 0;
    for round in 0..40 {
        let rows: Vec<Row> = (0..5).map(|_| row(spec(lane, T0))).collect();
        flush();
        assert_eq!(submit(&space, &rows).await, vec![RowAnswer::Created; 5]);
        flush();
        let granted = claim(&space, &claim_all("p1")).await.tasks;
        assert_eq!(granted.len(), 5, "round {round}");
        let starts: Vec<_> = granted.iter().map(|task| hold(task, 30_000)).collect();
        flush();
        run::start(&space, bucket(), "ex", &starts).await.unwrap();
        // Many at once, of which each finds its script gone.
        flush();
        let acks = granted.iter().map(|task| {
            let (space, row) = (space.clone(), ack_row(task, Outcome::Succeeded));
            tokio::spawn(async move { run::ack(&space, bucket(), "ex", &[row], false).await.unwrap() })
        });
        for told in acks.collect::<Vec<_>>() {
            assert_eq!(told.await.unwrap(), [AckAnswer::Succeeded]);
            done += 1;
        }
    }
    assert_eq!(read::counts(&space, bucket()).await.unwrap().count("succeeded"), done);
    sound(&space).await;
}

/// Calls again until an answer comes; `again` tells whether an earlier try may have arrived.
async fn insist<T>(mut call: impl AsyncFnMut(bool) -> Result<T, StoreError>) -> T {
    let start = clock::mono();
    let mut again = false;
    loop {
        match call(again).await {
            Ok(answer) => return answer,
            Err(error) if error.is_retryable() && clock::elapsed_ms(start) < 20_000 => {
                again |= error.fate_unknown();
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The server dies in the middle of submits, claims and acks, and comes back with what it had
/// acknowledged: each task is accepted once and succeeds once.
#[tokio::test]
async fn a_server_killed_in_mid_run_loses_and_doubles_nothing() {
    const COUNT: usize = 2_000;
    let bed = Bed::own_durable().await.unwrap();
    let space = space(&bed).await;
    space.inject_now(None);
    let lane = lane(&space, "push", Priority::P3).await;
    let now = space.clock().now_ms();
    let rows: Vec<Row> = (0..COUNT).map(|_| row(spec(lane, now))).collect();
    let kill_during = async |kill: bool| {
        if kill {
            bed.server().kill9();
            bed.server().restart().await.unwrap();
        }
    };
    for (at, piece) in rows.chunks(100).enumerate() {
        let start = clock::mono();
        let sent = insist(async |again| {
            let sending =
                Sending { again_after_ms: again.then(|| clock::elapsed_ms(start)), ..Sending::default() };
            intake::submit(&space, bucket(), piece, sending).await
        });
        let (sent, ()) = tokio::join!(sent, kill_during(at % 7 == 3));
        let SubmitAnswer::Rows { answers, .. } = sent else { panic!("no bucket is closed") };
        assert_eq!(answers, vec![RowAnswer::Created; piece.len()]);
    }
    let (mut succeeded, mut visits) = (0, 0);
    while succeeded < COUNT {
        visits += 1;
        let call = Claim { limit: 150, normal_limit: 150, ..claim_all("p1") };
        // The same call again: it answers what it was granted.
        let claimed = insist(async |_| due::claim(&space, bucket(), &call).await);
        let (claimed, ()) = tokio::join!(claimed, kill_during(visits % 5 == 2));
        let ClaimAnswer::Held(claimed) = claimed else { panic!("there is one pod") };
        let acks: Vec<_> = claimed.tasks.iter().map(|task| ack_row(task, Outcome::Succeeded)).collect();
        let told = insist(async |again| run::ack(&space, bucket(), "ex", &acks, again).await);
        let (told, ()) = tokio::join!(told, kill_during(visits % 5 == 4));
        assert!(
            told.iter().all(|answer| matches!(answer, AckAnswer::Succeeded | AckAnswer::Known)),
            "{told:?}"
        );
        succeeded += told.len();
        assert!(visits < 200, "{succeeded} of {COUNT} after {visits} visits");
    }
    assert_eq!(succeeded, COUNT);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("submitted"), counts.count("succeeded")), (COUNT as i64, COUNT as i64));
    sound(&space).await;
}

#[tokio::test]
async fn errors_keep_their_end_and_attempts_their_order() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let retry = Retry { retries: 40, base_ms: 0, jitter_percent: 0, ..Retry::default() };
    let one = row(Spec { retry, ..spec(lane, T0) });
    submit(&space, std::slice::from_ref(&one)).await;
    for attempt in 0..30 {
        let granted = claim(&space, &claim_all("p1")).await.tasks;
        let error = format!("{}end of {attempt}", "é".repeat(2_000));
        ack(&space, &[ack_row(&granted[0], Outcome::Failed { error })], false).await;
    }
    let found = read::get(&space, one.id).await.unwrap().unwrap();
    assert_eq!(found.place.unwrap().failures, 30);
    // The first and the latest are kept.
    assert_eq!(found.attempts.len(), limits::ATTEMPTS_KEPT_MAX);
    let kept = std::iter::once(0).chain(30 - limits::ATTEMPTS_KEPT_MAX + 1..30);
    for (at, attempt) in kept.zip(&found.attempts) {
        assert!(attempt.error.ends_with(&format!("end of {at}")), "{}", attempt.error.len());
        assert!(attempt.error.len() <= limits::ERROR_TAIL_MAX_BYTES && attempt.error.starts_with('é'));
        assert_eq!((attempt.fence as usize, attempt.executor.as_str()), (at + 1, "ex"));
    }
}

#[tokio::test]
async fn a_subject_is_met_first_once_a_day_and_name() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let met = async |name: &str, subject: u64| run::daily(&space, name, subject).await.unwrap();
    assert_eq!((met("a", 5).await, met("a", 5).await, met("a", 6).await), (true, false, true));
    assert_eq!((met("b", 5).await, met("a", 5 + (1 << 20)).await), (true, true));
    // The last millisecond of the day, and the first of the next.
    let midnight = (T0 / 86_400_000 + 1) * 86_400_000;
    space.inject_now(Some(midnight - 1));
    assert!(!met("a", 5).await);
    space.inject_now(Some(midnight));
    assert_eq!((met("a", 5).await, met("a", 5).await), (true, false));
    assert!(check(&space, CheckOptions::default()).await.unwrap().ok, "its keys are known");
    let key = names(&space).await.into_iter().find(|name| name.ends_with(b":day:20422"));
    let key = key.expect("the string of its day");
    let args = vec![key.clone()];
    let left = space.store().command("TTL", At::Key(&key), args).await.unwrap().int("TTL").unwrap();
    assert!((172_700..=172_800).contains(&left), "{left}");
}
