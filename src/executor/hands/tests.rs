//! What is fetched ahead, held, started, given back and remembered.

use super::held::RECENT_MAX;
use super::*;
use crate::executor::link::{StartAnswer, StartRow};
use crate::model::{Bucket, LaneCode, Nonce, Priority, Tier, UnixMs};
use std::collections::HashSet;

const SIZE: Size = Size { slots: 2, urgent_slots: 1, prefetch: PREFETCH_MAX };

fn arrived(number: u64, priority: Priority, now: Instant) -> Arrived {
    let id = TaskId::new(crate::model::Minute(29_408_521), Bucket::default(), number);
    let queue = Arc::new(Queue::new(QueueName::new("q").unwrap(), None));
    let mut spec = crate::model::spec::tests::plain(b"");
    spec.lane = LaneCode::new(1, priority, Tier::FRESH);
    Arrived {
        execution: ExecutionId { id, grant: Grant::new(1, Nonce::new(number)) },
        spec,
        due: UnixMs(0),
        attempt: 1,
        urgent: priority.is_urgent(),
        good_until: now + Duration::from_secs(15),
        taken: now,
        start_at: None,
        route: Route { queue, labels: Arc::default() },
    }
}

#[test]
fn prefetch_is_ten_milliseconds_of_work() {
    let size = Size { slots: 8, ..SIZE };
    let cases = [
        (None, 0),
        (Some(900.0), 0),
        (Some(81.0), 0),
        (Some(80.0), 1),
        (Some(20.0), 4),
        (Some(1.0), 80),
        (Some(0.0), 1_000),
    ];
    for (run_ms, expected) in cases {
        assert_eq!(prefetch(size, run_ms), expected, "{run_ms:?}");
    }
    assert_eq!(prefetch(Size { prefetch: 32, ..size }, Some(0.5)), 32, "the setting caps it");
}

#[test]
fn urgent_tasks_take_normal_slots_first_and_then_their_own() {
    let (hands, now) = (Hands::new(SIZE, Keep::Dispatch), crate::clock::mono());
    let tasks = [Priority::P3, Priority::P3, Priority::P0, Priority::P1, Priority::P1];
    let tasks = tasks.into_iter().zip(0..).map(|(priority, number)| arrived(number, priority, now)).collect();
    assert_eq!(hands.arrive(tasks).unwrap(), 5);
    let mut jobs = hands.launch(now);
    let shape: Vec<_> = jobs.iter().map(|(pool, job)| (*pool, job.task.spec.lane.priority())).collect();
    let expected = [(Pool::Normal, Priority::P0), (Pool::Normal, Priority::P1), (Pool::Urgent, Priority::P1)];
    assert_eq!(shape, expected);
    let view = hands.view();
    assert_eq!((view.held, view.in_hand, view.room, view.urgent_room, view.idle), (5, 4, 0, 0, 0));
    // The urgent slot is free again: nothing of what waits may have it.
    let (_, last) = jobs.pop().unwrap();
    let end = End::Outcome { took_ms: Some(50.0), failed: false };
    assert!(hands.finish(&last.task.execution, Pool::Urgent, &last.task.route.queue, end, now).is_none());
    assert_eq!((hands.view().held, hands.view().urgent_room), (4, 1));
    let (_, first) = jobs.remove(0);
    let next = hands.finish(&first.task.execution, Pool::Normal, &first.task.route.queue, end, now);
    assert_eq!(next.unwrap().task.spec.lane.priority(), Priority::P3);
}

/// Else an executor with four urgent slots could be given four tasks ahead of their time, and the fifth only when it is due.
#[test]
fn urgent_tasks_are_fetched_ahead_of_their_slots_as_others_are() {
    let size = Size { slots: 1, urgent_slots: 4, prefetch: PREFETCH_MAX };
    let (hands, now) = (Hands::new(size, Keep::Dispatch), crate::clock::mono());
    let of = |numbers: std::ops::Range<u64>, priority| -> Vec<_> {
        numbers.map(|number| arrived(number, priority, now)).collect()
    };
    let room = || (hands.view().room, hands.view().urgent_room, hands.view().urgent_capacity);
    assert_eq!(room(), (1, 4, 4), "nothing is known of how long they run");
    let run = |priority, took_ms: f64, numbers| {
        hands.arrive(of(numbers, priority)).unwrap();
        for (pool, job) in hands.launch(now) {
            let end = End::Outcome { took_ms: Some(took_ms), failed: false };
            hands.finish(&job.task.execution, pool, &job.task.route.queue, end, now);
            hands.settle([&job.task.execution]);
        }
    };
    run(Priority::P3, 1.0, 0..1);
    assert_eq!(room(), (11, 4, 4), "others say nothing of urgent ones");
    run(Priority::P1, 4.0, 1..2);
    assert_eq!(room().1, 14, "four slots, and what they do in 10 ms");
    hands.arrive(of(2..3, Priority::P3)).unwrap();
    hands.launch(now);
    let (before, ..) = room();
    hands.arrive(of(3..16, Priority::P0)).unwrap();
    assert_eq!(room(), (before, 1, 14), "13 of them take no room from others");
    hands.arrive(of(16..19, Priority::P0)).unwrap();
    assert_eq!(room(), (before - 2, 0, 14), "but what is beyond does");
}

#[test]
fn with_a_journal_what_is_held_unstarted_stays_held_for_its_lease() {
    let now = crate::clock::mono();
    let all = || (0..4).map(|number| arrived(number, Priority::P3, now)).collect::<Vec<_>>();
    // Before START_AFTER nothing is said; then each row has the lease that it asks for.
    for (keep, soon) in [(Keep::Dispatch, vec![]), (Keep::Lease, vec![limits::LEASE_MS; 2])] {
        let hands = Hands::new(SIZE, keep);
        assert_eq!(hands.arrive(all()).unwrap(), 4);
        let jobs = hands.launch(now);
        assert_eq!(jobs.len(), 2, "the two others wait");
        let renewed = |at: Instant| -> Vec<(TaskId, i64)> {
            let calls = hands.calls(at, &HashSet::new());
            calls.into_values().flat_map(|(_, renews)| renews).map(|row| (row.id, row.lease_ms)).collect()
        };
        assert!(renewed(now + START_AFTER / 2).is_empty());
        let at = now + START_AFTER;
        let rows = renewed(at);
        assert_eq!(rows.iter().map(|(_, lease_ms)| *lease_ms).collect::<Vec<_>>(), soon, "{keep:?}");
        if keep == Keep::Dispatch {
            continue;
        }
        // Answered, it is renewed at a third of its lease.
        let rows: Vec<_> = rows
            .into_iter()
            .map(|(id, lease_ms)| {
                let task = all().into_iter().find(|task| task.execution.id == id).unwrap();
                StartRow { id, grant: task.execution.grant, lease_ms }
            })
            .collect();
        let answers = [StartAnswer::Ok { deadline: UnixMs(limits::LEASE_MS), cancel: false }; 2];
        assert_eq!(hands.answered(false, &rows, &answers, at, at, 0), 0);
        let third = Duration::from_millis(limits::LEASE_MS as u64 / 3);
        assert!(renewed(at + third - Duration::from_millis(1)).is_empty());
        assert_eq!(renewed(at + third).len(), 2);
    }
}

#[test]
fn what_ended_is_remembered_and_closing_gives_the_rest_back() {
    let (hands, now) = (Hands::new(SIZE, Keep::Dispatch), crate::clock::mono());
    let all = || (0..4).map(|number| arrived(number, Priority::P3, now)).collect::<Vec<_>>();
    assert_eq!(hands.arrive(all()).unwrap(), 4);
    assert_eq!(hands.arrive(all()).unwrap(), 0, "all are held");
    let jobs = hands.launch(now);
    assert_eq!(jobs.len(), 2);
    for (pool, job) in &jobs {
        hands.finish(&job.task.execution, *pool, &job.task.route.queue, End::Dropped, now);
    }
    let back = hands.close();
    assert!(back.is_empty(), "both waiting ones had got the free slots: {back:?}");
    assert_eq!(hands.arrive(all()).unwrap_err().len(), 2, "closed: what is not held goes back");
}

#[test]
fn queues_wait_by_turns_and_each_in_its_own_order() {
    let now = crate::clock::mono();
    let hands = Hands::new(Size { slots: 1, urgent_slots: 0, prefetch: 64 }, Keep::Dispatch);
    let route = |name: &str| Route {
        queue: Arc::new(Queue::new(QueueName::new(name).unwrap(), None)),
        labels: Arc::default(),
    };
    let (crowd, other, third) = (route("crowd"), route("other"), route("third"));
    let of = |number, route: &Route| Arrived { route: route.clone(), ..arrived(number, Priority::P3, now) };
    let crowded: Vec<Arrived> = (0..6).map(|number| of(number, &crowd)).collect();
    assert_eq!(hands.arrive(crowded).unwrap(), 6);
    let (mut order, mut next) = (Vec::new(), hands.launch(now).pop().map(|(_, job)| job));
    // These come when six are there already: the first of them waits for the one that runs, and for one more.
    hands.arrive(vec![of(10, &other), of(11, &other), of(20, &third)]).unwrap();
    while let Some(Job { task, .. }) = next {
        order.push(task.execution);
        next = hands.finish(&task.execution, Pool::Normal, &task.route.queue, End::Dropped, now);
    }
    let wanted = [
        (0, &crowd),
        (1, &crowd),
        (10, &other),
        (20, &third),
        (2, &crowd),
        (11, &other),
        (3, &crowd),
        (4, &crowd),
        (5, &crowd),
    ];
    assert_eq!(order[..], wanted.map(|(number, route)| of(number, route).execution));
    assert!(hands.launch(now).is_empty() && hands.view().held == 0);
}

#[test]
fn the_memory_of_ended_executions_is_bounded() {
    let mut recent = Recent::default();
    let now = crate::clock::mono();
    let execution = |number| arrived(number, Priority::P3, now).execution;
    for number in 0..3 * RECENT_MAX as u64 {
        recent.add(&execution(number));
        assert!(recent.len() <= 2 * RECENT_MAX);
    }
    assert!(recent.has(&execution(3 * RECENT_MAX as u64 - 1)) && !recent.has(&execution(0)));
}
