use super::record::{Decision, Sample};
use super::*;
use proptest::prelude::*;

fn seat() -> impl Strategy<Value = Seat> {
    (0u32..3, 0u32..2, 1u32..40, 0u32..3, 0f64..1e5, any::<bool>(), 0u64..9, 0u64..9).prop_map(
        |(free, spare, slots, idle, load_ms, healthy, given, last)| Seat {
            free,
            spare,
            slots,
            idle,
            load_ms,
            healthy,
            given,
            last,
        },
    )
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("ex-{n:04}")).collect()
}

fn work() -> impl Strategy<Value = Work> {
    (0f64..1e6, any::<bool>(), proptest::option::of(any::<u64>()), any::<u64>())
        .prop_map(|(cost_ms, urgent, key, chance)| Work { cost_ms, urgent, key, chance })
}

fn policy() -> impl Strategy<Value = Policy> {
    (0..Policy::ALL.len()).prop_map(|at| Policy::ALL[at])
}

/// The same choice by looking at everybody.
fn plain(policy: Policy, work: &Work, seats: &[Seat], turn: usize) -> Option<usize> {
    let open: Vec<usize> = (0..seats.len()).filter(|at| seats[*at].has_room(work.urgent)).collect();
    let least = |open: &[usize], figure: &dyn Fn(&Seat) -> f64| {
        open.iter().copied().min_by(|a, b| figure(&seats[*a]).total_cmp(&figure(&seats[*b])))
    };
    let done = |seat: &Seat| (seat.load_ms + work.cost_ms) / f64::from(seat.slots);
    match policy {
        Policy::LeastCost | Policy::Broadcast => least(&open, &done),
        Policy::First => open.first().copied().filter(|at| *at == 0),
        Policy::Last => open.last().copied().filter(|at| *at + 1 == seats.len()),
        Policy::RoundRobin => open.iter().copied().find(|at| *at >= turn).or(open.first().copied()),
        Policy::Random => {
            open.get(((work.chance as f64 / 2f64.powi(64)) * open.len() as f64) as usize).copied()
        }
        Policy::LeastFrequent => least(&open, &|seat| seat.given as f64),
        Policy::LeastRecent => least(&open, &|seat| seat.last as f64),
        Policy::Failover => open.iter().copied().find(|at| seats[*at].healthy).or(open.first().copied()),
        Policy::BusyOver => open.iter().copied().find(|at| seats[*at].idle > 0).or(least(&open, &done)),
        Policy::ConsistentHash => None,
    }
}

proptest! {
    /// Whatever has happened to a view since it was made, it chooses as one made anew would, only with room,
    /// and as well as a look at everybody does.
    #[test]
    fn views_choose_as_a_look_at_everybody_does(
        policy in policy(),
        start in proptest::collection::vec(seat(), 0..90),
        steps in proptest::collection::vec((any::<proptest::sample::Index>(), seat(), work()), 0..40),
    ) {
        let ids = ids(start.len());
        let mut view = View::new(policy, start, &ids);
        for (at, seat, work) in steps {
            if !view.seats().is_empty() {
                let at = at.index(view.seats().len());
                // What it was given is the view's own count.
                let own = view.seats()[at];
                view.set(at, Seat { given: own.given, last: own.last, ..seat });
            }
            let anew = View::new(policy, view.seats().to_vec(), &ids).with_turn(view.turn());
            let chosen = view.choose(&work);
            prop_assert_eq!(chosen, anew.choose(&work));
            let expected = plain(policy, &work, view.seats(), view.turn());
            match chosen {
                Some(at) => {
                    let seat = view.seats()[at];
                    prop_assert!(seat.has_room(work.urgent));
                    match (policy, expected.map(|at| view.seats()[at])) {
                        (Policy::LeastCost | Policy::Broadcast, Some(best)) => {
                            // Executors of a shelf differ by less than a fifth in slots.
                            let done = |seat: Seat| (seat.load_ms + work.cost_ms) / f64::from(seat.slots);
                            prop_assert!(done(seat) <= done(best) * 1.2 + 1e-9);
                        }
                        (Policy::LeastFrequent, Some(best)) => prop_assert_eq!(seat.given, best.given),
                        (Policy::LeastRecent, Some(best)) => prop_assert_eq!(seat.last, best.last),
                        (Policy::BusyOver, Some(best)) => prop_assert_eq!(seat.idle > 0, best.idle > 0),
                        (Policy::ConsistentHash, _) => {}
                        (_, best) => prop_assert_eq!(Some(seat), best),
                    }
                    let before = view.seats()[at];
                    let after = view.give(at, work.cost_ms);
                    prop_assert_eq!(after.free + after.spare + 1, before.free + before.spare);
                    prop_assert_eq!(view.seats()[at], after);
                }
                None => {
                    let open = view.seats().iter().any(|seat| seat.has_room(work.urgent));
                    prop_assert!(!open || matches!(policy, Policy::First | Policy::Last));
                    prop_assert_eq!(expected.filter(|_| policy != Policy::ConsistentHash), None);
                }
            }
        }
    }

    #[test]
    fn with_equal_slots_the_least_cost_is_exact(
        loads in proptest::collection::vec(0f64..1e6, 1..200), cost_ms in 0f64..1e6,
    ) {
        let seats: Vec<_> = loads.iter().map(|load| Seat { load_ms: *load, ..Seat::of(8) }).collect();
        let view = View::new(Policy::LeastCost, seats, ids(loads.len()));
        let chosen = view.choose(&Work { cost_ms, ..Work::default() }).unwrap();
        prop_assert!(loads.iter().all(|load| loads[chosen] <= *load));
    }

    /// A new executor takes its share of the keys and moves no others; so does one that goes.
    #[test]
    fn one_more_executor_moves_its_share_of_the_keys(count in 2usize..40, new in "[a-z]{1,12}") {
        let before = ids(count);
        let mut after = before.clone();
        after.push(format!("zz-{new}"));
        let view = |ids: &[String]| View::new(Policy::ConsistentHash, vec![Seat::of(1); ids.len()], ids);
        let (old, now) = (view(&before), view(&after));
        let keys = 2_000u64;
        let mut moved = 0;
        for key in 0..keys {
            let work = Work { key: Some(xxhash_rust::xxh3::xxh3_64(&key.to_le_bytes())), ..Work::default() };
            let (a, b) = (old.choose(&work).unwrap(), now.choose(&work).unwrap());
            if before[a] != after[b] {
                prop_assert_eq!(b, count, "a key moved between executors that were there before");
                moved += 1;
            }
        }
        let share = keys as f64 / (count as f64 + 1.0);
        let moved = f64::from(moved);
        prop_assert!(moved > share * 0.4 && moved < share * 1.8, "{} keys moved, about {} should", moved, share);
    }

    #[test]
    fn recorded_decisions_are_made_again(
        policy in policy(), seats in proptest::collection::vec(seat(), 0..60), tasks in proptest::collection::vec(work(), 1..60),
    ) {
        let executors = ids(seats.len());
        let mut view = View::new(policy, seats, &executors);
        let mut sample = Sample::new(8);
        for (n, work) in tasks.iter().enumerate() {
            let chosen = view.choose(work);
            if let Some((number, at)) = sample.place(work.chance) {
                let chosen = chosen.map(|place| executors[place].clone());
                let (seats, turn) = (view.seats().to_vec(), view.turn());
                let decision = Decision {
                    number, task: n.to_string(), queue: "q".into(), policy: view.policy(), work: *work, turn, executors: executors.clone(), seats, chosen,
                };
                sample.keep(at, decision);
            }
            if let Some(place) = chosen {
                view.give(place, work.cost_ms);
            }
        }
        let kept = sample.kept();
        prop_assert_eq!(kept.len(), tasks.len().min(8));
        for decision in &kept {
            let text = serde_json::to_string(decision).unwrap();
            let read: Decision = serde_json::from_str(&text).unwrap();
            prop_assert!(read.stands(), "{}", text);
        }
    }
}

#[test]
fn equal_executors_take_turns() {
    for policy in [Policy::LeastCost, Policy::RoundRobin, Policy::LeastFrequent, Policy::LeastRecent] {
        let seats = vec![Seat { free: 9, ..Seat::of(4) }; 3];
        let mut view = View::new(policy, seats, ids(3));
        let chosen: Vec<_> = (0..6)
            .map(|_| {
                let place = view.choose(&Work { cost_ms: 5.0, ..Work::default() }).unwrap();
                view.give(place, 5.0);
                place
            })
            .collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2], "{policy}");
    }
}

#[test]
fn chance_treats_all_with_room_alike() {
    let mut seats = vec![Seat::of(1); 5];
    seats[2].free = 0;
    let view = View::new(Policy::Random, seats, ids(5));
    let mut counts = [0u32; 5];
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..40_000 {
        counts[view.choose(&Work { chance: random.u64(..), ..Work::default() }).unwrap()] += 1;
    }
    assert_eq!(counts[2], 0);
    assert!([0, 1, 3, 4].iter().all(|at| (9_500..10_500).contains(&counts[*at])), "{counts:?}");
}

#[test]
fn the_first_and_the_last_are_waited_for_and_give_only_their_room() {
    let seats = vec![Seat { free: 0, ..Seat::of(4) }, Seat::of(8), Seat::of(2)];
    let first = View::new(Policy::First, seats.clone(), ids(3));
    let room = |policy: Policy| policy.room(seats.iter().map(|seat| (seat.free, seat.spare)));
    assert_eq!((first.choose(&Work::default()), room(Policy::First)), (None, (0, 0)));
    assert_eq!(room(Policy::RoundRobin), (10, 0));
    let last = View::new(Policy::Last, seats.clone(), ids(3));
    assert_eq!((last.choose(&Work::default()), room(Policy::Last)), (Some(2), (2, 0)));
}

#[test]
fn who_does_not_answer_is_passed_over_and_who_is_busy_comes_last() {
    let mut seats = vec![Seat::of(2); 3];
    seats[0].healthy = false;
    let view = View::new(Policy::Failover, seats, ids(3));
    assert_eq!(view.choose(&Work::default()), Some(1));
    let mut seats = vec![Seat { idle: 0, load_ms: 50.0, ..Seat::of(2) }; 3];
    seats[2].idle = 1;
    let mut view = View::new(Policy::BusyOver, seats, ids(3));
    assert_eq!(view.choose(&Work::default()), Some(2));
    view.give(2, 500.0);
    assert_eq!(view.choose(&Work::default()), Some(0), "all are busy: the least cost");
}

#[test]
fn names_are_read_back_and_a_wrong_one_lists_all() {
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
        assert_eq!(policy.name().replace('_', "-").parse(), Ok(policy));
        assert_eq!(serde_json::to_value(policy).unwrap(), policy.name());
        let real = if policy == Policy::Broadcast { Policy::LeastCost } else { policy };
        assert_eq!(policy.route().policy(), real);
    }
    let error = "fastest".parse::<Policy>().unwrap_err();
    assert_eq!(error.field, "routing");
    assert!(error.to_string().contains("busy_over"), "{error}");
}
