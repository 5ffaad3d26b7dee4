//! What is set for queues: `lua/queue/put.lua`.

use super::super::StoreError;
use super::super::script;
use super::super::space::Space;
use crate::clock;
use crate::keys::Guard;
use crate::limits;
use crate::model::queue::{DownstreamSettings, Switches};
use crate::model::{
    DownstreamName, FieldError, QueueName, QueueSettings, QueueTable, Subscription, SubscriptionName,
};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the record of the whole namespace.
const ALL: &str = "all";

/// What a process knows of the settings of queues.
#[derive(Debug, Default)]
pub(in super::super) struct Known {
    table: ArcSwap<QueueTable>,
    /// When they were last asked for.
    asked: Mutex<Option<Instant>>,
    /// The versions of the records, as of the table.
    versions: Mutex<Vec<(String, u64)>>,
}

/// What became of a wish to change a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutAnswer {
    /// The record stands as wanted.
    Done {
        /// The table's epoch now.
        epoch: u64,
        /// Whether this call changed it.
        changed: bool,
    },
    /// Somebody else changed it meanwhile.
    Changed {
        /// The version that stands; 0 where there is no record.
        version: u64,
    },
}

fn guard(space: &Space) -> Guard {
    Guard::room(space.namespace(), "queues")
}

/// Writes one record (`q:<queue>`, `d:<downstream>`, `s:<subscription>`, `all`) in place of the version that is named (0: there is none);
/// an empty text removes it.
pub async fn put(space: &Space, name: &str, version: u64, record: &str) -> Result<PutAnswer, StoreError> {
    let mut args = space.args(5, 128 + record.len());
    // The table is read by itself afterwards, so that one place takes it in.
    args.bytes(b"").bytes(name.as_bytes()).number(version).bytes(record.as_bytes());
    args.number(limits::QUEUE_RECORDS_MAX);
    let mut answer = space.call(&script::PUT, &guard(space), args).await?;
    match &answer.word[..] {
        b"CHANGED" => {
            let version = u64::try_from(answer.fields.int("version")?).unwrap_or(0);
            return Ok(PutAnswer::Changed { version });
        }
        b"FULL" => {
            let detail = format!(
                "something is set for {} queues and downstreams already; no more fit",
                limits::QUEUE_RECORDS_MAX
            );
            return Err(StoreError::Script { name: script::PUT.name, detail });
        }
        _ => {}
    }
    let mut fields = answer.ok()?;
    let epoch = u64::try_from(fields.int("epoch")?).unwrap_or(0);
    Ok(PutAnswer::Done { epoch, changed: fields.int("changed")? == 1 })
}

/// Writes what is set for a queue, in place of the version that is named; settings that set nothing remove it.
pub async fn put_queue(
    space: &Space,
    queue: &QueueName,
    version: u64,
    settings: &QueueSettings,
) -> Result<PutAnswer, StoreError> {
    let record = settings.encode().map_err(bad)?;
    put(space, &format!("q:{queue}"), version, &record).await
}

fn bad(error: FieldError) -> StoreError {
    StoreError::Script { name: script::PUT.name, detail: error.to_string() }
}

/// Version of a record (`q:<queue>`, `d:<downstream>`, `all`), as of the last [`refresh`]; 0 where there is none.
pub fn version_of(space: &Space, name: &str) -> u64 {
    let versions = space.known_queues().versions.lock();
    versions.binary_search_by(|(known, _)| known.as_str().cmp(name)).map_or(0, |at| versions[at].1)
}

/// What is set for queues, at most [`limits::QUEUE_SETTINGS_KEPT_MS`] old. Mostly it answers without a call.
pub async fn settings(space: &Space) -> Result<Arc<QueueTable>, StoreError> {
    let known = space.known_queues();
    {
        let mut asked = known.asked.lock();
        let fresh = Duration::from_millis(limits::QUEUE_SETTINGS_KEPT_MS);
        match *asked {
            Some(at) if at.elapsed() < fresh => return Ok(known.table.load_full()),
            // One asks for all; the others go on with what is known.
            Some(_) => *asked = Some(clock::mono()),
            None => {}
        }
    }
    refresh(space).await
}

/// What is set for queues as it was last read, if it ever was; for when it cannot be read.
pub fn known_settings(space: &Space) -> Option<Arc<QueueTable>> {
    let known = space.known_queues();
    let read = known.asked.lock().is_some();
    read.then(|| known.table.load_full())
}

/// What is set for queues, as it stands now.
pub async fn refresh(space: &Space) -> Result<Arc<QueueTable>, StoreError> {
    let known = space.known_queues();
    let sent = clock::mono();
    let before = known.table.load_full();
    let first = known.asked.lock().is_none();
    let mut args = space.args(5, 64);
    if first {
        args.bytes(b"")
    } else {
        args.number(before.epoch)
    };
    args.bytes(b"").number(0).bytes(b"").number(0);
    let mut fields = space.call(&script::PUT, &guard(space), args).await?.ok()?;
    let epoch = u64::try_from(fields.int("epoch")?).unwrap_or(0);
    fields.int("changed")?;
    if !first && epoch == before.epoch {
        *known.asked.lock() = Some(sent);
        return Ok(before);
    }
    let mut table = QueueTable { epoch, ..QueueTable::default() };
    let mut versions = Vec::with_capacity(fields.left() / 2);
    while fields.left() > 0 {
        let name = fields.text("name")?;
        let record = fields.text("record")?;
        let Some((version, text)) = record.split_at_checked(16) else { continue };
        if let Err(error) = take(&mut table, &name, text) {
            tracing::warn!(name, %error, "a record of a queue's settings cannot be read; it counts as not there");
        }
        versions.push((name, version.trim_start_matches('0').parse().unwrap_or(0)));
    }
    versions.sort_unstable();
    let table = Arc::new(table);
    let mut asked = known.asked.lock();
    // An answer that was overtaken by a later one is not taken in. Epochs that fall tell of lost data.
    let overtaken = asked.is_some_and(|at| at > sent) && known.table.load().epoch > epoch;
    if !overtaken {
        known.table.store(Arc::clone(&table));
        *known.versions.lock() = versions;
        *asked = Some(sent);
    }
    drop(asked);
    Ok(table)
}

fn take(table: &mut QueueTable, name: &str, text: &str) -> Result<(), FieldError> {
    if let Some(queue) = name.strip_prefix("q:") {
        table.queues.insert(QueueName::new(queue)?, Arc::new(QueueSettings::decode(text)?));
    } else if let Some(name) = name.strip_prefix("d:") {
        let settings = DownstreamSettings::decode(text)?;
        table.downstreams.insert(DownstreamName::new(name)?, Arc::new(settings));
    } else if let Some(name) = name.strip_prefix("s:") {
        let wish = Arc::new(Subscription::decode(text)?);
        table.subscriptions.insert(SubscriptionName::new(name)?, wish);
    } else if name == ALL {
        table.switches = Switches::decode(text)?;
    }
    Ok(())
}

/// Wakes when something is set.
pub fn settings_news(space: &Space) -> super::super::Subscription {
    space.store().subscribe(guard(space).key("new"))
}
