//! How late tasks begin that fall due once a pod has died: measured in peace, after everything else.

use crate::members::Member;
use crate::{NAMESPACE, open_soon, say};
use minutehand::client::{Client, Due, NewTask};
use minutehand::clock::mono;
use minutehand::model::{QueueName, TaskId};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

/// Longest that the measurement may take.
const LONGEST: Duration = Duration::from_secs(40);
/// Tasks whose starts are measured: one falls due each ms.
const TASKS: i64 = 4_000;

/// The latest starts, in ms after due, of tasks that fell due after a pod's death.
#[derive(Debug, Clone, Copy, Default)]
pub struct Late {
    /// Of those that another pod claimed: late by the dead one's permit, and a poll.
    pub ms: i64,
    /// Of those that the dead one had claimed ahead and had not handed over: they come back by their dispatch time-out.
    pub in_its_hands_ms: i64,
}

/// How late tasks begin that fall due after a pod was killed that held buckets and stays dead; or why that could not be
/// seen.
pub async fn after_pod_death(url: &str, pods: &Mutex<Vec<Member>>, dir: &Path) -> Result<Late, String> {
    let client = Client::new(open_soon(url).await);
    let start = mono();
    // Everybody lives, and somebody holds buckets. Records of those that were killed stay for some seconds.
    let (mut seen, mut error) = (Vec::new(), String::new());
    let pid = loop {
        match client.status().await {
            Ok(status) => seen = status.pods,
            Err(cause) => error = cause.to_string(),
        }
        let mine: Vec<u32> = pods.lock().iter().map(Member::id).collect();
        let all_there = seen.len() == mine.len() && seen.iter().all(|pod| mine.contains(&pod.pid));
        if let Some(holder) = seen.iter().find(|pod| all_there && !pod.buckets.is_empty()) {
            break holder.pid;
        }
        if start.elapsed() > LONGEST / 2 {
            let seen: Vec<_> = seen.iter().map(|pod| (pod.pid, pod.buckets.len())).collect();
            return Err(format!(
                "pods {mine:?} run, and pods with so many buckets are known: {seen:?} {error}"
            ));
        }
        pods.lock().iter_mut().for_each(Member::revive);
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let queue = QueueName::new(NAMESPACE).map_err(|error| error.to_string())?;
    // In no order, so that each bucket has some at all times: what is submitted together lies together.
    let due = |n: i64| Due::In(500 + n * 1_009 % TASKS);
    let task = |n: i64| NewTask { due: due(n), payload: "plain".into(), ..NewTask::to(queue.clone()) };
    let told =
        client.submit_batch((0..TASKS).map(task).collect()).await.map_err(|error| error.to_string())?;
    let dues: HashMap<TaskId, i64> = told.into_iter().flatten().map(|one| (one.id, one.due.0)).collect();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let died = {
        let mut pods = pods.lock();
        let at = pods.iter().position(|member| member.id() == pid).ok_or("the pod has gone by itself")?;
        pods.remove(at).kill9();
        client.space().clock().now_ms()
    };
    let mut left: HashSet<TaskId> =
        dues.into_iter().filter(|(_, due)| *due > died).map(|(id, _)| id).collect();
    let (count, mut late) = (left.len(), Late::default());
    if count < TASKS as usize / 4 {
        return Err(format!("only {count} tasks fell due after the pod had died: the machine is too busy"));
    }
    while !left.is_empty() && start.elapsed() < LONGEST {
        for (id, fence, lag) in starts(dir) {
            if left.remove(&id) {
                let latest = if fence == 1 { &mut late.ms } else { &mut late.in_its_hands_ms };
                *latest = lag.max(*latest);
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    say(&format!("{count} tasks fell due after a pod had died"));
    if left.is_empty() { Ok(late) } else { Err(format!("{} of {count} tasks never began", left.len())) }
}

/// Every start that handlers noted: under which fence, and how late it was.
fn starts(dir: &Path) -> Vec<(TaskId, i64, i64)> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("runs-") {
            for line in BufReader::new(File::open(entry.path()).unwrap()).lines().map_while(Result::ok) {
                let mut words = line.split(' ');
                let id = words.next().and_then(|id| id.parse::<TaskId>().ok());
                let mut number = || words.next().and_then(|word| word.parse::<i64>().ok());
                if let (Some(id), Some(fence), Some(lag)) = (id, number(), number()) {
                    out.push((id, fence, lag));
                }
            }
        }
    }
    out
}
