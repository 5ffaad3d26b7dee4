//! No script holds the server for long, however large its batch: what SLOWLOG would show at 10 ms.

use std::collections::BTreeMap;

use bytes::Bytes;
use minutehand::dev::redis::ServerOptions;
use minutehand::limits;
use minutehand::model::spec::Key;
use minutehand::model::{PlanName, Priority, Spec, TaskId, UnixMs};
use minutehand::store::due::{self, Claim, ReleaseAnswer};
use minutehand::store::intake::{self, Row, Sending};
use minutehand::store::member::{self, ExecutorRecord, Offer, OfferAnswer, Take};
use minutehand::store::run::{self, AckRow, Outcome, StartRow};
use minutehand::store::{Space, dead, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;

const HOUR: i64 = 3_600_000;
/// The longest that one call may keep the server's main thread. Its own time is measured, since on a busy machine
/// SLOWLOG shows for how long others had the processor.
const BAR_US: u64 = 10_000;

fn hold(task: &due::Granted, lease_ms: i64) -> StartRow {
    StartRow { id: task.id, grant: task.grant, lease_ms }
}

/// What the server's main thread spends on single calls: its own time, so that a busy machine does not decide.
struct Meter {
    bed: Bed,
    space: Space,
    best: BTreeMap<&'static str, (u64, usize)>,
}

impl Meter {
    async fn spent_us(&self) -> u64 {
        let info = self.space.store().server_info().await.unwrap();
        info.nodes[0].main_thread_us.unwrap()
    }

    async fn time<T>(&mut self, name: &'static str, call: impl Future<Output = T>) -> T {
        let calls = match name {
            "intake.cancel plain"
            | "intake.cancel heavy"
            | "intake.cancel ended"
            | "due.release"
            | "dead.redrive"
            | "dead.delete" => limits::BATCH_MAX_ROWS / limits::SINGLE_MAX_ROWS,
            "run.ack failed" | "run.ack fatal" | "run.ack after" => {
                limits::BATCH_MAX_ROWS * limits::ACK_FAILURE_WEIGHT / limits::ACK_MAX_WEIGHT
            }
            "run.ack succeeded" | "run.ack succeeded heavy" => {
                limits::BATCH_MAX_ROWS / limits::ACK_MAX_WEIGHT
            }
            _ => 1,
        } as u64;
        let before = self.spent_us().await;
        let told = call.await;
        // A long list goes in several calls: what counts is the time of one.
        let spent = (self.spent_us().await - before) / calls;
        let best = self.best.entry(name).or_insert((u64::MAX, 0));
        *best = (best.0.min(spent), best.1 + 1);
        told
    }

    fn judge(&self) {
        let mut over = Vec::new();
        for (name, (us, calls)) in &self.best {
            println!("{name:23} {calls:3} times, best {us:6} µs a call");
            if *us > BAR_US {
                over.push(format!("{name}: {us} µs"));
            }
        }
        println!("on {:?}", self.bed.server().binary());
        assert!(over.is_empty(), "over {BAR_US} µs: {over:?}");
    }
}

/// No script holds the server for long, even at the largest batch it may get.
#[tokio::test]
async fn the_largest_batches_are_short() {
    let bed = Bed::own_server(ServerOptions::default()).await.unwrap();
    let space = space(&bed).await;
    let mut meter = Meter { bed, space: space.clone(), best: BTreeMap::new() };
    let lanes = [lane(&space, "a", Priority::P3).await, lane(&space, "b", Priority::P1).await];
    let batch = limits::BATCH_MAX_ROWS;
    let heavy = |n: usize, due: i64| {
        row(Spec {
            key: Some(Key::new(format!("key-{:016x}", fastrand::u64(..)), HOUR).unwrap()),
            deadline: Some(UnixMs(due + HOUR)),
            ..spec(lanes[n % 2], due)
        })
    };
    let plain = |n: usize, due: i64| row(spec(lanes[n % 2], due));
    let again = Sending { again_after_ms: Some(50), ..Sending::default() };
    let error = "x".repeat(limits::ERROR_TAIL_MAX_BYTES);
    let outcomes: [(&'static str, Outcome); 4] = [
        ("run.ack succeeded", Outcome::Succeeded),
        ("run.ack failed", Outcome::Failed { error: error.clone() }),
        ("run.ack fatal", Outcome::Fatal { error: error.clone() }),
        ("run.ack after", Outcome::RetryAfter { ms: 9_000_000, counted: false, error }),
    ];
    let mut now = T0;
    for round in 0..6 {
        space.inject_now(Some(now));
        let all_plain = round % 2 == 0;
        let make = |n: usize, due: i64| if all_plain { plain(n, due) } else { heavy(n, due) };
        // Far ahead: made, sent again, cancelled, cancelled again.
        let rows: Vec<Row> = (0..batch).map(|n| make(n, now + HOUR)).collect();
        let name = if all_plain { "intake.submit plain" } else { "intake.submit heavy" };
        meter.time(name, submit(&space, &rows)).await;
        meter.time("intake.submit again", intake::submit(&space, bucket(), &rows, again)).await.unwrap();
        let ids: Vec<TaskId> = rows.iter().map(|row| row.id).collect();
        let name = if all_plain { "intake.cancel plain" } else { "intake.cancel heavy" };
        meter.time(name, intake::cancel(&space, bucket(), "me", "", &ids)).await.unwrap();
        meter.time("intake.cancel ended", intake::cancel(&space, bucket(), "me", "", &ids)).await.unwrap();
        meter.time("intake.submit ended", intake::submit(&space, bucket(), &rows, again)).await.unwrap();
        // A thousand of a frozen plan are set aside, and come back.
        let sale = PlanName::new("sale").unwrap();
        let of_plan = |n: usize| {
            let made = make(n, now - (n % 50) as i64);
            row(Spec { plan: Some(sale.clone()), ..made.spec })
        };
        submit(&space, &(0..batch).map(of_plan).collect::<Vec<_>>()).await;
        let frozen = Claim { frozen_plans: [sale.clone()].into(), ..claim_all("p1") };
        loop {
            // What failed in an earlier round may be ripe too.
            let granted = meter.time("due.claim setting aside", claim(&space, &frozen)).await.tasks;
            if granted.is_empty() {
                break;
            }
            ack_done(&space, &granted).await;
        }
        let held = read::counts(&space, bucket()).await.unwrap().count("held");
        assert_eq!(held, batch as i64);
        for _ in 0..2 {
            let none = Claim { limit: 0, normal_limit: 0, ..claim_all("p1") };
            meter.time("due.claim bringing back", claim(&space, &none)).await;
        }
        let granted = claim(&space, &claim_all("p1")).await.tasks;
        assert_eq!(granted.len(), batch);
        ack_done(&space, &granted).await;
        for (name, outcome) in &outcomes {
            // Two thousand ripe: a claim must ripen and choose; then straight through.
            for part in 0..2 {
                let rows: Vec<Row> =
                    (0..batch).map(|n| make(n + part * batch, now - (n % 50) as i64)).collect();
                submit(&space, &rows).await;
            }
            let (granted, rest) = (
                meter.time("due.claim ripening", claim(&space, &claim_all("p1"))).await.tasks,
                meter.time("due.claim from lanes", claim(&space, &claim_all("p1"))).await.tasks,
            );
            assert_eq!((granted.len(), rest.len()), (batch, batch));
            let holds: Vec<_> = granted.iter().map(|task| hold(task, 30_000)).collect();
            let offers: Vec<_> = holds.iter().map(|row| (*row, "ex")).collect();
            meter.time("run.offer", run::offer(&space, bucket(), "p1", &offers)).await.unwrap();
            meter.time("run.start", run::start(&space, bucket(), "ex", &holds)).await.unwrap();
            meter.time("run.renew", run::renew(&space, bucket(), "ex", &holds)).await.unwrap();
            let acks: Vec<_> = granted.iter().map(|task| ack_row(task, outcome.clone())).collect();
            let name =
                if *outcome == Outcome::Succeeded && !all_plain { "run.ack succeeded heavy" } else { *name };
            meter.time(name, run::ack(&space, bucket(), "ex", &acks, false)).await.unwrap();
            meter.time("run.ack again", run::ack(&space, bucket(), "ex", &acks, true)).await.unwrap();
            let rows: Vec<_> = rest.iter().map(|task| (task.id, task.grant)).collect();
            let released =
                meter.time("due.release", due::release(&space, bucket(), "p1", "no room", &rows)).await;
            assert_eq!(released.unwrap(), vec![ReleaseAnswer::HandedBack; batch]);
            let granted = meter.time("due.claim again", claim(&space, &claim_all("p1"))).await.tasks;
            assert_eq!(granted.len(), batch);
            let acks: Vec<_> = granted.iter().map(|task| ack_row(task, Outcome::Succeeded)).collect();
            run::ack(&space, bucket(), "ex", &acks, false).await.unwrap();
        }
        // Lapses, as many as a visit may reap, of tasks that count them.
        let rows: Vec<Row> = (0..batch).map(|n| make(n + 9 * batch, now)).collect();
        submit(&space, &rows).await;
        let granted = meter.time("due.claim straight", claim(&space, &claim_all("p1"))).await.tasks;
        assert_eq!(granted.len(), batch);
        let holds: Vec<_> = granted.iter().map(|task| hold(task, 1_000)).collect();
        run::start(&space, bucket(), "ex", &holds).await.unwrap();
        now += 2_000;
        space.inject_now(Some(now));
        for _ in 0..4 {
            let none = Claim { limit: 0, ..claim_all("p1") };
            assert_eq!(
                meter.time("due.claim reaping", claim(&space, &none)).await.reaped as usize,
                limits::REAP_MAX_ROWS
            );
        }
        now += 100_000;
        space.inject_now(Some(now));
        let granted = claim(&space, &claim_all("p1")).await.tasks;
        ack_done(&space, &granted).await;
        let letters = meter.time("read.dead", dead::page(&space, bucket(), UnixMs(0), 0)).await.unwrap();
        let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
        dead::delete(&space, bucket(), "me", &ids).await.unwrap();
        now += 1_000_000;
    }
    space.inject_now(Some(now));
    meter.judge();
    sound(&space).await;
}

/// The same for batches that are as large in bytes as they may be, through inboxes, dead letters and audits.
#[tokio::test]
async fn the_heaviest_batches_are_short() {
    let bed = Bed::own_server(ServerOptions::default()).await.unwrap();
    let space = space(&bed).await;
    let mut meter = Meter { bed, space: space.clone(), best: BTreeMap::new() };
    let lane = lane(&space, "a", Priority::P3).await;
    let batch = limits::BATCH_MAX_ROWS;
    // With its header and offer a row stays below its share of the bytes.
    let payload = Bytes::from(vec![b'x'; limits::BATCH_MAX_BYTES / batch - 256]);
    let error = "x".repeat(limits::ERROR_TAIL_MAX_BYTES);
    let small = u32::try_from(batch).unwrap();
    let executor = ExecutorRecord { id: "ex".into(), capacity: small, slots: small, ..Default::default() };
    let take = Take { normal: small, urgent: 0, in_hand: 0, capacity: small, urgent_capacity: 0 };
    let mut now = T0;
    for _ in 0..6 {
        space.inject_now(Some(now));
        member::beat_executor(&space, &executor).await.unwrap();
        let rows: Vec<Row> =
            (0..batch).map(|_| row(Spec { payload: payload.clone(), ..spec(lane, now) })).collect();
        meter.time("intake.submit 3 MiB", submit(&space, &rows)).await;
        let mut granted = meter.time("due.claim 2 MiB", claim(&space, &claim_all("p1"))).await.tasks;
        assert!(granted.len() > batch / 3 && granted.len() < batch, "{}", granted.len());
        while granted.len() < batch {
            granted.append(&mut meter.time("due.claim 2 MiB", claim(&space, &claim_all("p1"))).await.tasks);
        }
        let offers: Vec<Bytes> = granted
            .iter()
            .map(|task| {
                let (group, not_after) = (task.lane.group(), task.due.plus(15_000));
                let (id, grant, due, spec) = (task.id, task.grant, task.due, task.spec.clone());
                Offer { id, grant, group, urgent: false, ahead: false, due, attempt: 1, not_after, spec }
                    .encode()
            })
            .collect();
        for part in offers.chunks(batch / 2) {
            let offered = member::offer(&space, "p1", "ex", &[], part, small, 0);
            let answer = meter.time("member.offer 2 MiB", offered).await.unwrap();
            assert!(
                matches!(answer, OfferAnswer::Accepted { normal, .. } if normal == part.len()),
                "{answer:?}"
            );
        }
        let mut left = batch;
        while left > 0 {
            let taken = meter.time("member.take 2 MiB", member::take(&space, "ex", take)).await.unwrap();
            let bytes: usize = taken.offers.iter().map(|offer| offer.spec.len()).sum();
            assert!(bytes > 0 && bytes <= limits::CALL_MAX_BYTES, "{bytes}");
            left -= taken.offers.len();
            assert_eq!(taken.waiting as usize, left);
        }
        // What was taken is done with, as far as the inbox is concerned.
        member::take(&space, "ex", take).await.unwrap();
        let fatal = Outcome::Fatal { error: error.clone() };
        let acks: Vec<AckRow> = granted.iter().map(|task| ack_row(task, fatal.clone())).collect();
        run::ack(&space, bucket(), "ex", &acks, false).await.unwrap();
        sound(&space).await;
        let again: Vec<(TaskId, UnixMs)> = rows.iter().map(|row| (row.id, UnixMs(now))).collect();
        meter.time("dead.redrive", dead::redrive(&space, bucket(), "me", &again)).await.unwrap();
        let mut granted = Vec::new();
        while granted.len() < batch {
            granted
                .append(&mut meter.time("due.claim redriven", claim(&space, &claim_all("p1"))).await.tasks);
        }
        let acks: Vec<AckRow> = granted.iter().map(|task| ack_row(task, fatal.clone())).collect();
        run::ack(&space, bucket(), "ex", &acks, false).await.unwrap();
        meter.time("read.counts", read::counts(&space, bucket())).await.unwrap();
        meter.time("read.get", read::get(&space, rows[0].id)).await.unwrap();
        let ids: Vec<TaskId> = rows.iter().map(|row| row.id).collect();
        meter.time("dead.delete", dead::delete(&space, bucket(), "me", &ids)).await.unwrap();
        now += 1_000_000;
    }
    meter.judge();
    sound(&space).await;
}
