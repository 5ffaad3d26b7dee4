//! How late tasks begin that fall due once a pod has died: measured in peace, after everything else.

use crate::members::Member;
use crate::{NAMESPACE, open, say};
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

/// The latest start, in ms after due, of tasks that fell due after a pod was killed that held buckets and stays dead.
/// Nothing where that could not be seen.
pub async fn after_pod_death(url: &str, pods: &Mutex<Vec<Member>>, dir: &Path) -> Option<i64> {
    let client = Client::new(open(url).await?);
    let start = mono();
    let members = pods.lock().len();
    let pid = loop {
        let live = client.status().await.ok()?.pods;
        let holder = live.iter().find(|pod| !pod.buckets.is_empty());
        match holder {
            Some(pod) if live.len() == members => break pod.pid,
            _ if start.elapsed() > LONGEST / 2 => return None,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let queue = QueueName::new(NAMESPACE).ok()?;
    let task =
        |n: i64| NewTask { due: Due::In(500 + n), payload: "plain".into(), ..NewTask::to(queue.clone()) };
    let told = client.submit_batch((0..4_000).map(task).collect()).await.ok()?;
    let dues: HashMap<TaskId, i64> = told.into_iter().flatten().map(|one| (one.id, one.due.0)).collect();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    pods.lock().iter().find(|member| member.id() == pid)?.signal(libc::SIGKILL);
    let died = client.space().clock().now_ms();
    let mut left: HashSet<TaskId> =
        dues.into_iter().filter(|(_, due)| *due > died).map(|(id, _)| id).collect();
    let (count, mut latest) = (left.len(), 0);
    while !left.is_empty() && start.elapsed() < LONGEST {
        for (id, lag) in starts(dir) {
            if left.remove(&id) {
                latest = latest.max(lag);
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    say(&format!("{count} tasks fell due after a pod had died; {} of them never began", left.len()));
    left.is_empty().then_some(latest)
}

/// Every start that handlers noted, and how late it was.
fn starts(dir: &Path) -> Vec<(TaskId, i64)> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("runs-") {
            for line in BufReader::new(File::open(entry.path()).unwrap()).lines().map_while(Result::ok) {
                let mut words = line.split(' ');
                let id = words.next().and_then(|id| id.parse::<TaskId>().ok());
                let lag = words.nth(1).and_then(|lag| lag.parse::<i64>().ok());
                out.extend(id.zip(lag));
            }
        }
    }
    out
}
