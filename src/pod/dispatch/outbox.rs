//! A claimed task on its way, and what this pod knows of one executor's room.

use crate::model::route::Seat;
use crate::model::{Grant, Spec, TaskId, spec};
use crate::pod::view::{Executor, View};
use crate::store::due::Granted;
use crate::store::member::Offer;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// A claimed task on its way.
#[derive(Debug, Clone)]
pub(super) struct Parcel {
    pub id: TaskId,
    pub grant: Grant,
    pub group: u32,
    pub urgent: bool,
    pub cost_ms: f64,
    /// Hash of its routing key.
    pub key: Option<u64>,
    /// The executor that it is for, where it is a part of a broadcast.
    pub to: Option<Box<str>>,
    /// When its own dispatch time-out passes, where it has one.
    pub own_end: Option<Instant>,
    pub since: Instant,
    pub offer: Bytes,
}

/// What this pod knows of one executor's room.
#[derive(Debug)]
pub(super) struct Outbox {
    pub id: Arc<str>,
    pub slots: u32,
    /// Only for tasks that ask for a label of its own.
    pub exclusive: bool,
    /// Room for tasks of every priority, as last heard, less what was sent since.
    pub credit: u32,
    /// Room for urgent tasks beyond that.
    pub spare: u32,
    pub heard: Instant,
    /// The heartbeat whose figures are in here, and when they were brought up to date.
    pub beats: u64,
    pub weighed: Instant,
    pub load_ms: f64,
    pub idle: u32,
    /// Tasks given to it, and when it got the last of them, as a count of all.
    pub given: u64,
    pub last: u64,
    /// The last offer was answered.
    pub healthy: bool,
    pub urgent: VecDeque<Parcel>,
    pub normal: VecDeque<Parcel>,
    pub sending: bool,
    /// Room was announced: ask for it, even if there is nothing to offer.
    pub ask: bool,
    /// No room was left when last heard: a push will tell.
    pub tight: bool,
}

impl Parcel {
    /// Whether its plan is frozen.
    pub fn is_frozen(&self, view: &View) -> bool {
        !view.frozen_plans.is_empty()
            && Offer::peek_plan(&self.offer).is_some_and(|plan| view.freeze.of_plan(plan).is_some())
    }
}

impl Outbox {
    pub fn new(executor: &Executor, now: Instant) -> Self {
        let record = &executor.record;
        Self {
            id: record.id.as_str().into(),
            slots: record.slots.max(1),
            exclusive: record.is_exclusive(),
            credit: 0,
            spare: record.urgent_slots,
            heard: now,
            beats: u64::MAX,
            weighed: now,
            load_ms: 0.0,
            idle: 0,
            given: 0,
            last: 0,
            healthy: true,
            urgent: VecDeque::new(),
            normal: VecDeque::new(),
            sending: false,
            ask: false,
            tight: false,
        }
    }

    pub fn queued(&self) -> u32 {
        (self.urgent.len() + self.normal.len()) as u32
    }

    /// As routing sees it.
    pub fn seat(&self) -> Seat {
        Seat {
            free: self.credit,
            spare: self.spare,
            slots: self.slots,
            idle: self.idle,
            load_ms: self.load_ms,
            healthy: self.healthy,
            given: self.given,
            last: self.last,
        }
    }

    pub fn put(&mut self, seat: &Seat, parcel: Parcel) {
        (self.credit, self.spare, self.idle) = (seat.free, seat.spare, seat.idle);
        (self.load_ms, self.given, self.last) = (seat.load_ms, seat.given, seat.last);
        if parcel.urgent { self.urgent.push_back(parcel) } else { self.normal.push_back(parcel) }
    }

    /// Work in hand is a report of some seconds ago; since then the executor has worked.
    pub fn weigh(&mut self, executor: &Executor, now: Instant) {
        let record = &executor.record;
        if record.beats != self.beats {
            self.beats = record.beats;
            self.load_ms = record.load_ms.max(0.0);
            self.idle = record.slots.saturating_sub(record.busy);
        } else {
            let ms = now.saturating_duration_since(self.weighed).as_secs_f64() * 1_000.0;
            self.load_ms = (self.load_ms - ms * f64::from(self.slots)).max(0.0);
        }
        self.weighed = now;
    }
}

/// What a task says itself about its way.
pub(super) struct Wishes {
    /// Not a number where it names none.
    pub cost_ms: f64,
    /// Hash of its routing key.
    pub key: Option<u64>,
    /// The executor that it is for.
    pub to: Option<Box<str>>,
    /// Longest time from hand-out to start.
    pub dispatch_ms: Option<i64>,
}

impl Wishes {
    pub fn of(task: &Granted) -> Self {
        let none = Self { cost_ms: f64::NAN, key: None, to: None, dispatch_ms: None };
        if task.spec.get(1).is_none_or(|flags| flags & spec::EXTRAS == 0) {
            return none;
        }
        let Ok(spec) = Spec::decode(&task.spec, task.id.home().start()) else { return none };
        Self {
            cost_ms: spec.extras.cost_ms.map_or(f64::NAN, f64::from),
            key: spec.extras.routing_key.as_deref().map(|key| xxh3_64(key.as_bytes())),
            to: spec.extras.part.map(|part| part.to.into_boxed_str()),
            dispatch_ms: spec.extras.dispatch_ms.map(i64::from),
        }
    }
}
