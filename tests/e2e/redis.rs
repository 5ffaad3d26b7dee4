//! Redis in trouble: pods and executors stay, say what is the matter in logs, metrics and `/readyz`, and recover.

use super::*;
use minutehand::client::{Due, NewTask};
use minutehand::dev::fleet::SENTINEL_SERVICE;
use minutehand::dev::redis::Fsync;
use minutehand::model::QueueName;
use minutehand::testing::clock::WrongClock;
use minutehand::testing::fault::{Behind, Fault, FaultProxy};
use minutehand::testing::process::until;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Lease and dispatch time-out of these tests: what is lost with a server comes back after it.
const LEASE_MS: i64 = 1_500;
const SETTINGS: [(&str, &str); 4] = [
    ("defaults.dispatch_timeout", "1500ms"),
    ("defaults.lease", "1500ms"),
    ("pod.lock", "1s"),
    ("pod.poll", "300ms"),
];

/// A path of a pod's HTTP port.
fn http(pod: &Running, path: &str) -> (u16, String) {
    ask(&at(pod), path)
}

/// Where a pod's HTTP port is.
fn at(pod: &Running) -> String {
    let line = pod.until_said("listening on http://", NEVER);
    line.split("http://").nth(1).unwrap().trim().to_owned()
}

/// A path of an HTTP port.
fn ask(at: &str, path: &str) -> (u16, String) {
    let (status, _, body) = send(at, "GET", path, "");
    (status, body)
}

/// A request to an HTTP port; gives status, headers and body.
fn send(at: &str, method: &str, path: &str, body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (status, head.to_owned(), body.to_owned())
}

/// A series of a pod's metrics; nothing where it does not exist.
fn series(pod: &Running, name: &str) -> Option<f64> {
    let (_, text) = http(pod, "/metrics");
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

fn causes(pod: &Running) -> (u16, Vec<String>) {
    let (status, body) = http(pod, "/readyz");
    let report: serde_json::Value = serde_json::from_str(&body).unwrap();
    let causes = report["causes"].as_array().unwrap().iter();
    (status, causes.map(|cause| cause.as_str().unwrap().to_owned()).collect())
}

fn until_ready(pod: &Running) {
    until("the pod to be ready", NEVER, || (http(pod, "/readyz").0 == 200).then_some(()));
}

fn tasks(count: i64, over_ms: i64) -> Vec<NewTask> {
    let queue = QueueName::new("flights").unwrap();
    let task = |n| NewTask {
        due: Due::In(n * over_ms / count),
        lease_ms: Some(u32::try_from(LEASE_MS).unwrap()),
        ..NewTask::to(queue.clone())
    };
    (0..count).map(task).collect()
}

/// What a trouble is called: in the server's answers and in the metrics.
struct Trouble {
    word: &'static str,
    metric: &'static str,
}

/// Tasks are under way, the trouble begins, lasts until both pods have told of it, and ends.
async fn through<Ended: Future<Output = ()>>(
    trouble: Trouble,
    town: Town,
    begin: impl FnOnce(&PrivateServer),
    end: impl FnOnce(Arc<Bed>) -> Ended,
) {
    const TASKS: i64 = 300;
    let bed = Arc::clone(town.bed());
    let pods = [town.pod("pod-1"), town.pod("pod-2")];
    let executor = town.executor("ex-1", &["--discard"]);
    town.until_members(2, 1).await;
    town.client.submit_batch(tasks(TASKS, 6_000)).await.unwrap();
    town.until("some are done", |counts| counts.succeeded >= 20).await;
    pods.iter().for_each(until_ready);
    begin(bed.server());
    let error_series = format!("minutehand_redis_errors_total{{cause=\"{}\"}}", trouble.metric);
    for pod in &pods {
        pod.until_said(trouble.word, NEVER);
        // Three polls after the last success, though most buckets have nothing to do and rest.
        until("the pod to be not ready, and to say why", Duration::from_secs(8), || {
            let (status, causes) = causes(pod);
            (status == 503 && causes.iter().any(|cause| cause.contains(trouble.word))).then_some(())
        });
        let counted = series(pod, &error_series);
        assert!(counted.is_some_and(|count| count > 0.0), "{error_series}: {counted:?}");
        // One line a second for each kind, however many buckets meet it.
        let lines = pod.err().lines().filter(|line| line.contains("claim failed")).count();
        assert!(lines <= 30, "{lines} lines:\n{}", pod.log());
    }
    // Whoever asks a pod or Redis itself hears the cause soon, and from a pod when to ask again.
    let start = minutehand::clock::mono();
    let (at, asked) = (at(&pods[0]), town.program.clone());
    let command =
        std::thread::spawn(move || asked.run(&["submit", "--queue", "flights", "--output", "json"]));
    let (status, head, problem) = send(&at, "POST", "/v1/tasks", r#"{"queue":"flights"}"#);
    let took = start.elapsed();
    assert!(status == 503 && problem.contains("\"code\":\"unavailable"), "{status} {problem}");
    assert!(head.contains("retry-after: "), "{head}");
    // A call's time-out, the time in which it is tried again, and a moment.
    assert!(took < Duration::from_millis(3_500), "{took:?}");
    let refused = command.join().unwrap();
    assert!(matches!(refused.code, Some(1 | 4)), "{refused:?}");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    end(bed).await;
    let ended = minutehand::clock::mono();
    let stalls = Stalls::watch();
    pods.iter().for_each(until_ready);
    let ready_after = ended.elapsed();
    town.until("all have succeeded", |counts| counts.is_quiet() && counts.succeeded == counts.submitted)
        .await;
    let (after, stall) = (ended.elapsed(), stalls.end());
    println!("{}: ready {ready_after:?} after it ended, all done after {after:?}", trouble.word);
    // The last task is due 6 s after the first; beyond that two leases, and what this machine stalled.
    let limit = Duration::from_millis((2 * LEASE_MS + 2 * stall).unsigned_abs());
    assert!(ready_after <= limit, "{ready_after:?}, with stalls of {stall} ms");
    assert!(after <= limit + Duration::from_secs(6), "{after:?}, with stalls of {stall} ms");
    let lives = town.lives().await;
    assert!(lives.values().all(|(_, accepted)| *accepted == 1), "{lives:?}");
    town.check().await;
    for process in pods.iter().chain([&executor]) {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

async fn town(lines: &[&str]) -> Town {
    let lines = lines.iter().map(|line| (*line).to_owned()).collect();
    let options = ServerOptions { append_only: Some(Fsync::Always), lines, ..ServerOptions::default() };
    Town::of(Bed::own_server(options).await.unwrap(), &SETTINGS).await
}

fn set(server: &PrivateServer, words: &[&str]) {
    server.run(words).unwrap();
}

/// Somebody's script does not end.
fn stick(server: &PrivateServer) {
    let socket = server.socket();
    std::thread::spawn(move || {
        let mut wire = minutehand::dev::wire::Wire::open(&minutehand::dev::wire::Door::Unix(socket)).unwrap();
        // Killed in the end, or given up by this side.
        let _ = wire.run(&["EVAL", "while true do end", "0"]);
    });
    until("the server to be stuck", NEVER, || {
        let told = server.run(&["PING"]);
        told.map_or_else(|error| error.to_string(), |told| told.text().to_string())
            .contains("BUSY")
            .then_some(())
    });
}

fn unstick(server: &PrivateServer) {
    until("the script to be killed", NEVER, || server.run(&["SCRIPT", "KILL"]).ok());
}

/// What bears the name of the snapshot cannot be replaced by it.
fn break_disk(server: &PrivateServer) {
    std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
    saved(server, "err");
}

fn mend_disk(server: &PrivateServer) {
    std::fs::remove_dir(server.dir().join("dump.rdb")).unwrap();
    saved(server, "ok");
}

fn saved(server: &PrivateServer, how: &str) {
    until("the snapshot", NEVER, || {
        // One is under way, or the last one has just failed.
        let _ = server.run(&["BGSAVE"]);
        let info = server.run(&["INFO", "persistence"]).unwrap();
        info.text().contains(&format!("rdb_last_bgsave_status:{how}")).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_became_a_replica() {
    let trouble = Trouble { word: "READONLY", metric: "readonly" };
    let begin = |server: &PrivateServer| set(server, &["REPLICAOF", "127.0.0.1", "1"]);
    through(trouble, town(&[]).await, begin, async |bed| set(bed.server(), &["REPLICAOF", "NO", "ONE"]))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas() {
    let trouble = Trouble { word: "NOREPLICAS", metric: "noreplicas" };
    let begin = |server: &PrivateServer| set(server, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let end = async |bed: Arc<Bed>| set(bed.server(), &["CONFIG", "SET", "min-replicas-to-write", "0"]);
    through(trouble, town(&[]).await, begin, end).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_of_somebody_that_does_not_end() {
    let trouble = Trouble { word: "BUSY", metric: "busy" };
    let end = async |bed: Arc<Bed>| unstick(bed.server());
    through(trouble, town(&["busy-reply-threshold 100"]).await, stick, end).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_takes_nothing() {
    let trouble = Trouble { word: "MISCONF", metric: "misconf" };
    let end = async |bed: Arc<Bed>| mend_disk(bed.server());
    through(trouble, town(&["save 3600 1000000"]).await, break_disk, end).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_reads_its_file_for_long() {
    let trouble = Trouble { word: "LOADING", metric: "loading" };
    let town = town(&["key-load-delay 100"]).await;
    // Some 4 s of reading, with a look at its clients after each 1,024 commands.
    let fill = "for i = 1, 40000 do redis.call('SET', 'other:' .. i, 'x') end";
    town.bed().server().run(&["EVAL", fill, "0"]).unwrap();
    let begun = Arc::new(parking_lot::Mutex::new(None));
    let begin = {
        let begun = Arc::clone(&begun);
        move |server: &PrivateServer| {
            server.kill9();
            *begun.lock() = Some(server.restart_in_background());
        }
    };
    let end = async move |_| {
        let restart = begun.lock().take().unwrap();
        tokio::task::spawn_blocking(move || restart.join().unwrap()).await.unwrap().unwrap();
    };
    through(trouble, town, begin, end).await;
}

/// What is done to a server.
type Step = fn(&PrivateServer);

/// A pod and an executor are started in each of these troubles: they wait, say why, and start when it is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_starts_while_redis_is_in_trouble_waits_and_says_so() {
    let town = town(&["busy-reply-threshold 100", "save 3600 1000000"]).await;
    let redis = town.bed().server();
    let troubles: [(&str, Step, Step); 4] = [
        (
            "NOREPLICAS",
            |redis| set(redis, &["CONFIG", "SET", "min-replicas-to-write", "1"]),
            |redis| set(redis, &["CONFIG", "SET", "min-replicas-to-write", "0"]),
        ),
        (
            "READONLY",
            |redis| set(redis, &["REPLICAOF", "127.0.0.1", "1"]),
            |redis| set(redis, &["REPLICAOF", "NO", "ONE"]),
        ),
        ("BUSY", stick, unstick),
        ("MISCONF", break_disk, mend_disk),
    ];
    for (n, (word, begin, end)) in troubles.into_iter().enumerate() {
        begin(redis);
        let pod = town.program.start("pod-1", &["serve", "--listen", "127.0.0.1:0"]);
        let executor = town.program.start("ex-1", &["work", "--queue", "flights", "--discard"]);
        executor.until_said("cannot start yet", NEVER);
        let line = pod.until_said("waiting for redis; listening on http://", NEVER);
        assert!(line.ends_with(|end: char| end.is_ascii_digit()), "{line}");
        assert_eq!(http(&pod, "/healthz").0, 200);
        let (status, found) = causes(&pod);
        assert!(status == 503 && found.iter().any(|cause| cause.contains(word)), "{word}: {found:?}");
        let (status, problem) = http(&pod, "/v1/status");
        let code = format!("unavailable_{}", word.to_lowercase());
        assert!(status == 503 && problem.contains(&code), "{word}: {status} {problem}");
        end(redis);
        pod.until_said("pod starts", NEVER);
        executor.until_said("executor runs", NEVER);
        town.client.submit_batch(tasks(10, 100)).await.unwrap();
        town.until_succeeded(10 * (n as i64 + 1)).await;
        for process in [&pod, &executor] {
            assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
        }
    }
}

/// The lines with which a service says that it cannot start.
fn waits(process: &Running) -> Vec<String> {
    process.err().lines().filter(|line| line.contains("cannot start yet")).map(str::to_owned).collect()
}

/// Pods and executors that are started before their Redis, or in an outage, wait for it: alive, not ready, and saying why
/// once. They start by themselves, and end in order when they are told to meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_starts_before_redis_waits_for_it_and_says_so() {
    let town = town(&[]).await;
    town.bed().server().kill9();
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let pod = town.program.start("pod-1", &serve);
    let work = ["work", "--queue", "flights", "--discard", "--listen", "127.0.0.1:0"];
    let executor = town.program.start("ex-1", &work);
    let other = town.program.start("pod-2", &serve);
    let said = executor.until_said("cannot start yet", NEVER);
    assert!(said.contains("WARN") && said.contains("redis unreachable at unix://"), "{said}");
    let waiting = pod.until_said("waiting for redis; listening on http://", NEVER);
    let tries = "minutehand_redis_errors_total{cause=\"unreachable\"}";
    until("it to try again and again", NEVER, || (series(&pod, tries)? >= 5.0).then_some(()));
    assert_eq!(http(&pod, "/healthz").0, 200);
    let (status, found) = causes(&pod);
    assert!(
        status == 503 && found.len() == 1 && found[0].contains("redis unreachable"),
        "{status} {found:?}"
    );
    let (status, problem) = http(&pod, "/v1/status");
    let problem: serde_json::Value = serde_json::from_str(&problem).unwrap();
    assert_eq!((status, &problem["code"]), (503, &"unavailable".into()), "{problem}");
    assert!(problem["message"].to_string().contains("redis unreachable"), "{problem}");
    let at = executor.until_said("serving /metrics", NEVER);
    let at = at.split("http=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!((ask(&at, "/healthz").0, ask(&at, "/readyz").0), (200, 503));
    // However often it has tried.
    assert_eq!((waits(&pod).len(), waits(&executor).len()), (1, 1), "{}", pod.log());
    pod.until_said("waiting for redis", NEVER);
    assert_eq!(other.stop(NEVER), Some(0), "{}", other.log());

    town.bed().server().restart().await.unwrap();
    pod.until_said("pod starts", NEVER);
    let now = until("the pod to say where it listens", NEVER, || {
        pod.out().lines().find(|line| line.starts_with("listening on ")).map(str::to_owned)
    });
    assert_eq!(waiting, format!("waiting for redis; {now}"), "the port stays");
    town.until_members(1, 1).await;
    until_ready(&pod);
    until("the executor to be ready", NEVER, || (ask(&at, "/readyz").0 == 200).then_some(()));
    town.client.submit_batch(tasks(10, 100)).await.unwrap();
    town.until_succeeded(10).await;
    for process in [&pod, &executor] {
        process.until_said("redis lets it start", NEVER);
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

/// A name that nobody knows yet, and a server that accepts and says nothing: as if there were none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_starts_before_redis_has_a_name_or_a_voice_waits_for_it() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for (url, why) in [
        ("redis://no-such-host.invalid:6379".to_owned(), "redis unreachable at redis://no-such-host.invalid"),
        (format!("redis://{}", silent.local_addr().unwrap()), "redis unreachable at redis://127.0.0.1"),
    ] {
        let program = program(&url, NAMESPACE);
        let pod = program.start("pod-1", &["serve", "--listen", "127.0.0.1:0"]);
        pod.until_said(why, NEVER);
        let (status, found) = causes(&pod);
        assert!(status == 503 && found.iter().any(|cause| cause.contains(why)), "{found:?}");
        assert_eq!(pod.stop(NEVER), Some(0), "{}", pod.log());
    }
}

/// Sentinels that know no master yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_starts_before_sentinels_know_a_master_waits_for_it() {
    let fleet = PrivateSentinel::start().await.unwrap();
    let on_each = |words: &[&str]| {
        for sentinel in &fleet.sentinels {
            sentinel.run(words).unwrap();
        }
    };
    on_each(&["SENTINEL", "REMOVE", SENTINEL_SERVICE]);
    let program = program(&fleet.url(), NAMESPACE);
    let pod = program.start("pod-1", &["serve", "--listen", "127.0.0.1:0"]);
    let executor = program.start("ex-1", &["work", "--queue", "flights", "--discard"]);
    executor.until_said("cannot start yet", NEVER);
    pod.until_said("waiting for redis", NEVER);
    let (status, found) = causes(&pod);
    assert!(status == 503 && found.iter().any(|cause| cause.contains("redis-sentinel://")), "{found:?}");
    let port = fleet.master.port().unwrap().to_string();
    on_each(&["SENTINEL", "MONITOR", SENTINEL_SERVICE, "127.0.0.1", &port, "2"]);
    pod.until_said("pod starts", NEVER);
    executor.until_said("executor runs", NEVER);
    program.json(&["submit", "--queue", "flights"]);
    until("it has succeeded", NEVER, || {
        (program.json(&["status"])["counts"]["succeeded"] == 1).then_some(())
    });
    for process in [&pod, &executor] {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

/// What no waiting mends ends a service at once, each with its code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_starts_with_what_never_comes_right_ends_at_once() {
    let bed = Bed::own_server(ServerOptions { tcp: true, ..ServerOptions::default() }).await.unwrap();
    let at = format!("127.0.0.1:{}", bed.server().port().unwrap());
    for (url, code, part) in [
        (format!("http://{at}"), 2, "the scheme is none of"),
        (format!("redis-cluster://{at}"), 2, "not part of a cluster"),
        (format!("redis://{at}/200"), 2, "no database 200"),
        (format!("redis://nobody:wrong@{at}"), 1, "user name or password is wrong"),
    ] {
        let program = program(&url, NAMESPACE);
        for words in [&["serve", "--listen", "127.0.0.1:0"][..], &["work", "--queue", "q", "--discard"]] {
            let ended = program.run(&[words, &["--output", "json"]].concat());
            assert_eq!(ended.code, Some(code), "{words:?} at {url}: {ended:?}");
            assert!(ended.error()["message"].as_str().unwrap().contains(part), "{ended:?}");
            assert!(!ended.err.contains("cannot start yet"), "{ended:?}");
        }
    }
}

/// A cluster that is not put together yet, and one of which a part is missing: who starts waits, says why, and goes on by
/// itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_starts_while_a_cluster_is_down_waits_and_says_so() {
    let cluster = PrivateCluster::start(1, 0).await.unwrap();
    let node = &cluster.masters[0];
    set(node, &["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    set(node, &["CLUSTER", "FLUSHSLOTS"]);
    let program = program(&cluster.url(), NAMESPACE);
    let refused = program.run(&["submit", "--queue", "flights", "--output", "json"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let message = refused.error()["message"].to_string();
    assert!(message.contains("CLUSTERDOWN") && message.contains("slots"), "{message}");
    let pod = program.start("pod-1", &["serve", "--listen", "127.0.0.1:0"]);
    let executor = program.start("ex-1", &["work", "--queue", "flights", "--discard"]);
    pod.until_said("waiting for redis; listening on http://", NEVER);
    executor.until_said("cannot start yet", NEVER);
    let (status, found) = causes(&pod);
    assert!(status == 503 && found.iter().any(|cause| cause.contains("CLUSTERDOWN")), "{found:?}");
    // All slots but one: the cluster does not answer yet, in its own words.
    set(node, &["CLUSTER", "ADDSLOTSRANGE", "0", "16382"]);
    until("the cluster's own words", NEVER, || {
        let found = causes(&pod).1;
        found.iter().any(|cause| cause.contains("CLUSTERDOWN The cluster is down")).then_some(())
    });
    assert_eq!(http(&pod, "/healthz").0, 200);
    set(node, &["CLUSTER", "ADDSLOTS", "16383"]);
    pod.until_said("pod starts", NEVER);
    executor.until_said("executor runs", NEVER);
    for n in 0..3 {
        let done = program.json(&["submit", "--queue", "flights", "--key", &format!("k{n}")]);
        assert_eq!(done["created"], true, "{done}");
    }
    until("all have succeeded", NEVER, || {
        (program.json(&["status"])["counts"]["succeeded"] == 3).then_some(())
    });
    for process in [&pod, &executor] {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

/// Redis stops for longer than leases last, while everything runs. What ends before its lease does is reported once Redis
/// is back, and is not taken for lost before it could be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_longer_than_leases_lets_nothing_run_twice() {
    const JOBS: usize = 8;
    let settings = [
        ("defaults.lease", "2s"),
        ("defaults.dispatch_timeout", "2s"),
        ("pod.lock", "1s"),
        ("pod.poll", "300ms"),
    ];
    let town = Town::of(Bed::own_durable().await.unwrap(), &settings).await;
    let diary = Diary::new(&town);
    let pods = [town.pod("pod-1"), town.pod("pod-2")];
    let job = format!("{}; sleep 1", diary.command());
    let executor = town.executor("ex-1", &["--slots", "8", "--exec", &job]);
    town.until_members(2, 1).await;
    town.client.submit_batch(tasks(JOBS as i64, 1)).await.unwrap();
    let begun = || std::fs::read_to_string(&diary.path).is_ok_and(|text| text.lines().count() == JOBS);
    until("all have begun", NEVER, || begun().then_some(()));
    town.bed().server().kill9();
    // Two leases; the jobs end in the first of them.
    tokio::time::sleep(Duration::from_millis(4_000)).await;
    town.bed().server().restart().await.unwrap();
    town.until_succeeded(JOBS as i64).await;
    let lives = town.lives().await;
    assert!(lives.values().all(|life| *life == (1, 1)), "granted and accepted: {lives:?}");
    let runs = diary.runs();
    assert_eq!((runs.len(), distinct(runs.iter().map(|run| &run.task))), (JOBS, JOBS));
    town.check().await;
    for process in pods.iter().chain([&executor]) {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_milliseconds_on_every_call() {
    let bed = Bed::own_server(Default::default()).await.unwrap();
    let proxy = FaultProxy::start(Behind::Unix(bed.server().socket())).await.unwrap();
    proxy.set(Fault { delay: Duration::from_millis(10), ..Fault::default() });
    let town = Town::of(bed, &[]).await;
    let town =
        Town { program: town.program.clone().env("MINUTEHAND_REDIS", as_limited(&proxy.url())), ..town };
    let pods = [town.pod("pod-1"), town.pod("pod-2")];
    let executors = [town.executor("ex-1", &["--discard"]), town.executor("ex-2", &["--discard"])];
    town.until_members(2, 2).await;
    import_flights(&town.program, "7200");
    town.until_succeeded(FLIGHTS).await;
    let (_, lag) = town.counts().await;
    println!("lag with 20 ms on every call: {lag:?}");
    town.each_once().await;
    town.check().await;
    for process in pods.iter().chain(&executors) {
        assert!(!process.log().contains(" WARN "), "{}", process.log());
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_deleted_under_our_feet() {
    let town = town(&[]).await;
    let pod = town.pod("pod-1");
    let executor = town.executor("ex-1", &["--discard"]);
    town.until_members(1, 1).await;
    town.client.submit_batch(tasks(100, 100)).await.unwrap();
    town.until_succeeded(100).await;
    town.client.submit_batch(tasks(200, 60_000)).await.unwrap();
    set(town.bed().server(), &["FLUSHALL"]);
    let said = pod.until_said("all tasks that waited are gone", NEVER);
    assert!(said.contains("ERROR") && said.contains("FLUSHALL"), "{said}");
    pod.until_said("redis has forgotten what it had acknowledged", NEVER);
    executor.until_said("all tasks that waited are gone", NEVER);
    until("the metric", NEVER, || {
        let emptied = series(&pod, "minutehand_history_lost_total{cause=\"emptied\"}")?;
        let buckets = series(&pod, "minutehand_history_lost_total{cause=\"bucket_emptied\"}")?;
        (emptied == 1.0 && buckets >= 1.0).then_some(())
    });
    // Nothing is stuck: what is submitted from now on runs, also of a queue that had a code before, and of a new one.
    town.client.submit_batch(tasks(50, 100)).await.unwrap();
    town.until("the new ones are done", |counts| {
        counts.succeeded == counts.submitted && counts.succeeded >= 50
    })
    .await;
    town.check().await;
    for process in [&pod, &executor] {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_begins_to_evict() {
    let town = town(&[]).await;
    let redis = town.bed().server();
    let pod = town.pod("pod-1");
    town.until_members(1, 0).await;
    until_ready(&pod);
    assert_eq!(series(&pod, "minutehand_redis_evicting"), Some(0.0));
    // Somebody changes it, and connections are made anew.
    set(redis, &["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    set(redis, &["CLIENT", "KILL", "TYPE", "normal"]);
    let said = pod.until_said("redis may delete tasks", NEVER);
    assert!(said.contains("ERROR") && said.contains("volatile-lru"), "{said}");
    until("the cause", NEVER, || {
        let (status, found) = causes(&pod);
        let told = found
            .iter()
            .any(|cause| cause.starts_with("eviction_policy_unsafe: ") && cause.contains("volatile-lru"));
        (status == 200 && told).then_some(())
    });
    assert_eq!(series(&pod, "minutehand_redis_evicting"), Some(1.0));
    let refused = town.program.run(&["serve", "--listen", "127.0.0.1:0", "--output", "json"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("maxmemory-policy is volatile-lru"), "{refused:?}");
    let forced = town.program.clone().set("redis.allow_evicting", "true");
    let pod = forced.start("pod-2", &["serve", "--listen", "127.0.0.1:0"]);
    until_ready(&pod);
    pod.until_said("redis may delete tasks", NEVER);
    set(redis, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    set(redis, &["CLIENT", "KILL", "TYPE", "normal"]);
    pod.until_said("no longer deletes keys", NEVER);
}

/// The words that make the user of `deploy/users.acl`, for a namespace and under a name of its own.
fn documented_user(namespace: &str, user: &str) -> Vec<String> {
    let file = include_str!("../../deploy/users.acl");
    let line = file.lines().find(|line| line.starts_with("user ")).unwrap();
    let line = line.replace("{mh", &format!("{{{namespace}")).replace(">CHANGE-ME", ">pw");
    let words = line.replace("user minutehand", &format!("ACL SETUSER {user}"));
    words.split(' ').map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_is_missing_or_taken_away() {
    let town = town(&[]).await;
    let redis = town.bed().server();
    let namespace = town.bed().namespace();
    let words = documented_user(namespace, "app");
    set(redis, &words.iter().map(String::as_str).collect::<Vec<_>>());
    let url = format!("redis+unix://app:pw@{}", redis.socket().display());
    let program = town.program.clone().env("MINUTEHAND_REDIS", &url);
    let submit = ["submit", "--queue", "flights", "--durability", "always"];
    assert_eq!(program.run(&submit).code, Some(0));
    set(redis, &["ACL", "SETUSER", "app", "-zadd", "-hincrby"]);
    for words in [&["serve", "--listen", "127.0.0.1:0"][..], &submit] {
        let ended = program.run(words);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let expected = "redis does not permit HINCRBY, ZADD: the user's ACL lacks +hincrby +zadd";
        assert!(ended.err.contains(expected), "{ended:?}");
    }
    set(redis, &["ACL", "SETUSER", "app", "+zadd", "+hincrby"]);
    let pod = program.start("pod-1", &["serve", "--listen", "127.0.0.1:0"]);
    let executor = program.start("ex-1", &["work", "--queue", "flights", "--discard"]);
    town.until_members(1, 1).await;
    until_ready(&pod);
    set(redis, &["ACL", "SETUSER", "app", "-hset"]);
    pod.until_said("redis does not permit HSET: the user's ACL lacks +hset", NEVER);
    until("it to be not ready", NEVER, || {
        let (status, found) = causes(&pod);
        (status == 503 && found.iter().any(|cause| cause.contains("+hset"))).then_some(())
    });
    set(redis, &["ACL", "SETUSER", "app", "+hset", "resetkeys", "~other*"]);
    let said = pod.until_said("lacks the key pattern", NEVER);
    assert!(said.contains(&format!("it needs ~{{{namespace}.* and ~{{{namespace}:*")), "{said}");
    let keys = [format!("~{{{namespace}.*"), format!("~{{{namespace}:*")];
    set(redis, &["ACL", "SETUSER", "app", "resetkeys", &keys[0], &keys[1]]);
    until_ready(&pod);
    town.client.submit_batch(tasks(20, 100)).await.unwrap();
    town.until_succeeded(21).await;
    assert_eq!(program.run(&["check"]).code, Some(0));
    for process in [&pod, &executor] {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_of_redis_leaps_ahead_and_back() {
    let dir = Bed::own_server(Default::default()).await.unwrap();
    let clock = match WrongClock::new(dir.server().dir(), "leap") {
        Ok(clock) => clock,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let options = ServerOptions { env: clock.env(), ..ServerOptions::default() };
    // A lease that no busy machine can miss, and that each leap jumps over many times.
    let lease_ms = 6_000;
    let settings = SETTINGS.map(|(key, value)| (key, if key == "defaults.lease" { "6s" } else { value }));
    let town = Town::of(Bed::own_server(options).await.unwrap(), &settings).await;
    let pods = [town.pod("pod-1"), town.pod("pod-2")];
    let executor = town.executor("ex-1", &["--exec", "sleep 0.4"]);
    town.until_members(2, 1).await;
    for (shift_ms, word) in [(30_000, "ahead"), (0, "back"), (-30_000, "behind"), (0, "ahead again")] {
        let before = town.counts().await.0;
        // Some run, some are due soon, when the clock leaps.
        let leased = |task| NewTask { lease_ms: Some(lease_ms), ..task };
        town.client.submit_batch(tasks(60, 1_500).into_iter().map(leased).collect()).await.unwrap();
        town.until("some run", |counts| counts.succeeded + counts.running >= before.succeeded + 5).await;
        clock.shift_ms(shift_ms).unwrap();
        let start = minutehand::clock::mono();
        pods.iter().for_each(until_ready);
        println!("leapt {word}: ready after {:?}", start.elapsed());
    }
    // What was due by a clock that was ahead waits until the right one is there.
    let start = minutehand::clock::mono();
    town.until("all are done", |counts| counts.is_quiet() && counts.succeeded == 240).await;
    println!("all done {:?} after the last leap", start.elapsed());
    let lives = town.lives().await;
    assert_eq!(lives.len(), 240);
    assert!(lives.values().all(|(_, accepted)| *accepted == 1));
    // An offer that is older than its time by the new clock comes back, and is no failure; no lease lapsed for a leap.
    let again = lives.values().filter(|(grants, _)| *grants > 1).count();
    let mut tail = town.client.events();
    loop {
        let events = tail.next().await.unwrap();
        if events.is_empty() {
            break;
        }
        for event in events {
            assert!(event.event != Move::Retried, "{event:?}");
        }
    }
    println!("{again} were granted again");
    let regressions: f64 =
        pods.iter().filter_map(|pod| series(pod, "minutehand_server_clock_regressions_total")).sum();
    assert!(regressions >= 1.0, "{regressions}");
    town.check().await;
    for process in pods.iter().chain([&executor]) {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}
