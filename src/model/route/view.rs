//! What a policy chooses in: executors that may take a task, and orders of them kept up to date.

use super::index::{Places, Tournament};
use super::{Policy, Rank, Route, Seat};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Points of one executor on the ring of consistent hashing: shares then differ by about an eighth.
const RING_POINTS: u64 = 64;

/// The executors of one class, for one policy.
#[derive(Debug, Clone)]
pub struct View {
    route: &'static dyn Route,
    seats: Vec<Seat>,
    /// Those with room: for every task, for urgent ones, and those with an idle slot beside room.
    open: [Places; 2],
    idle: Places,
    healthy: Places,
    shelves: Vec<Shelf>,
    /// Where each seat stands: its shelf, and its leaf there.
    stands: Vec<(u32, u32)>,
    /// Points of the ring, sorted: hash and place.
    ring: Vec<(u64, u32)>,
    /// Tasks given so far.
    clock: u64,
    /// The place behind the last one that was given a task.
    turn: usize,
}

/// Seats that are ordered among themselves.
#[derive(Debug, Clone)]
struct Shelf {
    key: u32,
    places: Vec<u32>,
    /// For every task, and for urgent ones.
    trees: [Tournament; 2],
}

impl View {
    /// A view of executors in order of their ids; `ids` are hashed for [`Policy::ConsistentHash`].
    pub fn new<T: AsRef<str>>(policy: Policy, seats: Vec<Seat>, ids: impl IntoIterator<Item = T>) -> Self {
        let ring = if policy == Policy::ConsistentHash { ring(ids) } else { Vec::new() };
        Self::build(policy.route(), seats, ring)
    }

    fn build(route: &'static dyn Route, seats: Vec<Seat>, ring: Vec<(u64, u32)>) -> Self {
        let len = seats.len();
        let clock = seats.iter().map(|seat| seat.last).max().unwrap_or(0);
        let mut view = Self {
            route,
            seats: Vec::new(),
            open: [Places::with_len(len), Places::with_len(len)],
            idle: Places::with_len(len),
            healthy: Places::with_len(len),
            shelves: Vec::new(),
            stands: vec![(0, 0); len],
            ring,
            clock,
            turn: 0,
        };
        for (place, seat) in seats.iter().enumerate() {
            view.mark(place, seat);
        }
        view.seats = seats;
        view.fill_shelves();
        view
    }

    fn fill_shelves(&mut self) {
        if self.seats.iter().all(|seat| self.route.rank(seat).is_none()) {
            return;
        }
        let mut shelves: Vec<(u32, Vec<u32>)> = Vec::new();
        for (place, seat) in self.seats.iter().enumerate() {
            let key = self.route.shelf(seat);
            let at = shelves.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                shelves.push((key, Vec::new()));
                shelves.len() - 1
            });
            self.stands[place] = (at as u32, shelves[at].1.len() as u32);
            shelves[at].1.push(place as u32);
        }
        let tree = |places: &[u32], urgent| {
            let ranks = places.iter().map(|place| self.ranked(&self.seats[*place as usize], urgent));
            Tournament::new(ranks.collect())
        };
        let shelf = |(key, places): (u32, Vec<u32>)| {
            let trees = [tree(&places, false), tree(&places, true)];
            Shelf { key, places, trees }
        };
        self.shelves = shelves.into_iter().map(shelf).collect();
    }

    fn ranked(&self, seat: &Seat, urgent: bool) -> Rank {
        let rank = if seat.has_room(urgent) { self.route.rank(seat) } else { None };
        rank.unwrap_or(Rank::FULL)
    }

    fn mark(&mut self, place: usize, seat: &Seat) {
        self.open[0].set(place, seat.has_room(false));
        self.open[1].set(place, seat.has_room(true));
        self.idle.set(place, seat.idle > 0);
        self.healthy.set(place, seat.healthy);
    }

    /// Its policy.
    pub fn policy(&self) -> Policy {
        self.route.policy()
    }

    /// The executors, in order of their ids.
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// The place behind the one that was given the last task.
    pub fn turn(&self) -> usize {
        self.turn
    }

    /// Goes on from another turn, as when a decision is made again.
    pub fn with_turn(mut self, turn: usize) -> Self {
        self.turn = turn;
        self
    }

    /// Takes in what is known of an executor now.
    pub fn set(&mut self, place: usize, seat: Seat) {
        let before = self.seats[place];
        if before == seat {
            return;
        }
        self.mark(place, &seat);
        self.clock = self.clock.max(seat.last);
        self.seats[place] = seat;
        if self.shelves.is_empty() {
            return;
        }
        let (shelf, leaf) = self.stands[place];
        if self.route.shelf(&seat) != self.shelves[shelf as usize].key {
            // Its slots changed: that is rare.
            self.fill_shelves();
            return;
        }
        for (which, urgent) in [false, true].into_iter().enumerate() {
            let rank = self.ranked(&seat, urgent);
            self.shelves[shelf as usize].trees[which].set(leaf as usize, rank);
        }
    }

    /// Chooses for a task by the view's policy.
    pub fn choose(&self, work: &super::Work) -> Option<usize> {
        self.route.choose(work, self)
    }

    /// Notes that a task of this cost was given to an executor. Answers how it stands now.
    pub fn give(&mut self, place: usize, cost_ms: f64) -> Seat {
        self.clock += 1;
        self.turn = if place + 1 >= self.seats.len() { 0 } else { place + 1 };
        let mut seat = self.seats[place];
        if seat.free > 0 {
            seat.free -= 1;
        } else {
            seat.spare = seat.spare.saturating_sub(1);
        }
        seat.idle = seat.idle.saturating_sub(1);
        seat.load_ms += cost_ms;
        seat.given += 1;
        seat.last = self.clock;
        self.set(place, seat);
        seat
    }

    /// How many have room.
    pub fn open_count(&self, urgent: bool) -> u32 {
        self.open[usize::from(urgent)].count()
    }

    /// Whether an executor has room.
    pub fn is_open(&self, place: usize, urgent: bool) -> bool {
        place < self.seats.len() && self.open[usize::from(urgent)].has(place)
    }

    /// The `n`th executor with room, from 0.
    pub fn nth_open(&self, n: u32, urgent: bool) -> Option<usize> {
        self.open[usize::from(urgent)].nth(n)
    }

    /// The first executor with room at or after a place, going round.
    pub fn next_open(&self, from: usize, urgent: bool) -> Option<usize> {
        let open = &self.open[usize::from(urgent)];
        open.next(from).or_else(|| open.next(0))
    }

    /// The first executor with room that answers.
    pub fn first_healthy(&self, urgent: bool) -> Option<usize> {
        self.first_of(&self.healthy, urgent)
    }

    /// The first executor with room that has an idle slot.
    pub fn first_idle(&self, urgent: bool) -> Option<usize> {
        self.first_of(&self.idle, urgent)
    }

    fn first_of(&self, wanted: &Places, urgent: bool) -> Option<usize> {
        let open = &self.open[usize::from(urgent)];
        let mut from = 0;
        while let Some(place) = open.next(from) {
            if wanted.has(place) {
                return Some(place);
            }
            from = wanted.next(place)?;
        }
        None
    }

    /// The best executor with room of each shelf.
    pub fn best(&self, urgent: bool) -> impl Iterator<Item = usize> {
        let best = move |shelf: &Shelf| {
            let leaf = shelf.trees[usize::from(urgent)].best()?;
            Some(shelf.places[leaf] as usize)
        };
        self.shelves.iter().filter_map(best)
    }

    /// The first executor with room on the ring, from a hash on.
    pub fn on_ring(&self, hash: u64, urgent: bool) -> Option<usize> {
        let open = &self.open[usize::from(urgent)];
        if open.count() == 0 {
            return None;
        }
        let from = self.ring.partition_point(|(point, _)| *point < hash);
        let (before, after) = self.ring.split_at(from);
        let found = after.iter().chain(before).find(|(_, place)| open.has(*place as usize));
        found.map(|(_, place)| *place as usize)
    }
}

/// Points of executors on the ring: they follow from an executor's id alone, so one that comes or goes moves
/// only what was or is its own.
fn ring<T: AsRef<str>>(ids: impl IntoIterator<Item = T>) -> Vec<(u64, u32)> {
    let mut ring = Vec::new();
    for (place, id) in ids.into_iter().enumerate() {
        let points = (0..RING_POINTS).map(|n| xxh3_64_with_seed(id.as_ref().as_bytes(), n));
        ring.extend(points.map(|point| (point, place as u32)));
    }
    ring.sort_unstable();
    ring
}
