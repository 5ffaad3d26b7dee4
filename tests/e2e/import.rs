//! Imports that are killed, repeated, and given nonsense.

use super::*;
use minutehand::testing::process::until;
use std::io::Write;

const HEADER: &str = "due,id,text\n";
const ROWS: usize = 12_000;

fn rows(range: std::ops::Range<usize>) -> String {
    range.map(|n| format!("2013-11-27T05:{:02}:{:02},row-{n},hello {n}\n", n / 60 % 60, n % 60)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_that_is_killed_is_run_again_and_makes_each_task_once() {
    let town = Town::new(&[]).await;
    let words =
        ["import", "-", "--queue", "q", "--key", "id", "--tz", "UTC", "--rebase", "2013-11-27T05:00:00=now"];
    let whole = format!("{HEADER}{}", rows(0..ROWS));
    let first = town.program.start("import", &words);
    // More than half of the plan is there, the rest will never come.
    let mut pipe = first.stdin();
    pipe.write_all(HEADER.as_bytes()).unwrap();
    pipe.write_all(rows(0..ROWS * 3 / 4).as_bytes()).unwrap();
    pipe.flush().unwrap();
    town.until("something is in", |counts| counts.submitted > 0).await;
    first.kill9();
    drop(pipe);

    // Its time of "now" is another one; the keys are the same.
    let json = [&words[..], &["--output", "json"]].concat();
    let second = town.program.run_with(&json, whole.as_bytes());
    assert_eq!(second.code, Some(0), "{second:?}");
    let done = second.json();
    let (created, duplicates) = (done["created"].as_i64().unwrap(), done["duplicates"].as_i64().unwrap());
    println!("{duplicates} were in when it was killed");
    assert_eq!((created + duplicates, done["rows"].as_u64()), (ROWS as i64, Some(ROWS as u64)));
    assert!((1..=ROWS as i64 * 3 / 4).contains(&duplicates), "{done}");
    let third = town.program.run_with(&json, whole.as_bytes()).json();
    assert_eq!((&third["created"], &third["duplicates"]), (&0.into(), &ROWS.into()));
    assert_eq!(town.counts().await.0.submitted, ROWS as i64);
    town.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imported_tasks_have_the_lease_and_retries_of_the_settings() {
    let town = Town::new(&[("defaults.lease", "1500ms"), ("defaults.dispatch_timeout", "1s")]).await;
    let plan = b"due,id\n2013-11-27T05:00:00Z,a\n";
    let words =
        ["import", "-", "--queue", "flights", "--key", "id", "--retries", "5", "--backoff", "fixed:50ms"];
    assert_eq!(town.program.run_with(&words, plan).code, Some(0));
    let submitted =
        town.program.run(&["submit", "--queue", "flights", "--retries", "5", "--backoff", "fixed:50ms"]);
    let pods = town.pod("pod-1");
    let first = town.executor("ex-1", &["--exec", "cat >/dev/null; exec sleep 60"]);
    let lives = until("both are known", NEVER, || {
        let lives = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(town.lives()));
        (lives.len() == 2).then_some(lives)
    });
    for id in lives.keys() {
        let (start, mut view) = (minutehand::clock::mono(), town.client.get(*id).await.unwrap().unwrap());
        while view.view != "started" {
            assert!(start.elapsed() < NEVER, "{view:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
            view = town.client.get(*id).await.unwrap().unwrap();
        }
        assert_eq!((view.retries, view.backoff.as_deref()), (Some(5), Some("fixed:50ms")));
        let left = view.lease_until.unwrap().0 - town.space.clock().now_ms();
        assert!(left <= 1_500, "{left} ms of lease are left");
    }
    // Killed while both run: its leases lapse, and another executor runs them again.
    first.kill9();
    let killed = minutehand::clock::mono();
    let _second = town.executor("ex-2", &["--discard"]);
    town.until_succeeded(2).await;
    println!("run again {:?} after the executor's death", killed.elapsed());
    for id in lives.keys() {
        let history = events::trace(&town.space, *id).await.unwrap().events;
        assert!(history.iter().any(|event| event.event == Move::Retried), "{history:?}");
    }
    assert!(submitted.code == Some(0) && pods.is_alive());
    town.check().await;
}
