//! Short tasks follow each other, so that one offer carries several.

use super::{Policy, View, Work};

/// Work per slot that an executor may be given beyond the one that was chosen, in ms. It bounds what following may
/// cost a task; one that runs for longer than this per slot never follows.
const TOGETHER_MS: f64 = 0.25;
/// Most tasks that go to one executor in a row for that reason.
const TOGETHER_MAX: u32 = 64;

/// Who was given the last task. An offer of one task costs Redis as much as twenty tasks in one, and by estimated cost
/// short tasks would go to another executor each: differences of less than a quarter of a millisecond do not count.
#[derive(Debug, Default)]
pub struct Together {
    /// A class, the place in its view, and how many tasks in a row.
    last: Option<(usize, usize, u32)>,
}

impl Together {
    /// The next task follows none: what went before has left already.
    pub fn part(&mut self) {
        self.last = None;
    }

    /// The place that a task of this class goes to, where its policy has chosen `chosen`.
    pub fn settle(&mut self, class: usize, view: &View, work: &Work, chosen: usize) -> usize {
        let place = self.followed(class, view, work, chosen).unwrap_or(chosen);
        let times = match self.last {
            Some((known, last, times)) if known == class && last == place => times + 1,
            _ => 1,
        };
        self.last = Some((class, place, if place == chosen && times > TOGETHER_MAX { 1 } else { times }));
        place
    }

    fn followed(&self, class: usize, view: &View, work: &Work, chosen: usize) -> Option<usize> {
        let (known, last, times) = self.last?;
        if view.policy() != Policy::LeastCost || known != class || times >= TOGETHER_MAX {
            return None;
        }
        let (seat, best) = (view.seats().get(last)?, view.seats().get(chosen)?);
        let done = |load_ms: f64, slots: u32| (load_ms + work.cost_ms) / f64::from(slots.max(1));
        let near = done(seat.load_ms, seat.slots) <= done(best.load_ms, best.slots) + TOGETHER_MS;
        let short = work.cost_ms <= TOGETHER_MS * f64::from(seat.slots);
        (seat.has_room(work.urgent) && seat.healthy && short && near).then_some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Seat;
    use super::*;

    fn spread(tasks: usize, cost_ms: f64) -> Vec<(usize, u32)> {
        let seats = vec![Seat { free: 10_000, ..Seat::of(32) }; 4];
        let mut view = View::new(Policy::LeastCost, seats, ["a", "b", "c", "d"]);
        let (mut together, mut rows) = (Together::default(), Vec::<(usize, u32)>::new());
        for _ in 0..tasks {
            let work = Work { cost_ms, ..Work::default() };
            let chosen = view.choose(&work).unwrap();
            let place = together.settle(0, &view, &work, chosen);
            view.give(place, cost_ms);
            match rows.last_mut() {
                Some((last, times)) if *last == place => *times += 1,
                _ => rows.push((place, 1)),
            }
        }
        rows
    }

    #[test]
    fn short_tasks_travel_together_and_share_in_the_end() {
        let rows = spread(1_024, 0.02);
        assert!(rows.iter().all(|(_, times)| *times == TOGETHER_MAX), "{rows:?}");
        for place in 0..4 {
            assert_eq!(rows.iter().filter(|row| row.0 == place).count(), 4, "{rows:?}");
        }
    }

    #[test]
    fn long_tasks_each_go_where_they_are_done_first() {
        assert!(spread(64, 50.0).iter().all(|(_, times)| *times == 1));
    }
}
