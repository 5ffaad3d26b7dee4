//! Freezing a plan: its tasks step aside, and come back.

use minutehand::client::{Cancelled, Client, Due, NewTask};
use minutehand::executor::Executor;
use minutehand::model::{Grant, Nonce, PlanName, Priority, QueueName, Spec, State, UnixMs};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::due::Claim;
use minutehand::store::intake::Row;
use minutehand::store::member::{self, Offer, OfferAnswer, Take};
use minutehand::store::queue::{self, Scope};
use minutehand::store::read;
use minutehand::testing::bed::{Bed, until};
use minutehand::testing::fixtures::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_plan_starts_nothing_and_holds_nobody_up() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let client = Client::new(space.clone());
    let stop = CancellationToken::new();
    let pods: Vec<_> = (0..2)
        .map(|_| tokio::spawn(Pod::new(space.clone(), PodSettings::default()).run(stop.child_token())))
        .collect();
    let (cold, warm) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let gate = Arc::new(tokio::sync::Semaphore::new(40));
    let (cold_here, warm_here, door) = (Arc::clone(&cold), Arc::clone(&warm), Arc::clone(&gate));
    // One slot, and one queue for both: only the plan tells the tasks apart.
    let executor = Executor::builder(space.clone()).slots(1).handle("push", move |task, _| {
        let counter = Arc::clone(if task.plan.is_some() { &cold_here } else { &warm_here });
        let door = Arc::clone(&door);
        async move {
            counter.fetch_add(1, Ordering::SeqCst);
            door.acquire().await?.forget();
            Ok(())
        }
    });
    let executor = tokio::spawn(executor.build().unwrap().run(stop.child_token()));
    let sale = PlanName::new("sale").unwrap();
    let task = |plan: Option<&PlanName>| NewTask {
        plan: plan.cloned(),
        ..NewTask::to(QueueName::new("push").unwrap())
    };
    let counts = async || client.counts().await.unwrap().0;
    let submit = async |plan: Option<&PlanName>, n: usize| {
        let told = client.submit_batch(vec![task(plan); n]).await.unwrap();
        told.into_iter().map(|one| one.unwrap().id).collect::<Vec<_>>()
    };
    submit(Some(&sale), 40).await;
    until("the plan runs", async || counts().await.succeeded == 40).await;
    // The gate is shut: one of these runs, others lie in the executor's hands, its inbox and the lanes.
    submit(Some(&sale), 30).await;
    until("one runs and others are granted", async || {
        cold.load(Ordering::SeqCst) == 41 && counts().await.running > 1
    })
    .await;
    let frost = client.freeze(&Scope::Plan(sale.clone()), "op", "wrong text").await.unwrap();
    assert!(frost.changed && frost.pods_behind.is_empty());
    let late = submit(Some(&sale), 300).await;
    until("all but the running one are set aside or wait to be", async || {
        let counts = counts().await;
        (counts.running, counts.pending) == (1, 329)
    })
    .await;
    gate.add_permits(1_000);
    // The others' tasks pass, though they came later and share the lane.
    submit(None, 50).await;
    until("the others run", async || warm.load(Ordering::SeqCst) == 50).await;
    assert_eq!(cold.load(Ordering::SeqCst), 41, "nothing more of the plan started");
    until("the lane is free of the plan", async || counts().await.held == 329).await;
    let report = check(&space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{report:#?}");

    // What is set aside can be looked up, cancelled and moved.
    let view = client.get(late[0]).await.unwrap().unwrap();
    assert_eq!((view.state, view.view, view.plan.as_ref()), (State::Pending, "held", Some(&sale)));
    assert_eq!(client.cancel(late[1], "op", "not this one").await.unwrap(), Cancelled::Done);
    client.reschedule(late[2], Due::In(3_600_000), "op").await.unwrap();
    client.reprioritize(late[3], Priority::P0, "op").await.unwrap();
    until("what was moved is set aside again", async || counts().await.held == 327).await;
    let report = check(&space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{report:#?}");

    client.thaw(&Scope::Plan(sale), "op").await.unwrap();
    until("the plan goes on", async || cold.load(Ordering::SeqCst) == 41 + 328 - 1).await;
    until("nothing is held", async || {
        let counts = counts().await;
        (counts.held, counts.pending, counts.cancelled) == (0, 1, 1)
    })
    .await;
    let report = check(&space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{report:#?}");
    stop.cancel();
    executor.await.unwrap().unwrap();
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_thawed_plan_comes_back_in_bounded_steps() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let sale = PlanName::new("sale").unwrap();
    let lane = lane(&space, "push", Priority::P3).await;
    let cold: Vec<Row> =
        (0..1_200).map(|n| row(Spec { plan: Some(sale.clone()), ..spec(lane, T0 - 10_000 + n) })).collect();
    for piece in cold.chunks(600) {
        submit(&space, piece).await;
    }
    let warm = row(spec(lane, T0 - 1));
    submit(&space, std::slice::from_ref(&warm)).await;
    let frozen = |plans: &[&PlanName]| Claim {
        frozen_plans: plans.iter().map(|plan| (*plan).clone()).collect(),
        ..Claim { limit: 1, normal_limit: 1, ..claim_all("p") }
    };
    // A single free slot, and a thousand frozen tasks before the one that may go.
    let claimed = claim(&space, &frozen(&[&sale])).await;
    assert_eq!(claimed.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [warm.id]);
    assert!(!claimed.again);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("held"), counts.count("pending"), counts.count("running")), (1_200, 1_200, 1));
    // Nothing of it is due any more, so nothing wakes the pod for it.
    assert_eq!((claimed.backlog, claimed.next_due), (0, None));
    let other = PlanName::new("other").unwrap();
    let claimed = claim(&space, &frozen(&[&sale, &other])).await;
    assert!(claimed.tasks.is_empty() && !claimed.again);
    // 500 a visit, in order of due time; a visit that is cut off says so.
    let mut ids = Vec::new();
    for (visit, again) in [true, true, false].into_iter().enumerate() {
        let thawed = Claim { limit: 500, normal_limit: 500, ..frozen(&[&other]) };
        let claimed = claim(&space, &thawed).await;
        assert_eq!(claimed.again, again, "visit {visit}");
        ids.extend(claimed.tasks.iter().map(|task| task.id));
    }
    assert_eq!(ids, cold.iter().map(|row| row.id).collect::<Vec<_>>());
    assert_eq!(read::counts(&space, bucket()).await.unwrap().count("held"), 0);
    let report = check(&space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{report:#?}");
}

#[tokio::test]
async fn an_inbox_refuses_offers_of_pods_that_have_not_heard_of_a_freeze() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let sale = PlanName::new("sale").unwrap();
    let lane = lane(&space, "push", Priority::P3).await;
    let offer = |plan: Option<&PlanName>| {
        let row = row(Spec { plan: plan.cloned(), ..spec(lane, T0) });
        Offer {
            ahead: false,
            id: row.id,
            grant: Grant::new(1, Nonce::new(1)),
            group: lane.group(),
            urgent: false,
            due: UnixMs(T0),
            attempt: 1,
            not_after: UnixMs(T0 + 15_000),
            spec: row.bytes,
        }
    };
    let ask = Take { normal: 0, urgent: 0, in_hand: 0, capacity: 10, urgent_capacity: 0 };
    member::take(&space, "ex", ask).await.unwrap();
    let (cold, warm) = (offer(Some(&sale)), offer(None));
    let send = async |offer: &Offer, epoch| {
        member::offer(&space, "p", "ex", &[], &[offer.encode()], 0, epoch).await.unwrap()
    };
    let taken = OfferAnswer::Accepted { urgent: 0, normal: 1, reserved: 0, free: 9, spare: 0 };
    assert_eq!(send(&cold, 0).await, taken);
    assert_eq!(
        send(&warm, 0).await,
        OfferAnswer::Accepted { urgent: 0, normal: 1, reserved: 0, free: 8, spare: 0 }
    );
    let (freeze, _) = queue::freeze(&space, &Scope::Plan(sale), "op", "").await.unwrap();
    let back = queue::recall(&space, "ex", &freeze, &[]).await.unwrap();
    assert_eq!(back, std::slice::from_ref(&cold));
    assert_eq!(send(&cold, freeze.epoch - 1).await, OfferAnswer::Frozen);
    assert_eq!(
        send(&warm, freeze.epoch).await,
        OfferAnswer::Accepted { urgent: 0, normal: 1, reserved: 0, free: 8, spare: 0 }
    );
    // A pod that hears of nothing for long is not kept out for ever: it may be the registry that lost the freeze.
    space.inject_now(Some(T0 + 8_999));
    member::take(&space, "ex", ask).await.unwrap();
    space.inject_now(Some(T0 + 10_001));
    assert!(matches!(send(&warm, 0).await, OfferAnswer::Accepted { normal: 1, .. }));
}
