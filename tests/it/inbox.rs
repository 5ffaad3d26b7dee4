//! Out of an inbox comes what is there, at once.

use crate::executor::{Town, start, task};
use minutehand::clock::mono;
use minutehand::model::{Grant, Nonce, Priority, State, UnixMs};
use minutehand::store::member::{self, Offer, OfferAnswer, Take};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::{self, T0};
use minutehand::testing::stalls::Stalls;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Barrier;

#[tokio::test]
async fn a_take_of_ten_gives_the_three_that_are_there_once() {
    let bed = Bed::shared().await.unwrap();
    let space = fixtures::space(&bed).await;
    let lane = fixtures::lane(&space, "push", Priority::P3).await;
    let offers: Vec<Offer> = (0..3)
        .map(|n| {
            let row = fixtures::row(fixtures::spec(lane, T0));
            Offer {
                ahead: false,
                id: row.id,
                grant: Grant::new(1, Nonce::new(n)),
                group: lane.group(),
                urgent: false,
                due: UnixMs(T0),
                attempt: 1,
                not_after: UnixMs(T0 + 15_000),
                spec: row.bytes,
            }
        })
        .collect();
    let ask = Take { normal: 10, urgent: 10, in_hand: 0, capacity: 10, urgent_capacity: 0 };
    assert!(member::take(&space, "ex", ask).await.unwrap().offers.is_empty());
    let rows: Vec<_> = offers.iter().map(Offer::encode).collect();
    let answer = member::offer(&space, "p", "ex", &[], &rows, 0, 0).await.unwrap();
    assert_eq!(answer, OfferAnswer::Accepted { urgent: 0, normal: 3, reserved: 0, free: 7, spare: 0 });
    assert_eq!(member::take(&space, "ex", ask).await.unwrap().offers, offers);
    for _ in 0..3 {
        let taken = member::take(&space, "ex", Take { in_hand: 3, ..ask }).await.unwrap();
        assert_eq!((taken.offers.len(), taken.waiting), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_tasks_for_many_slots_start_at_once() {
    let bed = Bed::shared().await.unwrap();
    let town = Town::build(&bed).await;
    // Each waits in its handler for the other two.
    let (all, met) = (Arc::new(Barrier::new(3)), Arc::new(Barrier::new(4)));
    let (here, there) = (Arc::clone(&all), Arc::clone(&met));
    let executor = start(town.executor(&bed).await.handle("push", move |_, _| {
        let (all, met) = (Arc::clone(&here), Arc::clone(&there));
        async move {
            all.wait().await;
            met.wait().await;
            Ok(())
        }
    }));
    // One goes ahead of the rest, so that pod and executor know each other when it counts.
    for round in 0..5 {
        let (begun, stalls) = (mono(), Stalls::watch());
        let told = town.client.submit_batch(vec![task("push"), task("push"), task("push")]).await.unwrap();
        let ids: BTreeSet<_> = told.into_iter().map(|one| one.unwrap().id).collect();
        assert_eq!(ids.len(), 3);
        tokio::time::timeout(crate::executor::NEVER, met.wait()).await.expect("three run at a time");
        let (took, stall) = (begun.elapsed(), stalls.longest());
        println!("round {round}: all three ran after {took:?}, with stalls of {stall:?}");
        // Who waited for seven more would wait for a poll, of a second.
        assert!(round == 0 || took < Duration::from_millis(900) + 2 * stall, "{took:?}");
        for id in ids {
            town.until(id, State::Succeeded).await;
        }
    }
    executor.end().await;
    town.end().await;
}
