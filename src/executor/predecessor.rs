//! The process that ran here before: a restarted executor signs it off, so that nothing is routed to the dead one.
//!
//! Instances are told apart by their ids, and each start has a new one. That another instance is this one's
//! predecessor, and dead, follows from the journal, which has one owner; or from the machine's list of
//! processes. Where neither can tell (a container that was started anew) it is watched for one heartbeat.
//! Should one be signed off that lives all the same, nothing is lost: what lay in its inbox runs elsewhere, and
//! its next heartbeat brings it back.

use super::link::{ExecutorRecord, Link};
use super::runner::Core;
use crate::limits;
use std::sync::Arc;
use std::time::Duration;

/// How long one that may be dead is watched: a heartbeat, and a third for one that comes late.
const WATCH: Duration = Duration::from_millis(limits::HEARTBEAT_MS.unsigned_abs() * 4 / 3);
/// How long its tasks may be tried to be handed back.
const PATIENCE: Duration = Duration::from_secs(5);
/// The cause in the history of its tasks.
const CAUSE: &str = "its executor was started anew";

/// What another instance is to this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Other {
    /// Nothing.
    Stranger,
    /// The one before, and it is dead.
    Dead,
    /// Perhaps the one before, perhaps a sibling.
    Unsure,
}

/// Judges another instance; `began` says when a process of this machine began, if it lives.
pub(super) fn judge(
    me: &ExecutorRecord,
    other: &ExecutorRecord,
    began: impl Fn(u32) -> Option<u64>,
) -> Other {
    if other.id == me.id || other.host != me.host {
        return Other::Stranger;
    }
    if !me.journal_at.is_empty() && me.journal_at == other.journal_at {
        return Other::Dead;
    }
    if other.name != me.name {
        return Other::Stranger;
    }
    if me.machine.is_empty() || other.machine.is_empty() || me.machine != other.machine {
        return Other::Unsure;
    }
    match began(other.pid) {
        Some(since) if since == other.began => Other::Stranger,
        Some(_) | None => Other::Dead,
    }
}

/// Where this process runs: boot and process namespace, within which process ids mean something. Empty where
/// the system does not say.
pub(super) fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let (boot, space) = (boot.trim(), space.to_string_lossy());
    if boot.is_empty() || space.is_empty() { String::new() } else { format!("{boot}/{space}") }
}

/// When a process began, in ticks since the machine did; nothing when there is none.
pub(super) fn began(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may have anything in it, also spaces and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Signs off those that are dead for sure, and has those watched that may be. Errors cost nothing but time:
/// pods miss a dead executor by themselves.
pub(super) async fn sign_off<L: Link>(core: &Arc<Core<L>>, me: &ExecutorRecord) {
    let others = match core.link.roll().await {
        Ok(others) => others,
        Err(error) => {
            tracing::debug!(%error, "could not look for a predecessor");
            return;
        }
    };
    let mut unsure = Vec::new();
    for other in others {
        match judge(me, &other, began) {
            Other::Stranger => {}
            Other::Dead => end(core, &other.id).await,
            Other::Unsure => unsure.push(other),
        }
    }
    if !unsure.is_empty() {
        let core = Arc::clone(core);
        tokio::spawn(async move { watch(&core, unsure).await });
    }
}

async fn watch<L: Link>(core: &Arc<Core<L>>, unsure: Vec<ExecutorRecord>) {
    if core.closing.run_until_cancelled(tokio::time::sleep(WATCH)).await.is_none() {
        return;
    }
    let Ok(now) = core.link.roll().await else { return };
    for before in unsure {
        if now.iter().any(|record| record.id == before.id && record.beats == before.beats) {
            end(core, &before.id).await;
        }
    }
}

async fn end<L: Link>(core: &Arc<Core<L>>, id: &str) {
    match core.link.sign_off(id).await {
        Ok(offers) => {
            tracing::info!(executor = %core.id, predecessor = id, offers = offers.len(), "the executor before this one is signed off");
            let rows = offers.iter().map(|offer| (offer.id, offer.grant)).collect();
            core.release(CAUSE, rows, PATIENCE).await;
        }
        Err(error) => {
            tracing::warn!(predecessor = id, %error, "could not sign off the executor before this one")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dead_one_of_the_same_name_or_journal_is_the_predecessor() {
        let me = ExecutorRecord {
            id: "b".into(),
            name: "ex".into(),
            host: "h".into(),
            machine: "m".into(),
            pid: 7,
            began: 70,
            ..ExecutorRecord::default()
        };
        let other = ExecutorRecord { id: "a".into(), pid: 5, began: 50, ..me.clone() };
        let lives = |pid| (pid == 5).then_some(50);
        let reused = |pid| (pid == 5).then_some(66);
        let nobody = |_| None;
        assert_eq!(judge(&me, &other, lives), Other::Stranger, "a sibling that lives");
        assert_eq!(judge(&me, &other, reused), Other::Dead, "its process id has another owner now");
        assert_eq!(judge(&me, &other, nobody), Other::Dead);
        assert_eq!(judge(&me, &me.clone(), nobody), Other::Stranger, "itself");
        let renamed = ExecutorRecord { name: "ey".into(), ..other.clone() };
        assert_eq!(judge(&me, &renamed, nobody), Other::Stranger);
        let away = ExecutorRecord { host: "i".into(), ..other.clone() };
        assert_eq!(judge(&me, &away, nobody), Other::Stranger);
        let anew = ExecutorRecord { machine: "n".into(), ..other.clone() };
        assert_eq!(judge(&me, &anew, nobody), Other::Unsure);
        let unknown = ExecutorRecord { machine: String::new(), ..me.clone() };
        assert_eq!(judge(&unknown, &other, nobody), Other::Unsure);
        let journal = |record: &ExecutorRecord| ExecutorRecord { journal_at: "/j".into(), ..record.clone() };
        assert_eq!(judge(&journal(&me), &journal(&renamed), lives), Other::Dead, "the journal has one owner");
        assert_eq!(judge(&journal(&me), &journal(&away), lives), Other::Stranger, "the same path elsewhere");
    }

    #[test]
    fn this_process_lives_and_began_once() {
        assert!(!machine().is_empty());
        assert_eq!(machine(), machine());
        assert!(began(std::process::id()).is_some_and(|at| at > 0));
        assert_eq!(began(u32::MAX), None);
    }
}
