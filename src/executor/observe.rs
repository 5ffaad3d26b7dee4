//! The executor's metrics, in one place.

use super::hands::Queue;
use super::link::Outcome;
use std::time::Duration;

pub(super) fn started(_queue: &Queue, _lag_ms: i64) {}

pub(super) fn ended(_queue: &Queue, _outcome: &Outcome, _took: Option<Duration>) {}

pub(super) fn taken(_offers: usize) {}

pub(super) fn take_failed(_cause: &'static str) {}

pub(super) fn keep_failed(_cause: &'static str) {}

pub(super) fn ack_failed(_cause: &'static str) {}

pub(super) fn beat_failed(_cause: &'static str) {}
