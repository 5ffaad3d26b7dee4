//! Tokens of the HTTP port, and what operators did: `lua/access/`.

use super::StoreError;
use super::intake::clip;
use super::script;
use super::space::Space;
use super::subscribe::Subscription;
use crate::keys::Guard;
use crate::limits;
use crate::model::access::{QueuePattern, Role};
use crate::model::{UnixMs, slice};
use serde::{Deserialize, Serialize};

/// A token as it is kept: all but its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Under which it is kept; the second part of its text.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// SHA-256 of namespace and secret, in hexadecimal digits.
    pub hash: String,
    /// What it is good for.
    pub roles: Vec<Role>,
    /// Queues it is good for; none for all.
    #[serde(default)]
    pub queues: Vec<QueuePattern>,
    /// When it was made.
    pub created_ms: i64,
    /// By whom.
    pub created_by: String,
    /// From when on it is no longer good.
    #[serde(default)]
    pub expires_ms: Option<i64>,
}

/// What became of a wish to keep a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenAnswer {
    /// It is kept.
    Kept,
    /// There are as many tokens as there may be.
    Full,
    /// Another token has its id.
    Taken,
}

fn room(space: &Space) -> Guard {
    Guard::room(space.namespace(), "access")
}

async fn call(
    space: &Space,
    op: &[u8],
    id: &str,
    record: &[u8],
) -> Result<Option<(bool, Vec<TokenRecord>)>, StoreError> {
    let mut args = space.args(5, 64 + record.len());
    args.bytes(op).bytes(id.as_bytes()).bytes(record).number(limits::TOKENS_MAX);
    let answer = space.call(&script::TOKEN, &room(space), args).await?;
    if &answer.word[..] == b"FULL" {
        return Ok(None);
    }
    let mut fields = answer.ok()?;
    let changed = fields.int("changed")? == 1;
    let mut tokens = Vec::with_capacity(fields.left() / 2);
    while fields.left() > 0 {
        fields.bytes("id")?;
        // A record that another version wrote and that cannot be read lets nobody in.
        if let Ok(token) = rmp_serde::from_slice(&fields.bytes("record")?) {
            tokens.push(token);
        }
    }
    tokens.sort_by(|a: &TokenRecord, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    Ok(Some((changed, tokens)))
}

/// Keeps a token.
pub async fn put_token(space: &Space, token: &TokenRecord) -> Result<TokenAnswer, StoreError> {
    let record = rmp_serde::to_vec_named(token).map_err(|error| StoreError::BadReply {
        script: script::TOKEN.name,
        what: format!("own record: {error}"),
    })?;
    Ok(match call(space, b"p", &token.id, &record).await? {
        None => TokenAnswer::Full,
        Some((true, _)) => TokenAnswer::Kept,
        // A repeated call finds its own record.
        Some((false, all)) if all.contains(token) => TokenAnswer::Kept,
        Some((false, _)) => TokenAnswer::Taken,
    })
}

/// Drops a token; answers whether there was one.
pub async fn drop_token(space: &Space, id: &str) -> Result<bool, StoreError> {
    Ok(call(space, b"d", id, b"").await?.is_some_and(|(changed, _)| changed))
}

/// All tokens, by their names.
pub async fn tokens(space: &Space) -> Result<Vec<TokenRecord>, StoreError> {
    Ok(call(space, b"", "", b"").await?.map(|(_, tokens)| tokens).unwrap_or_default())
}

/// How much a namespace may hold; nothing for any amount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "tasks": 1_000_000, "bytes": null }))]
pub struct Quota {
    /// At most so many tasks that have not ended; null for any number.
    #[schema(minimum = 1, maximum = 1_000_000_000_000u64)]
    pub tasks: Option<u64>,
    /// At most so many bytes of tasks that have not ended, and of dead letters: payloads, keys and options, without what
    /// Redis adds; null for any number.
    #[schema(minimum = 1, maximum = 1_000_000_000_000u64)]
    pub bytes: Option<u64>,
}

/// How much the namespace may hold; `set` changes it.
pub async fn quota(space: &Space, set: Option<Quota>) -> Result<Quota, StoreError> {
    let mut args = space.args(3, 48);
    match set {
        Some(set) => args.number(set.tasks.unwrap_or(0)).number(set.bytes.unwrap_or(0)),
        None => args.bytes(b"").bytes(b""),
    };
    let mut fields = space.call(&script::QUOTA, &room(space), args).await?.ok()?;
    let mut next = |what| Ok::<_, StoreError>(u64::try_from(fields.int(what)?).ok().filter(|most| *most > 0));
    Ok(Quota { tasks: next("most tasks")?, bytes: next("most bytes")? })
}

/// Wakes when a token was made or dropped.
pub fn token_news(space: &Space) -> Subscription {
    space.store().subscribe(room(space).key("new"))
}

/// What an operator did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Note {
    /// Its number; later notes have larger ones.
    pub id: String,
    /// When, by Redis's clock.
    #[serde(with = "slice::rfc3339")]
    #[schema(value_type = String)]
    pub at: UnixMs,
    /// Who did it.
    pub who: String,
    /// What was done: `freeze`, `token.create`, `POST /v1/dead:redrive` …
    pub action: String,
    /// To what.
    pub target: String,
    /// More about it.
    pub detail: String,
}

/// Writes down what an operator does.
pub async fn note(
    space: &Space,
    who: &str,
    action: &str,
    target: &str,
    detail: &str,
) -> Result<(), StoreError> {
    let mut args = space.args(6, 256);
    args.bytes(clip(who, 99)).bytes(clip(action, 128)).bytes(clip(target, 256)).bytes(clip(detail, 512));
    args.number(limits::NOTES_KEEP_ROWS);
    space.call(&script::NOTE, &room(space), args).await?.ok()?;
    Ok(())
}

/// What operators did, the latest first; `before` goes on behind a note.
pub async fn notes(space: &Space, before: Option<&str>, most: usize) -> Result<Vec<Note>, StoreError> {
    let mut args = space.args(3, 64);
    args.bytes(before.unwrap_or("").as_bytes()).number(most);
    let mut fields = space.call(&script::NOTES, &room(space), args).await?.ok()?;
    let mut out = Vec::with_capacity(fields.left() / 6);
    while fields.left() > 0 {
        out.push(Note {
            id: fields.text("id")?,
            at: UnixMs(fields.text("at")?.parse().unwrap_or(0)),
            who: fields.text("who")?,
            action: fields.text("action")?,
            target: fields.text("target")?,
            detail: fields.text("detail")?,
        });
    }
    Ok(out)
}
