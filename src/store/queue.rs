//! What is set for queues: `lua/queue/put.lua`. What is frozen: `lua/queue/freeze.lua` and `lua/member/recall.lua`.

mod allot;
mod runs;
mod settings;

pub use allot::{Allotted, Ask, BreakerAsk, BreakerState, BreakerView, ShareAsk, WindowAsk, allot, breaker};
pub use runs::{add_runs, runs};
pub(super) use settings::Known;
pub use settings::{PutAnswer, known_settings, put, put_queue, refresh, settings, settings_news, version_of};

use super::intake::clip;
use super::member::{Offer, inbox_guard};
use super::script;
use super::space::Space;
use super::{Reply, StoreError, Subscription};
use crate::keys::Guard;
use crate::limits;
use crate::model::{PlanName, QueueName, UnixMs};
use serde::Serialize;
use std::fmt;

/// What can be frozen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The whole namespace.
    All,
    /// A queue, whatever the labels.
    Queue(QueueName),
    /// All tasks of a plan, whatever their queues.
    Plan(PlanName),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Queue(queue) => write!(f, "q:{queue}"),
            Self::Plan(plan) => write!(f, "p:{plan}"),
        }
    }
}

impl Scope {
    fn from_text(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None if text == "all" => Some(Self::All),
            Some(("q", queue)) => QueueName::new(queue).ok().map(Self::Queue),
            Some(("p", plan)) => PlanName::new(plan).ok().map(Self::Plan),
            _ => None,
        }
    }
}

/// One thing that is frozen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Frozen {
    /// What.
    #[serde(serialize_with = "text")]
    #[schema(value_type = String)]
    pub scope: Scope,
    /// Since when.
    #[serde(with = "crate::model::slice::rfc3339")]
    #[schema(value_type = String)]
    pub since: UnixMs,
    /// By whom.
    pub who: String,
    /// Why.
    pub cause: String,
}

fn text<S: serde::Serializer>(scope: &Scope, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(scope)
}

/// Everything that is frozen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Freeze {
    /// Grows with every change.
    pub epoch: u64,
    /// What is frozen.
    pub frozen: Vec<Frozen>,
}

impl Freeze {
    /// Whether everything is.
    pub fn all(&self) -> bool {
        self.frozen.iter().any(|frozen| frozen.scope == Scope::All)
    }

    /// What freezes a queue, if something does.
    pub fn of_queue(&self, queue: &QueueName) -> Option<&Frozen> {
        self.frozen.iter().find(|frozen| match &frozen.scope {
            Scope::All => true,
            Scope::Queue(name) => name == queue,
            Scope::Plan(_) => false,
        })
    }

    /// What freezes a plan by its name, if something does.
    pub fn of_plan(&self, plan: &str) -> Option<&Frozen> {
        self.frozen.iter().find(|frozen| matches!(&frozen.scope, Scope::Plan(name) if name.as_str() == plan))
    }

    /// What freezes a task of a queue and a plan, if something does.
    pub fn of_task(&self, queue: &QueueName, plan: Option<&str>) -> Option<&Frozen> {
        self.of_queue(queue).or_else(|| self.of_plan(plan?))
    }

    /// The frozen plans, sorted.
    pub fn plans(&self) -> impl Iterator<Item = &PlanName> {
        self.frozen.iter().filter_map(|frozen| match &frozen.scope {
            Scope::Plan(plan) => Some(plan),
            _ => None,
        })
    }
}

async fn call(
    space: &Space,
    verb: &[u8],
    scope: &str,
    who: &str,
    cause: &str,
) -> Result<(Freeze, bool), StoreError> {
    let mut args = space.args(6, 256);
    args.bytes(verb).bytes(scope.as_bytes()).bytes(clip(who, 99)).bytes(clip(cause, 256));
    args.number(limits::FROZEN_MAX);
    let guard = Guard::room(space.namespace(), "freeze");
    let answer = space.call(&script::FREEZE, &guard, args).await?;
    if &answer.word[..] == b"FULL" {
        let detail = format!("{} scopes are frozen already; thaw some or freeze all", limits::FROZEN_MAX);
        return Err(StoreError::Script { name: script::FREEZE.name, detail });
    }
    let mut fields = answer.ok()?;
    let epoch = u64::try_from(fields.int("epoch")?).unwrap_or(0);
    let changed = fields.int("changed")? == 1;
    let mut frozen = Vec::with_capacity(fields.left() / 2);
    while fields.left() > 0 {
        let scope = fields.text("scope")?;
        let value = fields.text("since")?;
        let number = |from: usize, to: usize| value.get(from..to).and_then(|text| text.parse::<i64>().ok());
        let len = usize::try_from(number(13, 15).unwrap_or(0)).unwrap_or(0);
        if let Some(scope) = Scope::from_text(&scope) {
            frozen.push(Frozen {
                scope,
                since: UnixMs(number(0, 13).unwrap_or(0)),
                who: value.get(15..15 + len).unwrap_or_default().to_owned(),
                cause: value.get(15 + len..).unwrap_or_default().to_owned(),
            });
        }
    }
    frozen.sort_by(|a, b| a.scope.cmp(&b.scope));
    Ok((Freeze { epoch, frozen }, changed))
}

/// Freezes something; answers what is frozen now, and whether this call changed it.
pub async fn freeze(
    space: &Space,
    scope: &Scope,
    who: &str,
    cause: &str,
) -> Result<(Freeze, bool), StoreError> {
    call(space, b"f", &scope.to_string(), who, cause).await
}

/// Thaws something; answers what is frozen now, and whether this call changed it.
pub async fn thaw(space: &Space, scope: &Scope, who: &str) -> Result<(Freeze, bool), StoreError> {
    call(space, b"t", &scope.to_string(), who, "").await
}

/// What is frozen.
pub async fn frozen(space: &Space) -> Result<Freeze, StoreError> {
    Ok(call(space, b"", "", "", "").await?.0)
}

/// Wakes when something is frozen or thawed.
pub fn freeze_news(space: &Space) -> Subscription {
    space.store().subscribe(Guard::room(space.namespace(), "freeze").key("new"))
}

/// Takes offers that are frozen back out of an executor's inbox, and tells the executor to give back what it
/// holds and has not started. `groups` are the codes of the frozen queues. For a while the inbox then takes no
/// offer of a pod that follows an older freeze.
pub async fn recall(
    space: &Space,
    executor: &str,
    freeze: &Freeze,
    groups: &[u32],
) -> Result<Vec<Offer>, StoreError> {
    let mut args = space.args(8 + groups.len(), 64 + groups.len() * 4);
    args.bytes(if freeze.all() { b"1" } else { b"0" }).number(freeze.epoch).number(groups.len());
    for group in groups {
        args.bytes(&group.to_be_bytes());
    }
    for plan in freeze.plans() {
        args.bytes(plan.as_str().as_bytes());
    }
    let mut fields = space.call(&script::RECALL, &inbox_guard(space, executor), args).await?.ok()?;
    let mut offers = Vec::with_capacity(fields.left());
    while fields.left() > 0 {
        if let Reply::Bytes(bytes) = fields.next("offer")? {
            offers.push(Offer::decode(&bytes).ok_or_else(|| fields.bad("an offer has the wrong form"))?);
        }
    }
    Ok(offers)
}
