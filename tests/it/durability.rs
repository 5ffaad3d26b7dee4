//! What each level of durability survives: a server is killed, and what it had acknowledged is counted.

use crate::pair::{NEVER, Pair, space_at, space_on, submit, task};
use minutehand::client::{Client, Due, NewTask, SubmitError};
use minutehand::clock::mono;
use minutehand::dev::redis::{Fsync, PrivateServer, ServerBinary, ServerOptions};
use minutehand::model::{Durability, Key, TaskId};
use minutehand::store::{ConnectSettings, Space, Store, StoreError, read};
use minutehand::testing::bed::until;
use minutehand::testing::fault::{Behind, Fault, FaultProxy};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const WAIT: Durability = Durability::Wait { replicas: 1 };

async fn server(append_only: Option<Fsync>) -> PrivateServer {
    PrivateServer::start(ServerOptions { append_only, ..ServerOptions::default() }).await.expect("a server")
}

fn later(durability: Durability) -> NewTask {
    NewTask { due: Due::In(3_600_000), payload: "x".repeat(200).into(), ..task(durability) }
}

/// Submits from several sides at once until so many tasks are acknowledged, and kills the server amid that.
async fn submit_and_kill(
    space: &Space,
    level: Durability,
    server: &PrivateServer,
) -> (Vec<(TaskId, Instant)>, Instant) {
    // A wait for files takes a second or two, however many tasks it is for.
    let batch = if matches!(level, Durability::WaitAof { .. }) { 200 } else { 10 };
    let acknowledged: Arc<Mutex<Vec<(TaskId, Instant)>>> = Arc::default();
    let mut sides = JoinSet::new();
    for _ in 0..4 {
        let (client, acknowledged) = (Client::new(space.clone()), Arc::clone(&acknowledged));
        sides.spawn(async move {
            while let Ok(answers) = client.submit_batch(vec![later(level); batch]).await {
                let at = mono();
                let stand = answers.into_iter().flatten();
                acknowledged.lock().extend(stand.map(|task| (task.id, at)));
            }
        });
    }
    let enough = async {
        while acknowledged.lock().len() < 1_000 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(NEVER, enough).await.expect("1,000 tasks are acknowledged");
    server.kill9();
    let (killed, found) = (mono(), acknowledged.lock().clone());
    sides.shutdown().await;
    (found, killed)
}

async fn lost(space: &Space, tasks: &[(TaskId, Instant)]) -> Vec<Instant> {
    let mut lost = Vec::new();
    for (id, at) in tasks {
        if read::get(space, *id).await.expect("the server is back").is_none() {
            lost.push(*at);
        }
    }
    lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_survives_nothing() {
    let server = server(None).await;
    let (tasks, _) = submit_and_kill(&space_on(&server).await, Durability::Memory, &server).await;
    server.restart().await.expect("a restart");
    let lost = lost(&space_on(&server).await, &tasks).await;
    println!("memory: {} of {} acknowledged tasks were lost", lost.len(), tasks.len());
    assert_eq!(lost.len(), tasks.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everysec_survives_a_killed_server_but_for_the_last_moments() {
    let server = server(Some(Fsync::EverySecond)).await;
    let (tasks, killed) = submit_and_kill(&space_on(&server).await, Durability::EverySecond, &server).await;
    server.restart().await.expect("a restart");
    let lost = lost(&space_on(&server).await, &tasks).await;
    let window = lost.iter().map(|at| killed.saturating_duration_since(*at)).max().unwrap_or_default();
    println!(
        "everysec: {} of {} acknowledged tasks were lost, all in the last {window:?}",
        lost.len(),
        tasks.len()
    );
    assert!(window <= Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn always_survives_a_killed_server() {
    let server = server(Some(Fsync::Always)).await;
    let (tasks, _) = submit_and_kill(&space_on(&server).await, Durability::Always, &server).await;
    server.restart().await.expect("a restart");
    let lost = lost(&space_on(&server).await, &tasks).await;
    println!("always: {} of {} acknowledged tasks were lost", lost.len(), tasks.len());
    assert_eq!(lost.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_survives_the_loss_of_the_master() {
    let pair = Pair::start(None, None).await;
    let (tasks, _) = submit_and_kill(&space_on(&pair.master).await, WAIT, &pair.master).await;
    pair.promote();
    let lost = lost(&space_on(&pair.replica).await, &tasks).await;
    println!("wait:1: {} of {} acknowledged tasks were lost", lost.len(), tasks.len());
    assert_eq!(lost.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_replica_a_submit_is_not_durable_and_safe_to_repeat() {
    let pair = Pair::start(None, None).await;
    let space = space_on(&pair.master).await;
    let client = Client::new(space.clone());
    let keyed = || NewTask { key: Some(Key::new("order-17", 60_000).unwrap()), ..later(WAIT) };
    pair.replica.pause();
    let start = mono();
    let waiting = submit(&client, keyed());
    tokio::pin!(waiting);
    // Others do not wait with it: they have connections of their own.
    let others = async {
        for _ in 0..200 {
            submit(&client, later(Durability::Memory)).await.expect("a submit that asks for nothing");
        }
    };
    tokio::select! {
        biased;
        early = &mut waiting => panic!("it cannot be known yet: {early:?}"),
        () = others => {}
    }
    let refused = waiting.await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
    let Err(SubmitError::NotDurable { id, lacks }) = refused else { panic!("{refused:?}") };
    assert_eq!((lacks.level, lacks.replicas), (WAIT, 0));
    assert_eq!(lacks.to_string(), "0 of 1 replicas have it");
    assert!(read::get(&space, id).await.unwrap().is_some(), "its fate is not known, and here it stands");
    // Sent again it is a duplicate, which writes nothing: it must not pass for safe all the same, nor by
    // another connection.
    for client in [client.clone(), Client::new(space_on(&pair.master).await)] {
        let again = submit(&client, keyed()).await;
        assert!(matches!(again, Err(SubmitError::NotDurable { id: found, .. }) if found == id), "{again:?}");
    }
    pair.replica.resume();
    let stands = submit(&client, keyed()).await.expect("the replica is back");
    assert_eq!((stands.id, stands.created), (id, false), "nothing was made twice");
    pair.master.kill9();
    pair.promote();
    assert!(read::get(&space_on(&pair.replica).await, id).await.unwrap().is_some());
}

/// A task's key, and when it was answered that it stands.
type Answered = BTreeMap<usize, (TaskId, Instant)>;

/// Some 1,000 keyed tasks a second, a second and a half long. In the middle the link to the replica is paused, half a
/// second later the master is gone, its replica has its place, and another replica follows that one. What got no answer,
/// or no good one, is sent again under its key.
struct Failover {
    /// What was answered well at its first sending.
    first: Answered,
    /// What stands in the end.
    stands: Answered,
    /// What was answered before this, the replica has.
    sure: Instant,
    /// When the link was paused, and when the heir was in the master's place.
    paused: Instant,
    failed: Instant,
}

async fn submit_through_a_failover(level: Durability) -> Failover {
    const ROUNDS: usize = 30;
    const BATCH: usize = 50;
    let (pair, link) = Pair::linked().await;
    let door = FaultProxy::start(Behind::Unix(pair.master.socket())).await.expect("an address that moves");
    let client = Client::new(space_at(door.url()).await);
    let keyed = move |n: usize| {
        let key = Some(Key::new(format!("order-{n}"), 3_600_000).expect("a key"));
        NewTask { key, ..later(level) }
    };
    let first: Arc<Mutex<Answered>> = Arc::default();
    let mut sent = JoinSet::new();
    let (mut sure, mut paused, mut failed, mut heir) = (mono(), mono(), mono(), None);
    for round in 0..ROUNDS {
        let (sender, answered) = (client.clone(), Arc::clone(&first));
        sent.spawn(async move {
            let all = round * BATCH..(round + 1) * BATCH;
            // Broken off by the fail-over: all of them are sent again.
            let Ok(told) = sender.submit_batch(all.clone().map(keyed).collect()).await else { return };
            let at = mono();
            let stand = all.zip(told).filter_map(|(n, told)| Some((n, (told.ok()?.id, at))));
            answered.lock().extend(stand);
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        if round == ROUNDS / 3 {
            until("most of them stand", async || first.lock().len() >= ROUNDS / 4 * BATCH).await;
            sure = mono();
            submit(&client, later(WAIT)).await.expect("what came before it is with the replica too");
            paused = mono();
            link.set(Fault { half_open: true, ..Fault::default() });
        }
        if round == ROUNDS * 2 / 3 {
            pair.master.kill9();
            // What was held back on the link does not arrive any more.
            link.cut();
            pair.promote();
            door.lead_to(Behind::Unix(pair.replica.socket()));
            heir = Some(pair.heir().await);
            failed = mono();
        }
    }
    let heir = heir.expect("there was a fail-over");
    while let Some(done) = sent.join_next().await {
        done.expect("a batch");
    }
    // Whatever was not answered well is sent again, until it stands.
    let (first, start) = (first.lock().clone(), mono());
    let mut stands = Answered::new();
    while stands.len() < ROUNDS * BATCH {
        assert!(start.elapsed() < NEVER, "{} of {} stand", stands.len(), ROUNDS * BATCH);
        let open: Vec<usize> = (0..ROUNDS * BATCH).filter(|n| !stands.contains_key(n)).take(500).collect();
        if let Ok(told) = client.submit_batch(open.iter().map(|n| keyed(*n)).collect()).await {
            let at = mono();
            stands.extend(open.into_iter().zip(told).filter_map(|(n, told)| Some((n, (told.ok()?.id, at)))));
        }
    }
    let counts = client.counts().await.expect("counts").0;
    assert_eq!(counts.submitted, (ROUNDS * BATCH + 1) as i64, "one for each key, and one, in {counts:?}");
    assert!(heir.pid().is_some());
    Failover { first, stands, sure, paused, failed }
}

impl Failover {
    /// When those were answered that are not those that stand.
    fn lost(&self) -> Vec<Instant> {
        let lost = self.first.iter().filter(|(n, (id, _))| self.stands[n].0 != *id);
        lost.map(|(_, (_, at))| *at).collect()
    }

    fn answered(&self, from: Instant, to: Instant) -> usize {
        self.first.values().filter(|(_, at)| (from..to).contains(at)).count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_past_a_paused_link_takes_nothing_that_waited_for_a_replica() {
    let told = submit_through_a_failover(WAIT).await;
    let before = told.answered(told.paused - NEVER, told.paused);
    println!("wait:1: {before} answered before the link was paused");
    assert!(before >= 350, "{before}");
    assert_eq!(told.lost(), Vec::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_past_a_paused_link_takes_no_more_than_was_answered_meanwhile() {
    let told = submit_through_a_failover(Durability::Memory).await;
    let (lost, meanwhile) = (told.lost(), told.answered(told.paused, told.failed));
    println!("memory: {} lost, {meanwhile} answered while the link was paused", lost.len());
    assert!(!lost.is_empty(), "the link was paused in vain");
    let window = told.sure..=told.failed;
    assert!(lost.iter().all(|at| window.contains(at)), "one was lost that the replica had");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_keep_a_promise_is_told_so_and_sent_nothing() {
    let server = server(None).await;
    let space = space_on(&server).await;
    let client = Client::new(space.clone());
    let refused = async |level| match client.submit(later(level)).await {
        Err(minutehand::client::ClientError::Store(error @ StoreError::CannotPromise { .. })) => {
            error.to_string()
        }
        other => panic!("{level}: {other:?}"),
    };
    let set = |name: &str, value: &str| server.run(&["CONFIG", "SET", name, value]).expect("a setting");
    // A changed setting is seen at the next connection, if not before.
    let reconnect = async || {
        server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).expect("a kill");
        let back = async { while submit(&client, later(Durability::Memory)).await.is_err() {} };
        tokio::time::timeout(NEVER, back).await.expect("it comes back");
    };
    for level in [Durability::EverySecond, Durability::Always] {
        let said = refused(level).await;
        assert!(
            said.contains(&format!("cannot promise durability {level}: it keeps no append-only file")),
            "{said}"
        );
    }
    set("appendonly", "yes");
    reconnect().await;
    client.submit(later(Durability::EverySecond)).await.expect("everysec");
    assert!(refused(Durability::Always).await.contains("its appendfsync is everysec; nothing was sent"));
    set("appendfsync", "always");
    reconnect().await;
    for level in [Durability::EverySecond, Durability::Always] {
        client.submit(later(level)).await.expect("always is more than either");
    }
    set("appendfsync", "no");
    reconnect().await;
    assert!(refused(Durability::EverySecond).await.contains("its appendfsync is no"));

    // A user who may not ask is told so.
    let rules = ["ACL", "SETUSER", "worker", "on", "nopass", "~*", "&*", "+@all", "-config"];
    server.run(&rules).expect("a user");
    let settings = ConnectSettings {
        url: server.url(),
        username: Some("worker".into()),
        password: Some("any".into()),
        ..ConnectSettings::default()
    };
    let store = Store::connect(settings).await.expect("a store");
    let other = Client::new(Space::open(store, space.namespace().clone()).await.expect("a space"));
    let said = other.submit(later(Durability::Always)).await.expect_err("CONFIG is forbidden").to_string();
    assert!(said.contains("how it keeps its data cannot be asked") && said.contains("config"), "{said}");
}

/// A server that has WAITAOF: the usual one, or a Valkey.
fn newer() -> Option<ServerBinary> {
    let has = |binary: &ServerBinary| {
        let mut parts = binary.version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (7, 2)
    };
    ServerBinary::find().ok().filter(has).or_else(ServerBinary::find_valkey)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waitaof_survives_the_loss_of_both_servers() {
    let both = Durability::WaitAof { local: true, replicas: 1 };
    let Some(binary) = newer() else {
        println!("skipped: no server of version 7.2 or later here; scripts/get-server --valkey brings one");
        return;
    };
    println!("waitaof by {} {}", binary.path.display(), binary.version);
    let pair = Pair::start(Some(binary.clone()), Some(Fsync::EverySecond)).await;
    let (tasks, _) = submit_and_kill(&space_on(&pair.master).await, both, &pair.master).await;
    pair.replica.kill9();
    for server in [&pair.master, &pair.replica] {
        server.restart().await.expect("a restart");
        if server.port() == pair.replica.port() {
            pair.promote();
        }
        let lost = lost(&space_on(server).await, &tasks).await;
        println!("waitaof:1:1: {} of {} acknowledged tasks were lost", lost.len(), tasks.len());
        assert_eq!(lost.len(), 0);
    }
    // Without a file there is nothing to wait for.
    let options = ServerOptions { binary: Some(binary), ..ServerOptions::default() };
    let bare = PrivateServer::start(options).await.expect("a server");
    let client = Client::new(space_on(&bare).await);
    let said = client.submit(later(both)).await.expect_err("it has no file").to_string();
    assert!(said.contains("it keeps no append-only file"), "{said}");
    let alone = submit(&client, later(Durability::WaitAof { local: false, replicas: 1 })).await;
    let Err(SubmitError::NotDurable { lacks, .. }) = alone else { panic!("{alone:?}") };
    assert_eq!(lacks.replicas, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waitaof_needs_a_server_that_has_it() {
    let binary = ServerBinary::find().expect("a server");
    if binary.valkey || !binary.version.starts_with("7.0.") {
        println!("skipped: {} has WAITAOF", binary.version);
        return;
    }
    let server = server(Some(Fsync::Always)).await;
    let client = Client::new(space_on(&server).await);
    let level = Durability::WaitAof { local: true, replicas: 0 };
    let said = client.submit(later(level)).await.expect_err("it has no WAITAOF").to_string();
    assert!(said.contains("has no WAITAOF; that needs Redis 7.2 or Valkey; nothing was sent"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_says_how_safe_it_is() {
    let server = server(None).await;
    let run = |words: &str, stdin: Stdio| {
        let told = Command::new(env!("CARGO_BIN_EXE_minutehand"))
            .args(words.split_whitespace())
            .env("MINUTEHAND_REDIS", server.url())
            .env_remove("MINUTEHAND_CONFIG")
            .stdin(stdin)
            .output()
            .expect("the program");
        (told.status.code(), String::from_utf8_lossy(&told.stderr).into_owned())
    };
    let (code, error) = run("submit --queue q --durability always --output json", Stdio::null());
    assert!(code == Some(1) && error.contains("\"code\":\"cannot_promise\""), "{error}");
    let (code, error) = run("submit --queue q --durability wait:1 --output json", Stdio::null());
    assert!(code == Some(1) && error.contains("\"code\":\"not_durable\""), "{error}");
    let (code, error) = run("submit --queue q --durability disk", Stdio::null());
    assert!(code == Some(2) && error.contains("durability: `disk` is no level of durability"), "{error}");
    let plan = server.dir().join("plan.csv");
    std::fs::write(&plan, "due,id\n2030-01-01T00:00:00Z,a\n").expect("a plan");
    let words = format!("import {} --queue q --key id --durability wait:1", plan.display());
    let (code, error) = run(&words, Stdio::null());
    assert!(code == Some(1) && error.contains("not durable"), "{error}");
    let (code, error) = run(&words.replace("wait:1", "memory"), Stdio::null());
    assert_eq!(code, Some(0), "{error}");
}
