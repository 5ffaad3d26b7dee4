//! What is set for queues: read, changed, and followed by the pods.

use super::holds::{BreakerStatus, Holds};
use super::{Client, ClientError, FOLLOW_MAX, repeat};
use crate::limits;
use crate::model::queue::{DownstreamSettings, Forced, Lease, LimitOwner, LimitSettings, Pause, Switches};
use crate::model::runs::RunFigures;
use crate::model::{DownstreamName, FieldError, QueueName, QueueSettings, QueueTable, UnixMs};
use crate::store::queue::{self, PutAnswer};
use crate::store::{Space, StoreError, member};
use serde::Serialize;
use std::time::Duration;

/// Times that a change is made anew because somebody else changed the same record.
const CLASHES_MAX: u32 = 20;

/// A queue and what is set for it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct QueueView {
    /// Its name.
    pub queue: String,
    /// What is set for it.
    #[schema(value_type = Object)]
    pub settings: QueueSettings,
}

/// How a queue's tasks run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueStats {
    /// The queue.
    pub queue: String,
    /// Its runs.
    #[serde(flatten)]
    pub figures: RunFigures,
    /// What is set for its lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// The lease of its tasks that name none, in ms.
    pub lease_ms: i64,
}

/// What a change did.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct QueueChange {
    /// The queue.
    pub queue: String,
    /// Whether this call changed something.
    pub changed: bool,
    /// What is set for it now.
    #[schema(value_type = Object)]
    pub settings: QueueSettings,
    /// Live pods that do not follow yet; those that are dead without being missed yet are among them.
    pub pods_behind: Vec<String>,
}

/// A downstream and what is set for it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DownstreamView {
    /// Its name.
    pub downstream: String,
    /// Queues that name it.
    pub queues: Vec<String>,
    /// What is set for it.
    pub settings: DownstreamSettings,
    /// How its breaker stands, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerStatus>,
}

/// What a change of a downstream did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DownstreamChange {
    /// The downstream.
    pub downstream: String,
    /// Whether this call changed something.
    pub changed: bool,
    /// What is set for it now.
    pub settings: DownstreamSettings,
    /// Live pods that do not follow yet; those that are dead without being missed yet are among them.
    pub pods_behind: Vec<String>,
}

/// What switching retries off or on did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RetriesChange {
    /// Since when they are off, by whom and why.
    pub off: Option<Pause>,
    /// Whether this call changed something.
    pub changed: bool,
    /// Live pods that do not follow yet; those that are dead without being missed yet are among them.
    pub pods_behind: Vec<String>,
}

impl Client {
    /// What is set for a queue.
    pub async fn queue(&self, queue: &QueueName) -> Result<QueueSettings, ClientError> {
        let space = self.space();
        Ok(repeat(space, || queue::refresh(space)).await?.of(queue).clone())
    }

    /// How long a queue's tasks run and how many fail, by what its executors reported of the last hours.
    pub async fn queue_stats(&self, queue: &QueueName) -> Result<QueueStats, ClientError> {
        let space = self.space();
        let set = repeat(space, || queue::refresh(space)).await?.of(queue).lease;
        let runs = repeat(space, || queue::runs(space, queue)).await?;
        let figures = runs.figures();
        let lease_ms = match set {
            Some(Lease::Fixed { ms }) => ms,
            Some(Lease::Auto) => figures.suggested_lease_ms.unwrap_or(limits::LEASE_MS),
            None => limits::LEASE_MS,
        };
        Ok(QueueStats { queue: queue.to_string(), figures, lease: set, lease_ms })
    }

    /// All queues that tasks have been submitted to or for which something is set, by name.
    pub async fn queues(&self) -> Result<Vec<QueueView>, ClientError> {
        let space = self.space();
        let table = repeat(space, || queue::refresh(space)).await?;
        let groups = repeat(space, || space.groups()).await?;
        let mut names: Vec<&QueueName> = groups.iter().map(|(_, group)| &group.queue).collect();
        names.extend(table.queues.keys());
        names.sort_unstable();
        names.dedup();
        let view =
            |queue: &QueueName| QueueView { queue: queue.to_string(), settings: table.of(queue).clone() };
        Ok(names.into_iter().map(view).collect())
    }

    /// Changes what is set for a queue, and waits until all live pods follow. `change` is called again where
    /// somebody else changed the same queue meanwhile.
    pub async fn queue_set(
        &self,
        queue: &QueueName,
        change: impl FnMut(&mut QueueSettings) -> Result<(), FieldError>,
    ) -> Result<QueueChange, ClientError> {
        let read = |table: &QueueTable| table.of(queue).clone();
        let done = self.record_set(format!("q:{queue}"), read, QueueSettings::encode, change).await?;
        let (changed, settings, pods_behind) = done;
        Ok(QueueChange { queue: queue.to_string(), changed, settings, pods_behind })
    }

    /// What is set for a downstream, the queues that name it, and how its breaker stands.
    pub async fn downstream(&self, name: &DownstreamName) -> Result<DownstreamView, ClientError> {
        let found = self.downstreams().await?.into_iter().find(|view| view.downstream == name.as_str());
        Ok(found
            .unwrap_or_else(|| DownstreamView { downstream: name.to_string(), ..DownstreamView::default() }))
    }

    /// All downstreams that a queue names or for which something is set, by name.
    pub async fn downstreams(&self) -> Result<Vec<DownstreamView>, ClientError> {
        let space = self.space();
        let holds = repeat(space, || Holds::read(space)).await?;
        let table = &holds.queues;
        let named = table.queues.values().filter_map(|settings| settings.downstream.as_ref());
        let mut names: Vec<&DownstreamName> = named.chain(table.downstreams.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let breakers = holds.breakers();
        let view = |name: &DownstreamName| {
            let uses = |settings: &QueueSettings| settings.downstream.as_ref() == Some(name);
            let owner = LimitOwner::Downstream(name.clone()).to_string();
            DownstreamView {
                downstream: name.to_string(),
                queues: table
                    .queues
                    .iter()
                    .filter(|(_, s)| uses(s))
                    .map(|(queue, _)| queue.to_string())
                    .collect(),
                settings: table.of_downstream(name).clone(),
                breaker: breakers.iter().find(|breaker| breaker.owner == owner).cloned(),
            }
        };
        Ok(names.into_iter().map(view).collect())
    }

    /// Changes what is set for a downstream, in the same way.
    pub async fn downstream_set(
        &self,
        name: &DownstreamName,
        change: impl FnMut(&mut DownstreamSettings) -> Result<(), FieldError>,
    ) -> Result<DownstreamChange, ClientError> {
        let read = |table: &QueueTable| table.of_downstream(name).clone();
        let done = self.record_set(format!("d:{name}"), read, DownstreamSettings::encode, change).await?;
        let (changed, settings, pods_behind) = done;
        Ok(DownstreamChange { downstream: name.to_string(), changed, settings, pods_behind })
    }

    /// Opens or closes a breaker by hand, or leaves it to itself again (`None`). Answers whether this call changed
    /// it, and the live pods that do not follow yet.
    pub async fn force_breaker(
        &self,
        owner: &LimitOwner,
        open: Option<bool>,
        who: &str,
        why: &str,
    ) -> Result<(bool, Vec<String>), ClientError> {
        let since = UnixMs(self.space().clock().now_ms());
        let force = |limits: &mut LimitSettings| match (open, &limits.forced) {
            (Some(open), Some(forced)) if forced.open == open => {}
            (Some(open), _) => {
                limits.forced = Some(Forced { open, since, who: who.to_owned(), why: why.to_owned() });
            }
            (None, _) => limits.forced = None,
        };
        Ok(match owner {
            LimitOwner::Queue(queue) => {
                let change = self.queue_set(queue, |settings| {
                    let mut limits = settings.limits.take().unwrap_or_default();
                    force(&mut limits);
                    settings.limits = Some(limits).filter(|limits| !limits.is_empty());
                    Ok(())
                });
                let change = change.await?;
                (change.changed, change.pods_behind)
            }
            LimitOwner::Downstream(name) => {
                let change = self.downstream_set(name, |settings| {
                    force(&mut settings.limits);
                    Ok(())
                });
                let change = change.await?;
                (change.changed, change.pods_behind)
            }
        })
    }

    /// Holds all tasks of the namespace that have failed, or lets them go on.
    pub async fn set_retries(&self, on: bool, who: &str, why: &str) -> Result<RetriesChange, ClientError> {
        let since = UnixMs(self.space().clock().now_ms());
        let change = |switches: &mut Switches| {
            if on {
                switches.no_retries = None;
            } else {
                let pause = || Pause { since, who: who.to_owned(), why: why.to_owned() };
                switches.no_retries.get_or_insert_with(pause);
            }
            Ok(())
        };
        let read = |table: &QueueTable| table.switches.clone();
        let done = self.record_set("all".to_owned(), read, Switches::encode, change).await?;
        let (changed, switches, pods_behind) = done;
        Ok(RetriesChange { off: switches.no_retries, changed, pods_behind })
    }

    /// Since when no retries may go, by whom and why; nothing where they may.
    pub async fn retries_off(&self) -> Result<Option<Pause>, ClientError> {
        let space = self.space();
        Ok(repeat(space, || queue::refresh(space)).await?.switches.no_retries.clone())
    }

    async fn record_set<T: Clone + PartialEq>(
        &self,
        name: String,
        read: impl Fn(&QueueTable) -> T,
        encode: impl Fn(&T) -> Result<String, FieldError>,
        mut change: impl FnMut(&mut T) -> Result<(), FieldError>,
    ) -> Result<(bool, T, Vec<String>), ClientError> {
        let space = self.space();
        for _ in 0..CLASHES_MAX {
            let table = repeat(space, || queue::refresh(space)).await?;
            let version = queue::version_of(space, &name);
            let stands = read(&table);
            let mut settings = stands.clone();
            change(&mut settings)?;
            let record = encode(&settings)?;
            if settings == stands {
                return Ok((false, settings, self.behind(table.epoch).await?));
            }
            // A repeated call whose first sending arrived finds another version: the change is then made anew,
            // and finds that it stands.
            match repeat(space, || queue::put(space, &name, version, &record)).await? {
                PutAnswer::Done { epoch, changed } => {
                    // What this process submits next goes by it.
                    repeat(space, || queue::refresh(space)).await?;
                    return Ok((changed, settings, self.behind(epoch).await?));
                }
                PutAnswer::Changed { .. } => {}
            }
        }
        let detail = format!("{name} was changed by others {CLASHES_MAX} times in a row; try again");
        Err(StoreError::Script { name: "queue.put", detail }.into())
    }

    /// Pauses a queue: nothing more of it is claimed once this has returned; what was claimed goes on.
    /// A queue that is paused keeps its first cause.
    pub async fn pause(&self, queue: &QueueName, who: &str, why: &str) -> Result<QueueChange, ClientError> {
        let since = UnixMs(self.space().clock().now_ms());
        self.queue_set(queue, |settings| {
            settings.pause.get_or_insert_with(|| Pause { since, who: who.to_owned(), why: why.to_owned() });
            Ok(())
        })
        .await
    }

    /// Lets a paused queue go on.
    pub async fn resume(&self, queue: &QueueName) -> Result<QueueChange, ClientError> {
        self.queue_set(queue, |settings| {
            settings.pause = None;
            Ok(())
        })
        .await
    }

    /// Waits a while for all live pods to follow what is set for queues; answers those that do not.
    pub(super) async fn behind(&self, epoch: u64) -> Result<Vec<String>, ClientError> {
        Ok(behind(self.space(), epoch).await?)
    }
}

/// Waits a while for all live pods to follow what is set for queues; answers those that do not.
pub(super) async fn behind(space: &Space, epoch: u64) -> Result<Vec<String>, StoreError> {
    let start = crate::clock::mono();
    loop {
        let pods = repeat(space, || member::pods(space)).await?;
        let behind = pods.iter().filter(|pod| pod.queues_epoch < epoch);
        let behind: Vec<String> = behind.map(|pod| pod.id.clone()).collect();
        if behind.is_empty() || start.elapsed() >= FOLLOW_MAX {
            return Ok(behind);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
