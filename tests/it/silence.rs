//! Answers that come late, or too late: nobody gets another's, and nobody takes a busy process for a dead server.

use bytes::Bytes;
use minutehand::clock::mono;
use minutehand::dev::redis::ServerOptions;
use minutehand::store::{ConnectSettings, POOL_SIZE_DEFAULT, Script, Store, StoreError};
use minutehand::testing::bed::Bed;
use minutehand::testing::fault::{Behind, Fault, FaultProxy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// Keeps a value under a key and answers what lies there.
static KEEP: Script =
    Script::new("test.keep", "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) return {ARGV[1], ARGV[2]}");

fn keys(tag: &str) -> [Bytes; 2] {
    [format!("{{{tag}}}:meta").into(), format!("{{{tag}}}:never").into()]
}

async fn keep(store: &Store, tag: &str, who: &str, word: &str) -> Result<(String, String), StoreError> {
    let args = vec![Bytes::from(who.to_owned()), Bytes::from(word.to_owned())];
    let mut fields = store.call(&KEEP, keys(tag), args).await?.fields(KEEP.name)?;
    Ok((fields.text("who")?, fields.text("the word")?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_comes_late_to_read_keeps_its_connections() {
    let bed = Bed::shared().await.expect("a bed");
    let store = bed.store().await.expect("a store");
    while store.connections_made() < POOL_SIZE_DEFAULT as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let made = store.connections_made();
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut callers = JoinSet::new();
    for caller in 0..20 {
        let (store, tag) = (store.clone(), bed.namespace().to_owned());
        let (stop, calls) = (Arc::clone(&stop), Arc::clone(&calls));
        callers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let (who, word) = (format!("c{caller}"), calls.load(Ordering::Relaxed).to_string());
                let told = keep(&store, &tag, &who, &word).await;
                assert_eq!(told, Ok((who, word)));
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    // Handlers that hold both threads for longer than most would wait for an answer, though not than a call may take.
    for _ in 0..3 {
        let mut blocked = JoinSet::new();
        for _ in 0..2 {
            blocked.spawn(async { std::thread::sleep(Duration::from_millis(1_400)) });
        }
        while blocked.join_next().await.is_some() {}
        // All of them are answered before the threads are held again.
        let before = calls.load(Ordering::Relaxed);
        while calls.load(Ordering::Relaxed) < before + 100 && !callers.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if let Some(done) = callers.try_join_next() {
                done.expect("each call is answered");
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = callers.join_next().await {
        done.expect("each call is answered");
    }
    println!("{} calls", calls.load(Ordering::Relaxed));
    assert_eq!(store.connections_made(), made, "no connection was given up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_answers_and_dropped_calls_give_nobody_anothers_answer() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let bed = Bed::shared().await.expect("a bed");
    let proxy = Arc::new(FaultProxy::start(Behind::Unix(bed.server().socket())).await.expect("a proxy"));
    let settings = ConnectSettings { url: proxy.url(), call_timeout_ms: 200, ..ConnectSettings::default() };
    let store = Store::connect(settings).await.expect("a store");
    let stop = mono() + Duration::from_secs(6);
    let mut callers = JoinSet::new();
    for caller in 0..50 {
        let (store, tag) = (store.clone(), bed.namespace().to_owned());
        let mut random = fastrand::Rng::with_seed(seed ^ caller);
        callers.spawn(async move {
            let (mut right, mut late, mut dropped) = (0_u32, 0_u32, 0_u32);
            while mono() < stop {
                let (who, word) = (format!("c{caller}"), format!("{right}.{late}.{dropped}"));
                let call = keep(&store, &tag, &who, &word);
                if random.u8(0..5) == 0 {
                    // Dropped at some point of its way.
                    let patience = Duration::from_micros(random.u64(0..3_000));
                    dropped += u32::from(tokio::time::timeout(patience, call).await.is_err());
                    continue;
                }
                match call.await {
                    Ok(told) => {
                        assert_eq!(told, (who, word));
                        right += 1;
                    }
                    Err(error) => {
                        assert!(error.is_retryable(), "{error:?}");
                        late += 1;
                    }
                }
            }
            (right, late, dropped)
        });
    }
    let mut random = fastrand::Rng::with_seed(seed);
    while mono() < stop {
        // Some answers are held back for longer than a call may take.
        proxy.set(Fault { delay: Duration::from_millis(300), ..Fault::default() });
        tokio::time::sleep(Duration::from_millis(random.u64(1..30))).await;
        proxy.set(Fault::default());
        tokio::time::sleep(Duration::from_millis(random.u64(300..900))).await;
    }
    let mut all = (0, 0, 0);
    while let Some(done) = callers.join_next().await {
        let (right, late, dropped) = done.expect("no answer was another's");
        all = (all.0 + right, all.1 + late, all.2 + dropped);
    }
    println!("{} right, {} late, {} dropped", all.0, all.1, all.2);
    assert!(all.0 > 0 && all.1 > 0 && all.2 > 0, "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_left_and_found_again_also_by_a_rare_caller() {
    let options = ServerOptions { tcp: true, ..ServerOptions::default() };
    let bed = Bed::own_server(options).await.expect("a server");
    let proxy = FaultProxy::start(Behind::Unix(bed.server().socket())).await.expect("a proxy");
    let settings = ConnectSettings { url: proxy.url(), pool_size: 1, ..ConnectSettings::default() };
    let store = Store::connect(settings).await.expect("a store");
    keep(&store, "a", "x", "1").await.expect("a call");
    // The way is dead, and whoever takes a new one gets through.
    proxy.set(Fault { half_open: true, ..Fault::default() });
    let error = keep(&store, "a", "x", "2").await.expect_err("nothing passes");
    assert!(error.fate_unknown(), "{error:?}");
    let start = mono();
    let accepted = proxy.accepted();
    while proxy.accepted() == accepted {
        assert!(start.elapsed() < Duration::from_secs(10), "one late call is enough to look for another way");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.set(Fault::default());
    let start = mono();
    while keep(&store, "a", "x", "3").await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    println!("another way after {:?}", start.elapsed());
}
