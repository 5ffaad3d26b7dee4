//! Subscriptions to outcomes: made, listed, taken away; and outcomes fetched by who wants to hear of them.

use super::{Client, ClientError, Edit, EventPlace, repeat};
use crate::limits;
use crate::model::field::{FieldError, Reason};
use crate::model::outcome::{EntryId, Outcome, Place, entry};
use crate::model::queue::check_address;
use crate::model::{Bucket, QueueTable, Subscription, SubscriptionName, UnixMs};
use crate::store::outcome::{self, Stretch};
use crate::store::queue::PutAnswer;
use crate::store::{Space, StoreError, queue};
use serde::Serialize;
use std::time::Duration;

/// A subscription with its name and version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct SubscriptionView {
    /// Its name.
    pub name: String,
    /// Grows with every change.
    pub version: u64,
    /// What it is.
    #[serde(flatten)]
    pub subscription: Subscription,
}

/// How far a subscription is behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Behind {
    /// Outcomes that it has not got, counted up to 500 in each bucket.
    pub waiting: u64,
    /// When the oldest of them ended.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "super::query::time_text")]
    #[schema(value_type = Option<String>)]
    pub oldest: Option<UnixMs>,
    /// Outcomes that were lost to it since it last got some: at most so many.
    pub missed: u64,
    /// Deliveries that failed in a row, at the pod where that were most, as it last reported.
    #[serde(skip_serializing_if = "is_zero")]
    pub tries: u32,
    /// Why the last of them failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Outcomes that came together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutcomeBatch {
    /// They, in order of time within a bucket.
    pub outcomes: Vec<Outcome>,
    /// Outcomes that were lost before they could be fetched: at most so many.
    pub missed: u64,
}

/// Fetches the outcomes of a subscription. Each comes at least once: what was not confirmed comes again, to this reader or
/// to another one, under the same name ([`Outcome::delivery`]).
#[derive(Debug)]
pub struct OutcomeStream {
    client: Client,
    name: SubscriptionName,
    readers: Vec<Reader>,
}

/// Where it is in one outbox.
#[derive(Debug, Clone, Copy, Default)]
struct Reader {
    after: Option<EntryId>,
    cut: u64,
    confirmed: Option<EntryId>,
}

const LOOK_OFTEN: Duration = Duration::from_millis(50);
const LOOK_SELDOM: Duration = Duration::from_secs(1);
/// Outboxes that are read at the same time.
const AT_ONCE: usize = 16;

fn unknown(name: &str) -> FieldError {
    let detail = format!("there is no subscription {}", crate::model::field::shown(name));
    FieldError::new("subscription", Reason::Unknown, detail)
}

impl Client {
    /// Makes a subscription, or changes it. It hears of tasks that are submitted from then on: by this client at once, by
    /// others within a second or so. Of tasks that stand already it hears where it names one by its id.
    ///
    /// With a `version` it is only changed where that one stands; 0 means that there is none yet.
    pub async fn subscribe(
        &self,
        name: &SubscriptionName,
        mut wish: Subscription,
        version: Option<u64>,
    ) -> Result<SubscriptionView, ClientError> {
        let space = self.space();
        wish.check()?;
        let record = format!("s:{name}");
        loop {
            let table = repeat(space, || queue::refresh(space)).await?;
            let stands = queue::version_of(space, &record);
            if let Some(wanted) = version.filter(|wanted| *wanted != stands) {
                return Err(ClientError::Conflict { what: format!("subscription {name}"), wanted, stands });
            }
            let before = table.subscriptions.get(name);
            if before.is_none() && table.subscriptions.len() >= limits::SUBSCRIPTIONS_MAX {
                let detail = format!("there are {} subscriptions; take some away", limits::SUBSCRIPTIONS_MAX);
                return Err(FieldError::new("subscription", Reason::TooMany, detail).into());
            }
            // A repeated wish keeps its beginning.
            wish.since = before.map_or(UnixMs(space.clock().now_ms()), |before| before.since);
            if before.is_some_and(|before| Subscription { by: before.by.clone(), ..wish.clone() } == **before)
            {
                break;
            }
            let text = wish.encode()?;
            match repeat(space, || queue::put(space, &record, stands, &text)).await? {
                PutAnswer::Done { epoch, .. } => {
                    repeat(space, || queue::refresh(space)).await?;
                    self.behind(epoch).await?;
                    break;
                }
                PutAnswer::Changed { .. } => {}
            }
        }
        if let Some(task) = wish.task {
            let edit = Edit { notify: Some(name.to_string()), ..Edit::default() };
            if let Err(error) = self.edit(task, &edit, None, &wish.by).await {
                self.unsubscribe(name).await?;
                return Err(error);
            }
        }
        Ok(self.subscription(name).await?.ok_or_else(|| unknown(name.as_str()))?)
    }

    /// All subscriptions, by name.
    pub async fn subscriptions(&self) -> Result<Vec<SubscriptionView>, ClientError> {
        let space = self.space();
        let table = repeat(space, || queue::refresh(space)).await?;
        let view = |(name, wish): (&SubscriptionName, &std::sync::Arc<Subscription>)| SubscriptionView {
            name: name.to_string(),
            version: queue::version_of(space, &format!("s:{name}")),
            subscription: (**wish).clone(),
        };
        Ok(table.subscriptions.iter().map(view).collect())
    }

    /// One subscription.
    pub async fn subscription(
        &self,
        name: &SubscriptionName,
    ) -> Result<Option<SubscriptionView>, ClientError> {
        Ok(self.subscriptions().await?.into_iter().find(|view| view.name == name.as_str()))
    }

    /// Takes a subscription away; what it has not got is not delivered any more. Answers whether there was one.
    pub async fn unsubscribe(&self, name: &SubscriptionName) -> Result<bool, ClientError> {
        let space = self.space();
        let record = format!("s:{name}");
        loop {
            repeat(space, || queue::refresh(space)).await?;
            let stands = queue::version_of(space, &record);
            if stands == 0 {
                return Ok(false);
            }
            match repeat(space, || queue::put(space, &record, stands, "")).await? {
                PutAnswer::Done { changed, .. } => {
                    repeat(space, || queue::refresh(space)).await?;
                    return Ok(changed);
                }
                PutAnswer::Changed { .. } => {}
            }
        }
    }

    /// How far a subscription is behind.
    pub async fn subscription_behind(&self, name: &SubscriptionName) -> Result<Behind, ClientError> {
        let mut stream = OutcomeStream { client: self.clone(), name: name.clone(), readers: Vec::new() };
        let batch = stream.look().await?;
        let waiting = batch.outcomes.len() as u64;
        let oldest = batch.outcomes.iter().map(|outcome| outcome.at).min();
        let pods = self.pods().await?;
        let failing = pods.into_iter().flat_map(|pod| pod.undelivered);
        let worst = failing.filter(|one| one.subscription == name.as_str()).max_by_key(|one| one.tries);
        let (tries, why) = worst.map_or((0, None), |one| (one.tries, Some(one.why)));
        Ok(Behind { waiting, oldest, missed: batch.missed, tries, why })
    }

    /// Fetches the outcomes of a subscription that has no address, from where it is.
    pub async fn outcomes(&self, name: &SubscriptionName) -> Result<OutcomeStream, ClientError> {
        let space = self.space();
        let table = repeat(space, || queue::refresh(space)).await?;
        let wish = table.subscriptions.get(name).ok_or_else(|| unknown(name.as_str()))?;
        if wish.url.is_some() {
            let detail = format!("{name} is delivered to an address; one without an address can be fetched");
            return Err(FieldError::new("subscription", Reason::InvalidType, detail).into());
        }
        Ok(OutcomeStream { client: self.clone(), name: name.clone(), readers: Vec::new() })
    }

    /// Notes that the outcomes of a subscription were got up to a place.
    pub async fn confirm_outcomes(
        &self,
        name: &SubscriptionName,
        place: &EventPlace,
    ) -> Result<(), ClientError> {
        let mut stream = self.outcomes(name).await?;
        stream.go_to(place);
        stream.confirm().await
    }
}

impl OutcomeStream {
    /// Goes on behind a place that [`Self::place`] told.
    pub fn go_to(&mut self, place: &EventPlace) {
        let places = place.places().map(|text| text.and_then(entry));
        self.readers = places.map(|after| Reader { after, ..Reader::default() }).collect();
    }

    /// Where it has come to.
    pub fn place(&self) -> EventPlace {
        EventPlace::of(self.readers.iter().map(|reader| reader.after.map(|(ms, n)| format!("{ms}-{n}"))))
    }

    /// What there is now behind what it has told; perhaps nothing. Confirms nothing.
    pub async fn look(&mut self) -> Result<OutcomeBatch, ClientError> {
        let (client, name) = (self.client.clone(), &self.name);
        let space = client.space();
        let table = queue::settings(space).await?;
        let Some(wish) = table.subscriptions.get(name) else { return Err(unknown(name.as_str()).into()) };
        let buckets = usize::from(space.spread().peak).max(self.readers.len());
        self.readers.resize(buckets, Reader::default());
        let mut out = OutcomeBatch::default();
        for (at, some) in self.readers.chunks_mut(AT_ONCE).enumerate() {
            let reads = some.iter().enumerate().map(|(n, reader)| {
                let bucket = u16::try_from(at * AT_ONCE + n).ok().and_then(Bucket::new).unwrap_or_default();
                let after = reader.after;
                repeat(space, move || outcome::read(space, bucket, name, after, None))
            });
            let found: Vec<Stretch> =
                futures_util::future::join_all(reads).await.into_iter().collect::<Result<_, StoreError>>()?;
            for (reader, stretch) in some.iter_mut().zip(found) {
                // At the first look; later on by what was seen then.
                let before = match reader.after {
                    None => Stretch { entries: Vec::new(), ..stretch.clone() },
                    Some(done) => {
                        let place = Place { done, cut_seen: reader.cut, ..Place::default() };
                        Stretch { place, entries: Vec::new(), ..stretch.clone() }
                    }
                };
                out.missed +=
                    before.lost(wish.since) + if reader.after.is_none() { stretch.place.given_up } else { 0 };
                reader.cut = stretch.cut;
                if let Some((last, _)) = stretch.entries.last() {
                    reader.after = Some(*last);
                }
                let wanted = stretch.entries.into_iter().filter_map(|(_, outcome)| outcome);
                out.outcomes.extend(wanted.filter(|outcome| wish.wants(name, outcome)));
            }
        }
        Ok(out)
    }

    /// Confirms what it told before, and waits for the next.
    pub async fn next(&mut self) -> Result<OutcomeBatch, ClientError> {
        self.confirm().await?;
        let mut pause = LOOK_OFTEN;
        loop {
            let before = self.place();
            let batch = self.look().await?;
            if !batch.outcomes.is_empty() || batch.missed > 0 {
                return Ok(batch);
            }
            if self.place() != before {
                continue;
            }
            // What was looked at and is of no interest is passed, so that it can go.
            self.confirm().await?;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_SELDOM);
        }
    }

    /// Confirms all that it has told: it does not come again.
    pub async fn confirm(&mut self) -> Result<(), ClientError> {
        let (space, name) = (self.client.space(), &self.name);
        for (number, reader) in self.readers.iter_mut().enumerate() {
            let bucket = u16::try_from(number).ok().and_then(Bucket::new);
            let (Some(done), Some(bucket)) = (reader.after, bucket) else { continue };
            if reader.confirmed == Some(done) {
                continue;
            }
            let place = Place { done, planned: done, cut_seen: reader.cut, given_up: 0 };
            repeat(space, || outcome::pass(space, bucket, None, name, &place)).await?;
            reader.confirmed = Some(done);
        }
        Ok(())
    }
}

/// The subscription that a task names: by its name, or by an address, for which one is made where there is none yet.
pub(super) async fn named(space: &Space, table: &QueueTable, text: &str) -> Result<String, ClientError> {
    if !text.contains("://") {
        let name = SubscriptionName::new(text).map_err(|error| FieldError { field: "notify", ..error })?;
        if table.subscriptions.contains_key(&name)
            || repeat(space, || queue::refresh(space)).await?.subscriptions.contains_key(&name)
        {
            return Ok(text.to_owned());
        }
        return Err(FieldError { field: "notify", ..unknown(text) }.into());
    }
    check_address("notify", text)?;
    let name = SubscriptionName::of_address(text);
    if table.subscriptions.contains_key(&name) {
        return Ok(name.to_string());
    }
    let table = repeat(space, || queue::refresh(space)).await?;
    if table.subscriptions.len() >= limits::SUBSCRIPTIONS_MAX && !table.subscriptions.contains_key(&name) {
        let detail = format!(
            "there are {} subscriptions already, and this address needs one of its own; subscribe to a queue or plan instead",
            limits::SUBSCRIPTIONS_MAX
        );
        return Err(FieldError::new("notify", Reason::TooMany, detail).into());
    }
    let since = UnixMs(space.clock().now_ms());
    let wish = Subscription { url: Some(text.to_owned()), since, ..Subscription::default() };
    let record = wish.encode()?;
    // Where another one was faster it stands too. A pod that does not know of it yet would take its outcomes for
    // nobody's.
    let place = format!("s:{name}");
    repeat(space, || queue::put(space, &place, 0, &record)).await?;
    let epoch = repeat(space, || queue::refresh(space)).await?.epoch;
    super::queues::behind(space, epoch).await?;
    Ok(name.to_string())
}
