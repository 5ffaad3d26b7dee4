//! Calls that are answered only once their writes are as safe as they must be.
//!
//! For the levels of one server it is asked how it is set up, before anything is sent: once for each
//! connection, and again every few seconds. The levels of replicas and files wait, on a connection
//! that no other call shares: a wait holds up whatever comes behind it.

use super::connect::NodeInfo;
use super::error::StoreError;
use super::reply::Reply;
use super::script::Script;
use super::script_call::{Fault, Request, Wait};
use super::topology::{Node, Persistence};
use super::{Store, slot_of};
use crate::clock::mono;
use crate::limits::{DURABLE_WAIT_MS, PERSISTENCE_KEPT_MS};
use crate::model::Durability;
use bytes::Bytes;
use std::fmt;
use std::time::Duration;

/// How far a call's writes are behind what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortfall {
    /// What was asked for.
    pub level: Durability,
    /// Whether the master's own file has them; nothing where that was not asked.
    pub local: Option<bool>,
    /// Replicas that have them.
    pub replicas: u32,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.local == Some(false) {
            f.write_str("the master's file does not have it, and ")?;
        }
        let asked = match self.level {
            Durability::Wait { replicas } | Durability::WaitAof { replicas, .. } => replicas,
            Durability::Memory | Durability::EverySecond | Durability::Always => 0,
        };
        write!(f, "{} of {asked} replicas have it", self.replicas)
    }
}

impl Store {
    /// Runs a script as [`Store::call`] does, and answers only when its writes are as safe as `level`
    /// says, or when that did not come true in time: then it says what is missing.
    ///
    /// A server that cannot keep such a promise is an error, and nothing is sent to it.
    pub async fn call_durable(
        &self,
        script: &'static Script,
        keys: [Bytes; 2],
        args: Vec<Bytes>,
        level: Durability,
    ) -> Result<(Reply, Option<Shortfall>), StoreError> {
        let half = u64::try_from(self.inner.topology.dialer.call_timeout.as_millis() / 2).unwrap_or(u64::MAX);
        // Zero would wait for ever; longer looks like a dead connection.
        let at_most_ms = u32::try_from(DURABLE_WAIT_MS.min(half).max(1)).unwrap_or(u32::MAX);
        let wait = match level {
            Durability::Memory | Durability::EverySecond | Durability::Always => None,
            Durability::Wait { replicas } => Some(Wait { local: None, replicas, at_most_ms }),
            Durability::WaitAof { local, replicas } => {
                Some(Wait { local: Some(local), replicas, at_most_ms })
            }
        };
        let slot = slot_of(&keys[0]);
        let request = Request::Script { script, keys: &keys, args: &args, level, wait };
        let told = self.run(request, Some(slot)).await?;
        let Some(wait) = wait else { return Ok((told, None)) };
        let mut both = told.fields(script.name)?;
        let answer = both.next("the answer")?;
        let count = |n: i64| u32::try_from(n).unwrap_or(0);
        let (local, replicas) = match wait.local {
            None => (None, count(both.int("the replicas")?)),
            Some(asked) => {
                let mut files = both.fields("the files")?;
                let local = files.int("the master's file")? > 0;
                (asked.then_some(local), count(files.int("the replicas' files")?))
            }
        };
        let holds = local != Some(false) && replicas >= wait.replicas;
        Ok((answer, (!holds).then_some(Shortfall { level, local, replicas })))
    }

    /// Sends what must be safe before it is answered.
    pub(super) async fn send_durable(
        &self,
        node: &Node,
        request: Request<'_>,
        left: Duration,
        asking: bool,
    ) -> Result<Reply, Fault> {
        let start = mono();
        let rest = || left.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
        self.assure(node, request.level(), left).await?;
        if request.wait().is_none() {
            let client = node.client(rest()).await.map_err(|detail| Fault::Unsent { detail })?;
            return self.send_by(node, &client, request, rest(), asking).await;
        }
        let dialer = &self.inner.topology.dialer;
        let lent = node.lend(dialer, rest()).await.map_err(|detail| Fault::Unsent { detail })?;
        let told = self.send_by(node, lent.client(), request, rest(), asking).await;
        if told.is_ok() {
            lent.give_back();
        }
        told
    }

    /// Makes sure that a server is set up for what shall be promised.
    async fn assure(&self, node: &Node, level: Durability, left: Duration) -> Result<(), Fault> {
        let refuse = |what: String| {
            let url = self.url();
            Err(Fault::Fatal(StoreError::CannotPromise { level, url, what }))
        };
        match level {
            Durability::Memory | Durability::Wait { .. } => Ok(()),
            Durability::EverySecond | Durability::Always => {
                let Persistence { appends, fsync, .. } = match self.persistence(node, level, left).await {
                    Ok(known) => known,
                    Err(Fault::Fatal(error)) => {
                        return refuse(format!("how it keeps its data cannot be asked ({error})"));
                    }
                    Err(fault) => return Err(fault),
                };
                match (appends, fsync.as_str(), level) {
                    (false, ..) => refuse("it keeps no append-only file (appendonly is no)".into()),
                    (true, "always", _) | (true, "everysec", Durability::EverySecond) => Ok(()),
                    (true, other, _) => refuse(format!("its appendfsync is {other}")),
                }
            }
            Durability::WaitAof { local, .. } => {
                let Persistence { appends, waits_for_files, version, .. } =
                    self.persistence(node, level, left).await?;
                if !waits_for_files {
                    return refuse(format!(
                        "version {version} has no WAITAOF; that needs Redis 7.2 or Valkey"
                    ));
                }
                if local && !appends {
                    return refuse("it keeps no append-only file (appendonly is no)".into());
                }
                Ok(())
            }
        }
    }

    async fn persistence(
        &self,
        node: &Node,
        level: Durability,
        left: Duration,
    ) -> Result<Persistence, Fault> {
        let files = matches!(level, Durability::WaitAof { .. });
        let kept = Duration::from_millis(PERSISTENCE_KEPT_MS);
        if let Some(known) = node.persistence(kept).filter(|known| known.of_info == files) {
            return Ok(known);
        }
        let start = mono();
        let client = node.client(left).await.map_err(|detail| Fault::Unsent { detail })?;
        let epoch = node.epoch();
        let left = left.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
        let known = if files {
            let request = Request::Command { name: "INFO", args: &[] };
            let told = self.send_by(node, &client, request, left, false).await?;
            let info = NodeInfo::parse(String::new(), &told.text("INFO").map_err(Fault::Fatal)?);
            let waits_for_files = info.redis_version_at_least(7, 2);
            Persistence {
                appends: info.append_only,
                fsync: String::new(),
                waits_for_files,
                version: info.version,
                of_info: true,
            }
        } else {
            let args = [Bytes::from_static(b"appendonly"), Bytes::from_static(b"appendfsync")];
            let request = Request::Command { name: "CONFIG GET", args: &args };
            let told = self.send_by(node, &client, request, left, false).await?;
            let mut known = Persistence::default();
            for (name, value) in told.pairs("CONFIG GET").map_err(Fault::Fatal)? {
                let value = value.text("CONFIG GET").map_err(Fault::Fatal)?;
                match &name[..] {
                    b"appendonly" => known.appends = value == "yes",
                    b"appendfsync" => known.fsync = value,
                    _ => {}
                }
            }
            known
        };
        node.learn(epoch, known.clone());
        Ok(known)
    }
}
