//! Removes a namespace: every key of it, on every master.

use super::space::Space;
use super::{At, StoreError};
use crate::keys::prefixes;
use bytes::Bytes;
use tokio::task::JoinSet;

/// Keys that one step of the walk looks at.
const STEP: u32 = 1_000;
/// Removals under way at a time. Memory is given back by a thread of the server's own.
const AT_ONCE: usize = 64;

/// Removes all keys of the namespace; answers how many. It can be broken off and begun again.
///
/// Nobody may work in the namespace meanwhile: what is written behind the walk stays.
pub async fn purge(space: &Space) -> Result<u64, StoreError> {
    let store = space.store();
    let mut removed = 0;
    for node in store.masters() {
        for prefix in prefixes(space.namespace()) {
            let pattern = Bytes::from(format!("{prefix}*"));
            let mut cursor = Bytes::from_static(b"0");
            loop {
                let (next, keys) = store.scan(&node, cursor, &pattern, STEP).await?;
                let mut calls = JoinSet::new();
                for key in keys {
                    if calls.len() >= AT_ONCE {
                        removed += done(calls.join_next().await)?;
                    }
                    let store = store.clone();
                    calls.spawn(async move {
                        store.command("UNLINK", At::Key(&key), vec![key.clone()]).await?.int("UNLINK")
                    });
                }
                while let Some(ended) = calls.join_next().await {
                    removed += done(Some(ended))?;
                }
                if &next[..] == b"0" {
                    break;
                }
                cursor = next;
            }
        }
    }
    Ok(removed)
}

fn done(ended: Option<Result<Result<i64, StoreError>, tokio::task::JoinError>>) -> Result<u64, StoreError> {
    match ended {
        Some(Ok(count)) => Ok(count?.unsigned_abs()),
        Some(Err(_)) => Err(StoreError::Closed),
        None => Ok(0),
    }
}
