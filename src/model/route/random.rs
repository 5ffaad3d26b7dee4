//! By chance.

use super::{Policy, Route, View, Work};

/// Any executor with room, each as likely as the others, by the number that was drawn for the task.
#[derive(Debug)]
pub struct Random;

impl Route for Random {
    fn policy(&self) -> Policy {
        Policy::Random
    }

    fn choose(&self, work: &Work, view: &View) -> Option<usize> {
        let count = view.open_count(work.urgent);
        let n = ((u128::from(work.chance) * u128::from(count)) >> 64) as u32;
        view.nth_open(n, work.urgent)
    }
}
