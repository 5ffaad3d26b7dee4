//! Journals that are written, cut, damaged, full and shared.

use super::format::{EXECUTION, HEAD, MAGIC, get_finished, record};
use super::*;
use crate::executor::link::Outcome;
use crate::model::{Bucket, Grant, Minute, Nonce, TaskId};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A directory that goes with its test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("minutehand-journal-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("journal")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn execution(number: u64) -> ExecutionId {
    let id = TaskId::new(Minute(29_408_521), Bucket::new((number % 4) as u16).unwrap(), number);
    ExecutionId { id, grant: Grant::new(1, Nonce::new(number)) }
}

fn row(number: u64, outcome: Outcome) -> AckRow {
    let ExecutionId { id, grant } = execution(number);
    AckRow { id, grant, outcome, lag_ms: 3, took_ms: 11 }
}

fn done(number: u64) -> AckRow {
    row(number, Outcome::Succeeded)
}

fn open(path: &Path) -> (Arc<Journal>, Recovered) {
    let (journal, recovered) = Journal::open(path, "mh", false).unwrap();
    (Arc::new(journal), recovered)
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let error = || "\\PC{0,40}";
    prop_oneof![
        Just(Outcome::Succeeded),
        Just(Outcome::Cancelled),
        Just(Outcome::Skipped),
        error().prop_map(|error| Outcome::Failed { error }),
        error().prop_map(|error| Outcome::Fatal { error }),
        (0i64..99_999, any::<bool>(), error()).prop_map(|(ms, counted, error)| Outcome::RetryAfter {
            ms,
            counted,
            error
        }),
    ]
}

#[test]
fn what_was_begun_and_what_ended_is_found_again() {
    let dir = Dir::new();
    let (journal, nothing) = open(&dir.file());
    assert_eq!(nothing, Recovered::default());
    journal.begin(&[execution(1), execution(2), execution(3)]);
    let failed = row(1, Outcome::Failed { error: "no route to host: é".into() });
    journal.finish(&failed, Some(&execution(4)));
    journal.finish(&done(2), None);
    journal.settle(&[execution(2), execution(77)]);
    drop(journal);
    let (_journal, mut found) = open(&dir.file());
    found.begun.sort_by_key(|execution| execution.grant);
    assert_eq!((found.begun, found.finished), (vec![execution(3), execution(4)], vec![failed]));
    let mode = fs::metadata(dir.file()).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600, "errors of handlers are nobody else's business");
}

#[test]
fn a_journal_has_one_owner() {
    let dir = Dir::new();
    let (journal, _) = open(&dir.file());
    let error = Journal::open(&dir.file(), "mh", false).unwrap_err();
    assert!(matches!(error, JournalError::InUse { .. }), "{error}");
    assert!(error.to_string().ends_with("is in use by another executor; give each its own"), "{error}");
    // Also after it was written anew, which puts another file into its place.
    journal.rewrite(&mut journal.inner.lock()).unwrap();
    assert!(matches!(Journal::open(&dir.file(), "mh", false).unwrap_err(), JournalError::InUse { .. }));
    drop(journal);
    open(&dir.file());
}

#[test]
fn it_takes_no_file_for_a_journal_that_is_none() {
    let dir = Dir::new();
    fs::write(dir.file(), "a plan of mine").unwrap();
    let error = Journal::open(&dir.file(), "mh", false).unwrap_err();
    assert!(matches!(error, JournalError::Foreign { .. }), "{error}");
    assert_eq!(fs::read(dir.file()).unwrap(), b"a plan of mine", "and leaves it alone");
    let nowhere = Journal::open(&dir.0.join("no/where"), "mh", false).unwrap_err();
    assert!(nowhere.to_string().contains("could not open journal"), "{nowhere}");
    let device = Journal::open(Path::new("/dev/null"), "mh", false).unwrap_err();
    assert!(matches!(device, JournalError::Foreign { .. }), "{device}");
}

#[test]
fn work_of_another_namespace_is_not_lost_on_the_way() {
    let dir = Dir::new();
    let (journal, _) = open(&dir.file());
    journal.begin(&[execution(1)]);
    drop(journal);
    let error = Journal::open(&dir.file(), "other", false).unwrap_err();
    assert!(matches!(&error, JournalError::OtherNamespace { found, .. } if found == "mh"), "{error}");
    let (journal, found) = open(&dir.file());
    assert_eq!(found.begun, [execution(1)]);
    journal.settle(&found.begun);
    drop(journal);
    // Nothing is open in it: it may change hands.
    Journal::open(&dir.file(), "other", false).unwrap();
    let (_, found) = Journal::open(&dir.file(), "other", false).unwrap();
    assert_eq!(found, Recovered::default());
}

#[test]
fn it_stays_small_whatever_passes_through_it() {
    let dir = Dir::new();
    let (journal, _) = open(&dir.file());
    let late = row(0, Outcome::Fatal { error: "e".repeat(1_024) });
    journal.begin(&[execution(0)]);
    journal.finish(&late, None);
    let mut largest = 0;
    for number in 1..40_000 {
        journal.begin(&[execution(number)]);
        journal.finish(&done(number), None);
        journal.settle(&[execution(number)]);
        largest = largest.max(journal.inner.lock().size);
    }
    assert!(largest < limits::JOURNAL_COMPACT_BYTES + 1_024, "{largest}");
    assert_eq!(journal.inner.lock().size, fs::metadata(dir.file()).unwrap().len());
    journal.settle(&[execution(0)]);
    // With nothing open it is emptied in its place.
    for number in 1..2_000 {
        journal.finish(&done(number), None);
        journal.settle(&[execution(number)]);
        assert!(journal.inner.lock().size <= IDLE_BYTES + 1_024);
    }
    drop(journal);
    assert_eq!(open(&dir.file()).1, Recovered::default());
}

#[test]
fn a_journal_that_cannot_be_written_is_switched_off() {
    let dir = Dir::new();
    let (journal, _) = open(&dir.file());
    journal.begin(&[execution(1)]);
    journal.inner.lock().file = Arc::new(File::open(dir.file()).unwrap());
    journal.begin(&[execution(2)]);
    assert!(!journal.is_on());
    journal.finish(&done(1), None);
    journal.settle(&[execution(1)]);
    drop(journal);
    assert_eq!(open(&dir.file()).1.begun, [execution(1)], "what had been written still stands");
}

#[test]
fn one_that_is_too_full_is_switched_off_and_one_that_is_found_so_is_refused() {
    let dir = Dir::new();
    let (journal, _) = open(&dir.file());
    let many = |from: u64, to: u64| (from..to).map(execution).collect::<Vec<_>>();
    let most = limits::JOURNAL_OPEN_MAX as u64;
    journal.begin(&many(0, most));
    assert!(journal.is_on());
    journal.begin(&many(most, most + 1));
    assert!(!journal.is_on());
    drop(journal);
    assert_eq!(open(&dir.file()).1.begun.len(), limits::JOURNAL_OPEN_MAX);
    let mut out = Vec::new();
    head(&mut out, "mh");
    put_executions(&mut out, b'b', &many(0, most + 1));
    assert_eq!(read(&out[..]).unwrap_err(), Unreadable::TooLarge);
}

#[tokio::test]
async fn a_sync_covers_what_was_written_before_it() {
    let dir = Dir::new();
    let (journal, _) = Journal::open(&dir.file(), "mh", true).unwrap();
    let journal = Arc::new(journal);
    let first = journal.finish(&done(1), None);
    let second = journal.finish(&done(2), None);
    assert!(first < second);
    journal.sync(second).await;
    assert_eq!(*journal.synced.lock(), second);
    // Synced already: nothing is done.
    journal.sync(first).await;
    assert_eq!(*journal.synced.lock(), second);
}

/// A step in the life of a journal, for execution `.1`.
#[derive(Debug, Clone)]
enum Step {
    Begin(u64),
    Finish(u64, Outcome, Option<u64>),
    Settle(u64),
    Rewrite,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..12).prop_map(Step::Begin),
        4 => (0u64..12, outcome(), proptest::option::of(0u64..12)).prop_map(|(n, o, next)| Step::Finish(n, o, next)),
        3 => (0u64..12).prop_map(Step::Settle),
        1 => Just(Step::Rewrite),
        1 => Just(Step::Restart),
    ]
}

fn sorted(found: Recovered) -> BTreeMap<ExecutionId, Option<AckRow>> {
    let begun = found.begun.into_iter().map(|execution| (execution, None));
    let finished =
        found.finished.into_iter().map(|row| (ExecutionId { id: row.id, grant: row.grant }, Some(row)));
    begun.chain(finished).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens in whatever order, the next process finds what a table in memory would hold.
    #[test]
    fn it_is_a_table_that_outlives_its_process(steps in proptest::collection::vec(step(), 0..60)) {
        let dir = Dir::new();
        let (mut journal, _) = open(&dir.file());
        let mut model = BTreeMap::<ExecutionId, Option<AckRow>>::new();
        for step in steps.into_iter().chain([Step::Restart]) {
            match step {
                Step::Begin(n) => {
                    journal.begin(&[execution(n)]);
                    model.entry(execution(n)).or_insert(None);
                }
                Step::Finish(n, outcome, next) => {
                    let next = next.map(execution);
                    journal.finish(&row(n, outcome.clone()), next.as_ref());
                    model.insert(execution(n), Some(row(n, outcome)));
                    if let Some(next) = next {
                        model.entry(next).or_insert(None);
                    }
                }
                Step::Settle(n) => {
                    journal.settle(&[execution(n)]);
                    model.remove(&execution(n));
                }
                Step::Rewrite => journal.rewrite(&mut journal.inner.lock()).unwrap(),
                Step::Restart => {
                    drop(journal);
                    let found;
                    (journal, found) = open(&dir.file());
                    prop_assert_eq!(sorted(found), model.clone());
                }
            }
        }
    }

    /// A file that was cut anywhere, or in which bytes were turned, gives what its first good records
    /// say; it can be written on, and the next process finds both.
    #[test]
    fn a_damaged_tail_costs_only_itself(
        outcomes in proptest::collection::vec(outcome(), 1..12),
        cut in any::<prop::sample::Index>(),
        flip in proptest::option::of((any::<prop::sample::Index>(), 1u8..=255)),
    ) {
        let dir = Dir::new();
        let mut bytes = Vec::new();
        head(&mut bytes, "mh");
        let mut ends = vec![bytes.len()];
        let rows: Vec<_> = outcomes.into_iter().enumerate().map(|(n, outcome)| row(n as u64, outcome)).collect();
        for row in &rows {
            put_finished(&mut bytes, row);
            ends.push(bytes.len());
        }
        let mut good = cut.index(bytes.len() - ends[0]) + ends[0];
        bytes.truncate(good);
        if let Some((at, mask)) = flip.filter(|_| good > ends[0]) {
            let at = ends[0] + at.index(good - ends[0]);
            bytes[at] ^= mask;
            good = at;
        }
        let whole = ends.iter().filter(|end| **end <= good).count() - 1;
        fs::write(dir.file(), &bytes).unwrap();
        let (journal, found) = open(&dir.file());
        prop_assert_eq!(found.finished.len(), whole);
        prop_assert!(found.finished.iter().all(|row| rows[..whole].contains(row)));
        prop_assert_eq!(fs::metadata(dir.file()).unwrap().len(), ends[whole] as u64, "the rest is cut off");
        journal.begin(&[execution(99)]);
        drop(journal);
        let (_, found) = open(&dir.file());
        prop_assert_eq!((found.finished.len(), found.begun), (whole, vec![execution(99)]));
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        magic: bool,
        size in proptest::option::of(any::<u32>()),
    ) {
        let mut all = if magic { MAGIC.to_vec() } else { Vec::new() };
        if let Some(size) = size {
            all.extend_from_slice(&size.to_be_bytes());
        }
        all.extend_from_slice(&bytes);
        if let Ok(contents) = read(&all[..]) {
            prop_assert!(contents.good <= all.len() as u64);
            prop_assert_eq!(contents.torn.is_some(), contents.good < all.len() as u64);
        }
    }

    /// Also where the checksum is right and only the body is of another version.
    #[test]
    fn any_body_is_a_value_or_an_error(body in proptest::collection::vec(any::<u8>(), 1..200), kind in prop::sample::select(b"nbfsx".to_vec())) {
        let mut all = Vec::new();
        head(&mut all, "mh");
        record(&mut all, |out| {
            out.push(kind);
            out.extend_from_slice(&body);
        });
        let contents = read(&all[..]).unwrap();
        prop_assert!(contents.open.len() <= 200 / EXECUTION);
    }

    #[test]
    fn outcomes_are_read_back(outcome in outcome(), lag_ms: i64, took_ms: i64) {
        let row = AckRow { lag_ms, took_ms, ..row(5, outcome) };
        let mut out = Vec::new();
        put_finished(&mut out, &row);
        prop_assert_eq!(get_finished(&out[HEAD..]), Some(row));
    }
}
