//! Always the same one: the first, or the last.

use super::{Policy, Route, View, Work};

/// The first executor by id, and no other: when it is full, tasks wait for it.
#[derive(Debug)]
pub struct First;

/// The last executor by id, and no other: when it is full, tasks wait for it.
#[derive(Debug)]
pub struct Last;

impl Route for First {
    fn policy(&self) -> Policy {
        Policy::First
    }

    fn choose(&self, work: &Work, view: &View) -> Option<usize> {
        view.is_open(0, work.urgent).then_some(0)
    }
}

impl Route for Last {
    fn policy(&self) -> Policy {
        Policy::Last
    }

    fn choose(&self, work: &Work, view: &View) -> Option<usize> {
        view.seats().len().checked_sub(1).filter(|place| view.is_open(*place, work.urgent))
    }
}
