//! Time that is a test's: what is due in a day runs in a second, each at its very millisecond.

use minutehand::client::{Due, NewTask};
use minutehand::executor::HandlerError;
use minutehand::model::{QueueName, QueueSettings, Retry, UnixMs};
use minutehand::testing::bed::Bed;
use minutehand::testing::day::{Day, DayBuilder, DayError};
use std::time::Duration;

const BEGIN: &str = "2026-03-02T00:00:00Z";
const HOUR_MS: i64 = 3_600_000;

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

/// A day on the shared server.
async fn day(bed: &Bed) -> (DayBuilder, UnixMs) {
    (Day::on(&bed.server().url(), BEGIN).await.unwrap(), UnixMs::parse_rfc3339(BEGIN).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_of_reminders_retries_and_a_schedule_is_exact_and_over_in_a_moment() {
    let bed = Bed::shared().await.unwrap();
    let (day, begin) = day(&bed).await;
    let client = day.client();
    let day = day
        .handle("reminders", |task, _ctx| async move {
            let hour: i64 = std::str::from_utf8(&task.payload)?.parse()?;
            if hour % 6 == 0 && task.attempt < 3 {
                return Err(HandlerError::failed("nobody there"));
            }
            Ok(())
        })
        // Every two hours: each occurrence submits the next one.
        .handle("rounds", move |task, _ctx| {
            let client = client.clone();
            async move {
                let next = NewTask { due: Due::At(task.due.plus(2 * HOUR_MS)), ..NewTask::to(task.queue) };
                client.submit(next).await?;
                Ok(())
            }
        })
        .start()
        .unwrap();
    let backoff = Some(Retry { jitter_percent: 0, ..Retry::default() });
    let reminders = (0..24).map(|hour| NewTask {
        due: Due::At(begin.plus(hour * HOUR_MS + 17)),
        payload: hour.to_string().into(),
        backoff,
        ..NewTask::to(queue("reminders"))
    });
    for answer in day.client().submit_batch(reminders.collect()).await.unwrap() {
        answer.unwrap();
    }
    day.client().submit(NewTask { due: Due::In(HOUR_MS), ..NewTask::to(queue("rounds")) }).await.unwrap();
    let start = minutehand::clock::mono();
    day.pass(Duration::from_secs(86_400)).await.unwrap();
    println!("a day took {:?}", start.elapsed());

    let mut wanted: Vec<(i64, &str, u32)> =
        (0..24).map(|hour| (hour * HOUR_MS + 17, "reminders", 1)).collect();
    for hour in [0, 6, 12, 18] {
        wanted.push((hour * HOUR_MS + 17 + 5_000, "reminders", 2));
        wanted.push((hour * HOUR_MS + 17 + 30_000, "reminders", 3));
    }
    wanted.extend((0..12).map(|n| ((2 * n + 1) * HOUR_MS, "rounds", 1)));
    wanted.sort_unstable();
    let starts = day.starts();
    let found: Vec<_> =
        starts.iter().map(|start| (start.at.0 - begin.0, start.queue.as_str(), start.attempt)).collect();
    assert_eq!(found, wanted);
    assert!(starts.iter().all(|start| start.at == start.due), "never early, never late");
    assert_eq!(day.now(), begin.plus(24 * HOUR_MS));
    let (counts, _) = day.client().counts().await.unwrap();
    assert_eq!((counts.succeeded, counts.pending, counts.dead), (36, 1, 0));

    day.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_pauses_and_time_outs_keep_to_the_days_time() {
    let bed = Bed::shared().await.unwrap();
    let (day, begin) = day(&bed).await;
    let day = day
        .handle("slow", |_, _| async { Ok(()) })
        .handle("paused", |_, _| async { Ok(()) })
        .start()
        .unwrap();
    let rate = |settings: &mut QueueSettings| {
        settings.limits.get_or_insert_default().rate = Some("4/m".parse()?);
        Ok(())
    };
    day.client().queue_set(&queue("slow"), rate).await.unwrap();
    day.client().pause(&queue("paused"), "test", "").await.unwrap();
    for _ in 0..10 {
        day.client().submit(NewTask { due: Due::In(HOUR_MS), ..NewTask::to(queue("slow")) }).await.unwrap();
    }
    let paused = NewTask { expire_after_ms: Some(HOUR_MS), ..NewTask::to(queue("paused")) };
    day.client().submit(paused).await.unwrap();
    day.pass(Duration::from_millis(HOUR_MS as u64 - 1)).await.unwrap();
    let (counts, _) = day.client().counts().await.unwrap();
    assert_eq!((day.starts().len(), counts.pending, counts.expired), (0, 11, 0));
    day.pass(Duration::from_secs(600)).await.unwrap();
    let (counts, _) = day.client().counts().await.unwrap();
    assert_eq!((counts.succeeded, counts.pending, counts.expired), (10, 0, 1));
    let at: Vec<i64> = day.starts().iter().map(|start| start.at.0 - begin.0 - HOUR_MS).collect();
    assert_eq!(at.len(), 10, "{at:?}");
    assert!(at.windows(5).all(|five| five[4] - five[0] > 59_000), "never more than 4 a minute: {at:?}");
    day.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_waits_for_time_is_named_and_time_can_be_moved_by_force() {
    let bed = Bed::shared().await.unwrap();
    let (day, begin) = day(&bed).await;
    let (go, gate) = tokio::sync::watch::channel(false);
    let day = day
        .patience(Duration::from_millis(50))
        .handle("q", move |_, _| {
            let mut gate = gate.clone();
            async move {
                gate.wait_for(|open| *open).await?;
                Ok(())
            }
        })
        .start()
        .unwrap();
    day.client().submit(NewTask { due: Due::In(1_000), ..NewTask::to(queue("q")) }).await.unwrap();
    let told = day.pass(Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(told, DayError::Stuck { running: 1, now } if now == begin.plus(1_000)), "{told}");
    day.leap(Duration::from_secs(5)).await.unwrap();
    assert_eq!(day.now(), begin.plus(6_000));
    go.send_replace(true);
    day.pass(Duration::from_secs(60)).await.unwrap();
    assert_eq!(day.client().counts().await.unwrap().0.succeeded, 1);
    day.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_all_tasks_of_a_day_one_meets_a_subject_first_also_when_it_is_tried_again() {
    let bed = Bed::shared().await.unwrap();
    let (day, _) = day(&bed).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let day = day
        .handle("promo", move |task, ctx| {
            let tell = tell.clone();
            async move {
                let user: u64 = std::str::from_utf8(&task.payload)?.parse()?;
                let first = ctx.first_today("promotions", user).await?;
                tell.send((user, first, task.attempt))?;
                if first && task.attempt == 1 {
                    return Err(HandlerError::retry_after(60_000, true, "once more"));
                }
                Ok(())
            }
        })
        .start()
        .unwrap();
    // Two segments and the ends of what a number may be.
    let users = [0, 7, (1 << 20) - 1, 1 << 20, u64::MAX];
    let mut ask = async |after: Duration| {
        for user in users {
            for delay in [1_000, 2_000] {
                let task = NewTask { due: Due::In(delay), ..NewTask::to(queue("promo")) };
                day.client()
                    .submit(NewTask { payload: user.to_string().into(), retries: Some(2), ..task })
                    .await
                    .unwrap();
            }
        }
        day.pass(after).await.unwrap();
        let mut found = Vec::new();
        while let Ok(one) = told.try_recv() {
            found.push(one);
        }
        found.sort_unstable();
        found
    };
    let wanted: Vec<_> =
        users.iter().flat_map(|user| [(*user, false, 1), (*user, true, 1), (*user, true, 2)]).collect();
    assert_eq!(ask(Duration::from_secs(12 * 3_600)).await, wanted);
    let none: Vec<_> = users.iter().flat_map(|user| [(*user, false, 1); 2]).collect();
    assert_eq!(ask(Duration::from_secs(12 * 3_600)).await, none, "it is the same day");
    assert_eq!(ask(Duration::from_secs(3_600)).await, wanted, "and this is the next one");
    day.end().await.unwrap();
}
