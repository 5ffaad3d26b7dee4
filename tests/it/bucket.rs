//! How many buckets there are: opening, closing, vanishing, and what submitters with an old spread meet.

use minutehand::client::{Client, Due, NewTask};
use minutehand::limits;
use minutehand::model::spec::Key;
use minutehand::model::spread::{Bounds, Spread};
use minutehand::model::{Bucket, Minute, Namespace, Priority, QueueName, Spec, TaskId, UnixMs};
use minutehand::store::bucket::{self, Change, Vanished};
use minutehand::store::due::{self, Claim, ClaimAnswer, Granted};
use minutehand::store::intake::{self, Row, RowAnswer, Sending, SubmitAnswer};
use minutehand::store::run::{self, AckAnswer, AckRow, Outcome};
use minutehand::store::{At, Birth, Space, dead, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::{T0, lane, spec};

const LINGER_MS: i64 = limits::RECENT_MAX_MS;

async fn open(bed: &Bed) -> Space {
    let birth = Birth { key_buckets: 1, buckets: 1, holders: 1 };
    let namespace = Namespace::new(bed.namespace()).unwrap();
    let space = Space::open_as(bed.store().await.unwrap(), namespace, birth).await.unwrap();
    space.inject_now(Some(T0));
    space
}

fn b(number: u16) -> Bucket {
    Bucket::new(number).unwrap()
}

fn row(spec: Spec, bucket: Bucket) -> Row {
    Row::new(TaskId::new(spec.due.minute(), bucket, fastrand::u64(..)), spec)
}

async fn claim(space: &Space, bucket: Bucket) -> Vec<Granted> {
    let claim = Claim { limit: 1_000, normal_limit: 1_000, ..Claim::new("pod", *b"permit-of-a-test") };
    match due::claim(space, bucket, &claim).await.unwrap() {
        ClaimAnswer::Held(claimed) => claimed.tasks,
        ClaimAnswer::NotHolder { until } => panic!("held until {until}"),
    }
}

async fn names(space: &Space, bucket: Bucket) -> Vec<String> {
    let prefix = String::from_utf8_lossy(&space.guard(bucket).key("")).into_owned();
    let all = space.store().command("KEYS", At::Any, vec![format!("{prefix}*").into()]).await.unwrap();
    let all = all.array("KEYS").unwrap().into_iter();
    let mut names: Vec<String> = all
        .map(|key| String::from_utf8_lossy(&key.bytes("KEYS").unwrap())[prefix.len()..].to_owned())
        .collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn the_spread_is_changed_only_by_who_saw_it_as_it_is() {
    let bed = Bed::shared().await.unwrap();
    let space = open(&bed).await;
    let seen = space.spread();
    assert_eq!(seen, Spread { epoch: 1, born_ms: seen.born_ms, ..Spread::born(1, 1, 1) });
    let more = Change {
        buckets: Some(4),
        closing: Some(vec![5, 7]),
        hot: Some(vec![(2, 3)]),
        bounds: Some(Bounds { min: Some(2), max: Some(8), pin: None, manual: true }),
    };
    assert!(bucket::resize(&space, &seen, &more).await.unwrap());
    let now = space.spread();
    assert_eq!((now.buckets, now.peak, now.epoch), (4, 4, 2));
    assert_eq!((&now.closing[..], &now.hot[..]), (&[5, 7][..], &[(2, 3)][..]));
    assert_eq!(now.bounds, Bounds { min: Some(2), max: Some(8), pin: None, manual: true });
    let late = Change { buckets: Some(1), ..Change::default() };
    assert!(!bucket::resize(&space, &seen, &late).await.unwrap());
    assert_eq!(space.spread(), now);
    // What is not named stays; what is emptied goes.
    let less = Change { closing: Some(vec![]), bounds: Some(Bounds::default()), ..Change::default() };
    assert!(bucket::resize(&space, &now, &less).await.unwrap());
    let last = space.spread();
    assert_eq!((last.buckets, last.closing.len(), last.hot.len(), last.bounds), (4, 0, 1, Bounds::default()));
    let another = Space::open(bed.store().await.unwrap(), Namespace::new(bed.namespace()).unwrap()).await;
    assert_eq!(another.unwrap().spread(), last);
}

#[tokio::test]
async fn a_closed_bucket_vanishes_once_it_is_empty_and_has_lingered() {
    let bed = Bed::shared().await.unwrap();
    let space = open(&bed).await;
    let push = lane(&space, "push", Priority::P3).await;
    let rows: Vec<Row> = (0..3).map(|n| row(spec(push, T0 + n), b(1))).collect();
    intake::submit(&space, b(1), &rows, Sending::default()).await.unwrap();
    assert_eq!(bucket::vanish(&space, b(1), 0).await.unwrap(), Vanished::Open);
    assert!(bucket::mark(&space, b(1), true).await.unwrap());
    assert!(!bucket::mark(&space, b(1), true).await.unwrap(), "it was closed already");
    let vanish = async || bucket::vanish(&space, b(1), LINGER_MS).await.unwrap();
    assert_eq!(vanish().await, Vanished::Young);
    space.inject_now(Some(T0 + LINGER_MS));
    assert_eq!(vanish().await, Vanished::Holds("agenda".into()));
    let tasks = claim(&space, b(1)).await;
    assert_eq!(tasks.len(), 3);
    assert_eq!(vanish().await, Vanished::Holds("run".into()));
    let ack =
        |task: &Granted, outcome| AckRow { id: task.id, grant: task.grant, outcome, lag_ms: 1, took_ms: 1 };
    let rows: Vec<AckRow> = tasks[..2].iter().map(|task| ack(task, Outcome::Succeeded)).collect();
    run::ack(&space, b(1), "ex", &rows, false).await.unwrap();
    let fatal = Outcome::Fatal { error: "no".into() };
    let dead = [ack(&tasks[2], fatal)];
    assert_eq!(run::ack(&space, b(1), "ex", &dead, false).await.unwrap(), [AckAnswer::Dead]);
    assert_eq!(vanish().await, Vanished::Holds("dead".into()), "dead letters may be redriven");
    let deleted = minutehand::store::dead::delete(&space, b(1), "op", &[tasks[2].id]).await.unwrap();
    println!("{deleted:?}");
    let before = read::counts(&space, b(1)).await.unwrap();
    assert_eq!(vanish().await, Vanished::Gone);
    assert_eq!(names(&space, b(1)).await, ["counts", "meta"], "its mark and its counters");
    let after = read::counts(&space, b(1)).await.unwrap();
    assert_eq!((after.count("submitted"), after.count("succeeded"), after.count("deleted")), (3, 2, 1));
    assert_eq!(before.counts, after.counts);
    assert!(after.closed);
    assert_eq!(vanish().await, Vanished::Gone);

    // Opened again, it goes on counting.
    assert!(bucket::mark(&space, b(1), false).await.unwrap());
    assert_eq!(vanish().await, Vanished::Open);
    let again = [row(spec(push, T0 + LINGER_MS), b(1))];
    let by_spread = Sending { by_spread: true, ..Sending::default() };
    let answer = intake::submit(&space, b(1), &again, by_spread).await.unwrap();
    assert!(matches!(answer, SubmitAnswer::Rows { .. }));
    assert_eq!(read::counts(&space, b(1)).await.unwrap().count("submitted"), 4);
    let report = minutehand::store::check::check(&space, Default::default()).await.unwrap();
    assert!(report.ok, "{:?}", report.violations);
}

/// A submit got no answer and is sent again after its bucket was closed: what arrived stands, and only the rest moves.
#[tokio::test]
async fn a_submit_sent_again_to_a_closed_bucket_is_made_once() {
    let bed = Bed::shared().await.unwrap();
    let space = open(&bed).await;
    let push = lane(&space, "push", Priority::P3).await;
    let rows: Vec<Row> = (0..4).map(|n| row(spec(push, T0 + n), b(1))).collect();
    let sending = Sending { by_spread: true, ..Sending::default() };
    // Two arrived; one of them has ended since.
    intake::submit(&space, b(1), &rows[..2], sending).await.unwrap();
    let tasks = claim(&space, b(1)).await;
    let done = tasks.iter().find(|task| task.id == rows[0].id).unwrap();
    let row_done =
        AckRow { id: done.id, grant: done.grant, outcome: Outcome::Succeeded, lag_ms: 0, took_ms: 0 };
    run::ack(&space, b(1), "ex", &[row_done], false).await.unwrap();
    bucket::mark(&space, b(1), true).await.unwrap();
    assert_eq!(intake::submit(&space, b(1), &rows, sending).await.unwrap(), SubmitAnswer::SpreadChanged);
    let again = async |ms| {
        let sending = Sending { again_after_ms: Some(ms), ..sending };
        match intake::submit(&space, b(1), &rows, sending).await.unwrap() {
            SubmitAnswer::Rows { answers, .. } => answers,
            SubmitAnswer::SpreadChanged => panic!("some rows stand"),
        }
    };
    let (created, moved) = (RowAnswer::Created, RowAnswer::SpreadChanged);
    assert_eq!(again(500).await, [created, created, moved, moved]);
    let late = RowAnswer::FateUnknown;
    assert_eq!(again(limits::RECENT_MIN_MS + 1).await, [created, created, late, late]);
    assert_eq!(read::counts(&space, b(1)).await.unwrap().count("submitted"), 2);
}

#[tokio::test]
async fn a_client_with_an_old_spread_loses_nothing_and_hears_of_new_buckets() {
    let bed = Bed::shared().await.unwrap();
    let space = open(&bed).await;
    let client = Client::new(space.clone());
    let other = Space::open(bed.store().await.unwrap(), space.namespace().clone()).await.unwrap();
    other.inject_now(Some(T0));
    let grown = Change { buckets: Some(8), ..Change::default() };
    assert!(bucket::resize(&other, &other.spread(), &grown).await.unwrap());
    space.refresh_spread().await.unwrap();
    // Someone halves twice; the client does not hear of it.
    let shrunk = Change { buckets: Some(2), closing: Some((2..8).collect()), ..Change::default() };
    assert!(bucket::resize(&other, &other.spread(), &shrunk).await.unwrap());
    for number in 2..8 {
        bucket::mark(&other, b(number), true).await.unwrap();
    }
    assert_eq!(space.spread().buckets, 8);
    let push = || NewTask { due: Due::At(UnixMs(T0 + 5)), ..NewTask::to(QueueName::new("push").unwrap()) };
    // Eight calls' worth: they go to every bucket that the client believes in.
    let tasks = (0..4_000).map(|_| push()).collect();
    let submitted = client.submit_batch(tasks).await.unwrap();
    let mut ids: Vec<TaskId> = submitted.into_iter().map(|answer| answer.unwrap().id).collect();
    assert_eq!(space.spread().buckets, 2, "it has heard of it by the way");
    assert!(ids.iter().all(|id| id.bucket().number() < 2));
    ids.sort_unstable();
    ids.dedup();
    let mut counted = 0;
    for number in 0..8 {
        counted += read::counts(&space, b(number)).await.unwrap().count("submitted");
    }
    assert_eq!((ids.len(), counted), (4_000, 4_000));
    // A growth is heard of without a refusal, soon after.
    assert!(
        bucket::resize(&other, &other.spread(), &Change { buckets: Some(4), ..Change::default() })
            .await
            .unwrap()
    );
    for number in 2..4 {
        bucket::mark(&other, b(number), false).await.unwrap();
    }
    let heard = async {
        while space.spread().buckets != 4 {
            client.submit(push()).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), heard).await.expect("heard in seconds");
}

#[tokio::test]
async fn an_agenda_tells_what_comes_from_sizes_alone() {
    let bed = Bed::shared().await.unwrap();
    let space = open(&bed).await;
    let push = lane(&space, "push", Priority::P3).await;
    let urgent = lane(&space, "push", Priority::P0).await;
    let (now, nine) = (T0 / 60_000 * 60_000, T0 / 60_000 * 60_000 + 86_400_000);
    let mut rows: Vec<Row> = Vec::new();
    // A spike a day ahead that fills its minute and its seconds, urgent ones beside it, and a thin day before it.
    rows.extend((0..21_500).map(|n| row(spec(push, nine + n % 2), b(0))));
    rows.extend((0..7).map(|n| row(spec(urgent, nine + n), b(0))));
    rows.extend((1..1_440).map(|minute| row(spec(push, now + minute * 60_000), b(0))));
    let with_timer = Spec { deadline: Some(UnixMs(nine + 60_000)), ..spec(push, nine + 60_000) };
    rows.push(row(with_timer, b(0)));
    for piece in rows.chunks(limits::BATCH_MAX_ROWS) {
        intake::submit(&space, b(0), piece, Sending::default()).await.unwrap();
    }
    let told = bucket::agenda(&space, b(0), UnixMs(now), UnixMs(nine + 120_000)).await.unwrap().minutes;
    assert_eq!(told.len(), 1_441);
    assert!(told[..1_439].iter().all(|(_, tasks)| *tasks == 1));
    assert_eq!(told[1_439], (UnixMs(nine), 21_507));
    assert_eq!(told[1_440], (UnixMs(nine + 60_000), 1), "timers are no tasks");
    let part =
        bucket::agenda(&space, b(0), UnixMs(now + 60_000), UnixMs(now + 179_999)).await.unwrap().minutes;
    assert_eq!(part, [(UnixMs(now + 60_000), 1), (UnixMs(now + 120_000), 1)]);
    assert_eq!(Minute((now / 60_000) as u32).start(), UnixMs(now));
}

/// Bytes of all specs that are there, looked at one by one.
async fn specs(space: &Space) -> u64 {
    let mut sum = 0;
    for name in names(space, b(0)).await.iter().filter(|name| name.starts_with("task:")) {
        let key = space.guard(b(0)).key(name);
        let values = space.store().command("HVALS", At::Key(&key), vec![key.clone()]).await.unwrap();
        for value in values.array("HVALS").unwrap() {
            sum += value.bytes("HVALS").unwrap().len() as u64;
        }
    }
    sum
}

#[tokio::test]
async fn bytes_are_counted_exactly_whatever_becomes_of_tasks() {
    let bed = Bed::shared().await.unwrap();
    let space = open(&bed).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut dice = fastrand::Rng::with_seed(seed);
    let lane = lane(&space, "q", Priority::P3).await;
    let client = Client::new(space.clone());
    let size = async |count| bucket::size(&space, b(0), count).await.unwrap();
    let put = async |rows: &[Row], again_after_ms| {
        let sending = Sending { again_after_ms, ..Sending::default() };
        let SubmitAnswer::Rows { .. } = intake::submit(&space, b(0), rows, sending).await.unwrap() else {
            panic!("closed")
        };
    };
    let make = |dice: &mut fastrand::Rng, now: i64| {
        let mut made = spec(lane, now + dice.i64(0..3 * 3_600_000));
        made.payload = vec![b'x'; dice.usize(0..2_000)].into();
        made.retry = made.retry.with_retries(1).unwrap();
        if dice.bool() {
            made.key = Some(Key::new(format!("k{}", dice.u8(..)), 0).unwrap());
        }
        if dice.bool() {
            made.deadline = Some(made.due.plus(3_600_000));
        }
        row(made, b(0))
    };
    // What was there before is counted hour by hour.
    let mut now = T0;
    put(&(0..50).map(|_| make(&mut dice, now)).collect::<Vec<_>>(), None).await;
    assert_eq!(size(None).await, 0);
    assert!(!names(&space, b(0)).await.contains(&"bytes".to_owned()), "nobody asked");
    assert_eq!(size(Some(true)).await, specs(&space).await);
    let mut last = Vec::new();
    for step in 0..120 {
        match dice.u8(0..8) {
            0 | 1 => {
                last = (0..dice.usize(1..20)).map(|_| make(&mut dice, now)).collect();
                put(&last, None).await;
            }
            2 => put(&last, Some(50)).await,
            3 => {
                let ids: Vec<TaskId> = last.iter().map(|row| row.id).take(3).collect();
                intake::cancel(&space, b(0), "t", "", &ids).await.unwrap();
            }
            4 => {
                if let Some(row) = last.last() {
                    let payload = Some(vec![b'y'; dice.usize(0..3_000)].into());
                    let edit = minutehand::client::Edit { payload, ..Default::default() };
                    let _ = client.edit(row.id, &edit, None, "t").await;
                }
            }
            5 | 6 => {
                now += dice.i64(0..2_400_000);
                space.inject_now(Some(now));
                let plain = dice.bool();
                let acks = claim(&space, b(0)).await.into_iter().map(|task| {
                    let outcome = match dice.u8(0..4) {
                        0 if !plain => Outcome::Failed { error: "no".into() },
                        1 if !plain => Outcome::Fatal { error: "never".into() },
                        2 if !plain => Outcome::Cancelled,
                        _ => Outcome::Succeeded,
                    };
                    AckRow { id: task.id, grant: task.grant, outcome, lag_ms: 1, took_ms: 1 }
                });
                let acks: Vec<AckRow> = acks.collect();
                run::ack(&space, b(0), "ex", &acks, false).await.unwrap();
            }
            _ => {
                let letters = dead::page(&space, b(0), UnixMs(0), 0).await.unwrap();
                let ids: Vec<TaskId> = letters.iter().map(|letter| letter.id).collect();
                let half = ids.len() / 2;
                let again: Vec<_> = ids[..half].iter().map(|id| (*id, UnixMs(now))).collect();
                dead::redrive(&space, b(0), "t", &again).await.unwrap();
                dead::delete(&space, b(0), "t", &ids[half..]).await.unwrap();
            }
        }
        assert_eq!(size(None).await, specs(&space).await, "after step {step}");
    }
    // Everything ends or goes by its time, and nothing is left of the count.
    for _ in 0..60 {
        now += 8 * 86_400_000;
        space.inject_now(Some(now));
        let acks = claim(&space, b(0)).await.into_iter().map(|task| AckRow {
            id: task.id,
            grant: task.grant,
            outcome: Outcome::Succeeded,
            lag_ms: 1,
            took_ms: 1,
        });
        run::ack(&space, b(0), "ex", &acks.collect::<Vec<_>>(), false).await.unwrap();
        if specs(&space).await == 0 {
            break;
        }
    }
    assert_eq!((size(None).await, specs(&space).await), (0, 0));
    assert!(!names(&space, b(0)).await.contains(&"bytes".to_owned()));
    size(Some(false)).await;
    put(&[make(&mut dice, now)], None).await;
    assert_eq!(size(None).await, 0, "nobody asks any more");
}
