//! Faults planted on purpose, in debug builds only: they show that the suites which look for damage find it.
//!
//! `MINUTEHAND_MUTATE` names one: `nofence` accepts outcomes of any grant, `noreap` never gives lapsed
//! grants back, `nodedup` takes a second task with the same key, `ackloss` answers some outcomes without
//! writing them.

use super::script::Script;
use crate::model::TaskId;
use std::sync::OnceLock;

/// A fault that is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Outcomes of any grant are accepted.
    NoFence,
    /// Lapsed grants are never given back.
    NoReap,
    /// A second task with the same key is taken.
    NoDedup,
    /// Some outcomes are answered and not written.
    AckLoss,
}

/// The fault that the environment asks for; never one in a release build.
pub fn planted() -> Option<Mutation> {
    static PLANTED: OnceLock<Option<Mutation>> = OnceLock::new();
    if !cfg!(debug_assertions) {
        return None;
    }
    *PLANTED.get_or_init(|| match std::env::var("MINUTEHAND_MUTATE").ok()?.as_str() {
        "nofence" => Some(Mutation::NoFence),
        "noreap" => Some(Mutation::NoReap),
        "nodedup" => Some(Mutation::NoDedup),
        "ackloss" => Some(Mutation::AckLoss),
        _ => None,
    })
}

/// Places in the scripts that a fault changes: script, what stands there, what the fault puts there.
const PLACES: [(Mutation, &str, &str, &str); 5] = [
    (Mutation::NoFence, "run.ack", "run_grant(r) ~= sub(row, 17, 34)", "false"),
    (Mutation::NoFence, "run.ack", "if kind.grant ~= grant then return end", ""),
    (Mutation::NoReap, "due.claim", "local strings = lnow < pause and {}", "local strings = true and {}"),
    (Mutation::NoReap, "due.claim", "safely(lapse, piece[2][i], piece[2][i + 1])", "break"),
    (Mutation::NoDedup, "intake.submit", "if first then refuse", "if false then refuse"),
];

/// A script's text with the planted fault, where one concerns it.
pub fn text(script: &Script) -> Option<String> {
    let mutation = planted()?;
    let places = PLACES.iter().filter(|(which, name, ..)| *which == mutation && *name == script.name);
    places.fold(None, |text, (_, _, from, to)| Some(text.as_deref().unwrap_or(script.body).replace(from, to)))
}

/// Whether the outcome of this task is to be lost: one task in 64.
pub fn loses_ack(id: &TaskId) -> bool {
    planted() == Some(Mutation::AckLoss) && id.as_bytes()[TaskId::LEN - 1] == b'A'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_stands_in_its_script() {
        for (mutation, name, from, _) in PLACES {
            let script = super::super::script::ALL.iter().find(|script| script.name == name);
            assert!(script.is_some_and(|script| script.body.contains(from)), "{mutation:?}: {from}");
        }
    }
}
