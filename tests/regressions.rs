//! Faults that were found once, each with what a user saw of it. They must not come back.

use minutehand::dev::redis::ServerOptions;
use minutehand::dev::wire::{Door, Wire};
use minutehand::model::event::Move;
use minutehand::model::{Namespace, State};
use minutehand::store::{Space, events, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// 1. A task whose lease had lapsed and that was granted again in the same call seemed to be granted
///    twice at a time: its history told of the new grant before the end of the old one.
#[tokio::test]
async fn r1_a_lapse_is_told_before_the_grant_that_follows_it() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let id = task(&space, "push", T0).await;
    let mut ask = claim_all("pod-1");
    assert_eq!(claim(&space, &ask).await.tasks.len(), 1);
    // Nobody starts it; the pod comes again when its time is over.
    space.inject_now(Some(T0 + 20_000));
    ask.again();
    let again = claim(&space, &ask).await;
    assert_eq!((again.reaped, again.tasks.len(), again.tasks[0].grant.fence()), (1, 1, 2));
    let life = events::trace(&space, id).await.unwrap().events;
    let moves: Vec<_> = life.iter().map(|event| (event.event, event.fence)).collect();
    let expected =
        [(Move::Submitted, None), (Move::Claimed, Some(1)), (Move::Lost, Some(1)), (Move::Claimed, Some(2))];
    assert_eq!(moves, expected);
}

/// 2. With Redis's memory full no pod and no executor could be started, so that nothing could drain.
#[tokio::test]
async fn r2_a_namespace_is_opened_and_worked_off_where_memory_is_full() {
    let bed = Bed::own_server(ServerOptions::default()).await.unwrap();
    let before = space(&bed).await;
    let id = task(&before, "push", T0).await;
    bed.server().run(&["CONFIG", "SET", "maxmemory", "1mb"]).unwrap();
    let store = bed.store().await.unwrap();
    let space = Space::open(store, Namespace::new(bed.namespace()).unwrap()).await.unwrap();
    space.inject_now(Some(T0));
    let claimed = claim(&space, &claim_all("pod-1")).await;
    ack_done(&space, &claimed.tasks).await;
    assert_eq!(read::get(&space, id).await.unwrap().unwrap().state, State::Succeeded);
}

/// 3. A call whose script was forgotten twice, by `SCRIPT FLUSH` between its loading and its running, failed,
///    and tasks that were being offered waited for their dispatch time-out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_calls_succeed_however_often_scripts_are_flushed() {
    let bed = Bed::own_server(ServerOptions::default()).await.unwrap();
    let space = space(&bed).await;
    let (stop, socket) = (Arc::new(AtomicBool::new(false)), bed.server().socket());
    let told = Arc::clone(&stop);
    let flushing = std::thread::spawn(move || {
        let mut wire = Wire::open(&Door::Unix(socket)).unwrap();
        while !told.load(Ordering::Relaxed) {
            wire.run(&["SCRIPT", "FLUSH"]).unwrap();
        }
    });
    for n in 0..300 {
        read::counts(&space, bucket()).await.unwrap_or_else(|error| panic!("call {n}: {error}"));
    }
    stop.store(true, Ordering::Relaxed);
    flushing.join().unwrap();
}
