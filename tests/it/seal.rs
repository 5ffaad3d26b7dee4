//! Payloads that only those who hold a key can read.

use minutehand::client::{Client, NewTask};
use minutehand::executor::{Executor, Task};
use minutehand::model::seal::{KEY_BYTES, KeyRing};
use minutehand::model::{QueueName, State};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::{At, Space};
use minutehand::testing::bed::Bed;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

fn ring(names: &[(&str, u8)]) -> Arc<KeyRing> {
    let lines: Vec<String> =
        names.iter().map(|(name, byte)| KeyRing::line(name, &[*byte; KEY_BYTES]).unwrap()).collect();
    Arc::new(lines.join("\n").parse().unwrap())
}

/// Every byte that Redis keeps of the namespace.
async fn everything(space: &Space) -> Vec<u8> {
    let (store, mut all) = (space.store(), Vec::new());
    let keys = store.command("KEYS", At::Any, vec!["*".into()]).await.unwrap().array("KEYS").unwrap();
    for key in keys {
        let key = key.bytes("KEYS").unwrap();
        let dump = store.command("DUMP", At::Key(&key), vec![key.clone()]).await.unwrap();
        all.extend(dump.maybe_bytes("DUMP").unwrap().unwrap_or_default());
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_never_sees_a_payload_and_executors_with_the_key_do() {
    let bed = Bed::shared().await.unwrap();
    let space = bed.open().await.unwrap();
    let queue = |name: &str| QueueName::new(name).unwrap();
    let secret = "a payload that nobody but the executor shall read";
    let task = |name: &str| NewTask { payload: secret.into(), retries: Some(0), ..NewTask::to(queue(name)) };
    let old = Client::new(space.clone()).with_keys(ring(&[("k1", 1)]));
    let new = Client::new(space.clone()).with_keys(ring(&[("k2", 2), ("k1", 1)]));
    let by_old = old.submit(task("good")).await.unwrap().id;
    let by_new = new.submit_batch(vec![task("good")]).await.unwrap().remove(0).unwrap().id;
    let unknown = new.submit(task("lacks")).await.unwrap().id;
    let wrong = old.submit(task("wrong")).await.unwrap().id;
    let plain = Client::new(space.clone());
    let open = plain.submit(task("good")).await.unwrap().id;

    // The clear one is found, so the others would be; it is cancelled and gone before the look.
    let find = |all: &[u8]| all.windows(20).any(|part| part == &secret.as_bytes()[..20]);
    assert!(find(&everything(&space).await), "the look finds nothing at all");
    plain.cancel(open, "test", "").await.unwrap();
    assert!(!find(&everything(&space).await), "a payload lies in Redis");
    // Who has the key sees it, and who has not sees which key it takes.
    let seen = new.get(by_old).await.unwrap().unwrap();
    assert_eq!((seen.payload.unwrap(), seen.sealed), (secret.into(), None));
    let seen = plain.get(by_old).await.unwrap().unwrap();
    assert_eq!(seen.sealed.as_deref(), Some("k1"));
    assert_ne!(seen.payload.unwrap(), secret);

    let stop = CancellationToken::new();
    let pod = tokio::spawn(Pod::new(space.clone(), PodSettings::default()).run(stop.clone()));
    let (ran, mut heard) = mpsc::unbounded_channel();
    let handler = move |task: Task, _| {
        let ran = ran.clone();
        async move {
            ran.send((task.id, task.payload)).map_err(|_| anyhow::anyhow!("nobody hears"))?;
            Ok(())
        }
    };
    let run = |keys: Option<Arc<KeyRing>>, name: &str| {
        let mut builder = Executor::builder(space.clone()).slots(2);
        if let Some(keys) = keys {
            builder = builder.keys(keys);
        }
        tokio::spawn(builder.handle(name, handler.clone()).build().unwrap().run(stop.clone()))
    };
    let executors = [
        run(Some(ring(&[("k2", 2), ("k1", 1)])), "good"),
        run(None, "lacks"),
        run(Some(ring(&[("k1", 9)])), "wrong"),
    ];
    let mut both = Vec::new();
    for _ in 0..2 {
        let heard = tokio::time::timeout(Duration::from_secs(20), heard.recv()).await.unwrap().unwrap();
        assert_eq!(heard.1, secret);
        both.push(heard.0);
    }
    both.sort();
    let mut expected = [by_old, by_new];
    expected.sort();
    assert_eq!(both, expected);
    // Those that cannot be read say why, and no handler saw them.
    for (id, said) in [
        (unknown, "the payload is encrypted with key k2, which is not among the keys here"),
        (
            wrong,
            "the payload cannot be decrypted with key k1: it is another key of that name, or the payload was changed",
        ),
    ] {
        let dead = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                let task = plain.get(id).await.unwrap().unwrap();
                if task.state == State::Dead {
                    return task;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        assert_eq!(dead.await.unwrap().attempts[0].error, said);
    }
    assert!(heard.try_recv().is_err());
    stop.cancel();
    for executor in executors {
        executor.await.unwrap().unwrap();
    }
    pod.await.unwrap().unwrap();
}
