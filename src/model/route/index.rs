//! Orders that are kept up to date: a bit for each executor with room, and the best one by rank.

use super::Rank;

/// A set of places.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    words: Vec<u64>,
    count: u32,
}

impl Places {
    pub fn with_len(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)], count: 0 }
    }

    pub fn set(&mut self, place: usize, on: bool) {
        let (word, bit) = (&mut self.words[place / 64], 1 << (place % 64));
        let was = *word & bit != 0;
        match (was, on) {
            (false, true) => {
                *word |= bit;
                self.count += 1;
            }
            (true, false) => {
                *word &= !bit;
                self.count -= 1;
            }
            _ => {}
        }
    }

    pub fn has(&self, place: usize) -> bool {
        self.words[place / 64] & (1 << (place % 64)) != 0
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// The first place at or after `from`.
    pub fn next(&self, from: usize) -> Option<usize> {
        let mut at = from / 64;
        let mut word = self.words.get(at)? & (u64::MAX << (from % 64));
        loop {
            if word != 0 {
                return Some(at * 64 + word.trailing_zeros() as usize);
            }
            at += 1;
            word = *self.words.get(at)?;
        }
    }

    /// The `n`th place, from 0.
    pub fn nth(&self, mut n: u32) -> Option<usize> {
        for (at, word) in self.words.iter().enumerate() {
            let ones = word.count_ones();
            if n < ones {
                let mut word = *word;
                for _ in 0..n {
                    word &= word - 1;
                }
                return Some(at * 64 + word.trailing_zeros() as usize);
            }
            n -= ones;
        }
        None
    }
}

/// A knock-out tree: the best of all, and a change of one, in the logarithm of their number.
#[derive(Debug, Clone)]
pub(super) struct Tournament {
    ranks: Vec<Rank>,
    /// Winners; the first is that of all. Leaves are not stored.
    winners: Vec<u32>,
    width: usize,
}

impl Tournament {
    pub fn new(ranks: Vec<Rank>) -> Self {
        let width = ranks.len().next_power_of_two().max(2);
        let mut tree = Self { ranks, winners: vec![0; width], width };
        for node in (1..width).rev() {
            tree.winners[node] = tree.winner(node);
        }
        tree
    }

    fn rank(&self, leaf: u32) -> Rank {
        self.ranks.get(leaf as usize).copied().unwrap_or(Rank::FULL)
    }

    fn winner(&self, node: usize) -> u32 {
        let of = |child: usize| {
            if child >= self.width { (child - self.width) as u32 } else { self.winners[child] }
        };
        let (left, right) = (of(2 * node), of(2 * node + 1));
        if self.rank(right) < self.rank(left) { right } else { left }
    }

    pub fn set(&mut self, leaf: usize, rank: Rank) {
        if self.ranks[leaf] == rank {
            return;
        }
        self.ranks[leaf] = rank;
        let mut node = usize::midpoint(self.width, leaf);
        while node > 0 {
            self.winners[node] = self.winner(node);
            node /= 2;
        }
    }

    /// The leaf of the least rank; nothing when all are full.
    pub fn best(&self) -> Option<usize> {
        let best = self.winners[1];
        (self.rank(best) != Rank::FULL).then_some(best as usize)
    }
}
