//! Outboxes: ends of tasks of which somebody wants to hear: `lua/outcome/`.

use super::StoreError;
use super::intake::clip;
use super::script;
use super::space::Space;
use crate::limits;
use crate::model::outcome::{Ended, EntryId, Outcome, Place, entry};
use crate::model::{Bucket, SubscriptionName, UnixMs};

/// Whose turn it is to deliver what lies in an outbox, and what that is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// Whether the caller may deliver.
    pub ours: bool,
    /// Outcomes that lie there.
    pub entries: u64,
    /// The last of them; nothing where there is none.
    pub last: Option<EntryId>,
    /// When the oldest of them was put there.
    pub oldest: Option<UnixMs>,
    /// Redis's time.
    pub now: UnixMs,
    /// Where each subscription is, in the order of the names.
    pub places: Vec<Place>,
}

/// A stretch of an outbox.
#[derive(Debug, Clone, Default)]
pub struct Stretch {
    /// Where the subscription is.
    pub place: Place,
    /// Outcomes cut off so far because nobody fetched them.
    pub cut: u64,
    /// The last of them.
    pub cut_at: EntryId,
    /// Outcomes with their entries, in order; nothing for one that cannot be read.
    pub entries: Vec<(EntryId, Option<Outcome>)>,
}

impl Stretch {
    /// How many outcomes were lost to a subscription of this age before it got here: at most so many, if any.
    pub fn lost(&self, since: UnixMs) -> u64 {
        let own = self.cut_at > self.place.done && self.cut_at.0 >= since.0.unsigned_abs();
        if own { self.cut.saturating_sub(self.place.cut_seen) } else { 0 }
    }
}

fn text(entry: EntryId) -> String {
    format!("{}-{}", entry.0, entry.1)
}

/// Takes or renews the turn to deliver a bucket's outcomes; a lease of 0 lets it go. What all `subscriptions` have got is
/// removed, and what the outbox knows of others. Costs no write where the outbox is empty.
pub async fn take(
    space: &Space,
    bucket: Bucket,
    pod: &str,
    lease_ms: i64,
    subscriptions: &[SubscriptionName],
) -> Result<Taken, StoreError> {
    let mut args = space.args(3 + subscriptions.len(), 64 + 32 * subscriptions.len());
    args.bytes(clip(pod, 32)).number(lease_ms);
    for name in subscriptions {
        args.bytes(name.as_str().as_bytes());
    }
    let answer = space.call(&script::OUTCOMES_TAKE, space.guard(bucket), args).await?;
    let now = UnixMs(answer.now_ms());
    let mut fields = answer.ok()?;
    let ours = fields.int("whose turn")? == 1;
    let entries = u64::try_from(fields.int("entries")?).unwrap_or(0);
    let last = entry(&fields.text("last entry")?);
    let oldest = Some(UnixMs(fields.int("oldest")?)).filter(|at| at.0 > 0);
    let mut places = Vec::with_capacity(fields.left());
    while fields.left() > 0 {
        places.push(fields.text("place")?.parse().unwrap_or_default());
    }
    Ok(Taken { ours, entries, last, oldest, now, places })
}

/// Reads on in an outbox for a subscription, after an entry (where it is, if none is named) up to another one.
pub async fn read(
    space: &Space,
    bucket: Bucket,
    name: &SubscriptionName,
    after: Option<EntryId>,
    up_to: Option<EntryId>,
) -> Result<Stretch, StoreError> {
    let mut args = space.args(4, 128);
    args.bytes(name.as_str().as_bytes());
    args.bytes(after.map(text).unwrap_or_default().as_bytes());
    args.bytes(up_to.map_or_else(|| "+".to_owned(), text).as_bytes()).number(limits::OUTCOME_READ_MAX_ROWS);
    let mut fields = space.call(&script::OUTCOMES_READ, space.guard(bucket), args).await?.ok()?;
    let place = fields.text("place")?.parse().unwrap_or_default();
    let cut = u64::try_from(fields.int("cut off")?).unwrap_or(0);
    let cut_at = entry(&fields.text("last cut off")?).unwrap_or_default();
    let mut entries = Vec::with_capacity(fields.left() / 2);
    while fields.left() > 0 {
        let id = fields.text("entry")?;
        let at = entry(&id).ok_or_else(|| fields.bad("not an entry"))?;
        let record = fields.bytes("record")?;
        let outcome = match Ended::decode(&record) {
            Ok(ended) => {
                let group = space.group_of(ended.spec.lane.group()).await?;
                Some(ended.named(bucket.number(), &id, group.queue.to_string()))
            }
            Err(error) => {
                tracing::warn!(%bucket, entry = id, %error, "an outcome is left out");
                None
            }
        };
        entries.push((at, outcome));
    }
    Ok(Stretch { place, cut, cut_at, entries })
}

/// Notes where a subscription is; it only goes forward. `pod` notes that it is about to deliver what follows, which counts
/// only while it has the turn. Answers whether it stands so.
pub async fn pass(
    space: &Space,
    bucket: Bucket,
    pod: Option<&str>,
    name: &SubscriptionName,
    place: &Place,
) -> Result<bool, StoreError> {
    let mut args = space.args(3, 160);
    args.bytes(clip(pod.unwrap_or(""), 32)).bytes(name.as_str().as_bytes()).number(place);
    let mut fields = space.call(&script::OUTCOMES_PASS, space.guard(bucket), args).await?.ok()?;
    Ok(fields.int("whether it stands")? == 1)
}
