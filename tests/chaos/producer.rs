//! What is submitted, and what is known of it.

use crate::{LEASE_MS, RATE};
use minutehand::client::{Cancelled, Client, Due, NewTask, SubmitError, Submitted};
use minutehand::clock::mono;
use minutehand::model::{Durability, Key, Priority, QueueName, Retry, TaskId};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// What the producers know.
#[derive(Default)]
pub struct Known {
    /// Ids that Redis said it had created, as safe as was asked for.
    pub created: HashSet<TaskId>,
    /// Of these, those with a key.
    pub keyed: HashSet<TaskId>,
    /// The ids that were said to stand for a key.
    pub keys: HashMap<String, HashSet<TaskId>>,
    /// Ids of which a cancel was accepted.
    pub cancelled: HashSet<TaskId>,
    /// Submits without an answer, or without the safety asked for; their tasks may or may not stand.
    pub unanswered: u64,
    /// Tasks for each priority.
    pub by_priority: [u64; 6],
}

impl Known {
    pub fn add(&mut self, other: Self) {
        self.created.extend(other.created);
        self.keyed.extend(other.keyed);
        for (key, ids) in other.keys {
            self.keys.entry(key).or_default().extend(ids);
        }
        self.cancelled.extend(other.cancelled);
        self.unanswered += other.unanswered;
        for (all, more) in self.by_priority.iter_mut().zip(other.by_priority) {
            *all += more;
        }
    }
}

/// How to produce.
#[derive(Clone)]
pub struct Plan {
    pub until: Instant,
    pub durability: Durability,
    /// This producer, of so many.
    pub number: u64,
    pub of: u64,
    /// Time between two batches.
    pub every: Duration,
}

/// Submits its share of [`RATE`] until the end.
pub async fn produce(client: Client, mut rng: fastrand::Rng, plan: Plan) -> Known {
    let mut known = Known::default();
    let queue = QueueName::new("chaos").unwrap();
    let retry = Retry { retries: 40, .."fixed:200ms".parse::<Retry>().unwrap() };
    let mut tick = tokio::time::interval(plan.every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let rows = RATE * u64::try_from(plan.every.as_millis()).unwrap() / 1_000 / plan.of;
    let mut recent: Vec<TaskId> = Vec::new();
    let mut serial = 0u64;
    while mono() < plan.until {
        tick.tick().await;
        let mut batch = Vec::new();
        let mut keys = Vec::new();
        for _ in 0..rows {
            serial += 1;
            let payload = match rng.u32(0..100) {
                0..8 => "fails at first",
                8..11 => "slow",
                // Longer than a lease: still in somebody's hands when a frozen executor comes back to its own.
                11 => "long",
                _ => "plain",
            };
            // One in three has a key, and of those one in five was used shortly before.
            let key = (rng.u8(0..3) == 0).then(|| {
                let back = if rng.u8(0..5) == 0 { rng.u64(1..200) } else { 0 };
                format!("k{}-{}", plan.number, serial.saturating_sub(back))
            });
            keys.push(key.clone());
            let level = rng.u8(0..6);
            known.by_priority[usize::from(level)] += 1;
            batch.push(NewTask {
                due: Due::In(rng.i64(0..3_000)),
                priority: Priority::from_level(level).unwrap(),
                retries: Some(40),
                backoff: Some(retry),
                key: key.map(|key| Key::new(key, 3_600_000).unwrap()),
                lease_ms: Some(LEASE_MS),
                payload: payload.into(),
                durability: plan.durability,
                ..NewTask::to(queue.clone())
            });
        }
        match client.submit_batch(batch.clone()).await {
            Ok(answers) => take(&mut known, &mut recent, answers, &keys),
            // Keyed tasks are safe to send again; of the others nobody knows.
            Err(_) => {
                known.unanswered += batch.len() as u64;
                let (batch, keys): (Vec<_>, Vec<_>) =
                    batch.into_iter().zip(keys).filter(|(_, key)| key.is_some()).unzip();
                if let Ok(answers) = client.submit_batch(batch).await {
                    known.unanswered -= answers.len() as u64;
                    take(&mut known, &mut recent, answers, &keys);
                }
            }
        }
        // Some of the last ones are cancelled: waiting ones, and with luck running ones.
        for _ in 0..rng.usize(0..3) {
            if recent.is_empty() {
                break;
            }
            let id = recent.swap_remove(rng.usize(0..recent.len()));
            if let Ok(Cancelled::Done) = client.cancel(id, "chaos", "by chance").await {
                known.cancelled.insert(id);
            }
        }
    }
    known
}

/// Ids of late that may be cancelled.
const RECENT: usize = 500;

type Answers = Vec<Result<Submitted, SubmitError>>;

fn take(known: &mut Known, recent: &mut Vec<TaskId>, answers: Answers, keys: &[Option<String>]) {
    for (answer, key) in answers.into_iter().zip(keys) {
        let Ok(submitted) = answer else {
            known.unanswered += 1;
            continue;
        };
        if submitted.created {
            known.created.insert(submitted.id);
            if key.is_some() {
                known.keyed.insert(submitted.id);
            }
            recent.push(submitted.id);
        }
        if let Some(key) = key {
            known.keys.entry(key.clone()).or_default().insert(submitted.id);
        }
    }
    let over = recent.len().saturating_sub(RECENT);
    recent.drain(..over);
}
