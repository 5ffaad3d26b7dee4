//! Executors, as operators see and steer them.

use super::{Client, ClientError, repeat};
use crate::store::due::hand_back;
use crate::store::member::{self, ExecutorRecord};
use serde::Serialize;

/// An executor as people see it.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct ExecutorView {
    /// As it reported itself.
    #[serde(flatten)]
    pub record: ExecutorRecord,
    /// In a word: `live`; `stopping`, it drains by itself; `drained`, an operator lets it drain.
    pub state: &'static str,
    /// Its slots by pool.
    pub pools: Pools,
}

/// Slots by pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Pools {
    /// For every priority.
    pub normal: u32,
    /// For P0 and P1 alone.
    pub urgent: u32,
}

/// What became of a wish to drain or resume an executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Drained {
    /// The executor.
    pub id: String,
    /// Whether this changed anything.
    pub changed: bool,
    /// Tasks that lay in its inbox and went back.
    pub handed_back: usize,
}

impl Client {
    /// The live executors, by name and id.
    pub async fn executor_views(&self) -> Result<Vec<ExecutorView>, ClientError> {
        let space = self.space();
        let roll = repeat(space, || member::roll(space)).await?;
        let view = |record: ExecutorRecord| {
            let state = match (roll.drained.contains(&record.id), record.draining) {
                (true, _) => "drained",
                (false, true) => "stopping",
                (false, false) => "live",
            };
            let pools = Pools { normal: record.slots, urgent: record.urgent_slots };
            ExecutorView { record, state, pools }
        };
        let mut executors: Vec<_> = roll.live.into_iter().map(view).collect();
        executors.sort_by(|a, b| (&a.record.name, &a.record.id).cmp(&(&b.record.name, &b.record.id)));
        Ok(executors)
    }

    /// Gives an executor nothing new; what lies in its inbox goes back at once, what it has taken goes on.
    /// Nothing when no such executor lives. A restart makes a new instance, which is not drained.
    pub async fn drain_executor(&self, id: &str, who: &str) -> Result<Option<Drained>, ClientError> {
        let space = self.space();
        let Some(changed) = repeat(space, || member::drain(space, id, true)).await? else { return Ok(None) };
        // The executor opens its inbox again with its next take; pods offer it nothing meanwhile.
        let offers = repeat(space, || member::drain_inbox(space, id)).await?;
        let rows: Vec<_> = offers.iter().map(|offer| (offer.id, offer.grant)).collect();
        let handed_back = rows.len();
        hand_back(space, who, &format!("offered to {id}, which is to drain"), rows).await;
        Ok(Some(Drained { id: id.to_owned(), changed, handed_back }))
    }

    /// Lets an executor be given tasks again. Nothing when no such executor lives.
    pub async fn resume_executor(&self, id: &str) -> Result<Option<Drained>, ClientError> {
        let space = self.space();
        let changed = repeat(space, || member::drain(space, id, false)).await?;
        Ok(changed.map(|changed| Drained { id: id.to_owned(), changed, handed_back: 0 }))
    }
}
