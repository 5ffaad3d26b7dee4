//! `minutehand dev`: everything on one machine, found by the other commands, and its data kept.

use super::*;
use minutehand::testing::process::Ended;
use std::path::{Path, PathBuf};

/// A home directory of its own, short enough for a socket in it.
struct Home(PathBuf);

impl Home {
    fn new() -> Self {
        let path = PathBuf::from(format!("/tmp/mh-e2e-{}-{:x}", std::process::id(), fastrand::u32(..)));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// The program in this directory, without any address of a Redis.
    fn program(&self) -> Program {
        Program::bare(env!("CARGO_BIN_EXE_minutehand"))
            .in_dir(&self.0)
            .env("XDG_CACHE_HOME", self.0.join("cache"))
            .env("HOME", &self.0)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(program: &Program) -> Running {
    let dev = program.start("dev", &["dev", "--listen", "127.0.0.1:0"]);
    dev.until_said("Ctrl-C stops it", NEVER);
    dev
}

fn state(program: &Program, id: &str) -> String {
    program.json(&["get", id])["state"].as_str().unwrap().to_owned()
}

async fn until_done(program: &Program, ids: &[String]) {
    let start = minutehand::clock::mono();
    while ids.iter().any(|id| state(program, id) != "succeeded") {
        assert!(start.elapsed() < NEVER, "{}", program.json(&["status"]));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn submit(program: &Program, wait: &str) -> String {
    let Ended { code, out, err } =
        program.run(&["submit", "--queue", "hello", "--in", wait, "--payload", "hello"]);
    assert_eq!(code, Some(0), "{err}");
    out.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_survive_the_death_of_dev() {
    let home = Home::new();
    let program = home.program();
    let first = start(&program);
    let ran = submit(&program, "0s");
    let diary = home.0.join("ran");
    let command = format!("cat >>{}", diary.display());
    let work = ["work", "--queue", "hello", "--exec", &command];
    let executor = program.start("work", &work);
    until_done(&program, std::slice::from_ref(&ran)).await;
    assert_eq!(executor.stop(NEVER), Some(0), "{}", executor.log());

    let waiting: Vec<String> = ["0s", "100ms", "1s"].iter().map(|wait| submit(&program, wait)).collect();
    let redis = redis_of(&home.0);
    first.kill9();
    // Its Redis dies with it, and what it was given stays.
    let gone = minutehand::clock::mono();
    while std::os::unix::net::UnixStream::connect(&redis).is_ok() {
        assert!(gone.elapsed() < NEVER, "its redis lives on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let lost = program.set("redis.connect_timeout", "200ms").run(&["status"]);
    assert_eq!(lost.code, Some(4), "{lost:?}");

    let program = home.program();
    let second = start(&program);
    assert!(waiting.iter().all(|id| state(&program, id) == "pending"));
    assert_eq!(state(&program, &ran), "succeeded");
    let _executor = program.start("work", &work);
    until_done(&program, &waiting).await;
    assert_eq!(std::fs::read_to_string(&diary).unwrap(), "hello".repeat(4));
    assert_eq!(program.json(&["check"])["ok"], true);
    assert_eq!(second.stop(NEVER), Some(0), "{}", second.log());
    assert!(!home.0.join(".minutehand/dev.json").exists(), "it is no longer to be found");
}

fn redis_of(home: &Path) -> PathBuf {
    let found: serde_json::Value =
        serde_json::from_slice(&std::fs::read(home.join(".minutehand/dev.json")).unwrap()).unwrap();
    found["url"].as_str().unwrap().strip_prefix("unix://").unwrap().into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_dev_says_what_is_in_its_way() {
    let home = Home::new();
    let program = home.program();
    let dev = start(&program);
    let again = program.run(&["dev", "--listen", "127.0.0.1:0"]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(
        again.err.starts_with(
            "error: a `minutehand dev` runs in .minutehand already, its HTTP port is http://127.0.0.1:"
        ),
        "{again:?}"
    );

    let found: serde_json::Value =
        serde_json::from_slice(&std::fs::read(home.0.join(".minutehand/dev.json")).unwrap()).unwrap();
    let port = found["http"].as_str().unwrap().rsplit(':').next().unwrap();
    let taken = format!("127.0.0.1:{port}");
    let beside = program.run(&["dev", "--data", "other", "--listen", &taken, "--output", "json"]);
    assert_eq!(beside.code, Some(2), "{beside:?}");
    let error = beside.error();
    assert_eq!(error["field"], "pod.listen");
    assert!(
        error["message"].as_str().unwrap().starts_with(&format!("{taken} cannot be listened on: ")),
        "{error}"
    );
    assert!(!home.0.join("other/dev.json").exists());
    // It left nothing behind: not its Redis, not its place.
    let socket = home.0.join("other/server.sock");
    assert!(std::os::unix::net::UnixStream::connect(&socket).is_err());
    assert_eq!(program.json(&["status"])["pods"].as_array().unwrap().len(), 1);
    assert_eq!(dev.stop(NEVER), Some(0), "{}", dev.log());
}
