//! Submitting, cancelling, moving.

use bytes::Bytes;
use minutehand::limits;
use minutehand::model::digits;
use minutehand::model::spec::Key;
use minutehand::model::{Priority, Spec, State, TaskId, UnixMs};
use minutehand::store::due::Claim;
use minutehand::store::intake::{self, Row, RowAnswer, Sending, SubmitAnswer, WishAnswer};
use minutehand::store::run::{self, AckAnswer, Outcome};
use minutehand::store::{At, Space, dead, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use minutehand::testing::snapshot::snapshot;

use super::foreign::Planted;

const HOUR: i64 = 3_600_000;

fn key(text: &'static str, window_ms: i64) -> Option<Key> {
    Some(Key::new(text, window_ms).unwrap())
}

async fn resend(space: &Space, rows: &[Row], after_ms: i64) -> Vec<RowAnswer> {
    let again = Sending { again_after_ms: Some(after_ms), ..Sending::default() };
    match intake::submit(space, bucket(), rows, again).await.unwrap() {
        SubmitAnswer::Rows { answers, .. } => answers,
        SubmitAnswer::SpreadChanged => panic!("the bucket is closed"),
    }
}

#[tokio::test]
async fn a_key_stands_while_its_task_lives_and_for_its_window_after_the_end() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let make = |due: i64| row(Spec { key: key("order-7", HOUR), ..spec(lane, due) });
    let first = make(T0);
    assert_eq!(submit(&space, std::slice::from_ref(&first)).await, [RowAnswer::Created]);
    // Another due time and payload under the same key: the first stands.
    let other = row(Spec { payload: Bytes::from_static(b"other"), ..make(T0 + HOUR).spec });
    assert_eq!(submit(&space, &[other]).await, [RowAnswer::Duplicate(first.id)]);
    let claimed = claim(&space, &claim_all("p1")).await.tasks;
    assert_eq!((claimed.len(), claimed[0].id), (1, first.id));
    assert_eq!(submit(&space, &[make(T0)]).await, [RowAnswer::Duplicate(first.id)]);
    assert_eq!(ack_done(&space, &claimed).await, [AckAnswer::Succeeded]);
    space.inject_now(Some(T0 + HOUR - 1));
    assert_eq!(submit(&space, &[make(T0 + HOUR - 1)]).await, [RowAnswer::Duplicate(first.id)]);
    space.inject_now(Some(T0 + HOUR));
    let second = make(T0 + HOUR);
    assert_eq!(submit(&space, std::slice::from_ref(&second)).await, [RowAnswer::Created]);
    assert_eq!(submit(&space, &[make(T0 + HOUR)]).await, [RowAnswer::Duplicate(second.id)]);
    sound(&space).await;
}

#[tokio::test]
async fn a_key_without_a_window_is_free_when_its_task_ends_however_it_ends() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let make = || row(Spec { key: key("k", 0), ..spec(lane, T0) });
    for outcome in [Outcome::Succeeded, Outcome::Cancelled, Outcome::Fatal { error: "no".into() }] {
        assert_eq!(submit(&space, &[make()]).await, [RowAnswer::Created]);
        let claimed = claim(&space, &claim_all("p1")).await.tasks;
        run::ack(&space, bucket(), "ex", &[ack_row(&claimed[0], outcome)], false).await.unwrap();
    }
    let last = make();
    assert_eq!(submit(&space, std::slice::from_ref(&last)).await, [RowAnswer::Created]);
    intake::cancel(&space, bucket(), "me", "", &[last.id]).await.unwrap();
    // Its executor is killed, again and again, until it is dead.
    let killed = make();
    assert_eq!(submit(&space, std::slice::from_ref(&killed)).await, [RowAnswer::Created]);
    let mut now = T0;
    while read::get(&space, killed.id).await.unwrap().unwrap().state != State::Dead {
        for task in claim(&space, &claim_all("p1")).await.tasks {
            let hold = run::StartRow { id: task.id, grant: task.grant, lease_ms: 1_000 };
            run::start(&space, bucket(), "ex", &[hold]).await.unwrap();
        }
        if read::get(&space, killed.id).await.unwrap().unwrap().state != State::Dead {
            assert_eq!(submit(&space, &[make()]).await, [RowAnswer::Duplicate(killed.id)]);
        }
        now += 30_000;
        space.inject_now(Some(now));
    }
    let expiring = row(Spec { deadline: Some(UnixMs(now + 5)), ..spec(lane, now) });
    let expiring = row(Spec { key: key("k", 0), ..expiring.spec });
    assert_eq!(submit(&space, std::slice::from_ref(&expiring)).await, [RowAnswer::Created]);
    space.inject_now(Some(now + 5));
    assert!(claim(&space, &claim_all("p1")).await.tasks.is_empty());
    assert_eq!(read::get(&space, expiring.id).await.unwrap().unwrap().state, State::Expired);
    assert_eq!(submit(&space, &[make()]).await, [RowAnswer::Created]);
    sound(&space).await;
}

#[tokio::test]
async fn keys_are_unique_within_their_placement() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let make = |placement: Option<&'static str>| {
        row(Spec { key: key("k", HOUR), placement: placement.map(Bytes::from), ..spec(lane, T0 + HOUR) })
    };
    let rows = [make(None), make(Some("ann")), make(Some("bob")), make(Some("ann"))];
    let created = RowAnswer::Created;
    let answers = submit(&space, &rows).await;
    assert_eq!(answers, [created, created, created, RowAnswer::Duplicate(rows[1].id)]);
    assert_eq!(submit(&space, &[make(Some("bob"))]).await, [RowAnswer::Duplicate(rows[2].id)]);
}

#[tokio::test]
async fn all_rows_with_a_standing_key_are_answered_with_the_one_task() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let make = || row(Spec { key: key("k", HOUR), ..spec(lane, T0 + HOUR) });
    let first = make();
    submit(&space, std::slice::from_ref(&first)).await;
    let answers = submit(&space, &[make(), make(), make()]).await;
    assert_eq!(answers, [RowAnswer::Duplicate(first.id); 3]);
}

#[tokio::test]
async fn a_thousand_rows_of_every_kind_go_in_at_once_and_again() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let mut rows = Vec::new();
    for n in 0..limits::BATCH_MAX_ROWS as i64 {
        let lane = lane(&space, "push", Priority::ALL[(n % 6) as usize]).await;
        rows.push(row(Spec {
            key: (n % 2 == 0).then(|| Key::new(format!("k{n}"), HOUR).unwrap()),
            deadline: (n % 3 == 0).then_some(UnixMs(T0 + 2 * HOUR + n)),
            ..spec(lane, T0 + n * 37)
        }));
    }
    assert_eq!(submit(&space, &rows).await, vec![RowAnswer::Created; rows.len()]);
    // The same rows again, as after a lost reply: nothing is made twice.
    let before = snapshot(&space).await;
    assert_eq!(resend(&space, &rows, 10).await, vec![RowAnswer::Created; rows.len()]);
    assert_eq!(snapshot(&space).await, before);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("submitted"), counts.count("pending")), (1_000, 1_000));
    sound(&space).await;
}

#[tokio::test]
async fn a_row_sent_again_is_made_once_or_its_fate_is_unknown() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let arrived = row(spec(lane, T0));
    submit(&space, std::slice::from_ref(&arrived)).await;
    let lost = row(spec(lane, T0));
    // One arrived and one did not.
    assert_eq!(resend(&space, &[arrived.clone(), lost.clone()], 500).await, [RowAnswer::Created; 2]);
    assert_eq!(read::counts(&space, bucket()).await.unwrap().count("submitted"), 2);
    // It has run since: it is remembered, and does not run twice.
    let claimed = claim(&space, &claim_all("p1")).await.tasks;
    assert_eq!(claimed.len(), 2);
    ack_done(&space, &claimed).await;
    space.inject_now(Some(T0 + 60_000));
    assert_eq!(resend(&space, std::slice::from_ref(&arrived), 60_000).await, [RowAnswer::Created]);
    assert_eq!(read::counts(&space, bucket()).await.unwrap().count("submitted"), 2);
    // Up to two minutes what is not known was never made.
    space.inject_now(Some(T0 + 120_000));
    let late = row(spec(lane, T0 + 120_000));
    assert_eq!(resend(&space, std::slice::from_ref(&late), 120_000).await, [RowAnswer::Created]);
    // Later nobody can tell, and nothing is written.
    let before = snapshot(&space).await;
    let too_late = row(spec(lane, T0 + 120_000));
    assert_eq!(resend(&space, &[too_late], 120_001).await, [RowAnswer::FateUnknown]);
    let short = row(Spec { key: key("short", 60_000), ..spec(lane, T0 + 120_000) });
    assert_eq!(resend(&space, &[short], 120_001).await, [RowAnswer::FateUnknown]);
    assert_eq!(snapshot(&space).await, before);
    // A key tells for as long as its window.
    let keyed = row(Spec { key: key("long", HOUR), ..spec(lane, T0 + 120_000) });
    assert_eq!(resend(&space, std::slice::from_ref(&keyed), 120_001).await, [RowAnswer::Created]);
    assert_eq!(read::counts(&space, bucket()).await.unwrap().count("submitted"), 4);
    sound(&space).await;
}

#[tokio::test]
async fn a_closed_bucket_takes_no_more_by_the_spread() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    task(&space, "push", T0).await;
    let meta = space.guard(bucket()).key("meta");
    let args = [meta.clone(), "closed".into(), "1".into()].to_vec();
    space.store().command("HSET", At::Key(&meta), args).await.unwrap();
    let rows = [row(spec(lane(&space, "push", Priority::P3).await, T0))];
    let by_spread = Sending { by_spread: true, ..Sending::default() };
    let before = snapshot(&space).await;
    let answer = intake::submit(&space, bucket(), &rows, by_spread).await.unwrap();
    assert_eq!(answer, SubmitAnswer::SpreadChanged);
    assert_eq!(snapshot(&space).await, before);
    assert_eq!(submit(&space, &rows).await, [RowAnswer::Created]);
}

/// More tasks than a due set may hold, all of one second: the sets are split, nothing is lost or
/// doubled, the order is that of the due times, and a look-up still finds each.
#[tokio::test]
async fn a_crowded_second_is_split_and_drained_in_order() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    const COUNT: usize = 21_500;
    let due = |n: usize| T0 + 7_000 + ((n * 7_919) % 1_000) as i64;
    let rows: Vec<Row> = (0..COUNT).map(|n| row(spec(lane, due(n)))).collect();
    for piece in rows.chunks(limits::BATCH_MAX_ROWS) {
        assert_eq!(submit(&space, piece).await, vec![RowAnswer::Created; piece.len()]);
    }
    let size = async |name: &str| {
        let key = space.guard(bucket()).key(name);
        space.store().command("ZCARD", At::Key(&key), vec![key.clone()]).await.unwrap().int("ZCARD").unwrap()
    };
    let minute = UnixMs(T0 + 7_000).minute();
    assert_eq!(size(&format!("due:{minute}")).await, 10_000);
    assert_eq!(size(&format!("due:{minute}.07")).await, 10_000);
    let mut fine = Vec::new();
    for part in 0..16 {
        fine.push(size(&format!("due:{minute}.07.{part:x}")).await);
    }
    assert_eq!(fine.iter().sum::<i64>(), 1_500);
    assert!(fine.iter().all(|n| (50..150).contains(n)), "{fine:?}");

    let gone: Vec<TaskId> = [0, 9_999, 10_000, 19_999, 20_000, 21_499].map(|n| rows[n].id).to_vec();
    let answers = intake::cancel(&space, bucket(), "me", "", &gone).await.unwrap();
    assert_eq!(answers, vec![WishAnswer::Done; 6]);
    let moved = rows[21_000].id;
    assert_eq!(intake::reschedule(&space, "me", moved, UnixMs(T0 + 7_000)).await.unwrap(), WishAnswer::Done);
    sound(&space).await;

    space.inject_now(Some(T0 + 7_999));
    let mut seen = std::collections::HashSet::new();
    let mut last = 0;
    loop {
        let claimed = claim(&space, &claim_all("p1")).await.tasks;
        if claimed.is_empty() {
            break;
        }
        for task in &claimed {
            assert!(seen.insert(task.id), "{} came twice", task.id);
            assert!(task.due.0 >= last, "{} came after one that was due later", task.id);
            last = task.due.0;
        }
        assert!(ack_done(&space, &claimed).await.iter().all(|answer| *answer == AckAnswer::Succeeded));
    }
    assert_eq!(seen.len(), COUNT - 6);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("succeeded"), counts.count("cancelled"), counts.count("ready")), (21_494, 6, 0));
    sound(&space).await;
}

#[tokio::test]
async fn delays_beyond_thirty_two_bits_are_kept_to_the_millisecond() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let mut delays = vec![2_147_483_647, 2_147_483_648, 4_294_967_296, limits::DUE_AHEAD_MAX_MS];
    let mut ids = Vec::new();
    for delay in &delays {
        ids.push(task(&space, "push", T0 + delay).await);
    }
    space.inject_now(Some(T0 + 60_000));
    assert!(claim(&space, &claim_all("p1")).await.tasks.is_empty());
    for (delay, id) in delays.drain(..).zip(ids) {
        space.inject_now(Some(T0 + delay - 1));
        let early = claim(&space, &claim_all("p1")).await;
        assert_eq!((early.tasks.len(), early.next_due), (0, Some(UnixMs(T0 + delay))));
        space.inject_now(Some(T0 + delay));
        let claimed = claim(&space, &claim_all("p1")).await.tasks;
        assert_eq!((claimed.len(), claimed[0].id, claimed[0].due), (1, id, UnixMs(T0 + delay)));
        ack_done(&space, &claimed).await;
    }
    sound(&space).await;
}

/// What a client sends is what an executor gets, byte for byte, through every stage.
#[tokio::test]
async fn payloads_pass_untouched_through_every_stage() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = vec![0; limits::PAYLOAD_MAX_BYTES];
    fastrand::Rng::with_seed(seed).fill(&mut random);
    let payloads: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0],
        (0..=255).collect(),
        b"\xff\xfe".to_vec(),
        b"\xed\xa0\x80".to_vec(),
        br#"{"a":[],"b":{},"c":[[]],"d":[{}],"e":null}"#.to_vec(),
        b"[130775545883395173,9007199254740993,-9223372036854775808,18446744073709551615,1e400,0.1]".to_vec(),
        random,
    ];
    let rows: Vec<Row> = payloads
        .iter()
        .map(|payload| row(Spec { payload: payload.clone().into(), ..spec(lane, T0) }))
        .collect();
    for piece in rows.chunks(4) {
        submit(&space, piece).await;
    }
    for (row, payload) in rows.iter().zip(&payloads) {
        assert!(row.bytes.len() <= payload.len() + 64, "{} for {} bytes", row.bytes.len(), payload.len());
    }
    let at = |id: TaskId| rows.iter().position(|row| row.id == id).unwrap();
    let same = |id: TaskId, bytes: &Bytes| {
        assert_eq!(*bytes, rows[at(id)].bytes, "payload {}", at(id));
        let read = Spec::decode(bytes, id.home().start()).unwrap();
        assert_eq!(&read.payload[..], &payloads[at(id)][..], "payload {}", at(id));
    };
    let mut now = T0;
    // Claimed, handed back, failed three times, read as a dead letter, redriven, claimed again.
    for round in 0..4 {
        space.inject_now(Some(now));
        let claimed = claim(&space, &claim_all("p1")).await.tasks;
        assert_eq!(claimed.len(), payloads.len());
        claimed.iter().for_each(|task| same(task.id, &task.spec));
        if round == 0 {
            let rows: Vec<_> = claimed.iter().map(|task| (task.id, task.grant)).collect();
            minutehand::store::due::release(&space, bucket(), "p1", "", &rows).await.unwrap();
            continue;
        }
        let fail = |task| ack_row(task, Outcome::Failed { error: "\u{0}\u{fffd}".into() });
        let acks: Vec<_> = claimed.iter().map(fail).collect();
        run::ack(&space, bucket(), "ex", &acks, false).await.unwrap();
        now += 25_000;
    }
    for row in &rows {
        let found = read::get(&space, row.id).await.unwrap().unwrap();
        assert_eq!(found.state, State::Dead);
        same(row.id, &found.spec.unwrap());
    }
    let again: Vec<_> = rows.iter().map(|row| (row.id, UnixMs(now))).collect();
    dead::redrive(&space, bucket(), "me", &again).await.unwrap();
    space.inject_now(Some(now));
    let claimed = claim(&space, &claim_all("p1")).await.tasks;
    assert_eq!(claimed.len(), payloads.len());
    claimed.iter().for_each(|task| same(task.id, &task.spec));
    sound(&space).await;
}

/// Binary payloads are stored as they are: all that a waiting task adds to its own, with everything that Redis keeps of
/// it, is less than half a KiB.
#[tokio::test]
async fn a_binary_payload_costs_its_bytes_and_little_more() {
    const TASKS: usize = 2_000;
    let bed = Bed::own_server(Default::default()).await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let used = || {
        let info = bed.server().run(&["INFO", "memory"]).unwrap().text().to_string();
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        line.trim().parse::<usize>().unwrap()
    };
    // Nothing that the server's allocator would round up by more than that.
    for bytes in [1, 100, 900] {
        let payload: Vec<u8> = (0..bytes).map(|n| (n % 256) as u8 ^ 0xff).collect();
        let before = used();
        for first in (0..TASKS).step_by(500) {
            let rows: Vec<Row> = (first..first + 500)
                .map(|n| {
                    let key = key(format!("{bytes}-{n}").leak(), 60_000);
                    row(Spec { payload: payload.clone().into(), key, ..spec(lane, T0 + n as i64) })
                })
                .collect();
            submit(&space, &rows).await;
        }
        let each = (used() - before) / TASKS;
        println!("{each} bytes for a payload of {bytes}");
        assert!(each <= bytes + 512, "{each} bytes for a payload of {bytes}");
    }
}

#[tokio::test]
async fn large_payloads_end_a_batch_at_its_bytes() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let large = Bytes::from(vec![7; limits::CALL_MAX_BYTES * 3 / 10]);
    let rows: Vec<Row> =
        (0..10).map(|n| row(Spec { payload: large.clone(), ..spec(lane, T0 + n) })).collect();
    for piece in rows.chunks(3) {
        submit(&space, piece).await;
    }
    space.inject_now(Some(T0 + 9));
    let mut sizes = Vec::new();
    loop {
        let claimed = claim(&space, &claim_all("p1")).await.tasks;
        if claimed.is_empty() {
            break;
        }
        sizes.push(claimed.len());
        ack_done(&space, &claimed).await;
    }
    assert_eq!(sizes, [3, 3, 3, 1]);
    sound(&space).await;
}

#[tokio::test]
async fn wishes_are_answered_by_what_a_task_is() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let done = task(&space, "push", T0).await;
    let claimed = claim(&space, &claim_all("p1")).await.tasks;
    ack_done(&space, &claimed).await;
    let died = task(&space, "push", T0).await;
    let claimed = claim(&space, &claim_all("p1")).await.tasks;
    let fatal = ack_row(&claimed[0], Outcome::Fatal { error: "no".into() });
    run::ack(&space, bucket(), "ex", &[fatal], false).await.unwrap();
    let running = task(&space, "push", T0).await;
    claim(&space, &claim_all("p1")).await;
    let (pending, ripe) = (task(&space, "push", T0 + HOUR).await, task(&space, "push", T0 - 1).await);
    // A claim that may take nothing of this queue makes the ripe one stand in its lane.
    let closed = lane(&space, "push", Priority::P3).await.group();
    let none = Claim { quotas: vec![(closed, minutehand::store::due::Quota::Closed)], ..claim_all("p1") };
    assert!(claim(&space, &none).await.tasks.is_empty());
    let unknown = TaskId::new(UnixMs(T0).minute(), bucket(), 9);
    let all = [done, died, running, pending, ripe, unknown, pending];
    let holder = || "p1".to_owned();

    for (id, expected) in [
        (done, WishAnswer::Ended(State::Succeeded)),
        (died, WishAnswer::Dead),
        (running, WishAnswer::Running { holder: String::new() }),
        (unknown, WishAnswer::Unknown),
    ] {
        assert_eq!(intake::reschedule(&space, "me", id, UnixMs(T0 + 5)).await.unwrap(), expected);
        assert_eq!(intake::reprioritize(&space, "me", id, Priority::P0).await.unwrap(), expected);
    }
    assert_eq!(intake::reprioritize(&space, "me", ripe, Priority::P0).await.unwrap(), WishAnswer::Done);
    assert_eq!(
        intake::reschedule(&space, "me", pending, UnixMs(T0 + 2 * HOUR)).await.unwrap(),
        WishAnswer::Done
    );
    let place = read::get(&space, pending).await.unwrap().unwrap().place.unwrap();
    assert_eq!((place.due, place.fence, place.failures), (UnixMs(T0 + 2 * HOUR), 0, 0));
    let place = read::get(&space, ripe).await.unwrap().unwrap().place.unwrap();
    assert_eq!((place.lane.priority(), place.due), (Priority::P0, UnixMs(T0 - 1)));
    sound(&space).await;

    let answers = intake::cancel(&space, bucket(), "me", "not wanted", &all).await.unwrap();
    let expected = [
        WishAnswer::Ended(State::Succeeded),
        WishAnswer::Dead,
        WishAnswer::Running { holder: holder() },
        WishAnswer::Done,
        WishAnswer::Done,
        WishAnswer::Unknown,
        WishAnswer::Done,
    ];
    assert_eq!(answers, expected);
    // Repeated, it changes nothing.
    let before = snapshot(&space).await;
    assert_eq!(intake::cancel(&space, bucket(), "me", "not wanted", &all).await.unwrap(), expected);
    assert_eq!(snapshot(&space).await, before);
    let counts = read::counts(&space, bucket()).await.unwrap();
    let count = |name| counts.count(name);
    assert_eq!(["cancelled", "pending", "running", "ready"].map(count), [2, 0, 1, 0]);
    // A flagged task ends as cancelled whatever its handler says.
    let run = read::get(&space, running).await.unwrap().unwrap().run.unwrap();
    assert!(run.cancel);
    sound(&space).await;
}

#[tokio::test]
async fn a_foreign_key_stops_a_submit_before_it_writes() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let make =
        || row(Spec { key: key("k", HOUR), deadline: Some(UnixMs(T0 + HOUR)), ..spec(lane, T0 + HOUR) });
    let minute = UnixMs(T0 + HOUR).minute();
    let shard = Key::shard(b"k");
    let places = ["meta", "agenda", "events", "counts", "lock"].map(str::to_owned);
    let more = [
        format!("task:{}", minute.0 / 60),
        format!("due:{minute}"),
        format!("keys:{shard}"),
        format!("timer:{minute}"),
    ];
    for name in places.into_iter().chain(more) {
        let plain = row(spec(lane, T0 + HOUR));
        let rows = [plain, make()];
        let planted = Planted::at(&space, &name).await;
        planted.refuses(intake::submit(&space, bucket(), &rows, Sending::default()).await);
        planted.nothing_changed().await;
        planted.undo().await;
    }
    assert_eq!(submit(&space, &[make()]).await, [RowAnswer::Created]);
    let planted = Planted::at(&space, &format!("recent:{}", T0 / 10_000)).await;
    let again = Sending { again_after_ms: Some(5), ..Sending::default() };
    planted.refuses(intake::submit(&space, bucket(), &[row(spec(lane, T0))], again).await);
    planted.nothing_changed().await;
    planted.undo().await;
    sound(&space).await;
}

#[tokio::test]
async fn a_foreign_key_stops_a_cancel_before_it_writes() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let due = T0 + HOUR + 7_000;
    let one = row(Spec { key: key("k", HOUR), deadline: Some(UnixMs(due)), ..spec(lane, due) });
    let rows = [row(spec(lane, due)), one];
    submit(&space, &rows).await;
    let ids = rows.each_ref().map(|row| row.id);
    let minute = UnixMs(due).minute();
    let well_known =
        ["meta", "agenda", "events", "counts", "run", "at", "tries", "dead", "parked", "ring:3", "recents"];
    let more = [
        format!("task:{}", minute.0 / 60),
        format!("due:{minute}"),
        format!("due:{minute}.07"),
        format!("due:{minute}.07.{:x}", digits::read(&ids[0].as_bytes()[15..]).unwrap() % 16),
        format!("ready:{}", lane.as_str()),
        format!("keys:{}", Key::shard(b"k")),
        format!("keyend:{}", (T0 + HOUR) / HOUR + 1),
        format!("timer:{minute}"),
        format!("recent:{}", T0 / 10_000),
    ];
    for name in well_known.map(str::to_owned).into_iter().chain(more) {
        let planted = Planted::at(&space, &name).await;
        planted.refuses(intake::cancel(&space, bucket(), "me", "", &ids).await);
        planted.nothing_changed().await;
        planted.undo().await;
    }
    for name in
        [format!("due:{minute}"), format!("due:{}", UnixMs(T0).minute()), "at".into(), "events".into()]
    {
        let planted = Planted::at(&space, &name).await;
        planted.refuses(intake::reschedule(&space, "me", ids[1], UnixMs(T0)).await);
        planted.nothing_changed().await;
        planted.undo().await;
    }
    for name in [format!("due:{minute}"), format!("due:{minute}u"), "lock".into()] {
        let planted = Planted::at(&space, &name).await;
        planted.refuses(intake::reprioritize(&space, "me", ids[1], Priority::P0).await);
        planted.nothing_changed().await;
        planted.undo().await;
    }
    assert_eq!(intake::cancel(&space, bucket(), "me", "", &ids).await.unwrap(), vec![WishAnswer::Done; 2]);
    sound(&space).await;
}

/// Far more than fits into one list of arguments, and all due in the same millisecond.
#[tokio::test]
async fn tens_of_thousands_due_at_once_are_cancelled_and_run() {
    const CANCELLED: usize = 20_000;
    const RUN: usize = 10_000;
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let rows: Vec<_> = (0..CANCELLED + RUN).map(|_| row(spec(lane, T0))).collect();
    for piece in rows.chunks(1_000) {
        assert_eq!(submit(&space, piece).await, vec![RowAnswer::Created; piece.len()]);
    }
    let ids: Vec<_> = rows[..CANCELLED].iter().map(|row| row.id).collect();
    let told = intake::cancel(&space, bucket(), "op", "not needed", &ids).await.unwrap();
    assert!(told.len() == CANCELLED && told.iter().all(|answer| *answer == WishAnswer::Done));
    let mut ran = std::collections::BTreeSet::new();
    while ran.len() < RUN {
        let tasks = claim(&space, &claim_all("p1")).await.tasks;
        assert!((1..=1_000).contains(&tasks.len()), "{} of {RUN}, and now {}", ran.len(), tasks.len());
        ack_done(&space, &tasks).await;
        assert!(tasks.iter().all(|task| ran.insert(task.id)), "one was granted twice");
    }
    let counts = read::counts(&space, bucket()).await.unwrap();
    let all = ["succeeded", "cancelled", "pending", "running"].map(|name| counts.count(name));
    assert_eq!(all, [RUN as i64, CANCELLED as i64, 0, 0]);
    sound(&space).await;
}

/// At both ends of the priorities tasks start in the order of their time, whatever their ids are.
#[tokio::test]
async fn the_order_within_a_priority_is_that_of_time() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    for level in [0, 5] {
        let lane = lane(&space, "push", Priority::from_level(level).unwrap()).await;
        let row = |n: i64| {
            let id = TaskId::new(UnixMs(T0).minute(), bucket(), 1_000_000 - n as u64);
            Row::new(id, spec(lane, T0 + n))
        };
        let rows: Vec<_> = (0..5).map(row).collect();
        assert!(rows.windows(2).all(|pair| pair[0].id > pair[1].id), "ids sort the other way");
        submit(&space, &rows).await;
        space.inject_now(Some(T0 + 10));
        for row in &rows {
            let one = Claim { limit: 1, normal_limit: 1, ..claim_all("p1") };
            let tasks = claim(&space, &one).await.tasks;
            assert_eq!(tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [row.id]);
            ack_done(&space, &tasks).await;
        }
    }
    assert!(Priority::from_level(6).is_none());
    for text in ["P6", "P-1", "P", "6", "p10"] {
        assert!(text.parse::<Priority>().is_err(), "{text}");
    }
    // Scores are times: all of them are whole numbers to Redis and Lua.
    const { assert!(limits::DUE_MAX_MS < 1 << 53) };
}
