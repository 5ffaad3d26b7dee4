//! Redis restarted, its scripts forgotten, its messages lost, its memory full.

use super::*;
use minutehand::client::{Due, NewTask};
use minutehand::limits;
use minutehand::model::QueueName;
use minutehand::testing::process::until;
use std::sync::atomic::AtomicU32;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_redis_forgets_are_loaded_again() {
    let town = Town::new(&[]).await;
    let executors = [town.executor("ex-1", &["--discard"]), town.executor("ex-2", &["--discard"])];
    let pods = [town.pod("pod-1"), town.pod("pod-2")];
    town.until_members(2, 2).await;
    let (stop, flushed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let forget = {
        let (stop, flushed) = (Arc::clone(&stop), Arc::clone(&flushed));
        let sockets: Vec<_> = town.redis.masters().iter().map(|master| master.socket()).collect();
        std::thread::spawn(move || {
            let open = |socket: std::path::PathBuf| {
                minutehand::dev::wire::Wire::open(&minutehand::dev::wire::Door::Unix(socket)).unwrap()
            };
            let mut wires: Vec<_> = sockets.into_iter().map(open).collect();
            while !stop.load(Ordering::Relaxed) {
                for wire in &mut wires {
                    wire.run(&["SCRIPT", "FLUSH"]).unwrap();
                }
                flushed.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        })
    };
    import_flights(&town.program, "14400");
    town.until_succeeded(FLIGHTS).await;
    stop.store(true, Ordering::Relaxed);
    forget.join().unwrap();
    assert!(flushed.load(Ordering::Relaxed) > 20);
    town.each_once().await;
    town.check().await;
    for process in executors.iter().chain(&pods) {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
        assert!(!process.log().contains(" WARN "), "{}", process.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_dies_and_comes_back_in_mid_run() {
    let settings = [("defaults.dispatch_timeout", "1s"), ("defaults.lease", "1500ms")];
    let town = Town::of(Bed::own_durable().await.unwrap(), &settings).await;
    let executors = [town.executor("ex-1", &["--discard"]), town.executor("ex-2", &["--discard"])];
    let pods = [town.pod("pod-1"), town.pod("pod-2")];
    town.until_members(2, 2).await;
    import_flights(&town.program, "14400");
    town.until("a third is done", |counts| counts.succeeded >= FLIGHTS / 3).await;
    let stalls = Stalls::watch();
    let died = minutehand::clock::mono();
    town.bed().server().kill9();
    // Long enough for the waits between two tries to grow.
    let tries = |pod: &Running| pod.err().matches("claim failed").count();
    until("both pods to try in vain", NEVER, || pods.iter().all(|pod| tries(pod) >= 4).then_some(()));
    town.bed().server().restart().await.unwrap();
    let away_ms = i64::try_from(died.elapsed().as_millis()).unwrap();
    town.until_succeeded(FLIGHTS).await;
    town.check().await;
    let lives = town.lives().await;
    assert_eq!(lives.len() as i64, FLIGHTS);
    assert!(lives.values().all(|(_, accepted)| *accepted == 1));
    let again = lives.values().filter(|(grants, _)| *grants > 1).count();
    let (_, lag) = town.counts().await;
    let latest = lag.max.unwrap();
    let stall = stalls.end();
    println!("redis was away for {away_ms} ms; latest start {latest} ms after due; {again} granted again");
    // Whoever had been away is as punctual as ever.
    let diary = Diary::new(&town);
    let words = ["work", "--queue", "later", "--exec", &diary.command()];
    let later = town.program.start("ex-3", &words);
    later.until_said("executor runs", NEVER);
    let queue = QueueName::new("later").unwrap();
    let due = |n: i64| NewTask { due: Due::In(1_000 + 40 * n), ..NewTask::to(queue.clone()) };
    let calm = Stalls::watch();
    town.client.submit_batch((0..50).map(due).collect()).await.unwrap();
    town.until_succeeded(FLIGHTS + 50).await;
    let late = diary.runs().iter().map(|run| run.started_ms - run.due_ms).max().unwrap();
    let calm = calm.end();
    println!("after it: latest start {late} ms after due, with stalls of {calm} ms");
    assert!(late <= 300 + 2 * calm, "{late} ms, with stalls of {calm} ms");
    // What had just been granted when it died comes back once leases lapse again: pods find back within the longest waits
    // for a connection and for a call, leases wait from then on, and the next poll sees which have lapsed.
    let reconnect_ms = limits::RECONNECT_MAX_MS as i64;
    let bound = away_ms + 2 * reconnect_ms + limits::RETURN_MS + limits::POLL_MS + 2 * stall;
    assert!(latest <= bound, "{latest} ms, away for {away_ms} ms");
    for process in executors.iter().chain(&pods).chain([&later]) {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_wake_ups_cost_a_poll_at_most() {
    lost_wake_ups(10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half a minute: make cases"]
async fn a_hundred_lost_wake_ups_cost_a_poll_each_at_most() {
    lost_wake_ups(100).await;
}

/// While wake-ups arrive nobody waits for a poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_wake_ups_a_task_of_an_idle_fleet_starts_at_once() {
    let town = Town::new(&[]).await;
    let _executor = town.executor("ex-1", &["--discard"]);
    let _pods = [town.pod("pod-1"), town.pod("pod-2")];
    town.until_members(2, 1).await;
    let queue = QueueName::new("flights").unwrap();
    for round in 1..=40 {
        town.client.submit(NewTask::to(queue.clone())).await.unwrap();
        town.until_succeeded(round).await;
    }
    let (_, lag) = town.counts().await;
    println!("lag of one task at a time: {lag:?}");
    assert_eq!(lag.count, 40);
    assert!(lag.p50.unwrap() <= 50, "{lag:?}");
}

async fn lost_wake_ups(rounds: usize) {
    let town = Town::new(&[]).await;
    let _executor = town.executor("ex-1", &["--discard"]);
    let _pod = town.pod("pod-1");
    town.until_members(1, 1).await;
    let queue = QueueName::new("flights").unwrap();
    // One task for each bucket: keys lead to them evenly.
    let tasks = |round: usize| -> Vec<NewTask> {
        let task = |n: usize| NewTask {
            due: Due::Now,
            placement: Some(format!("{round}-{n}").into()),
            ..NewTask::to(queue.clone())
        };
        (0..16).map(task).collect()
    };
    let stalls = Stalls::watch();
    town.client.submit_batch(tasks(0)).await.unwrap();
    let mut done = 16;
    town.until_succeeded(done).await;
    for round in 1..=rounds {
        // Not those of sentinels, which would take the master for dead.
        town.redis.on_each(&["CLIENT", "KILL", "TYPE", "pubsub", "USER", "minutehand"]);
        town.client.submit_batch(tasks(round)).await.unwrap();
        done += 16;
        town.until_succeeded(done).await;
    }
    let (_, lag) = town.counts().await;
    let stall = stalls.end();
    println!("lag after lost wake-ups: {lag:?}; the machine stalled for up to {stall} ms");
    // Beyond the poll there is only the way from claim to handler.
    assert!(lag.max.unwrap() <= 1_000 + 600 + 2 * stall, "{lag:?}");
    assert_eq!(lag.count as i64, done);
    town.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_memory_refuses_new_work_and_lets_the_rest_drain() {
    let town = Town::new(&[]).await;
    let submit = ["submit", "--queue", "flights", "--payload", "hello"];
    import_flights(&town.program, "100000");
    let redis = &town.redis;
    redis.on_each(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let refused = town.program.run(&[&submit[..], &["--output", "json"]].concat());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let message = refused.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("memory"), "{message}");
    let plan = b"due,id\n2013-11-27T05:00:00Z,a\n";
    let import = town.program.run_with(&["import", "-", "--queue", "flights", "--key", "id"], plan);
    assert!(import.code == Some(1) && import.err.contains("memory"), "{import:?}");
    assert_eq!(town.counts().await.0.submitted, FLIGHTS);

    // Pods and executors start and work all the same, to the last task.
    let pod = town.pod("pod-1");
    let executor = town.executor("ex-1", &["--discard"]);
    town.until_succeeded(FLIGHTS).await;
    town.check().await;
    assert_eq!(town.program.run(&submit).code, Some(1));
    redis.on_each(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(town.program.run(&submit).code, Some(0));
    town.until_succeeded(FLIGHTS + 1).await;
    for process in [&executor, &pod] {
        assert_eq!(process.stop(NEVER), Some(0), "{}", process.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_say_within_two_seconds_that_redis_cannot_be_reached() {
    // One port that refuses, one that accepts and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (silent_at, refusing_at) = (silent.local_addr().unwrap(), refusing.local_addr().unwrap());
    drop(refusing);
    let id = "0-zzzzzzzzzzzzzz";
    let flights = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/flights-2013-11-27.csv");
    let all = [
        &["submit", "--queue", "q"][..],
        &["status"],
        &["check"],
        &["get", id],
        &["cancel", id],
        &["reschedule", id, "--in", "1s"],
        &["import", flights, "--due", "departure", "--queue", "q", "--tz", "UTC"],
    ];
    for (url, limit, commands) in [
        (format!("redis://{refusing_at}"), 2_000, &all[..]),
        (format!("redis://{silent_at}"), 2_600, &all[..2]),
    ] {
        let program = program(&url, "mh");
        for words in commands {
            let start = minutehand::clock::mono();
            let ended = program.run(&[*words, &["--output", "json"]].concat());
            let took = start.elapsed();
            assert_eq!(ended.code, Some(4), "{words:?} at {url}: {ended:?}");
            assert_eq!(ended.error()["code"], "redis_unreachable");
            assert!(!ended.err.contains("panicked"), "{ended:?}");
            assert!(took < Duration::from_millis(limit), "{words:?} at {url} took {took:?}");
        }
    }
    until("the listener is still there", NEVER, || silent.local_addr().ok());
}
