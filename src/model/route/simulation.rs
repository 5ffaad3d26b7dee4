//! A fleet in miniature: what a policy makes of work whose tasks differ.

use super::*;

/// Chooses by a task's cost, and by work and tasks in hand of each.
type Choose<'a> = dyn FnMut(f64, &[f64], &[u32]) -> usize + 'a;

/// One task at a time in each slot; answers when the last of all is done, in ms.
fn makespan(costs: &[f64], slots: &[u32], mut choose: impl FnMut(f64, &[f64], &[u32]) -> usize) -> f64 {
    // Work in hand and tasks in hand, at a moment when all tasks are there: nothing has ended yet.
    let (mut load, mut count) = (vec![0.0; slots.len()], vec![0u32; slots.len()]);
    let mut given: Vec<Vec<f64>> = vec![Vec::new(); slots.len()];
    for cost in costs {
        let at = choose(*cost, &load, &count);
        load[at] += cost;
        count[at] += 1;
        given[at].push(*cost);
    }
    let end = |(costs, slots): (&Vec<f64>, &u32)| {
        let mut free_at = vec![0.0f64; *slots as usize];
        for cost in costs {
            let slot = (0..free_at.len()).min_by(|a, b| free_at[*a].total_cmp(&free_at[*b])).unwrap_or(0);
            free_at[slot] += cost;
        }
        free_at.into_iter().fold(0.0, f64::max)
    };
    given.iter().zip(slots).map(end).fold(0.0, f64::max)
}

fn by_cost(slots: &[u32]) -> impl FnMut(f64, &[f64], &[u32]) -> usize {
    let seats = slots.iter().map(|slots| Seat { free: u32::MAX / 16, ..Seat::of(*slots) }).collect();
    let mut view = View::new(Policy::LeastCost, seats, (0..slots.len()).map(|n| n.to_string()));
    move |cost_ms, _, _| {
        let at = view.choose(&Work { cost_ms, ..Work::default() }).expect("there is room");
        view.give(at, cost_ms);
        at
    }
}

fn by_count(_: f64, _: &[f64], count: &[u32]) -> usize {
    (0..count.len()).min_by_key(|at| count[*at]).unwrap_or(0)
}

#[test]
fn a_node_with_one_huge_task_gets_fewer_than_one_with_fifty_small_ones() {
    // One node holds a task of a minute, the other fifty of 10 ms; fifty more of 100 ms come.
    let mut first = vec![60_000.0];
    first.extend([10.0; 50]);
    let more = [100.0; 50];
    let slots = [1, 1];
    let start = |cost: f64| usize::from(cost < 60_000.0);
    let run = |choose: &mut Choose<'_>| {
        let costs: Vec<f64> = first.iter().chain(&more).copied().collect();
        let mut n = 0;
        makespan(&costs, &slots, |cost, load, count| {
            n += 1;
            if n <= first.len() { start(cost) } else { choose(cost, load, count) }
        })
    };
    let seats = vec![
        Seat { free: 999, load_ms: 60_000.0, ..Seat::of(1) },
        Seat { free: 999, load_ms: 500.0, ..Seat::of(1) },
    ];
    let mut view = View::new(Policy::LeastCost, seats, ["a", "b"]);
    let least = run(&mut |cost_ms, _, _| {
        let at = view.choose(&Work { cost_ms, ..Work::default() }).expect("there is room");
        view.give(at, cost_ms);
        at
    });
    let counted = run(&mut by_count);
    assert_eq!(least, 60_000.0, "all small ones run beside the huge one");
    assert_eq!(counted, 65_000.0, "counting tasks puts 50 small ones behind the huge one");
}

#[test]
fn mixed_work_is_done_sooner_by_cost_than_by_count() {
    let (mut worst, mut sum_least, mut sum_counted) = (0.0f64, 0.0, 0.0);
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        // One task in twenty is a hundred times as long as the others.
        let costs: Vec<f64> = (0..600)
            .map(|_| f64::from(random.u32(5..15)) * if random.u32(0..20) == 0 { 100.0 } else { 1.0 })
            .collect();
        let slots = [2, 4, 4, 8, 1, 16];
        let least = makespan(&costs, &slots, by_cost(&slots));
        let counted = makespan(&costs, &slots, by_count);
        let all: f64 = costs.iter().sum();
        let longest = costs.iter().copied().fold(0.0, f64::max);
        let best = (all / f64::from(slots.iter().sum::<u32>())).max(longest);
        // Graham (1969): list scheduling takes at most twice the best time there can be; here it is far less.
        worst = worst.max(least / best);
        sum_least += least;
        sum_counted += counted;
    }
    assert!(worst < 2.0, "a seed took {worst} times the least time possible");
    assert!(sum_counted > 2.0 * sum_least, "by cost {sum_least} ms, by count {sum_counted} ms");
}
