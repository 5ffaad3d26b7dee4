//! Dead letters: listed, redriven, deleted.

use minutehand::model::event::Move;
use minutehand::model::{Key, Priority, State, TaskId, UnixMs};
use minutehand::store::check::{self, CheckOptions};
use minutehand::store::dead::{self, RedriveAnswer};
use minutehand::store::due::Claim;
use minutehand::store::intake::RowAnswer;
use minutehand::store::run::{self, AckAnswer, Outcome};
use minutehand::store::{Space, events, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;

/// A task with a key that has failed for good.
async fn dead_task(space: &Space, key: &'static str) -> TaskId {
    let mut spec = spec(lane(space, "push", Priority::P2).await, T0);
    spec.key = Some(Key::new(key, 0).unwrap());
    let row = row(spec);
    assert_eq!(submit(space, std::slice::from_ref(&row)).await, [RowAnswer::Created]);
    let claimed = claim(space, &claim_all("p1")).await;
    let rows = [ack_row(&claimed.tasks[0], Outcome::Fatal { error: "no such number".into() })];
    assert_eq!(run::ack(space, bucket(), "ex-1", &rows, false).await.unwrap(), [AckAnswer::Dead]);
    row.id
}

async fn law_holds(space: &Space) {
    let report = check::check(space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{:?}", report.violations);
}

#[tokio::test]
async fn a_redriven_letter_runs_again_with_fresh_tries_and_its_history() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = dead_task(&space, "a").await;
    let page = dead::page(&space, bucket(), UnixMs(0), 0).await.unwrap();
    assert_eq!(page.len(), 1);
    assert_eq!((page[0].id, page[0].reason.as_str(), page[0].attempts.len()), (id, "fatal", 1));
    assert_eq!(page[0].attempts[0].error, "no such number");

    let rows = [(id, UnixMs(T0 + 500)), (TaskId::new(UnixMs(T0).minute(), bucket(), 1), UnixMs(T0))];
    let answers = dead::redrive(&space, bucket(), "op", &rows).await.unwrap();
    assert_eq!(answers, [RedriveAnswer::Pending, RedriveAnswer::Unknown]);
    assert_eq!(dead::redrive(&space, bucket(), "op", &rows[..1]).await.unwrap(), [RedriveAnswer::Unknown]);
    law_holds(&space).await;
    let found = read::get(&space, id).await.unwrap().unwrap();
    assert_eq!((found.state, found.attempts.len()), (State::Pending, 1));
    assert_eq!((found.place.unwrap().failures, found.place.unwrap().due.0), (0, T0 + 500));
    space.inject_now(Some(T0 + 500));
    let claimed = claim(&space, &claim_all("p1")).await;
    assert_eq!((claimed.tasks[0].failures, claimed.tasks[0].grant.fence()), (0, 2));
    assert_eq!(ack_done(&space, &claimed.tasks).await, [AckAnswer::Succeeded]);
    law_holds(&space).await;

    let life = events::trace(&space, id).await.unwrap();
    let moves: Vec<Move> = life.events.iter().map(|event| event.event).collect();
    use Move::*;
    assert_eq!(moves, [Submitted, Claimed, Died, Redriven, Claimed, Succeeded]);
    assert_eq!(life.events[2].cause, "no such number");
    assert_eq!((life.trimmed, life.unreadable), (None, 0));
}

#[tokio::test]
async fn a_redrive_does_not_take_a_key_from_another_task() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = dead_task(&space, "a").await;
    let mut again = spec(lane(&space, "push", Priority::P2).await, T0 + 60_000);
    again.key = Some(Key::new("a", 0).unwrap());
    let again = row(again);
    assert_eq!(submit(&space, std::slice::from_ref(&again)).await, [RowAnswer::Created]);
    let answers = dead::redrive(&space, bucket(), "op", &[(id, UnixMs(T0))]).await.unwrap();
    assert_eq!(answers, [RedriveAnswer::KeyConflict(again.id)]);
    assert_eq!(read::get(&space, id).await.unwrap().unwrap().state, State::Dead);
    law_holds(&space).await;
}

#[tokio::test]
async fn a_deleted_letter_leaves_nothing_behind() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = dead_task(&space, "a").await;
    assert_eq!(dead::delete(&space, bucket(), "op", &[id, id]).await.unwrap(), [true, false]);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("dead"), counts.count("deleted")), (0, 1));
    assert!(dead::page(&space, bucket(), UnixMs(0), 0).await.unwrap().is_empty());
    law_holds(&space).await;
}

#[tokio::test]
async fn letters_go_by_age_and_number_a_few_each_visit_the_oldest_first() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let mut ids = Vec::new();
    for second in 0..50 {
        space.inject_now(Some(T0 + second * 1_000));
        let row = row(spec(lane, T0 + second * 1_000));
        submit(&space, std::slice::from_ref(&row)).await;
        let claimed = claim(&space, &claim_all("p1")).await;
        let rows = [ack_row(&claimed.tasks[0], Outcome::Fatal { error: "no".into() })];
        run::ack(&space, bucket(), "ex-1", &rows, false).await.unwrap();
        ids.push(row.id);
    }
    let left = async || {
        let page = dead::page(&space, bucket(), UnixMs(0), 0).await.unwrap();
        page.into_iter().map(|letter| letter.id).collect::<Vec<_>>()
    };
    let visit = async |keep_rows, keep_ms| {
        let none = Claim { limit: 0, normal_limit: 0, ..claim_all("p1") };
        claim(&space, &Claim { dead_keep_rows: keep_rows, dead_keep_ms: keep_ms, ..none }).await;
    };
    // By number: at most sixteen a visit, until there are no more than may be kept.
    visit(20, 1_000_000).await;
    assert_eq!(left().await, ids[16..]);
    visit(20, 1_000_000).await;
    assert_eq!(left().await, ids[30..]);
    visit(20, 1_000_000).await;
    assert_eq!(left().await, ids[30..]);
    // By age: of the twenty, five are older than this.
    visit(20, 15_000).await;
    assert_eq!(left().await, ids[35..]);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("dead"), counts.count("deleted")), (15, 35));
    law_holds(&space).await;
}
