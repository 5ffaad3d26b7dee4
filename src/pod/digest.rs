//! Tells the owners of queues of new dead letters: one digest a queue, at most every few minutes.
//!
//! One pod at a time does it, under a lease of its own. How far owners were told stands in Redis; a queue whose owner
//! could not be reached is told of the same letters, and the newer ones, the next time. Nothing waits for it.

use super::Shared;
use crate::clock;
use crate::limits;
use crate::model::digest::Digest;
use crate::model::{QueueName, UnixMs};
use crate::store::dead::{self, DigestTurn};
use crate::store::{StoreError, queue};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often it is looked whether a digest is due, at most.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// Letters that died this recently wait for the next digest: clocks of several servers differ by less.
const SETTLE_MS: i64 = 2_000;
/// How long one pod may take for a round.
const LEASE_MS: i64 = 120_000;
/// Tries to reach one owner in a round.
const TRIES: u32 = 4;
/// Wait after the first of them that failed, doubled each time.
const RETRY_WAIT: Duration = Duration::from_millis(500);
/// One request in all.
const POST_TIMEOUT: Duration = Duration::from_secs(5);
/// Owners that are told at the same time.
const AT_ONCE: usize = 8;

/// Whom to tell of dead letters, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DigestSettings {
    /// Address for queues without an owner of their own; nothing for none.
    pub webhook: Option<String>,
    /// Least time between two digests of a queue, in ms.
    pub every_ms: i64,
}

impl Default for DigestSettings {
    fn default() -> Self {
        Self { webhook: None, every_ms: limits::DIGEST_EVERY_MS }
    }
}

/// Looks and tells until `stop` fires.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let client = match client() {
        Ok(client) => client,
        Err(error) => return tracing::error!(%error, "owners cannot be told of dead letters"),
    };
    let every = clock::ms(shared.settings.digest.every_ms);
    let mut wait = every.min(LOOK_MAX).mul_f64(fastrand::f64());
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        // A round is cut off by a stop; its lease ends by itself, and what was told may be told again.
        let round = tokio::select! {
            () = stop.cancelled() => return,
            round = round(&shared, &client) => round,
        };
        wait = match round {
            Ok(Some(until)) => {
                shared.space.clock().until_ms(until.0).clamp(Duration::from_millis(100), LOOK_MAX)
            }
            Ok(None) => every.min(LOOK_MAX),
            Err(error) => {
                tracing::warn!(%error, "could not look for new dead letters; trying again");
                LOOK_MAX.min(every)
            }
        };
    }
}

fn client() -> Result<reqwest::Client, reqwest::Error> {
    // An error only says that one was installed before; any will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(POST_TIMEOUT)
        .connect_timeout(Duration::from_secs(2))
        .user_agent(concat!("minutehand/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// One round, if it is this pod's turn. Answers when the next may be, where that is known.
async fn round(shared: &Arc<Shared>, client: &reqwest::Client) -> Result<Option<UnixMs>, StoreError> {
    let (space, settings) = (&shared.space, &shared.settings);
    let table = queue::settings(space).await?;
    let owner_of = |name: &QueueName| {
        let own = table.of(name).owner.as_ref().map(|owner| owner.webhook.clone());
        own.or_else(|| settings.digest.webhook.clone())
    };
    // Nobody wants to hear anything: then nobody asks.
    if settings.digest.webhook.is_none() && table.queues.values().all(|queue| queue.owner.is_none()) {
        return Ok(None);
    }
    let turn = dead::digest_take(space, &settings.id, LEASE_MS, settings.digest.every_ms).await?;
    let (now, told, untold) = match turn {
        DigestTurn::Wait { until } => return Ok(Some(until)),
        DigestTurn::Ours { now, told, untold } => (now, told, untold),
    };
    let to = UnixMs(now.0 - SETTLE_MS);
    if to <= told {
        return Ok(Some(now.plus(settings.digest.every_ms)));
    }
    let digests = gather(shared, told, &untold, to, &owner_of).await?;
    let mut posts = tokio::task::JoinSet::new();
    let (mut left, mut failed) = (digests.into_iter(), BTreeMap::new());
    loop {
        while posts.len() < AT_ONCE {
            let Some((url, digest)) = left.next() else { break };
            let client = client.clone();
            posts.spawn(async move {
                let sent = post(&client, &url, &digest).await;
                (digest, sent)
            });
        }
        match posts.join_next().await {
            None => break,
            Some(Ok((digest, Ok(())))) => {
                tracing::info!(queue = %digest.queue, letters = digest.count, "owner told of dead letters");
            }
            Some(Ok((digest, Err(why)))) => {
                tracing::warn!(queue = %digest.queue, letters = digest.count, why, "owner could not be told of dead letters; the next digest has them too");
                failed.insert(digest.queue, digest.from);
            }
            Some(Err(_)) => {}
        }
    }
    if !dead::digest_done(space, &settings.id, to, &failed).await? {
        tracing::warn!("a round of digests took too long; another pod may tell the same again");
    }
    Ok(Some(to.plus(settings.digest.every_ms)))
}

/// The digests of a round, with the address of each. Looks through [`limits::DIGEST_LETTERS_MAX`] letters at most.
async fn gather(
    shared: &Shared,
    told: UnixMs,
    untold: &BTreeMap<QueueName, UnixMs>,
    to: UnixMs,
    owner_of: &impl Fn(&QueueName) -> Option<String>,
) -> Result<Vec<(String, Digest)>, StoreError> {
    let space = &shared.space;
    let groups = space.groups().await?;
    let names: BTreeMap<u32, &QueueName> = groups.iter().map(|(code, group)| (*code, &group.queue)).collect();
    let first = untold.values().copied().fold(told, UnixMs::min);
    let mut digests: BTreeMap<QueueName, (String, Digest)> = BTreeMap::new();
    let (mut looked, mut cut) = (0, BTreeSet::new());
    'buckets: for bucket in space.spread().live() {
        let mut skip = 0;
        loop {
            let page = dead::page(space, bucket, first, skip).await?;
            let full = page.len() == dead::PAGE_MAX;
            skip += page.len();
            looked += page.len();
            for letter in page {
                if letter.at >= to {
                    continue 'buckets;
                }
                let Some(queue) = letter.lane.and_then(|lane| names.get(&lane.group()).copied()) else {
                    continue;
                };
                let from = untold.get(queue).copied().unwrap_or(told);
                if letter.at < from {
                    continue;
                }
                let Some(url) = owner_of(queue) else { continue };
                let (_, digest) = digests.entry(queue.clone()).or_insert_with(|| {
                    (url, Digest::new(space.namespace().as_str(), queue.clone(), from, to))
                });
                let error = letter.attempts.last().map_or("", |attempt| attempt.error.as_str());
                digest.add(letter.id, &letter.reason, error);
            }
            if looked >= limits::DIGEST_LETTERS_MAX {
                cut.extend(digests.keys().cloned());
                break 'buckets;
            }
            if !full {
                break;
            }
        }
    }
    let more = |queue: &QueueName| cut.contains(queue);
    Ok(digests
        .into_iter()
        .map(|(queue, (url, digest))| (url, Digest { more: more(&queue), ..digest }))
        .collect())
}

/// Sends a digest; tried again a few times. An answer of 2xx means that it arrived.
async fn post(client: &reqwest::Client, url: &str, digest: &Digest) -> Result<(), String> {
    let mut wait = RETRY_WAIT;
    let key = format!("{}/{}/{}", digest.namespace, digest.queue, digest.from);
    let body = serde_json::to_vec(digest).map_err(|error| error.to_string())?;
    for attempt in 1.. {
        let request = client
            .post(url)
            .header("content-type", "application/json")
            .header("idempotency-key", &key)
            .body(body.clone());
        let why = match request.send().await {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            Ok(answer) => answer.status().to_string(),
            Err(error) => format!("{:#}", anyhow::Error::new(error)),
        };
        if attempt == TRIES {
            return Err(why);
        }
        tokio::time::sleep(wait.mul_f64(fastrand::f64().mul_add(0.5, 0.5))).await;
        wait *= 2;
    }
    Ok(())
}
