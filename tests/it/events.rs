//! The event streams: trimmed, counted, replayed from where they begin.

use minutehand::client::Client;
use minutehand::model::event::{Line, Move, Trimmed};
use minutehand::model::replay::Replay;
use minutehand::model::{Priority, Retry, Spec, TaskId};
use minutehand::store::due::Claim;
use minutehand::store::events::{self, Stretch};
use minutehand::store::intake;
use minutehand::store::run::{self, Outcome};
use minutehand::store::{Space, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use std::collections::BTreeMap;

/// A bucket with some of everything in its stream; the first task is a dead letter, the second failed and waits.
async fn lived(space: &Space) -> [TaskId; 2] {
    let retry = Retry { retries: 0, ..Retry::default() };
    let lane = lane(space, "push", Priority::P3).await;
    let rows = [
        row(Spec { retry, ..spec(lane, T0) }),
        row(spec(lane, T0)),
        row(spec(lane, T0)),
        row(spec(lane, T0 + 60_000)),
    ];
    submit(space, &rows).await;
    let granted = claim(space, &claim_all("p")).await.tasks;
    assert_eq!(granted.len(), 3);
    let of = |at: usize| granted.iter().find(|task| task.id == rows[at].id).unwrap();
    let failed = || Outcome::Failed { error: "no such number".into() };
    let acks = [ack_row(of(0), failed()), ack_row(of(1), failed()), ack_row(of(2), Outcome::Succeeded)];
    run::ack(space, bucket(), "ex", &acks, false).await.unwrap();
    intake::cancel(space, bucket(), "op", "not needed", &[rows[3].id]).await.unwrap();
    [rows[0].id, rows[1].id]
}

async fn trim(space: &Space, keep: usize) -> Stretch {
    for _ in 0..50 {
        claim(space, &Claim { events_max_bytes: keep, limit: 0, normal_limit: 0, ..claim_all("p") }).await;
    }
    events::stretch(space, bucket(), None, None).await.unwrap()
}

#[tokio::test]
async fn what_is_trimmed_is_counted_by_type_and_a_replay_begins_there() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let [dead, retried] = lived(&space).await;
    let whole = events::stretch(&space, bucket(), None, None).await.unwrap();
    assert_eq!((whole.trimmed.clone(), whole.gap), (None, false));
    let mut expected = BTreeMap::new();
    for event in &whole.events {
        *expected.entry(event.event.to_string()).or_insert(0) += 1;
    }
    assert_eq!(expected["submitted"], 4);
    assert_eq!((expected["claimed"], expected["succeeded"], expected["died"]), (3, 1, 1));
    // Everything goes; the counts say what it was.
    let rest = trim(&space, 0).await;
    assert_eq!(rest.events, []);
    let trimmed = rest.trimmed.unwrap();
    assert!(rest.gap, "who begins at the beginning has missed something");
    assert_eq!((trimmed.bucket, trimmed.events, &trimmed.by_type), (0, 11, &expected));
    // A reader that had read all of it has missed nothing.
    let on = events::stretch(&space, bucket(), None, whole.last.as_deref()).await.unwrap();
    assert!(!on.gap && on.trimmed == Some(trimmed.clone()));
    // The attempts of a dead task outlive its events, and a trace says since when there are any.
    let client = Client::new(space.clone());
    let trace = client.trace(dead).await.unwrap();
    assert_eq!((trace.events.len(), trace.trimmed.clone()), (0, Some(trimmed)));
    let found = read::get(&space, dead).await.unwrap().unwrap();
    assert_eq!(
        found.attempts.iter().map(|one| (one.fence, one.error.as_str())).collect::<Vec<_>>(),
        [(1, "no such number")]
    );
    // A life that begins in the middle replays clean from the marker, and not without it.
    space.inject_now(Some(T0 + 3_600_000));
    let granted = claim(&space, &claim_all("p")).await.tasks;
    assert_eq!(granted.iter().map(|task| task.id).collect::<Vec<_>>(), [retried]);
    ack_done(&space, &granted).await;
    let mut tail = client.events();
    let lines = tail.next_lines().await.unwrap();
    assert!(matches!(&lines[0], Line::Trimmed { trimmed } if trimmed.events == 11), "{lines:?}");
    assert_eq!(tail.next_lines().await.unwrap(), []);
    let (mut with, mut without) = (Replay::new(false), Replay::new(false));
    for line in &lines {
        match line {
            Line::Trimmed { trimmed } => with.trim(trimmed.bucket),
            Line::Event(event) => {
                with.feed(event);
                without.feed(event);
            }
        }
    }
    assert_eq!((with.finish(true).faults, without.finish(true).faults), (0, 1));
    assert!(client.replay(true).await.unwrap().ok);
    // Lines are read back as they were written.
    for line in lines {
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line, "{text}");
    }
}

#[tokio::test]
async fn a_full_stream_is_trimmed_a_piece_a_visit_and_no_count_is_lost() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    for _ in 0..100 {
        let rows: Vec<_> = (0..50).map(|_| row(spec(lane, T0))).collect();
        submit(&space, &rows).await;
        let granted = claim(&space, &claim_all("p")).await.tasks;
        ack_done(&space, &granted).await;
    }
    let before = Trimmed::default();
    let rest = trim(&space, 40_000).await;
    let trimmed = rest.trimmed.unwrap_or(before);
    let kept = |event: Move| rest.events.iter().filter(|found| found.event == event).count() as u64;
    let (mut kept_all, mut after) = (0, rest.last.clone());
    kept_all += rest.events.len() as u64;
    let mut more = rest.more;
    while more {
        let next = events::stretch(&space, bucket(), None, after.as_deref()).await.unwrap();
        kept_all += next.events.len() as u64;
        (after, more) = (next.last.or(after), next.more);
    }
    assert_eq!(trimmed.events + kept_all, 3 * 5_000);
    assert!(trimmed.events > 10_000 && kept(Move::Succeeded) > 0, "{trimmed:?}");
}
