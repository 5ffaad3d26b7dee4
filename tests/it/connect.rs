//! Reaching Redis in every shape it comes in, and what happens when it goes away.

use std::future::Future;
use std::net::ToSocketAddrs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use minutehand::clock::mono;
use minutehand::dev::fleet::{PrivateCluster, PrivateSentinel};
use minutehand::dev::redis::{Fsync, PrivateServer, ServerOptions};
use minutehand::model::Durability;
use minutehand::store::{
    At, Call, Cause, ConnectSettings, Flavor, Mode, Reply, Script, Shortfall, Store, StoreError,
    Subscription, slot_of,
};
use minutehand::testing::bed::Bed;
use minutehand::testing::fault::{Behind, Fault, FaultProxy};

/// Answers its first argument and counts its calls in the first key.
static ECHO: Script = Script::new(
    "test.echo",
    "#!lua flags=allow-oom\nredis.call('HINCRBY', KEYS[1], 'calls', 1) return {ARGV[1], #ARGV, KEYS[1]}",
);
/// Reads the second key as well, as every script of ours declares it.
static COUNT: Script = Script::new(
    "test.count",
    "#!lua flags=no-writes\nlocal n = redis.call('HGET', KEYS[1], 'calls') return {n or false, redis.call('EXISTS', KEYS[2])}",
);
static LARGE: Script =
    Script::new("test.large", "#!lua flags=no-writes\nreturn {ARGV[1], string.rep(ARGV[1], 4000)}");
static WRONG: Script = Script::new("test.wrong", "return redis.call('LPUSH', KEYS[1], 'x')");
static RAISE: Script = Script::new("test.raise", "error('boom')");
static ADD: Script = Script::new("test.add", "redis.call('APPEND', KEYS[2], ARGV[1]) return 1");
static SPIN: Script = Script::new(
    "test.spin",
    "local t = redis.call('TIME') local stop = t[1] * 1000 + t[2] / 1000 + ARGV[1] \
     repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > stop return 1",
);

/// No test waits longer than this for anything.
const LIMIT: Duration = Duration::from_secs(30);

fn keys(tag: &str) -> [Bytes; 2] {
    [format!("{{{tag}}}:meta").into(), format!("{{{tag}}}:never").into()]
}

fn settings(url: impl Into<String>) -> ConnectSettings {
    ConnectSettings { url: url.into(), ..ConnectSettings::default() }
}

async fn connect(url: impl Into<String>) -> Store {
    let url = url.into();
    Store::connect(settings(url.clone())).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

async fn echo(store: &Store, tag: &str, word: &str) -> Result<String, StoreError> {
    let reply = store.call(&ECHO, keys(tag), vec![Bytes::from(word.to_owned())]).await?;
    reply.fields(ECHO.name)?.text("the word")
}

/// Asks again and again, without a pause longer than it takes to let others run, until it is true.
async fn until<F: Future<Output = bool>>(what: &str, mut yes: impl FnMut() -> F) -> Duration {
    let start = mono();
    while !yes().await {
        assert!(start.elapsed() < LIMIT, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

async fn heard(subscription: &mut Subscription, payload: &str) {
    let wait = async {
        while let Some(wake) = subscription.recv().await {
            if wake.payload == payload.as_bytes() {
                return;
            }
        }
        panic!("the store was closed");
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("{payload} was not heard"));
}

/// Publishes until the subscription hears it: a subscription takes effect a little after it is made.
async fn publish_until_heard(store: &Store, subscription: &mut Subscription, payload: &str) {
    let channel = subscription.channel().clone();
    let talk = async {
        loop {
            // While the server is away this fails, which is what the loop is for.
            let _ = store.publish(channel.clone(), payload.to_owned().into()).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = heard(subscription, payload) => {}
        () = talk => {}
    }
}

async fn basics(store: &Store, tag: &str) {
    assert_eq!(echo(store, tag, "hello").await.expect("a call"), "hello");
    let counted = store.call(&COUNT, keys(tag), vec![]).await.expect("a call");
    assert_eq!(counted, Reply::Array(vec![Reply::Bytes("1".into()), Reply::Int(0)]));
    let [meta, _] = keys(tag);
    let pairs = store.command("HGETALL", At::Key(&meta), vec![meta.clone()]).await.expect("a command");
    assert_eq!(pairs.pairs("HGETALL").expect("pairs"), vec![("calls".into(), Reply::Bytes("1".into()))]);
    let pong = store.command("PING", At::Any, vec![]).await.expect("a command");
    assert_eq!(pong, Reply::Bytes("PONG".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_server_by_socket_and_by_tcp() {
    let options = ServerOptions { tcp: true, ..ServerOptions::default() };
    let bed = Bed::own_server(options).await.expect("a server");
    let store = bed.store().await.expect("a store");
    basics(&store, &format!("{}a", bed.namespace())).await;
    let by_tcp = connect(bed.server().tcp_url().expect("a port")).await;
    basics(&by_tcp, &format!("{}b", bed.namespace())).await;

    let info = by_tcp.server_info().await.expect("info");
    let binary = bed.server().binary();
    let flavor = if binary.valkey { Flavor::Valkey } else { Flavor::Redis };
    assert_eq!((info.mode, info.flavor, &info.version), (Mode::Single, flavor, &binary.version));
    assert_eq!(info.nodes.len(), 1);
    assert!(info.nodes[0].used_memory_bytes > 0 && info.nodes[0].main_thread_us.is_some());

    let clients = bed.server().run(&["CLIENT", "LIST"]).expect("clients");
    assert!(clients.text().contains("name=minutehand"), "connections bear a name");

    by_tcp.close().await;
    assert_eq!(echo(&by_tcp, "x", "y").await, Err(StoreError::Closed));
    assert_eq!(echo(&store, "x", "y").await.as_deref(), Ok("y"), "the other store goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn tests_share_a_server_but_no_namespace() {
    let (a, b) = (Bed::shared().await.expect("a bed"), Bed::shared().await.expect("a bed"));
    assert_eq!(a.server().pid(), b.server().pid());
    assert_ne!(a.namespace(), b.namespace());
    basics(&a.store().await.expect("a store"), a.namespace()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_there_is_told_within_two_seconds() {
    let start = mono();
    let error = Store::connect(settings("redis://u:secret@127.0.0.1:1")).await.expect_err("nobody listens");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let text = error.to_string();
    assert!(text.starts_with("redis unreachable at redis://127.0.0.1:1: "), "{text}");
    assert!(error.is_retryable() && !error.fate_unknown());
    for url in [
        "unix:///nowhere/at.all",
        "redis-cluster://127.0.0.1:1",
        "redis-sentinel://127.0.0.1:1?sentinelServiceName=x",
    ] {
        let start = mono();
        let error = Store::connect(settings(url)).await.expect_err("nobody listens");
        assert_eq!(error.cause(), "unreachable", "{url}: {error}");
        assert!(start.elapsed() < Duration::from_secs(2), "{url}: {:?}", start.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_told_within_two_seconds() {
    let bed = Bed::own_server(ServerOptions::default()).await.expect("a server");
    bed.server().pause();
    let start = mono();
    let error = Store::connect(bed.settings()).await.expect_err("it is frozen");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(error.cause(), "unreachable");
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_and_missing_rights_are_named() {
    let lines = vec![
        "requirepass open".into(),
        "user limited on >pass ~{mine}* &* +@all -evalsha".into(),
        "user keyless on >pass ~other* &* +@all".into(),
    ];
    let bed = Bed::own_server(ServerOptions { tcp: true, lines, ..ServerOptions::default() })
        .await
        .expect("a server");
    let address = format!("127.0.0.1:{}", bed.server().port().expect("a port"));
    let error = Store::connect(settings(format!("redis://{address}"))).await.expect_err("no login");
    assert!(error.to_string().contains("give a user name and a password"), "{error}");
    let error = Store::connect(settings(format!("redis://:wrong@{address}"))).await.expect_err("a wrong one");
    assert!(error.to_string().contains("user name or password is wrong"), "{error}");

    basics(&connect(format!("redis://:open@{address}")).await, "a").await;
    let login = ConnectSettings { password: Some("open".into()), ..bed.settings() };
    basics(&Store::connect(login).await.expect("a store"), "b").await;

    let limited = connect(format!("redis://limited:pass@{address}")).await;
    let error = echo(&limited, "mine", "x").await.expect_err("no right to scripts");
    assert!(matches!(error, StoreError::NoPermission { .. }), "{error}");
    assert!(error.to_string().contains("EVALSHA"), "{error}");
    let keyless = connect(format!("redis://keyless:pass@{address}")).await;
    let error = echo(&keyless, "mine", "x").await.expect_err("no right to the key");
    assert!(error.to_string().contains("key pattern"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicting_server_is_refused_unless_allowed() {
    // What it does is read from INFO: also where CONFIG is not to be had.
    let lines = vec!["rename-command CONFIG \"\"".into()];
    let bed = Bed::own_server(ServerOptions { lines, ..ServerOptions::default() }).await.expect("a server");
    basics(&bed.store().await.expect("a store"), "a").await;
    for policy in ["allkeys-lru", "volatile-lru", "volatile-ttl"] {
        let lines = vec![format!("maxmemory-policy {policy}"), "rename-command CONFIG \"\"".into()];
        let bed =
            Bed::own_server(ServerOptions { lines, ..ServerOptions::default() }).await.expect("a server");
        let error = Store::connect(bed.settings()).await.expect_err("it evicts");
        assert_eq!(error, StoreError::UnsafeEviction { policy: policy.into() });
        let allowed = ConnectSettings { allow_evicting: true, ..bed.settings() };
        basics(&Store::connect(allowed).await.expect("a store"), "a").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_comes_back_as_its_kind() {
    let bed = Bed::own_server(ServerOptions::default()).await.expect("a server");
    let store = bed.store().await.expect("a store");
    echo(&store, "a", "x").await.expect("a call");
    let wrong = store.call(&WRONG, keys("a"), vec![]).await.expect_err("a hash is no list");
    assert!(matches!(wrong, StoreError::WrongType { script: "test.wrong", .. }), "{wrong}");
    let raised = store.call(&RAISE, keys("a"), vec![]).await.expect_err("it raises");
    assert!(
        raised.to_string().starts_with("script test.raise failed: ") && raised.to_string().contains("boom")
    );
    assert!(!raised.is_retryable());

    bed.server().run(&["CONFIG", "SET", "maxmemory", "1"]).expect("a setting");
    let full = store.call(&ADD, keys("a"), vec!["x".into()]).await.expect_err("memory is full");
    assert!(matches!(full, StoreError::Refused { cause: Cause::Oom, .. }), "{full}");
    echo(&store, "a", "x").await.expect("a script that may still run");
    bed.server().run(&["CONFIG", "SET", "maxmemory", "0"]).expect("a setting");

    bed.server().run(&["CONFIG", "SET", "min-replicas-to-write", "1"]).expect("a setting");
    let lonely = store.call(&ADD, keys("a"), vec!["x".into()]).await.expect_err("no replica");
    assert!(matches!(lonely, StoreError::Refused { cause: Cause::NoReplicas, .. }), "{lonely}");
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_are_loaded_again_after_a_flush() {
    let bed = Bed::own_server(ServerOptions::default()).await.expect("a server");
    let store = bed.store().await.expect("a store");
    for round in 0..3 {
        bed.server().run(&["SCRIPT", "FLUSH"]).expect("a flush");
        let calls = (0..50).map(|n| Call {
            script: &ECHO,
            keys: keys("a"),
            args: vec![format!("{round}-{n}").into()],
        });
        let answers = store.call_many(calls.collect()).await;
        assert_eq!(answers.len(), 50);
        for (n, answer) in answers.into_iter().enumerate() {
            let word = answer.and_then(|reply| reply.fields("test.echo")?.text("the word"));
            assert_eq!(word, Ok(format!("{round}-{n}")));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_replicas_that_do_not_exist_is_told_as_a_count() {
    let bed = Bed::own_server(ServerOptions::default()).await.expect("a server");
    let store = bed.store().await.expect("a store");
    // The script is not loaded yet: both halves of the pipeline must come right all the same.
    let level = Durability::Wait { replicas: 1 };
    let (answer, lacks) =
        store.call_durable(&ECHO, keys("a"), vec!["x".into()], level).await.expect("a replicated call");
    assert_eq!(answer.fields("x").expect("a list").text("word").as_deref(), Ok("x"));
    assert_eq!(lacks, Some(Shortfall { level, local: None, replicas: 0 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_fails_calls_in_bounded_time_and_is_found_again() {
    let bed = Bed::own_durable().await.expect("a server");
    let store = bed.store().await.expect("a store");
    echo(&store, "a", "x").await.expect("a call");
    bed.server().kill9();
    let start = mono();
    let error = echo(&store, "a", "x").await.expect_err("it is dead");
    assert!(start.elapsed() < Duration::from_millis(2_500), "{:?}", start.elapsed());
    assert!(error.is_retryable(), "{error}");
    assert_eq!(error.cause(), "unreachable", "{error}");
    bed.server().restart().await.expect("a restart");
    let took = until("the store is back", || async { echo(&store, "a", "x").await.is_ok() }).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
    let counted =
        store.call(&COUNT, keys("a"), vec![]).await.expect("a call").fields("x").expect("a list").int("n");
    assert!(counted.expect("a count") >= 2, "what was acknowledged is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_fails_calls_in_bounded_time_and_is_found_again() {
    let options = ServerOptions { tcp: true, ..ServerOptions::default() };
    let bed = Bed::own_server(options).await.expect("a server");
    let store = connect(bed.server().tcp_url().expect("a port")).await;
    echo(&store, "a", "x").await.expect("a call");
    bed.server().pause();
    let calls = (0..20).map(|_| Call { script: &ECHO, keys: keys("a"), args: vec!["x".into()] });
    let start = mono();
    for answer in store.call_many(calls.collect()).await {
        let error = answer.expect_err("it is frozen");
        assert!(error.is_retryable() && error.fate_unknown(), "{error:?}");
    }
    assert!(start.elapsed() < Duration::from_millis(2_500), "{:?}", start.elapsed());
    bed.server().resume();
    let took = until("the store is back", || async { echo(&store, "a", "x").await.is_ok() }).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_script_makes_others_late_but_mixes_nothing_up() {
    let bed = Bed::own_server(ServerOptions::default()).await.expect("a server");
    let short = ConnectSettings { call_timeout_ms: 300, pool_size: 1, ..bed.settings() };
    let store = Store::connect(short).await.expect("a store");
    let late = store.call(&SPIN, keys("a"), vec!["500".into()]).await.expect_err("it takes longer");
    assert!(late.fate_unknown(), "{late:?}");
    for n in 0..200 {
        let word = format!("w{n}");
        if let Ok(got) = echo(&store, "a", &word).await {
            assert_eq!(got, word);
        }
    }
    until("the store is back", || async { echo(&store, "a", "x").await.as_deref() == Ok("x") }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_calls_do_not_mix_up_answers() {
    let bed = Bed::shared().await.expect("a bed");
    let store = Store::connect(ConnectSettings { pool_size: 1, ..bed.settings() }).await.expect("a store");
    let tag = bed.namespace();
    for n in 0..500 {
        let word = format!("w{n}");
        let call = echo(&store, tag, &word);
        if n % 3 == 0 {
            // Polled once, so that it is on its way, and dropped.
            let mut call = Box::pin(call);
            std::future::poll_fn(|context| {
                let _ = call.as_mut().poll(context);
                std::task::Poll::Ready(())
            })
            .await;
        } else {
            assert_eq!(call.await, Ok(word));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_in_the_middle_of_an_answer_mixes_nothing_up() {
    let bed = Bed::shared().await.expect("a bed");
    let proxy = FaultProxy::start(Behind::Unix(bed.server().socket())).await.expect("a proxy");
    let store = connect(proxy.url()).await;
    let tag = bed.namespace().to_owned();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut right, mut failed) = (0, 0);
    for round in 0..10 {
        proxy.cut_after(random.u64(1_000..400_000));
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..50 {
            let (store, tag) = (store.clone(), tag.clone());
            callers.spawn(async move {
                let (mut right, mut failed) = (0, 0);
                for n in 0..4 {
                    let word = format!("{round}.{caller}.{n};");
                    match store.call(&LARGE, keys(&tag), vec![word.clone().into()]).await {
                        Ok(reply) => {
                            let mut fields = reply.fields("test.large").expect("a list");
                            assert_eq!(fields.text("the word").expect("a word"), word);
                            assert_eq!(fields.text("the rest").expect("the rest"), word.repeat(4_000));
                            right += 1;
                        }
                        Err(error) => {
                            assert!(error.is_retryable(), "{error:?}");
                            failed += 1;
                        }
                    }
                }
                (right, failed)
            });
        }
        while let Some(done) = callers.join_next().await {
            let (r, f) = done.expect("no caller panics");
            right += r;
            failed += f;
        }
        assert!(proxy.was_cut(), "round {round} was not cut");
    }
    println!("{right} right, {failed} failed, {} connections", proxy.accepted());
    assert!(right > 0 && failed > 0);
    until("the store is back", || async { echo(&store, &tag, "x").await.is_ok() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_given_up_and_replaced() {
    let bed = Bed::shared().await.expect("a bed");
    let proxy = FaultProxy::start(Behind::Unix(bed.server().socket())).await.expect("a proxy");
    let store = connect(proxy.url()).await;
    echo(&store, bed.namespace(), "x").await.expect("a call");
    proxy.set(Fault { half_open: true, ..Fault::default() });
    let start = mono();
    let error = echo(&store, bed.namespace(), "x").await.expect_err("nothing passes");
    assert!(error.fate_unknown() && start.elapsed() < Duration::from_millis(2_500), "{error:?}");
    proxy.set(Fault::default());
    until("the store is back", || async { echo(&store, bed.namespace(), "x").await.is_ok() }).await;

    proxy.set(Fault { delay: Duration::from_millis(30), ..Fault::default() });
    let start = mono();
    echo(&store, bed.namespace(), "x").await.expect("a slow call");
    assert!(start.elapsed() >= Duration::from_millis(60), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn too_much_for_a_deaf_server_is_refused_not_hoarded() {
    let bed = Bed::shared().await.expect("a bed");
    let proxy = FaultProxy::start(Behind::Unix(bed.server().socket())).await.expect("a proxy");
    let store =
        Store::connect(ConnectSettings { pool_size: 1, ..settings(proxy.url()) }).await.expect("a store");
    proxy.set(Fault { deaf: true, ..Fault::default() });
    let payload = Bytes::from(vec![b'x'; 1 << 20]);
    let start = mono();
    let calls = (0..200).map(|_| Call { script: &ECHO, keys: keys("a"), args: vec![payload.clone()] });
    let errors = store.call_many(calls.collect()).await;
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    assert!(errors.iter().all(|answer| answer.as_ref().is_err_and(StoreError::is_retryable)));
    proxy.set(Fault::default());
    until("the store is back", || async { echo(&store, bed.namespace(), "x").await.is_ok() }).await;
}

fn openssl(dir: &Path, words: &str) -> bool {
    let mut command = Command::new("openssl");
    command
        .args(words.split(' '))
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_a_private_authority() {
    let bed = Bed::shared().await.expect("a bed");
    let dir = bed.server().dir().join("tls");
    std::fs::create_dir_all(&dir).expect("a directory");
    std::fs::write(dir.join("ext"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").expect("a file");
    let made = openssl(
        &dir,
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=test-ca",
    ) && openssl(&dir, "req -newkey rsa:2048 -nodes -keyout s.key -out s.csr -subj /CN=localhost")
        && openssl(
            &dir,
            "x509 -req -in s.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out s.crt -days 2 -extfile ext",
        );
    if !made {
        println!("skipped: no openssl to make certificates with");
        return;
    }
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let lines = vec![
        format!("tls-port {port}"),
        "tls-cert-file s.crt".into(),
        "tls-key-file s.key".into(),
        "tls-ca-cert-file ca.crt".into(),
        "tls-auth-clients no".into(),
    ];
    let options = ServerOptions { data_dir: Some(dir.clone()), lines, ..ServerOptions::default() };
    let _server = match PrivateServer::start(options).await {
        Ok(server) => server,
        Err(error) => {
            println!("skipped: this server was built without tls ({error})");
            return;
        }
    };

    let trusting = |host: &str| ConnectSettings {
        ca_file: Some(dir.join("ca.crt")),
        ..settings(format!("rediss://{host}:{port}"))
    };
    for host in ["localhost", "127.0.0.1"] {
        basics(&Store::connect(trusting(host)).await.expect("a store"), host).await;
    }
    let error = Store::connect(settings(format!("rediss://localhost:{port}")))
        .await
        .expect_err("a stranger's signature");
    assert!(error.to_string().to_lowercase().contains("unknownissuer"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_followed_through_moves() {
    let cluster = PrivateCluster::start(3, 0).await.expect("a cluster");
    let store = connect(cluster.url()).await;
    let info = store.server_info().await.expect("info");
    assert_eq!((info.mode, info.nodes.len()), (Mode::Cluster, 3));
    for n in 0..40 {
        basics(&store, &format!("t{n}")).await;
    }
    assert_eq!(store.on_each_master("SCRIPT FLUSH", vec![]).await.len(), 3);
    for n in 0..40 {
        assert_eq!(echo(&store, &format!("t{n}"), "x").await.as_deref(), Ok("x"));
    }

    let mut wakes = store.subscribe("{t0}:wake".into());
    publish_until_heard(&store, &mut wakes, "before").await;
    // A slot that is half moved: the meta key has gone, so the source says ASK, and the target says
    // TRYAGAIN because the other key is neither here nor there.
    let slot = slot_of(b"{t0}:meta");
    let source = cluster.first_owner(slot);
    let target = cluster.masters.iter().find(|node| node.port() != source.port()).expect("another master");
    let id = |node: &PrivateServer| node.run(&["CLUSTER", "MYID"]).expect("an id").text().to_owned();
    let (from, to, number) = (id(source), id(target), slot.to_string());
    target.run(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &from]).expect("importing");
    source.run(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &to]).expect("migrating");
    let port = target.port().expect("a port").to_string();
    source.run(&["MIGRATE", "127.0.0.1", &port, "{t0}:meta", "0", "2000"]).expect("a moved key");
    let error = echo(&store, "t0", "x").await.expect_err("half moved");
    assert!(matches!(error, StoreError::Refused { cause: Cause::TryAgain, .. }), "{error:?}");
    // A plain read of the moved key follows ASK and finds it.
    let meta = Bytes::from("{t0}:meta");
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..32 {
        let (store, meta) = (store.clone(), meta.clone());
        callers.spawn(async move {
            for n in 0..50 {
                let args = vec![meta.clone(), Bytes::from("calls")];
                let got = store.command("HGET", At::Key(&meta), args).await.expect("asked there");
                assert_eq!(got, Reply::Bytes("2".into()));
                let word = format!("{caller}.{n}");
                let other = echo(&store, &format!("t{}", 1 + caller % 20), &word).await;
                assert_eq!(other, Ok(word), "other slots feel nothing, on the target's connections neither");
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.expect("no caller panics");
    }

    for node in [target, source] {
        node.run(&["CLUSTER", "SETSLOT", &number, "NODE", &to]).expect("an owner");
    }
    let took = until("the slot is followed", || async { echo(&store, "t0", "x").await.is_ok() }).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    let counted =
        store.call(&COUNT, keys("t0"), vec![]).await.expect("a call").fields("x").expect("a list").int("n");
    assert_eq!(counted, Ok(3), "it is the same bucket, in its new place");
    let start = mono();
    publish_until_heard(&store, &mut wakes, "after").await;
    println!("heard in its new place after {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// The first master is lost: its slots alone feel it, until its replica takes over.
async fn lose_a_master(lose: impl FnOnce(&PrivateServer)) {
    let cluster = PrivateCluster::start(3, 1).await.expect("a cluster");
    let store = connect(cluster.url()).await;
    let tags: Vec<String> = (0..60).map(|n| format!("t{n}")).collect();
    for tag in &tags {
        echo(&store, tag, "x").await.expect("a call");
    }
    let port_of = |tag: &str| cluster.first_owner(slot_of(format!("{{{tag}}}:meta").as_bytes())).port();
    let dead: &PrivateServer = &cluster.masters[0];
    let hit = tags.iter().find(|tag| port_of(tag) == dead.port()).expect("a tag of the first master");
    let others: Vec<&String> = tags.iter().filter(|tag| port_of(tag) != dead.port()).collect();
    let channel = Bytes::from(format!("{{{hit}}}:wake"));
    let mut subscription = store.subscribe(channel);
    publish_until_heard(&store, &mut subscription, "before").await;

    lose(dead);
    let mut longest = Duration::ZERO;
    let watch = async {
        loop {
            for tag in &others {
                let start = mono();
                assert_eq!(echo(&store, tag, "x").await.as_deref(), Ok("x"), "{tag} has its master");
                longest = longest.max(start.elapsed());
            }
        }
    };
    let back = until("the replica has taken over", || async { echo(&store, hit, "x").await.is_ok() });
    let took = tokio::select! { took = back => took, () = watch => unreachable!() };
    println!("the lost master's slots were back after {took:?}; the others' longest call took {longest:?}");
    // Less than a second: that of the dead one takes several.
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    publish_until_heard(&store, &mut subscription, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_dead_master_is_felt_by_its_slots_alone() {
    lose_a_master(PrivateServer::kill9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_frozen_master_is_felt_by_its_slots_alone() {
    lose_a_master(PrivateServer::pause).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_scheme_is_told() {
    let cluster = PrivateCluster::start(1, 0).await.expect("a cluster");
    let url = cluster.masters[0].tcp_url().expect("a port");
    let error = Store::connect(settings(url)).await.expect_err("a cluster by a single address");
    assert!(error.to_string().contains("write redis-cluster:// instead of redis://"), "{error}");
    basics(&connect(cluster.url()).await, "a").await;
    let single = PrivateServer::start(ServerOptions { tcp: true, ..ServerOptions::default() })
        .await
        .expect("a server");
    let url = format!("redis-cluster://127.0.0.1:{}", single.port().expect("a port"));
    let error = Store::connect(settings(url)).await.expect_err("a single server by a cluster's address");
    assert!(error.to_string().contains("write redis:// instead of redis-cluster://"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinels_new_master_is_followed() {
    let fleet = PrivateSentinel::start().await.expect("a fleet");
    let store = connect(fleet.url()).await;
    assert_eq!(store.mode(), Mode::Sentinel);
    basics(&store, "a").await;
    let mut subscription = store.subscribe("{a}:wake".into());
    publish_until_heard(&store, &mut subscription, "before").await;

    let level = Durability::Wait { replicas: 1 };
    let (answer, lacks) =
        store.call_durable(&ECHO, keys("a"), vec!["x".into()], level).await.expect("a replicated call");
    assert_eq!((answer.fields("x").expect("a list").text("word").as_deref(), lacks), (Ok("x"), None));

    let replica = fleet.replica.port().expect("a port");
    fleet.sentinels[0].run(&["SENTINEL", "FAILOVER", "minutehand"]).expect("a failover");
    let on_new = || async {
        let told = store.command("CONFIG GET", At::Any, vec!["port".into()]).await;
        told.is_ok_and(|reply| format!("{reply:?}").contains(&replica.to_string()))
    };
    let took = until("the new master is used", on_new).await;
    println!("followed after {took:?}");
    until("the new master takes writes", || async { echo(&store, "a", "x").await.is_ok() }).await;
    publish_until_heard(&store, &mut subscription, "after").await;
}

/// A sentinel says it once that the master is another. Who did not listen just then must ask; else its writes would go to
/// the old master until that is told, some eight seconds later, and be lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_is_found_by_who_did_not_listen_to_the_sentinel() {
    let fleet = PrivateSentinel::start().await.expect("a fleet");
    let sentinel = ("127.0.0.1", fleet.sentinels[0].port().expect("a port"));
    let addr = sentinel.to_socket_addrs().expect("an address").next().expect("one");
    let proxy = FaultProxy::start(Behind::Tcp(addr)).await.expect("a proxy");
    let store = connect(format!("redis-sentinel://{}?sentinelServiceName=minutehand", proxy.addr())).await;
    basics(&store, "a").await;
    let accepted = proxy.accepted();
    proxy.set(Fault { half_open: true, ..Fault::default() });
    proxy.cut();
    until("it has come back to a sentinel that says nothing", || async { proxy.accepted() > accepted }).await;
    let replica = fleet.replica.port().expect("a port").to_string();
    fleet.sentinels[0].run(&["SENTINEL", "FAILOVER", "minutehand"]).expect("a failover");
    for sentinel in &fleet.sentinels {
        let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "minutehand"];
        until("the sentinels agree", || async {
            sentinel.run(&ask).is_ok_and(|told| format!("{told:?}").contains(&replica))
        })
        .await;
    }
    proxy.set(Fault::default());
    proxy.cut();
    let took = until("the new master is used", || async {
        let told = store.command("CONFIG GET", At::Any, vec!["port".into()]).await;
        told.is_ok_and(|reply| format!("{reply:?}").contains(&replica))
    })
    .await;
    println!("found after {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}: the old master was left only when it had been told");
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_come_back_after_their_connection_is_killed() {
    let bed = Bed::own_server(ServerOptions::default()).await.expect("a server");
    let store = bed.store().await.expect("a store");
    let mut one = store.subscribe("{a}:wake".into());
    let mut two = store.subscribe("{a}:wake".into());
    let mut other = store.subscribe("{b}:wake".into());
    publish_until_heard(&store, &mut one, "first").await;
    heard(&mut two, "first").await;
    publish_until_heard(&store, &mut other, "other").await;
    for round in 0..3 {
        bed.server().run(&["CLIENT", "KILL", "TYPE", "pubsub"]).expect("a kill");
        publish_until_heard(&store, &mut one, &format!("again {round}")).await;
    }
    drop((one, two));
    until("nobody listens", || async {
        let channels = store.command("PUBSUB SHARDCHANNELS", At::Any, vec![]).await.expect("channels");
        channels == Reply::Array(vec![Reply::Bytes("{b}:wake".into())])
    })
    .await;
    store.close().await;
    let end = tokio::time::timeout(LIMIT, async { while other.recv().await.is_some() {} });
    end.await.expect("a closed store ends its subscriptions");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lagging_listener_loses_only_repetitions() {
    let bed = Bed::shared().await.expect("a bed");
    let store = bed.store().await.expect("a store");
    let mut slow = store.subscribe(format!("{{{}}}:wake", bed.namespace()).into());
    publish_until_heard(&store, &mut slow, "ready").await;
    let channel = slow.channel().clone();
    for n in 0..500 {
        store.publish(channel.clone(), format!("{n}").into()).await.expect("a message");
    }
    heard(&mut slow, "499").await;
}

#[test]
fn a_server_ends_with_its_handle_and_leaves_nothing() {
    let server = PrivateServer::start_blocking(ServerOptions::default()).expect("a server");
    let (dir, pid) = (server.dir().to_owned(), server.pid().expect("a process"));
    assert!(dir.exists());
    server.pause();
    drop(server);
    assert!(!dir.exists() && !Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_is_kept() {
    let bed = Bed::shared().await.expect("a bed");
    let data_dir = bed.server().dir().join("kept");
    let options = ServerOptions {
        data_dir: Some(data_dir.clone()),
        append_only: Some(Fsync::EverySecond),
        ..ServerOptions::default()
    };
    let server = PrivateServer::start(options.clone()).await.expect("a server");
    server.run(&["SET", "k", "v"]).expect("a write");
    server.shutdown().await;
    let server = PrivateServer::start(options).await.expect("a server");
    assert_eq!(server.run(&["GET", "k"]).expect("a read").text(), "v");
}

#[test]
fn a_server_that_cannot_start_shows_its_log() {
    let options = ServerOptions { lines: vec!["no-such-directive yes".into()], ..ServerOptions::default() };
    let start: Instant = mono();
    let error = PrivateServer::start_blocking(options).expect_err("a bad line");
    assert!(error.to_string().contains("did not start"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}
