//! One task for every executor: a task of a queue that is routed by `broadcast` is spread by whoever runs it here.
//!
//! The task itself runs on a house executor. Its handler looks who serves the queue, gives each a task of its own
//! (the same payload, with index and number of all), and is done when all of these are. It is a task like any
//! other, with a lease, retries and an end; the tasks it makes have keys made of its id, so that when it is tried
//! again, it finds them instead of making more. An executor that goes before its task has run is left out; one
//! that comes later is not asked.

use crate::client::{Client, NewTask};
use crate::executor::{Context, HandlerError, HandlerResult, Stop, Task};
use crate::limits;
use crate::model::route::why::Offered;
use crate::model::spec::{Extras, Part};
use crate::model::{Key, Labels, LaneGroup, State, TaskId};
use crate::store::member::ExecutorRecord;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// How often the tasks that were made are looked at: soon at first, then less often.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_LAST: Duration = Duration::from_secs(1);

/// Who gets one; kept, so that another attempt asks the same ones.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    executors: Vec<String>,
}

/// Which executors a task of a queue with labels is for, by id.
fn addressees(group: &LaneGroup, executors: &[ExecutorRecord]) -> Vec<String> {
    let serves = |record: &&ExecutorRecord| {
        let labels = Labels::new(&record.labels).unwrap_or_default();
        let offered = Offered { queues: &record.queues, labels: &labels, draining: record.draining };
        offered.serves(group)
    };
    let mut ids: Vec<String> = executors.iter().filter(serves).map(|record| record.id.clone()).collect();
    ids.sort_unstable();
    ids
}

/// Spreads a task, and waits until all of its parts have ended.
pub async fn spread(client: &Client, task: Task, context: &Context) -> HandlerResult {
    let group = LaneGroup { queue: task.queue.clone(), labels: (*task.labels).clone() };
    let executors = client.executors().await?;
    let plan =
        context.once("broadcast", async { Ok(Plan { executors: addressees(&group, &executors) }) }).await?;
    let total = plan.executors.len() as u32;
    if total == 0 {
        return Err(HandlerError::failed(format!("no executor serves queue {}", task.queue)));
    }
    let mut parts = Vec::with_capacity(plan.executors.len());
    for (index, executor) in plan.executors.iter().enumerate() {
        let key = format!("broadcast/{}/{executor}", task.id);
        parts.push(NewTask {
            labels: group.labels.clone(),
            priority: task.priority,
            key: Some(Key::new(key.into_bytes(), limits::KEY_WINDOW_MS)?),
            timeout_ms: task.timeout_ms,
            lease_ms: task.lease_ms,
            extras: Extras {
                // Who waits for the task waits for it as a whole.
                notify: None,
                part: Some(Part {
                    of: task.id.to_string(),
                    to: executor.clone(),
                    index: index as u32,
                    total,
                }),
                ..task.extras.clone()
            },
            payload: task.payload.clone(),
            ..NewTask::to(task.queue.clone())
        });
    }
    let mut open: Vec<(TaskId, String)> = Vec::new();
    for (answer, executor) in client.submit_batch(parts).await?.into_iter().zip(&plan.executors) {
        let made = answer.map_err(|error| HandlerError::failed(error.to_string()))?;
        open.push((made.id, executor.clone()));
    }
    wait(client, context, open, total).await
}

async fn wait(
    client: &Client,
    context: &Context,
    mut open: Vec<(TaskId, String)>,
    total: u32,
) -> HandlerResult {
    let (mut look, mut failed, mut left) = (LOOK_FIRST, Vec::new(), 0u32);
    while !open.is_empty() {
        tokio::select! {
            () = tokio::time::sleep(look) => {}
            () = context.cancelled() => {
                // Where only this process ends, another one goes on with the same parts.
                let given_up = matches!(context.stop(), Some(Stop::Cancelled | Stop::TimedOut));
                for (id, _) in open.iter().filter(|_| given_up) {
                    let _ = client.cancel(*id, context.executor(), "its broadcast was stopped").await;
                }
                return Err(HandlerError::failed("stopped"));
            }
        }
        look = (look * 2).min(LOOK_LAST);
        let live: BTreeSet<String> = client.executors().await?.into_iter().map(|record| record.id).collect();
        let mut still = Vec::new();
        for (id, executor) in open {
            match client.get(id).await?.map(|view| view.state) {
                // Ended so long ago that it is forgotten.
                None | Some(State::Succeeded) => {}
                Some(State::Dead | State::Expired | State::Skipped) => failed.push(executor),
                Some(State::Cancelled) => left += 1,
                Some(_) if !live.contains(&executor) => {
                    let _ = client.cancel(id, context.executor(), "its executor has gone").await;
                    still.push((id, executor));
                }
                Some(_) => still.push((id, executor)),
            }
        }
        open = still;
        let done = f64::from(total) - open.len() as f64;
        context.progress(done / f64::from(total), format!("{done} of {total} executors")).await;
    }
    if failed.is_empty() {
        tracing::debug!(total, left, "a broadcast is done");
        return Ok(());
    }
    Err(HandlerError::fatal(format!("{} of {total} executors failed: {}", failed.len(), failed.join(", "))))
}
