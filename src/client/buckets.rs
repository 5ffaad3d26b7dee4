//! How many buckets there are, why, and what comes.

use super::{Client, ClientError, repeat};
use crate::limits;
use crate::model::bucket::slot_of_bucket;
use crate::model::decide::{Decision, Record, State};
use crate::model::field::{FieldError, Reason};
use crate::model::spread::Bounds;
use crate::model::{Bucket, UnixMs};
use crate::store::bucket::{self, Change};
use crate::store::{StoreError, decider, read};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use tokio::task::JoinSet;

/// How a namespace is spread, and what was last decided on it.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct SpreadView {
    /// Buckets that take new tasks.
    pub buckets: u16,
    /// Buckets over which keyed tasks go; fixed.
    pub key_buckets: u16,
    /// The most there ever were.
    pub peak: u16,
    /// Buckets that take no new tasks and are not empty yet.
    pub closing: Vec<u16>,
    /// Pods that may hold one bucket.
    pub holders: u8,
    /// Buckets with holders of their own.
    pub hot: BTreeMap<u16, u8>,
    /// Fewest buckets that there may be.
    pub floor: u16,
    /// Most buckets that there may be.
    pub ceiling: u16,
    /// What someone has set.
    pub bounds: Bounds,
    /// Grows with every change.
    pub epoch: u64,
    /// The pod that decides; empty where none does.
    pub leader: String,
    /// Pods that would do; nothing before the first decision.
    pub wanted_pods: Option<u16>,
    /// Executors that would do.
    pub wanted_executors: Option<u16>,
    /// When the last decision was made.
    pub decided: Option<String>,
    /// The last decision: what was to be done, and why.
    #[schema(value_type = Option<Object>)]
    pub decision: Option<Decision>,
}

/// One bucket, for people who look after it.
#[derive(Debug, Clone, Serialize)]
pub struct BucketView {
    /// Its number.
    pub bucket: u16,
    /// `open` or `closing`.
    pub state: &'static str,
    /// The Redis server that has it.
    pub node: Option<String>,
    /// Its slot in a cluster.
    pub slot: u16,
    /// Pods that hold it.
    pub holders: Vec<String>,
    /// Pods that may hold it.
    pub holders_max: u8,
    /// Tasks that wait for their time, or are ripe.
    pub pending: i64,
    /// Tasks that are granted.
    pub running: i64,
    /// Ripe tasks that wait.
    pub ripe: u64,
    /// How long the oldest of them has waited, in ms.
    pub waiting_ms: i64,
    /// Dead letters.
    pub dead: i64,
}

/// How many tasks are due in each coming minute.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AgendaView {
    /// The first instant looked at.
    pub from: String,
    /// The last.
    pub to: String,
    /// Tasks in it.
    pub tasks: u64,
    /// Minutes that have some, by their first instant in ms since 1970, with the tasks of each bucket that has some.
    #[serde(serialize_with = "minutes_text")]
    pub minutes: BTreeMap<i64, BTreeMap<u16, u64>>,
}

fn minutes_text<S: serde::Serializer>(
    minutes: &BTreeMap<i64, BTreeMap<u16, u64>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(minutes.iter().map(|(at, buckets)| {
        let tasks: u64 = buckets.values().sum();
        serde_json::json!({ "at": UnixMs(*at).to_string(), "tasks": tasks, "buckets": buckets })
    }))
}

/// What is to be changed of the bounds; what is not named stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BoundsChange {
    /// So many buckets whatever the load; `Some(None)` takes a pin away.
    pub pin: Option<Option<u16>>,
    /// Fewest buckets.
    pub min: Option<Option<u16>>,
    /// Most buckets.
    pub max: Option<Option<u16>>,
    /// Whether the automatic is off.
    pub manual: Option<bool>,
}

/// Buckets read at a time.
const AT_ONCE: usize = 16;
/// Times that a change is tried again when someone else changed the spread meanwhile.
const CHANGE_TRIES: u32 = 10;

/// Runs a call for each bucket, several at a time; the answers stand in the order of the buckets.
async fn each<T, F>(
    buckets: impl Iterator<Item = Bucket>,
    call: impl Fn(Bucket) -> F,
) -> Result<Vec<(Bucket, T)>, StoreError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let buckets: BTreeSet<Bucket> = buckets.collect();
    let (mut left, mut running, mut out) = (buckets.into_iter(), JoinSet::new(), Vec::new());
    loop {
        while running.len() < AT_ONCE {
            let Some(bucket) = left.next() else { break };
            let call = call(bucket);
            running.spawn(async move { (bucket, call.await) });
        }
        match running.join_next().await {
            Some(Ok((bucket, answer))) => out.push((bucket, answer?)),
            Some(Err(_)) => return Err(StoreError::Closed),
            None => break,
        }
    }
    out.sort_unstable_by_key(|(bucket, _)| *bucket);
    Ok(out)
}

impl Client {
    /// How the namespace is spread, and what was last decided on it.
    pub async fn spread(&self) -> Result<SpreadView, ClientError> {
        let space = self.space();
        let spread = repeat(space, || space.refresh_spread()).await?;
        let last = self.decisions(false, 1).await?.into_iter().next();
        // Asked by nobody's name and for no time, it takes nothing.
        let lead = repeat(space, || decider::lead(space, "", 0)).await?;
        let state: Option<State> = serde_json::from_slice(&lead.state).ok();
        Ok(SpreadView {
            buckets: spread.buckets,
            key_buckets: spread.key_buckets,
            peak: spread.peak,
            closing: spread.closing.to_vec(),
            holders: spread.holders,
            hot: spread.hot.iter().copied().collect(),
            floor: spread.floor(),
            ceiling: spread.ceiling(),
            bounds: spread.bounds,
            epoch: spread.epoch,
            leader: lead.leader,
            wanted_pods: state.as_ref().map(|state| state.pods.value),
            wanted_executors: state.as_ref().map(|state| state.executors.value),
            decided: last.as_ref().map(|record| UnixMs(record.inputs.at_ms).to_string()),
            decision: last.map(|record| record.decision),
        })
    }

    /// The buckets that may hold tasks.
    pub async fn buckets(&self) -> Result<Vec<BucketView>, ClientError> {
        let space = self.space();
        let spread = repeat(space, || space.refresh_spread()).await?;
        let call = |bucket| {
            let space = space.clone();
            async move { Ok((read::counts(&space, bucket).await?, decider::load(&space, bucket).await?)) }
        };
        let found = each(spread.live(), call).await?;
        Ok(found
            .into_iter()
            .map(|(bucket, (counts, load))| {
                let slot = slot_of_bucket(space.namespace(), bucket);
                BucketView {
                    bucket: bucket.number(),
                    state: if bucket.number() < spread.buckets { "open" } else { "closing" },
                    node: space.store().node_of(slot),
                    slot,
                    holders: counts.holders.iter().map(|(pod, _)| pod.clone()).collect(),
                    holders_max: spread.holders_of(bucket.number()),
                    pending: counts.count("pending"),
                    running: counts.count("running"),
                    ripe: load.ripe,
                    waiting_ms: load.oldest.map_or(0, |due| (load.now.0 - due.0).max(0)),
                    dead: counts.count("dead"),
                }
            })
            .collect())
    }

    /// Decisions as they were noted, newest first: of every window, or only of those that changed something.
    pub async fn decisions(&self, changes_only: bool, most: usize) -> Result<Vec<Record>, ClientError> {
        let space = self.space();
        let notes = repeat(space, || decider::notes(space, changes_only, most)).await?;
        // What another version noted and this one cannot read is left out.
        Ok(notes.iter().filter_map(|note| serde_json::from_slice(note).ok()).collect())
    }

    /// How many tasks are due in each minute of the time ahead, by the sizes of due sets alone.
    pub async fn agenda(&self, ahead_ms: i64) -> Result<AgendaView, ClientError> {
        let space = self.space();
        let spread = repeat(space, || space.refresh_spread()).await?;
        let from = UnixMs(space.clock().now_ms());
        let to = from.plus(ahead_ms.clamp(0, limits::DUE_AHEAD_MAX_MS));
        let call = |number| {
            let space = space.clone();
            async move { bucket::agenda(&space, number, from, to).await }
        };
        let found = each(spread.live(), call).await?;
        let mut out = AgendaView { from: from.to_string(), to: to.to_string(), ..AgendaView::default() };
        for (bucket, agenda) in found {
            for (minute, tasks) in agenda.minutes.into_iter().filter(|(_, tasks)| *tasks > 0) {
                out.tasks += tasks;
                *out.minutes.entry(minute.0).or_default().entry(bucket.number()).or_default() += tasks;
            }
        }
        Ok(out)
    }

    /// Pins the number of buckets, bounds it, or switches the automatic off or on; answers what holds now.
    ///
    /// The deciding pod carries it out, one step a window.
    pub async fn set_bounds(&self, wish: BoundsChange) -> Result<SpreadView, ClientError> {
        let space = self.space();
        for _ in 0..CHANGE_TRIES {
            let spread = repeat(space, || space.refresh_spread()).await?;
            let bounds = Bounds {
                pin: wish.pin.unwrap_or(spread.bounds.pin),
                min: wish.min.unwrap_or(spread.bounds.min),
                max: wish.max.unwrap_or(spread.bounds.max),
                manual: wish.manual.unwrap_or(spread.bounds.manual),
            };
            check_bounds(&bounds, spread.key_buckets)?;
            let change = Change { bounds: Some(bounds), ..Change::default() };
            if repeat(space, || bucket::resize(space, &spread, &change)).await? {
                return self.spread().await;
            }
        }
        let detail = "others change the spread all the time; try again".to_owned();
        Err(StoreError::Script { name: "bucket.resize", detail }.into())
    }
}

fn check_bounds(bounds: &Bounds, key_buckets: u16) -> Result<(), FieldError> {
    let refuse = |field, detail: String| Err(FieldError::new(field, Reason::OutOfRange, detail));
    for (field, value) in [("pin", bounds.pin), ("min", bounds.min), ("max", bounds.max)] {
        let Some(value) = value else { continue };
        let most = limits::BUCKETS_MAX;
        if !value.is_power_of_two() || value > most {
            return refuse(field, format!("{value} is no power of two between 1 and {most}"));
        }
        if value < key_buckets && field != "min" {
            let detail = format!(
                "{value} is below the {key_buckets} buckets over which keyed tasks go; those are fixed for ever"
            );
            return refuse(field, detail);
        }
    }
    match (bounds.min, bounds.max) {
        (Some(min), Some(max)) if min > max => refuse("min", format!("{min} is above the most, {max}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_powers_of_two_in_order_and_above_the_buckets_of_keys() {
        let check = |pin, min, max| {
            check_bounds(&Bounds { pin, min, max, manual: false }, 8).map_err(|error| error.field.to_string())
        };
        assert_eq!(check(Some(16), Some(8), Some(64)), Ok(()));
        assert_eq!(check(None, Some(2), None), Ok(()), "the floor is higher anyway");
        for (bounds, field) in [
            ((Some(12), None, None), "pin"),
            ((Some(4), None, None), "pin"),
            ((None, None, Some(2_048)), "max"),
            ((None, Some(0), None), "min"),
            ((None, Some(64), Some(32)), "min"),
        ] {
            assert_eq!(check(bounds.0, bounds.1, bounds.2), Err(field.to_owned()));
        }
    }
}
