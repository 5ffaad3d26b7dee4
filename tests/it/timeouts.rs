//! Total time-out, latest start, dispatch and execution time-outs.

use minutehand::client::{Client, NewTask};
use minutehand::executor::{Context, Executor, Stop};
use minutehand::limits;
use minutehand::model::event::Move;
use minutehand::model::{Bucket, Key, Priority, QueueName, Spec, State, TaskId};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::due::{self, Claim, Quota};
use minutehand::store::intake::RowAnswer;
use minutehand::store::run::{self, AckAnswer, Outcome, StartAnswer, StartRow};
use minutehand::store::{Space, events, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use minutehand::testing::snapshot::snapshot;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

async fn put(space: &Space, change: impl FnOnce(&mut Spec)) -> TaskId {
    let mut spec = spec(lane(space, "push", Priority::P3).await, T0);
    change(&mut spec);
    let row = row(spec);
    assert_eq!(submit(space, std::slice::from_ref(&row)).await, [RowAnswer::Created]);
    row.id
}

/// A claim that takes nothing and looks after everything else.
async fn tend(space: &Space) -> due::Claimed {
    claim(space, &Claim { limit: 0, normal_limit: 0, ..claim_all("p1") }).await
}

async fn state(space: &Space, id: TaskId) -> State {
    read::get(space, id).await.unwrap().unwrap().state
}

#[tokio::test]
async fn a_task_that_nobody_claims_expires_wherever_it_waits() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let key = Some(Key::new("order-17", 0).unwrap());
    let ripe = put(&space, |spec| spec.deadline = Some((T0 + 1_000).into())).await;
    let keyed =
        put(&space, |spec| (spec.key, spec.deadline) = (key.clone(), Some((T0 + 1_000).into()))).await;
    let far = put(&space, |spec| {
        spec.due = (T0 + 7_200_000).into();
        spec.deadline = Some((T0 + 1_000).into());
    })
    .await;
    let later = put(&space, |spec| spec.deadline = Some((T0 + 1_001).into())).await;
    // The queue's tasks ripen into a lane that may not be claimed.
    let closed = vec![(lane(&space, "push", Priority::P3).await.group(), Quota::Closed)];
    let claimed = claim(&space, &Claim { quotas: closed, ..claim_all("p1") }).await;
    assert_eq!(claimed.tasks.len(), 0);
    space.inject_now(Some(T0 + 999));
    tend(&space).await;
    assert_eq!(state(&space, ripe).await, State::Pending, "not before its time");
    space.inject_now(Some(T0 + 1_000));
    tend(&space).await;
    for id in [ripe, keyed, far] {
        assert_eq!(state(&space, id).await, State::Expired);
    }
    assert_eq!(state(&space, later).await, State::Pending);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("expired"), counts.count("pending"), counts.count("ready")), (3, 1, 1));
    // Its key is free again.
    let next = put(&space, |spec| spec.key = key).await;
    assert_eq!(state(&space, next).await, State::Pending);
    let told = events::trace(&space, ripe).await.unwrap().events;
    assert_eq!(
        told.last().map(|event| (event.event, event.cause.as_str())),
        Some((Move::Expired, "its total time-out passed"))
    );
    sound(&space).await;
}

#[tokio::test]
async fn a_task_expires_while_it_runs_and_its_ack_is_stale() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let deadline = Some((T0 + 10_000).into());
    let started = put(&space, |spec| spec.deadline = deadline).await;
    put(&space, |spec| spec.deadline = deadline).await;
    let claimed = claim(&space, &claim_all("p1")).await;
    assert_eq!(claimed.tasks.len(), 2);
    let of = |id| claimed.tasks.iter().find(|task| task.id == id).unwrap();
    let row = StartRow { id: started, grant: of(started).grant, lease_ms: 30_000 };
    run::start(&space, bucket(), "ex-1", &[row]).await.unwrap();
    space.inject_now(Some(T0 + 10_000));
    tend(&space).await;
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("expired"), counts.count("running")), (2, 0));
    let before = snapshot(&space).await;
    assert_eq!(run::renew(&space, bucket(), "ex-1", &[row]).await.unwrap(), [StartAnswer::Stale]);
    assert_eq!(ack_done(&space, &claimed.tasks).await, [AckAnswer::Stale; 2]);
    assert_eq!(snapshot(&space).await, before);
    sound(&space).await;
}

#[tokio::test]
async fn a_retry_expires_too_and_a_dead_letter_does_not() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let deadline = Some((T0 + 2_000).into());
    let retried = put(&space, |spec| spec.deadline = deadline).await;
    let dead = put(&space, |spec| spec.deadline = deadline).await;
    let claimed = claim(&space, &claim_all("p1")).await;
    let rows: Vec<_> = claimed
        .tasks
        .iter()
        .map(|task| {
            let error = "no".to_owned();
            ack_row(task, if task.id == dead { Outcome::Fatal { error } } else { Outcome::Failed { error } })
        })
        .collect();
    run::ack(&space, bucket(), "ex-1", &rows, false).await.unwrap();
    space.inject_now(Some(T0 + 2_000));
    tend(&space).await;
    assert_eq!((state(&space, retried).await, state(&space, dead).await), (State::Expired, State::Dead));
    sound(&space).await;
}

#[tokio::test]
async fn what_comes_too_late_is_skipped_at_the_claim_and_at_the_executor() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let key = || Some(Key::new("order-17", 0).unwrap());
    let latest = Some((T0 + 100).into());
    let at_claim = put(&space, |spec| (spec.start_before, spec.key) = (latest, key())).await;
    space.inject_now(Some(T0 + 101));
    assert_eq!(claim(&space, &claim_all("p1")).await.tasks.len(), 0);
    assert_eq!(state(&space, at_claim).await, State::Skipped);

    // These are claimed in time, and their executor has no slot free until it is too late.
    space.inject_now(Some(T0));
    let plain = put(&space, |spec| spec.start_before = latest).await;
    let keyed = put(&space, |spec| (spec.start_before, spec.key) = (latest, key())).await;
    let cancelled = put(&space, |spec| spec.start_before = latest).await;
    space.inject_now(Some(T0 + 100));
    let claimed = claim(&space, &claim_all("p1")).await;
    assert_eq!(claimed.tasks.len(), 3, "at the latest start it may still start");
    minutehand::store::intake::cancel(&space, bucket(), "op", "not needed", &[cancelled]).await.unwrap();
    let rows: Vec<_> = claimed
        .tasks
        .iter()
        .map(|task| run::AckRow { lag_ms: -1, took_ms: 0, ..ack_row(task, Outcome::Skipped) })
        .collect();
    let answers = run::ack(&space, bucket(), "ex-1", &rows, false).await.unwrap();
    for (row, answer) in rows.iter().zip(answers) {
        let expected = if row.id == cancelled { AckAnswer::Cancelled } else { AckAnswer::Skipped };
        assert_eq!(answer, expected);
    }
    assert_eq!(run::ack(&space, bucket(), "ex-1", &rows, true).await.unwrap(), [AckAnswer::Known; 3]);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("skipped"), counts.count("cancelled"), counts.lags.count()), (3, 1, 0));
    for id in [plain, keyed] {
        assert_eq!(state(&space, id).await, State::Skipped);
        let told = events::trace(&space, id).await.unwrap().events;
        let last = told.last().unwrap();
        assert_eq!(
            (last.event, last.cause.as_str()),
            (Move::Skipped, "too late: ex-1 got it after its latest start")
        );
    }
    put(&space, |spec| spec.key = key()).await;
    sound(&space).await;
}

#[tokio::test]
async fn twenty_hand_outs_without_a_start_are_a_dead_letter() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = put(&space, |_| {}).await;
    let mut now = T0;
    for round in 1..=limits::UNCOUNTED_LOSSES_MAX {
        let claimed = claim(&space, &claim_all("p1")).await;
        assert_eq!(claimed.tasks.len(), 1, "round {round}");
        assert_eq!(claimed.tasks[0].failures, 0, "a loss is no failure");
        if round == 7 {
            // Given back in order it is no loss either.
            let rows = [(id, claimed.tasks[0].grant)];
            due::release(&space, bucket(), "ex-1", "drain", &rows).await.unwrap();
            assert_eq!(claim(&space, &claim_all("p1")).await.tasks.len(), 1);
        }
        now += limits::DISPATCH_TIMEOUT_MS + 1_000;
        space.inject_now(Some(now));
        assert_eq!(tend(&space).await.reaped, 1, "round {round}");
        let expected = if round < limits::UNCOUNTED_LOSSES_MAX { State::Pending } else { State::Dead };
        assert_eq!(state(&space, id).await, expected, "round {round}");
    }
    let found = read::get(&space, id).await.unwrap().unwrap();
    assert_eq!(found.dead.unwrap().0, "lost_unstarted");
    assert_eq!(found.attempts.last().unwrap().error, "handed out 20 times and never started");
    sound(&space).await;
}

/// The handler of an expired task is told at its next renewal, and what it answers is of no interest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_tasks_handler_is_told_to_stop() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let stop = CancellationToken::new();
    let pod = tokio::spawn(Pod::new(space.clone(), PodSettings::default()).run(stop.clone()));
    let (tell, mut told) = mpsc::unbounded_channel();
    let handler = move |_, context: Context| {
        let tell = tell.clone();
        async move {
            context.cancelled().await;
            let _ = tell.send(context.stop());
            Ok(())
        }
    };
    let executor = Executor::builder(space.clone()).handle("push", handler).build().unwrap();
    let executor = tokio::spawn(executor.run(stop.clone()));
    let client = Client::new(space.clone());
    let queue = QueueName::new("push").unwrap();
    let task = NewTask { lease_ms: Some(1_500), expire_after_ms: Some(700), ..NewTask::to(queue) };
    let id = client.submit(task).await.unwrap().id;
    let why = tokio::time::timeout(Duration::from_secs(20), told.recv()).await.unwrap();
    assert_eq!(why, Some(Some(Stop::Stale)));
    assert_eq!(state(&space, id).await, State::Expired);
    stop.cancel();
    let report = executor.await.unwrap().unwrap();
    assert_eq!((report.started, report.succeeded, report.stale), (1, 0, 1), "{report:?}");
    pod.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_and_the_settings_set_them() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let run = |words: &str, variable: (&str, &str)| {
        let told = std::process::Command::new(env!("CARGO_BIN_EXE_minutehand"))
            .args(words.split_whitespace())
            .env("MINUTEHAND_REDIS", bed.server().url())
            .env("MINUTEHAND_NAMESPACE", bed.namespace())
            .env(variable.0, variable.1)
            .env_remove("MINUTEHAND_CONFIG")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (told.status.code(), text(told.stdout), text(told.stderr))
    };
    let care = async |words: &str, variable| {
        let (code, id, error) = run(words, variable);
        assert_eq!(code, Some(0), "{error}");
        let id: TaskId = id.trim().parse().unwrap();
        let bytes = read::get(&space, id).await.unwrap().unwrap().spec.unwrap();
        let spec = Spec::decode(&bytes, id.home().start()).unwrap();
        let after = |at: Option<minutehand::model::UnixMs>| at.map(|at| at.0 - spec.due.0);
        let dispatch = spec.extras.dispatch_ms;
        (spec.timeout_ms, after(spec.start_before), after(spec.deadline), spec.lease_ms, dispatch)
    };
    let none = ("MINUTEHAND__DEFAULTS__TIMEOUT", "0s");
    let all = "submit --queue q --in 1h --timeout 20s --start-within 5m --expire-after 2h --lease 1m --dispatch-timeout 40s";
    assert_eq!(
        care(all, none).await,
        (Some(20_000), Some(300_000), Some(7_200_000), Some(60_000), Some(40_000))
    );
    assert_eq!(
        care("submit --queue q --in 1h --start-before 5s", none).await,
        (None, Some(5_000), None, None, None)
    );
    let set = ("MINUTEHAND__DEFAULTS__TIMEOUT", "7s");
    assert_eq!(care("submit --queue q --in 1h", set).await, (Some(7_000), None, None, None, None));
    assert_eq!(care("submit --queue q --in 1h --timeout 0s", set).await, (None, None, None, None, None));
    for (words, field) in [
        ("--timeout soon", "timeout"),
        ("--lease 10ms", "lease"),
        ("--expire-after -1s", "expire-after"),
        ("--dispatch-timeout 0s", "dispatch-timeout"),
    ] {
        let (code, _, error) = run(&format!("submit --queue q {words}"), none);
        assert!(code == Some(2) && error.contains(field), "{words}: {error}");
    }
    // An import gives them to each of its tasks.
    let plan = std::env::temp_dir().join(format!("minutehand-plan-{}.csv", uuid::Uuid::new_v4()));
    std::fs::write(&plan, "due,id\n2030-01-01T00:00:00Z,a\n").unwrap();
    let words = format!("import {} --queue late --start-within 5m --timeout 9s", plan.display());
    let (code, _, error) = run(&words, none);
    std::fs::remove_file(&plan).unwrap();
    assert_eq!(code, Some(0), "{error}");
    let mut imported = Vec::new();
    for number in 0..space.spread().peak {
        let all = events::stretch(&space, Bucket::new(number).unwrap(), None, None).await.unwrap();
        for event in all.events {
            let bytes = read::get(&space, event.id).await.unwrap().unwrap().spec.unwrap();
            let spec = Spec::decode(&bytes, event.id.home().start()).unwrap();
            if spec.timeout_ms == Some(9_000) {
                imported.push(spec.start_before.map(|at| at.0 - spec.due.0));
            }
        }
    }
    assert_eq!(imported, [Some(300_000)]);
}

/// The handler is a process that does not listen: it is killed, and the attempt has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_over_its_time_fails() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let stop = CancellationToken::new();
    let pod = tokio::spawn(Pod::new(space.clone(), PodSettings::default()).run(stop.clone()));
    let executor = Executor::builder(space.clone()).stop_grace(Duration::from_millis(50));
    let executor = executor.handle("push", minutehand::executor::exec("sleep 600")).build().unwrap();
    let executor = tokio::spawn(executor.run(stop.clone()));
    let queue = QueueName::new("push").unwrap();
    let task = NewTask { timeout_ms: Some(200), retries: Some(0), ..NewTask::to(queue) };
    let id = Client::new(space.clone()).submit(task).await.unwrap().id;
    let dead = async {
        while state(&space, id).await != State::Dead {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), dead).await.unwrap();
    let found = read::get(&space, id).await.unwrap().unwrap();
    assert_eq!(found.attempts[0].error, "timed out after 200 ms");
    stop.cancel();
    executor.await.unwrap().unwrap();
    pod.await.unwrap().unwrap();
}
