//! Tokens of the HTTP port, and what operators did.

use super::{Client, ClientError, repeat};
use crate::limits;
use crate::model::access::{QueuePattern, Role, TOKEN_ID_LEN, TokenText};
use crate::model::lane::check_name;
use crate::model::{FieldError, Namespace, Reason};
use crate::store::StoreError;
use crate::store::access::{self, Note, TokenAnswer, TokenRecord};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

/// A token to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// What people call it.
    pub name: String,
    /// What it is good for.
    pub roles: Vec<Role>,
    /// Queues it is good for; none for all.
    pub queues: Vec<QueuePattern>,
    /// How long it is good; for ever without.
    pub expires_after_ms: Option<i64>,
}

/// The hash under which a secret is kept: that of one namespace is of no use in another.
pub fn token_hash(namespace: &Namespace, secret: &str) -> String {
    let text = format!("{namespace}\n{secret}");
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a token is the one that a record was made for. It takes the same time wherever the two differ.
pub fn token_fits(namespace: &Namespace, token: &TokenText, record: Option<&TokenRecord>) -> bool {
    let hash = token_hash(namespace, &token.secret);
    // An unknown id is compared as well, so that the time does not tell which ids there are.
    let none = "0".repeat(hash.len());
    let kept = record.map_or(none.as_str(), |record| record.hash.as_str());
    record.is_some() & bool::from(hash.as_bytes().ct_eq(kept.as_bytes()))
}

pub(super) fn random(bytes: &mut [u8]) -> Result<(), ClientError> {
    SystemRandom::new().fill(bytes).map_err(|_| {
        ClientError::Store(StoreError::Script {
            name: "access.token",
            detail: "the operating system gave no random bytes".to_owned(),
        })
    })
}

impl Client {
    /// Makes a token; its text is shown this once and kept nowhere.
    pub async fn token_create(
        &self,
        new: NewToken,
        who: &str,
    ) -> Result<(TokenText, TokenRecord), ClientError> {
        check_name("name", &new.name, limits::TOKEN_NAME_MAX_BYTES)?;
        if new.roles.is_empty() {
            return Err(FieldError::new(
                "role",
                Reason::Missing,
                "a token without a role is good for nothing",
            )
            .into());
        }
        if new.queues.len() > limits::TOKEN_QUEUES_MAX {
            let detail = format!("at most {} patterns are allowed", limits::TOKEN_QUEUES_MAX);
            return Err(FieldError::new("queue", Reason::TooMany, detail).into());
        }
        if new.expires_after_ms.is_some_and(|ms| !(1..=limits::DUE_AHEAD_MAX_MS).contains(&ms)) {
            let detail = "it must lie in the future, within ten years";
            return Err(FieldError::new("expires", Reason::OutOfRange, detail).into());
        }
        let space = self.space();
        let (mut id, mut secret) = ([0u8; TOKEN_ID_LEN / 2], [0u8; 32]);
        random(&mut id)?;
        random(&mut secret)?;
        // Digits that nobody takes for an option or for the end of the id.
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = TokenText { id: id.clone(), secret: URL_SAFE_NO_PAD.encode(secret) };
        let now = space.clock().now_ms();
        let record = TokenRecord {
            id,
            name: new.name,
            hash: token_hash(space.namespace(), &text.secret),
            roles: new.roles,
            queues: new.queues,
            created_ms: now,
            created_by: who.to_owned(),
            expires_ms: new.expires_after_ms.map(|ms| now.saturating_add(ms)),
        };
        self.note(who, "token.create", &record.name, &format!("id {}", record.id)).await?;
        match repeat(space, || access::put_token(space, &record)).await? {
            TokenAnswer::Kept => Ok((text, record)),
            TokenAnswer::Full => {
                let detail = format!("there are {} tokens; revoke some", limits::TOKENS_MAX);
                Err(FieldError::new("name", Reason::TooMany, detail).into())
            }
            // One in 2^40.
            TokenAnswer::Taken => {
                Err(FieldError::new("name", Reason::TooMany, "its id is taken; try again").into())
            }
        }
    }

    /// All tokens, without their secrets.
    pub async fn tokens(&self) -> Result<Vec<TokenRecord>, ClientError> {
        let space = self.space();
        Ok(repeat(space, || access::tokens(space)).await?)
    }

    /// Makes a token worthless within seconds, everywhere; answers whether there was one.
    pub async fn token_revoke(&self, id: &str, who: &str) -> Result<bool, ClientError> {
        let space = self.space();
        self.note(who, "token.revoke", id, "").await?;
        Ok(repeat(space, || access::drop_token(space, id)).await?)
    }

    /// Removes the whole namespace, tokens and settings too; answers how many keys there were. Refused while a pod or
    /// an executor lives in it.
    pub async fn purge(&self) -> Result<u64, ClientError> {
        let (pods, executors) = (self.pods().await?, self.executors().await?);
        if !pods.is_empty() || !executors.is_empty() {
            let detail = format!(
                "{} pods and {} executors live in {}; stop them first (those that were killed count for {} s more)",
                pods.len(),
                executors.len(),
                self.space().namespace(),
                limits::LOST_AFTER_MS / 1_000
            );
            return Err(FieldError::new("namespace", Reason::InvalidType, detail).into());
        }
        Ok(crate::store::purge::purge(self.space()).await?)
    }

    /// Writes down what an operator does.
    pub async fn note(&self, who: &str, action: &str, target: &str, detail: &str) -> Result<(), ClientError> {
        let space = self.space();
        Ok(repeat(space, || access::note(space, who, action, target, detail)).await?)
    }

    /// What operators did, the latest first; `before` goes on behind a note.
    pub async fn notes(&self, before: Option<&str>, most: usize) -> Result<Vec<Note>, ClientError> {
        let space = self.space();
        if before.is_some_and(|id| {
            !id.split_once('-')
                .is_some_and(|(ms, seq)| ms.parse::<u64>().is_ok() && seq.parse::<u64>().is_ok())
        }) {
            return Err(FieldError::new("cursor", Reason::InvalidType, "it is no number of a note").into());
        }
        let most = most.clamp(1, limits::HTTP_PAGE_MAX_ROWS);
        Ok(repeat(space, || access::notes(space, before, most)).await?)
    }
}
