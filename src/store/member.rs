//! Who lives, and the executors' inboxes: `lua/member/`.

use super::StoreError;
use super::intake::clip;
use super::script;
use super::space::Space;
use super::subscribe::Subscription;
use crate::keys::Guard;
use crate::limits;
use crate::model::{Grant, Spec, TaskId, UnixMs};
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

const EXECUTORS: &str = "executors";

/// How long a pod's reservation of room lasts without being used.
pub const RESERVATION_MS: i64 = 1_000;

/// An executor as it reports itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct ExecutorRecord {
    /// Instance id, unique, at most 32 bytes.
    pub id: String,
    /// Name; may repeat.
    pub name: String,
    /// Queues it serves; `*` is every queue.
    pub queues: Vec<String>,
    /// Labels it has.
    pub labels: Vec<String>,
    /// Tasks it runs at once: its pool for all priorities.
    pub slots: u32,
    /// Its pool for P0 and P1 alone, beside these.
    pub urgent_slots: u32,
    /// Most tasks in its inbox and in hand: slots and what it fetches ahead.
    pub capacity: u32,
    /// Its version.
    pub version: String,
    /// Host it runs on.
    pub host: String,
    /// Process id there.
    pub pid: u32,
    /// The machine it runs on, as far as processes there know each other by their ids; empty where not known.
    pub machine: String,
    /// When its process began, in the machine's own count; 0 where not known.
    pub began: u64,
    /// Where its journal lies; empty where it keeps none.
    pub journal_at: String,
    /// Heartbeats before this one.
    pub beats: u64,
    /// Estimated work in hand, in ms.
    pub load_ms: f64,
    /// Tasks in hand.
    pub busy: u32,
    /// Whether it takes nothing new: it stops, or an operator wants it so.
    pub draining: bool,
    /// Whether it keeps a journal.
    pub journal: bool,
    /// Its clock's distance to Redis's, in µs.
    pub clock_offset_us: i64,
    /// How long before its time it may be given a task, in ms: it holds it until then. 0: it starts what it gets.
    pub ahead_ms: i64,
    /// Moving average of run times by queue, in ms.
    #[schema(value_type = Vec<Vec<serde_json::Value>>)]
    pub averages: Vec<(String, f64)>,
}

impl ExecutorRecord {
    /// Whether it takes only tasks that ask for a label of its own.
    pub fn is_exclusive(&self) -> bool {
        self.labels.iter().any(|label| label.starts_with('@'))
    }
}

/// A pod as it reports itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct PodRecord {
    /// Instance id, unique, at most 32 bytes.
    pub id: String,
    /// Its version.
    pub version: String,
    /// Host it runs on.
    pub host: String,
    /// Process id there.
    pub pid: u32,
    /// Address of its HTTP door.
    pub listen: String,
    /// Buckets it holds.
    pub buckets: Vec<u16>,
    /// Whether it claims nothing new.
    pub draining: bool,
    /// Whether it has claimed tasks since its last report.
    pub busy: bool,
    /// The last change of what is frozen that it follows.
    pub freeze_epoch: u64,
    /// Use of its processors lately, in thousandths of all of them.
    pub cpu_permille: u16,
    /// For each claim loop that is not idle: bucket, share of its time at work and waiting for room, in thousandths.
    pub loads: Vec<(u16, u16, u16)>,
    /// The last change of what is set for queues that it follows.
    #[serde(default)]
    pub queues_epoch: u64,
    /// Subscriptions whose outcomes it could not deliver when it last tried, at most [`limits::OUTCOME_TROUBLES_MAX`].
    pub undelivered: Vec<Undelivered>,
}

/// A subscription to outcomes that could not be delivered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct Undelivered {
    /// Its name.
    pub subscription: String,
    /// Deliveries that failed in a row.
    pub tries: u32,
    /// Why the last one failed, at most [`limits::OUTCOME_WHY_MAX_BYTES`].
    pub why: String,
}

fn registry(space: &Space, room: &str) -> Guard {
    Guard::room(space.namespace(), room)
}

/// Who was heard of.
#[derive(Debug, Clone, Default)]
struct Heard<T> {
    live: Vec<T>,
    lost: Vec<String>,
    drained: Vec<String>,
}

async fn beat<T: Serialize + for<'de> Deserialize<'de>>(
    space: &Space,
    room: &str,
    me: Option<(&str, &T)>,
    lost_after_ms: i64,
    list: bool,
) -> Result<Heard<T>, StoreError> {
    let mut args = space.live_args(6, 1_024);
    match me {
        Some((id, record)) => {
            let bytes = rmp_serde::to_vec_named(record).map_err(|error| StoreError::BadReply {
                script: script::BEAT.name,
                what: format!("own record: {error}"),
            })?;
            args.bytes(clip(id, 32)).shared(bytes.into());
        }
        None => {
            args.bytes(b"").bytes(b"");
        }
    }
    args.number(lost_after_ms).bytes(if list { b"1" } else { b"" });
    args.bytes(if room == EXECUTORS { b"1" } else { b"" });
    let mut fields = space.call(&script::BEAT, &registry(space, room), args).await?.ok()?;
    let mut out =
        Heard { live: Vec::with_capacity(fields.left() / 2), lost: Vec::new(), drained: Vec::new() };
    if !list {
        return Ok(out);
    }
    for (name, ids) in [("lost ones", &mut out.lost), ("drained ones", &mut out.drained)] {
        let mut listed = fields.fields(name)?;
        while listed.left() > 0 {
            ids.push(listed.text("id")?);
        }
    }
    while fields.left() > 0 {
        fields.bytes("id")?;
        let record = fields.bytes("record")?;
        // A record of another version that cannot be read is one this process cannot use.
        if let Ok(record) = rmp_serde::from_slice(&record) {
            out.live.push(record);
        }
    }
    Ok(out)
}

/// A pod says that it lives; answers all live pods: those that were heard of within `lost_after_ms`.
pub async fn beat_pod(
    space: &Space,
    pod: &PodRecord,
    lost_after_ms: i64,
) -> Result<Vec<PodRecord>, StoreError> {
    Ok(beat(space, "pods", Some((&pod.id, pod)), lost_after_ms, true).await?.live)
}

/// An executor says that it lives, and keeps its inbox open.
pub async fn beat_executor(space: &Space, executor: &ExecutorRecord) -> Result<(), StoreError> {
    beat(space, EXECUTORS, Some((&executor.id, executor)), limits::LOST_AFTER_MS, false).await?;
    let mut args = space.live_args(4, 64);
    let capacity = if executor.draining { 0 } else { executor.capacity };
    args.number(capacity).number(limits::LOST_AFTER_MS).number(executor.urgent_slots);
    space.call(&script::INBOX, &inbox_guard(space, &executor.id), args).await?.ok()?;
    Ok(())
}

/// All live pods.
pub async fn pods(space: &Space) -> Result<Vec<PodRecord>, StoreError> {
    Ok(beat::<PodRecord>(space, "pods", None, limits::LOST_AFTER_MS, true).await?.live)
}

/// The executors.
#[derive(Debug, Clone, Default)]
pub struct Executors {
    /// Those that live; one that an operator lets drain is marked as draining.
    pub live: Vec<ExecutorRecord>,
    /// Ids of lost ones after whose inboxes nobody has looked yet.
    pub lost: Vec<String>,
    /// Ids of those that an operator lets drain.
    pub drained: Vec<String>,
}

/// All live executors, and those that were lost.
pub async fn roll(space: &Space) -> Result<Executors, StoreError> {
    let heard = beat::<ExecutorRecord>(space, EXECUTORS, None, limits::LOST_AFTER_MS, true).await?;
    let Heard { mut live, lost, drained } = heard;
    for record in live.iter_mut().filter(|record| drained.contains(&record.id)) {
        record.draining = true;
    }
    Ok(Executors { live, lost, drained })
}

/// All live executors but those beside pods, which have a label that begins with `@` and are for their own tasks.
pub async fn executors(space: &Space) -> Result<Vec<ExecutorRecord>, StoreError> {
    let mut live = roll(space).await?.live;
    live.retain(|record| !record.is_exclusive());
    Ok(live)
}

/// Says that an executor is to be given nothing new, or may be again. Answers whether this changed it; nothing
/// when no such executor lives.
pub async fn drain(space: &Space, id: &str, on: bool) -> Result<Option<bool>, StoreError> {
    let mut args = space.live_args(3, 64);
    args.bytes(clip(id, 32)).bytes(if on { b"1" } else { b"0" });
    let answer = space.call(&script::DRAIN, &registry(space, EXECUTORS), args).await?;
    if &answer.word[..] == b"UNKNOWN" {
        return Ok(None);
    }
    Ok(Some(answer.ok()?.int("changed")? == 1))
}

async fn leave(space: &Space, room: &str, id: &str) -> Result<(), StoreError> {
    let mut args = space.live_args(2, 64);
    args.bytes(clip(id, 32));
    space.call(&script::LEAVE, &registry(space, room), args).await?.ok()?;
    Ok(())
}

/// A pod goes in order.
pub async fn leave_pod(space: &Space, id: &str) -> Result<(), StoreError> {
    leave(space, "pods", id).await
}

/// An executor goes in order, or is known to be dead: its inbox is closed, and what was still in it is answered,
/// to be handed back. The inbox first: while it cannot be reached, the executor stays known, or known as lost, and
/// somebody comes back to it.
pub async fn leave_executor(space: &Space, id: &str) -> Result<Vec<Offer>, StoreError> {
    let offers = drain_inbox(space, id).await?;
    if let Err(error) = leave(space, EXECUTORS, id).await {
        tracing::info!(executor = id, %error, "its inbox is empty, but it could not be signed off; it will count as lost");
    }
    Ok(offers)
}

/// Closes an executor's inbox and empties it.
pub async fn drain_inbox(space: &Space, id: &str) -> Result<Vec<Offer>, StoreError> {
    let mut offers = Vec::new();
    loop {
        let most = limits::BATCH_MAX_ROWS as u32;
        let taken =
            take(space, id, Take { normal: most, urgent: 0, in_hand: 0, capacity: 0, urgent_capacity: 0 })
                .await?;
        offers.extend(taken.offers);
        if taken.waiting == 0 {
            return Ok(offers);
        }
    }
}

pub(super) fn inbox_guard(space: &Space, executor: &str) -> Guard {
    Guard::room(space.namespace(), &format!("x:{executor}"))
}

/// A granted task on its way to an executor.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// The task.
    pub id: TaskId,
    /// Its grant.
    pub grant: Grant,
    /// Code of its queue and labels.
    pub group: u32,
    /// Whether it is of P0 or P1.
    pub urgent: bool,
    /// Whether it was claimed before its time: it may not start before `due`.
    pub ahead: bool,
    /// When it is due.
    pub due: UnixMs,
    /// Which try this is, from 1.
    pub attempt: u32,
    /// After this instant its handler may only run once a start was accepted.
    pub not_after: UnixMs,
    /// Its spec, encoded.
    pub spec: Bytes,
}

const OFFER_VERSION: u8 = 1;
const OFFER_HEAD: usize = 1 + 16 + 18 + 4 + 1 + 8 + 4 + 8;

impl Offer {
    /// Writes an offer: version, id, grant, group, flags (1 urgent, 2 ahead), due, attempt, not-after, spec.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(OFFER_HEAD + self.spec.len());
        out.put_u8(OFFER_VERSION);
        out.extend_from_slice(self.id.as_bytes());
        out.extend_from_slice(self.grant.as_bytes());
        out.put_u32(self.group);
        out.put_u8(u8::from(self.urgent) | u8::from(self.ahead) << 1);
        out.put_i64(self.due.0);
        out.put_u32(self.attempt);
        out.put_i64(self.not_after.0);
        out.extend_from_slice(&self.spec);
        out.freeze()
    }

    /// The plan of an encoded offer's task, if it has one.
    pub fn peek_plan(bytes: &[u8]) -> Option<&str> {
        Spec::peek_plan(bytes.get(OFFER_HEAD..)?)
    }

    /// Reads an offer; the spec is a slice of `bytes`.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        if bytes.len() < OFFER_HEAD || bytes[0] != OFFER_VERSION {
            return None;
        }
        let word = |at: usize| bytes[at..at + 4].iter().fold(0u32, |v, b| (v << 8) | u32::from(*b));
        let long = |at: usize| bytes[at..at + 8].iter().fold(0i64, |v, b| (v << 8) | i64::from(*b));
        Some(Self {
            id: TaskId::from_bytes(&bytes[1..17])?,
            grant: Grant::from_bytes(&bytes[17..35])?,
            group: word(35),
            urgent: bytes[39] & 1 != 0,
            ahead: bytes[39] & 2 != 0,
            due: UnixMs(long(40)),
            attempt: word(48),
            not_after: UnixMs(long(52)),
            spec: bytes.slice(OFFER_HEAD..),
        })
    }
}

/// What became of offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferAnswer {
    /// So many of them fitted, from the front of each kind.
    Accepted {
        /// Urgent ones accepted.
        urgent: usize,
        /// Others accepted.
        normal: usize,
        /// Room reserved for this pod from now on.
        reserved: u32,
        /// Room that nobody has reserved.
        free: u32,
        /// Room for urgent ones beyond that.
        spare: u32,
    },
    /// The executor is lost or leaves; none was accepted.
    Gone,
    /// Something was frozen that the pod has not heard of; none was accepted.
    Frozen,
}

/// Puts offers into an executor's inbox, urgent ones and others, and reserves room for `want` more.
/// `epoch` is that of the freeze which the pod follows.
pub async fn offer(
    space: &Space,
    pod: &str,
    executor: &str,
    urgent: &[Bytes],
    normal: &[Bytes],
    want: u32,
    epoch: u64,
) -> Result<OfferAnswer, StoreError> {
    let mut args = space.live_args(8 + urgent.len() + normal.len(), 128);
    args.bytes(clip(pod, 32)).number(want).number(RESERVATION_MS).number(limits::INBOX_MAX_BYTES);
    args.number(urgent.len()).number(urgent.iter().chain(normal).map(Bytes::len).sum::<usize>());
    args.number(epoch);
    for offer in urgent.iter().chain(normal) {
        args.shared(offer.clone());
    }
    let answer = space.call(&script::OFFER, &inbox_guard(space, executor), args).await?;
    match &answer.word[..] {
        b"GONE" => return Ok(OfferAnswer::Gone),
        b"FROZEN" => return Ok(OfferAnswer::Frozen),
        _ => {}
    }
    let mut fields = answer.ok()?;
    let mut count = |name| Ok::<_, StoreError>(usize::try_from(fields.int(name)?).unwrap_or(0));
    let (urgent, normal) = (count("urgent")?, count("normal")?);
    let mut room = |name| Ok::<_, StoreError>(u32::try_from(count(name)?).unwrap_or(u32::MAX));
    let (reserved, free, spare) = (room("reserved")?, room("free")?, room("spare")?);
    Ok(OfferAnswer::Accepted { urgent, normal, reserved, free, spare })
}

/// What an executor asks of its inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Take {
    /// Free slots that every priority may use.
    pub normal: u32,
    /// Room that only P0 and P1 may use.
    pub urgent: u32,
    /// Tasks popped and not finished, without urgent ones for which there is that other room.
    pub in_hand: u32,
    /// Most tasks in inbox and hand; 0 closes the inbox.
    pub capacity: u32,
    /// Urgent tasks that may lie in the inbox beyond that.
    pub urgent_capacity: u32,
}

/// What came out of an inbox.
#[derive(Debug, Clone)]
pub struct Taken {
    /// Redis's time.
    pub now_us: i64,
    /// The offers, urgent ones first.
    pub offers: Vec<Offer>,
    /// Offers still in the inbox.
    pub waiting: u32,
    /// Pods that wait for room here.
    pub hungry: Vec<String>,
}

/// Takes offers out of the own inbox and says what is in hand.
pub async fn take(space: &Space, executor: &str, ask: Take) -> Result<Taken, StoreError> {
    let mut args = space.live_args(7, 96);
    args.number(ask.normal.min(limits::BATCH_MAX_ROWS as u32))
        .number(ask.urgent.min(limits::BATCH_MAX_ROWS as u32));
    args.number(ask.in_hand).number(ask.capacity).number(limits::LOST_AFTER_MS).number(ask.urgent_capacity);
    let answer = space.call(&script::TAKE, &inbox_guard(space, executor), args).await?;
    let now_us = answer.now_us;
    let mut fields = answer.ok()?;
    let waiting = u32::try_from(fields.int("waiting")?).unwrap_or(0);
    let count = fields.int("hungry")?;
    let mut hungry = Vec::new();
    for _ in 0..count {
        hungry.push(fields.text("pod")?);
    }
    let mut offers = Vec::new();
    for kind in ["urgent offers", "other offers"] {
        let mut popped = fields.fields(kind)?;
        offers.reserve(popped.left());
        while popped.left() > 0 {
            let bytes = popped.bytes("offer")?;
            offers.push(Offer::decode(&bytes).ok_or_else(|| popped.bad("an offer has the wrong form"))?);
        }
    }
    Ok(Taken { now_us, offers, waiting, hungry })
}

/// Tells a pod that an executor has room. A hint.
pub async fn tell_room(space: &Space, pod: &str, executor: &str) -> Result<(), StoreError> {
    let channel = Guard::room(space.namespace(), &format!("p:{pod}")).key("room");
    space.store().publish(channel, Bytes::copy_from_slice(executor.as_bytes())).await
}

/// Tells a pod that somebody wishes a task to stop, in case it has just handed it out. A hint.
pub async fn tell_pod_cancel(space: &Space, pod: &str, id: TaskId) -> Result<(), StoreError> {
    let channel = Guard::room(space.namespace(), &format!("p:{pod}")).key("room");
    space.store().publish(channel, Bytes::from(format!("{CANCEL_MARK}{id}"))).await
}

/// Begins a wish to cancel among messages of room; no executor's id does.
pub const CANCEL_MARK: char = '!';

/// Where a pod hears of room: the payload is the executor's id, or [`CANCEL_MARK`] and a task's.
pub fn room_wakes(space: &Space, pod: &str) -> Subscription {
    space.store().subscribe(Guard::room(space.namespace(), &format!("p:{pod}")).key("room"))
}

/// Tells an executor something: `i` for its inbox, `c<task id>` for a wish to cancel. A hint.
pub async fn tell_executor(space: &Space, executor: &str, what: &[u8]) -> Result<(), StoreError> {
    space.store().publish(inbox_guard(space, executor).key("wake"), Bytes::copy_from_slice(what)).await
}

/// Wakes an executor: when something was put into its inbox, or [`tell_executor`] was called.
pub fn inbox_wakes(space: &Space, executor: &str) -> Subscription {
    space.store().subscribe(inbox_guard(space, executor).key("wake"))
}

/// Wakes a pod when something joined, left or changed: `pods`, `executors`, `lanes` for queues, `freeze`, `queues`, `spread`.
pub fn news(space: &Space, room: &str) -> Subscription {
    space.store().subscribe(registry(space, room).key("new"))
}

/// Wakes who holds a bucket, whatever is due there.
pub async fn tell_bucket(space: &Space, bucket: crate::model::Bucket) -> Result<(), StoreError> {
    space.store().publish(space.guard(bucket).key("wake"), Bytes::from_static(b"0")).await
}

/// Wakes the holder of a bucket: when a task was submitted that is due before its planned wake-up.
pub fn bucket_wakes(space: &Space, bucket: crate::model::Bucket) -> Subscription {
    space.store().subscribe_proved(space.guard(bucket).key("wake"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bucket, Minute, Nonce};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn offers_are_read_back(spec in proptest::collection::vec(any::<u8>(), 0..99), urgent: bool, ahead: bool, due in 0i64..1 << 44) {
            let offer = Offer {
                id: TaskId::new(Minute(29_408_521), Bucket::new(3).unwrap(), 7),
                grant: Grant::new(9, Nonce::new(1)),
                group: 77,
                urgent,
                ahead,
                due: UnixMs(due),
                attempt: 2,
                not_after: UnixMs(due + 15_000),
                spec: spec.into(),
            };
            prop_assert_eq!(Offer::decode(&offer.encode()), Some(offer));
        }

        #[test]
        fn any_bytes_are_an_offer_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..99)) {
            let _ = Offer::decode(&bytes.into());
        }
    }
}
