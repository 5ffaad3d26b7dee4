//! Calls that are answered only once their writes are as safe as they must be.
//!
//! For the levels of one server it is asked how it is set up, before anything is sent: once for each
//! connection, and again every few seconds. The levels of replicas and files wait, on a connection
//! that no other call shares: a wait holds up whatever comes behind it.

use super::connect::NodeInfo;
use super::error::StoreError;
use super::reply::Reply;
use super::script::Script;
use super::script_call::{Fault, Request};
use super::topology::{Node, Persistence};
use super::{Store, slot_of};
use crate::clock::mono;
use crate::limits::{DURABLE_WAIT_MS, PERSISTENCE_KEPT_MS};
use crate::model::Durability;
use bytes::Bytes;
use fred::prelude::Client;
use std::fmt;
use std::sync::Arc;
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
    /// says, or when that did not come true in [`DURABLE_WAIT_MS`]: then it says what is missing.
    ///
    /// A server that cannot keep such a promise is an error, and nothing is sent to it.
    pub async fn call_durable(
        &self,
        script: &'static Script,
        keys: [Bytes; 2],
        args: Vec<Bytes>,
        level: Durability,
    ) -> Result<(Reply, Option<Shortfall>), StoreError> {
        let slot = slot_of(&keys[0]);
        let request = Request::Script { script, keys: &keys, args: &args, level, whole: false };
        let told = self.run(request, Some(slot)).await?;
        if !level.waits() {
            return Ok((told, None));
        }
        let mut both = told.fields(script.name)?;
        let answer = both.next("the answer")?;
        let lacks = match (level, both.next("the wait")?) {
            (Durability::WaitAof { local: asked, replicas }, Reply::Array(files)) => {
                let mut files = Reply::Array(files).fields("WAITAOF")?;
                let local = files.int("the master's file")? > 0;
                let have = u32::try_from(files.int("the replicas' files")?).unwrap_or(0);
                let holds = (local || !asked) && have >= replicas;
                (!holds).then_some(Shortfall { level, local: asked.then_some(local), replicas: have })
            }
            (Durability::Wait { replicas }, told) => {
                let have = u32::try_from(told.int("WAIT")?).unwrap_or(0);
                (have < replicas).then_some(Shortfall { level, local: None, replicas: have })
            }
            (_, told) => return Err(both.bad(format!("a wait is answered by {}", told.kind()))),
        };
        Ok((answer, lacks))
    }

    /// Sends what must be safe before it is answered.
    pub(super) async fn send_durable(
        &self,
        node: &Arc<Node>,
        request: Request<'_>,
        left: Duration,
        asking: bool,
    ) -> Result<Reply, Fault> {
        let start = mono();
        let rest = || left.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
        let level = request.level();
        self.assure(node, level, left).await?;
        let (Request::Script { keys, .. }, true) = (request, level.waits()) else {
            let client = node.client(rest()).await.map_err(|detail| Fault::Unsent { detail })?;
            return self.send_by(node, &client, request, rest(), asking).await;
        };
        let dialer = &self.inner.topology.dialer;
        let lent = node.lend(dialer, rest()).await.map_err(|detail| Fault::Unsent { detail })?;
        let answer = self.send_by(node, lent.client(), request, rest(), asking).await?;
        // The script has run: whatever happens now, it must not be taken for unsent.
        let waited = self.wait(node, lent.client(), &keys[0], level, asking).await;
        let waited = waited.map_err(|fault| match fault {
            Fault::Late => Fault::Late,
            other => Fault::Broken { detail: format!("while waiting for durability {level}: {other:?}") },
        })?;
        lent.give_back();
        Ok(Reply::Array(vec![answer, waited]))
    }

    /// Waits until everything that this server has written up to now is as safe as `level` says.
    async fn wait(
        &self,
        node: &Arc<Node>,
        client: &Client,
        key: &Bytes,
        level: Durability,
        asking: bool,
    ) -> Result<Reply, Fault> {
        let left = self.inner.topology.dialer.call_timeout;
        // A connection waits for its own writes only, and a script that finds everything done already has
        // written nothing: it would wait for nothing, while what another connection wrote is on its way.
        let mark = [key.clone(), Bytes::from_static(b"sync"), Bytes::from_static(b"1")];
        self.send_by(node, client, Request::Command { name: "HSET", args: &mark }, left, asking).await?;
        let number = |n: u32| Bytes::from(n.to_string());
        let (name, args) = match level {
            Durability::Memory | Durability::EverySecond | Durability::Always => return Ok(Reply::Int(0)),
            Durability::Wait { replicas } => ("WAIT", vec![number(replicas), number(DURABLE_WAIT_MS)]),
            Durability::WaitAof { local, replicas } => {
                ("WAITAOF", vec![number(local.into()), number(replicas), number(DURABLE_WAIT_MS)])
            }
        };
        let longest = left + Duration::from_millis(DURABLE_WAIT_MS.into());
        self.send_by(node, client, Request::Command { name, args: &args }, longest, false).await
    }

    /// Makes sure that a server is set up for what shall be promised.
    async fn assure(&self, node: &Arc<Node>, level: Durability, left: Duration) -> Result<(), Fault> {
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
        node: &Arc<Node>,
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
