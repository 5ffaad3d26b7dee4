//! Urgent tasks at an executor: room of their own, and a wake-up of their own.

use bytes::Bytes;
use minutehand::model::{Grant, Nonce, Priority, UnixMs};
use minutehand::store::member::{self, Offer, OfferAnswer, Take};
use minutehand::testing::bed::{Bed, until};
use minutehand::testing::fixtures::{T0, lane, row, space, spec};
use std::time::Duration;

#[tokio::test]
async fn urgent_offers_have_room_of_their_own_and_wake_an_executor_that_is_full() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P0).await;
    let offer = |urgent| {
        let row = row(spec(lane, T0));
        Offer {
            id: row.id,
            grant: Grant::new(1, Nonce::new(1)),
            group: lane.group(),
            urgent,
            ahead: false,
            due: UnixMs(T0),
            attempt: 1,
            not_after: UnixMs(T0 + 15_000),
            spec: row.bytes,
        }
        .encode()
    };
    let mut wakes = member::inbox_wakes(&space, "ex");
    until("wake-ups are heard", async || {
        member::tell_executor(&space, "ex", b"x").await.unwrap();
        tokio::time::timeout(Duration::from_millis(20), wakes.recv()).await.is_ok()
    })
    .await;
    let mut heard = async || loop {
        let wake = wakes.recv().await.unwrap().payload;
        if matches!(&wake[..], b"i" | b"u") {
            return wake;
        }
    };
    // Two slots and all of them taken, two for urgent ones; and another offer lies in the inbox already.
    let full = Take { normal: 0, urgent: 2, in_hand: 2, capacity: 3, urgent_capacity: 2 };
    member::take(&space, "ex", full).await.unwrap();
    let send = async |urgent: &[Bytes], normal: &[Bytes]| {
        member::offer(&space, "p", "ex", urgent, normal, 0, 0).await.unwrap()
    };
    let answer = send(&[], &[offer(false), offer(false)]).await;
    assert_eq!(answer, OfferAnswer::Accepted { urgent: 0, normal: 1, reserved: 0, free: 0, spare: 2 });
    assert_eq!(&heard().await[..], b"i");
    let answer = send(&[offer(true)], &[]).await;
    assert_eq!(answer, OfferAnswer::Accepted { urgent: 1, normal: 0, reserved: 0, free: 0, spare: 1 });
    assert_eq!(&heard().await[..], b"u");
    let answer = send(&[offer(true), offer(true)], &[]).await;
    assert_eq!(answer, OfferAnswer::Accepted { urgent: 1, normal: 0, reserved: 0, free: 0, spare: 0 });
    let taken = member::take(&space, "ex", full).await.unwrap();
    assert_eq!((taken.offers.len(), taken.waiting), (2, 1));
    // Taken out, they make room: all of it is there again.
    let answer = send(&[], &[offer(false)]).await;
    assert_eq!(answer, OfferAnswer::Accepted { urgent: 0, normal: 0, reserved: 0, free: 0, spare: 2 });
}
