//! Doors for fuzzers to what only this room knows: the journal and the outcomes in it.

use super::journal;

/// Reads anything as a whole journal.
pub fn journal(bytes: &[u8]) {
    let _ = journal::look(bytes);
}

/// Reads anything as the record of an outcome.
pub fn outcome(bytes: &[u8]) {
    let _ = journal::look_at_outcome(bytes);
}

/// Journals, and outcomes, that are well formed.
pub fn seeds() -> [Vec<Vec<u8>>; 2] {
    journal::seeds()
}
