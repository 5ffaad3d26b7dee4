//! The verdict over every single task.

use crate::fleet::Bench;
use crate::producer::Known;
use crate::{REST_SECONDS, number, open_soon};
use minutehand::client::Client;
use minutehand::clock::mono;
use minutehand::keys::Kind;
use minutehand::model::replay::Report;
use minutehand::model::{State, TaskId};
use minutehand::store::check::{self, CheckOptions};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

/// How often handlers ran, and why they ran again.
#[derive(Default)]
pub struct Runs {
    pub all: u64,
    /// The run before had failed, as its payload asked it to.
    pub failed_before: u64,
    /// The grant of the run before had lapsed or was handed back before its outcome arrived.
    pub lapsed_before: u64,
    /// Nobody knows of an end of the run before: its grant, or what was said of it, was lost with a master.
    pub forgotten: u64,
}

impl Runs {
    /// How often they ran beyond the first time.
    pub fn repeated(&self) -> u64 {
        self.failed_before + self.lapsed_before + self.forgotten
    }
}

/// How the grants of a task ended that did not end the task: whether its handler had failed.
type Ends = HashMap<(TaskId, u32), bool>;

pub fn runs(dir: &Path, ends: &Ends) -> Runs {
    let mut by_id: HashMap<TaskId, Vec<(u32, i64)>> = HashMap::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("runs-") {
            for line in BufReader::new(File::open(entry.path()).unwrap()).lines().map_while(Result::ok) {
                // The last line of one that was killed may be cut off.
                let words: Vec<&str> = line.split(' ').collect();
                if let [id, fence, _, at] = words[..]
                    && let (Ok(id), Ok(fence), Ok(at)) = (id.parse(), fence.parse(), at.parse())
                {
                    by_id.entry(id).or_default().push((fence, at));
                }
            }
        }
    }
    let mut runs = Runs::default();
    for (id, mut of_one) in by_id {
        // By their grants: one that was frozen may run an old one last.
        of_one.sort_unstable();
        runs.all += of_one.len() as u64;
        for (fence, _) in &of_one[..of_one.len() - 1] {
            match ends.get(&(id, *fence)) {
                Some(true) => runs.failed_before += 1,
                Some(false) => runs.lapsed_before += 1,
                None => runs.forgotten += 1,
            }
        }
    }
    runs
}

/// What the verdict found.
#[derive(Default)]
pub struct Verdict {
    pub faults: Vec<String>,
    pub replay: Report,
    pub lost: u64,
    /// How grants ended that did not end their task.
    pub ends: Ends,
    /// Cancels that were accepted and then lost with a master.
    pub cancels_lost: u64,
}

pub async fn judge(bench: &Bench, known: &Known, durable: bool) -> Verdict {
    let mut verdict = Verdict::default();
    let space = open_soon(&bench.direct_url()).await;
    let client = Client::new(space.clone());
    // Everything comes to rest by itself once the faults have ended.
    let deadline = mono() + Duration::from_secs(number("MINUTEHAND_CHAOS_REST_SECONDS", REST_SECONDS));
    loop {
        match client.counts().await {
            Ok((counts, _)) if counts.is_quiet() => break,
            Ok((counts, _)) if mono() > deadline => {
                verdict
                    .faults
                    .push(format!("not at rest: {} pending, {} running", counts.pending, counts.running));
                break;
            }
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    match client.replay(true).await {
        Ok(report) => {
            if !report.ok {
                let first: Vec<String> = report
                    .findings
                    .iter()
                    .take(5)
                    .map(|f| format!("{} {:?}: {}", f.id, f.kind, f.detail))
                    .collect();
                verdict.faults.push(format!("{} illegal steps: {}", report.faults, first.join("; ")));
            }
            verdict.replay = report;
        }
        Err(error) => verdict.faults.push(format!("replay: {error}")),
    }
    match check::check(&space, CheckOptions::default()).await {
        Ok(report) if report.ok => {}
        Ok(report) => {
            verdict.faults.push(format!("damage: {:?}", report.violations.iter().take(5).collect::<Vec<_>>()))
        }
        Err(error) => verdict.faults.push(format!("check: {error}")),
    }
    // Every created task has an end, and only the expected ones.
    let mut ends: HashMap<TaskId, State> = HashMap::new();
    let mut tail = client.events();
    loop {
        let events = tail.next().await.unwrap();
        if events.is_empty() {
            break;
        }
        for event in events {
            use minutehand::model::event::Move;
            let end = match event.event {
                Move::Succeeded => State::Succeeded,
                Move::Cancelled => State::Cancelled,
                Move::Died => State::Dead,
                Move::Expired => State::Expired,
                Move::Skipped => State::Skipped,
                Move::Retried | Move::Lost | Move::HandedBack => {
                    let failed = event.cause == "fails at first";
                    verdict.ends.extend(event.fence.map(|fence| ((event.id, fence), failed)));
                    continue;
                }
                _ => continue,
            };
            ends.insert(event.id, end);
        }
    }
    let mut wrong = BTreeMap::<String, u64>::new();
    for id in &known.created {
        match ends.get(id) {
            None => verdict.lost += 1,
            // A cancel is as safe as the master that took it.
            Some(State::Succeeded) if known.cancelled.contains(id) && bench.is_fleet() => {
                verdict.cancels_lost += 1;
            }
            Some(State::Succeeded) if known.cancelled.contains(id) => {
                *wrong.entry("succeeded after an accepted cancel".into()).or_default() += 1;
            }
            Some(State::Succeeded) => {}
            Some(State::Cancelled) => {}
            Some(other) => *wrong.entry(format!("ended as {other}")).or_default() += 1,
        }
    }
    for ids in known.keys.values() {
        // What a lost master had acknowledged stands no more, and its key is free.
        if ids.len() > 1 && durable {
            *wrong.entry("a key that stands for two tasks".into()).or_default() += 1;
        }
    }
    if verdict.lost > 0 && durable {
        verdict.faults.push(format!("{} tasks lost", verdict.lost));
    }
    verdict.faults.extend(wrong.into_iter().map(|(what, count)| format!("{count} tasks {what}")));
    leftovers(bench, &mut verdict).await;
    verdict
}

/// Whether a key may be there though nothing waits and nothing runs.
fn may_stay(key: &str) -> bool {
    let name = key.rsplit_once('}').map_or(key, |(_, name)| name.trim_start_matches(':'));
    !matches!(
        Kind::of(name),
        Some(
            Kind::Due
                | Kind::Ready
                | Kind::Ring
                | Kind::Parked
                | Kind::Task
                | Kind::At
                | Kind::Run
                | Kind::Lease
                | Kind::Leases
                | Kind::Timer
                | Kind::Tries
                | Kind::Dead
                | Kind::Letter
        )
    ) && !matches!(name, "inbox" | "urgent")
}

/// No key is left that should not be. Claims tidy up as they pass, on an idle bucket each half minute; where the clock of
/// leases is ahead of the server's, it takes as long as that is caught up with: twice what it was ahead.
async fn leftovers(bench: &Bench, verdict: &mut Verdict) {
    if !verdict.faults.is_empty() {
        return;
    }
    let deadline = mono() + Duration::from_secs(if bench.is_fleet() { 90 } else { 60 });
    loop {
        let left: Vec<String> = bench.keys().into_iter().filter(|key| !may_stay(key)).collect();
        if left.is_empty() {
            return;
        }
        if mono() > deadline {
            let some = left.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            verdict.faults.push(format!("{} keys left that should not be: {some}", left.len()));
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
