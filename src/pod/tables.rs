//! The views that routing chooses in, one for each class and policy in use, kept up to date.
//!
//! Changes of executors are written into a log by place; a table takes in what it has not seen yet when it is
//! used next. So a task costs the logarithm of the number of executors, however many classes there are.

use super::view::{Class, View};
use crate::model::route::{self, Policy, Seat};
use std::collections::HashMap;

/// Tables for one [`View`] of the pod.
#[derive(Debug, Default)]
pub(super) struct Tables {
    tables: HashMap<(Class, Policy), Table>,
    log: Vec<u32>,
    /// The log has begun anew so many times.
    epoch: u64,
}

#[derive(Debug)]
struct Table {
    view: route::View,
    epoch: u64,
    /// Entries of the log that it has taken in.
    seen: usize,
}

/// Entries of the log for each executor before it begins anew.
const LOG_PER_EXECUTOR: usize = 4;

impl Tables {
    /// Forgets everything: who is there has changed.
    pub fn clear(&mut self) {
        self.tables.clear();
        self.log.clear();
        self.epoch += 1;
    }

    /// All executors may have changed.
    pub fn all_changed(&mut self) {
        self.log.clear();
        self.epoch += 1;
    }

    /// An executor has changed.
    pub fn changed(&mut self, executor: usize, executors: usize) {
        if self.log.len() >= LOG_PER_EXECUTOR * executors.max(64) {
            self.all_changed();
        }
        self.log.push(executor as u32);
    }

    /// The table of a class and a policy; `seat` says how an executor stands now.
    pub fn of(
        &mut self,
        view: &View,
        class: Class,
        policy: Policy,
        seat: impl Fn(usize) -> Seat,
    ) -> &mut route::View {
        let serving = &view.classes[class.0];
        let (log, epoch) = (&self.log, self.epoch);
        let table = self.tables.entry((class, policy)).or_insert_with(|| {
            let ids = serving.iter().map(|at| view.executors[*at].record.id.as_str());
            let seats = serving.iter().map(|at| seat(*at)).collect();
            Table { view: route::View::new(policy, seats, ids), epoch, seen: log.len() }
        });
        if table.epoch != epoch {
            for (place, at) in serving.iter().enumerate() {
                table.view.set(place, seat(*at));
            }
            table.epoch = epoch;
        } else {
            for at in &log[table.seen..] {
                if let Ok(place) = serving.binary_search(&(*at as usize)) {
                    table.view.set(place, seat(*at as usize));
                }
            }
        }
        table.seen = log.len();
        &mut table.view
    }
}
