//! The Redis user of `deploy/users.acl` has the rights that the product needs, and no others.

use minutehand::client::{Client, DeadFilter, Due, NewTask, NewToken};
use minutehand::executor::{Executor, HandlerError};
use minutehand::model::{Key, Namespace, Priority, QueueName};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::queue::Scope;
use minutehand::store::{At, ConnectSettings, SCRIPTS, Space, Store, StoreError};
use minutehand::testing::bed::{Bed, least_rights};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The line of the file, word by word.
fn words() -> Vec<String> {
    least_rights("mh").split_whitespace().map(str::to_owned).collect()
}

/// Commands of Redis that a script may be expected to use; a quoted word that is one of them must be allowed.
const COMMANDS: &str = "APPEND COPY DECR DECRBY DEL EXISTS EXPIRE EXPIREAT GET GETDEL GETEX GETRANGE GETSET HDEL HEXISTS HGET \
    HGETALL HINCRBY HINCRBYFLOAT HKEYS HLEN HMGET HRANDFIELD HSCAN HSET HSETNX HSTRLEN HVALS INCR INCRBY INCRBYFLOAT LINDEX \
    LINSERT LLEN LMOVE LMPOP LPOP LPOS LPUSH LPUSHX LRANGE LREM LSET LTRIM MGET MSET PERSIST PEXPIRE PEXPIREAT PTTL PUBLISH \
    RENAME RPOP RPUSH RPUSHX SADD SCARD SDIFF SET SETBIT GETBIT BITCOUNT BITOP BITFIELD SETEX SETNX SETRANGE SINTER SISMEMBER \
    SMEMBERS SMISMEMBER SMOVE SPOP SPUBLISH SRANDMEMBER SREM SSCAN STRLEN SUNION TIME TOUCH TTL TYPE UNLINK XADD XDEL XLEN \
    XRANGE XREAD XREVRANGE XTRIM ZADD ZCARD ZCOUNT ZDIFF ZINCRBY ZLEXCOUNT ZMPOP ZMSCORE ZPOPMAX ZPOPMIN ZRANDMEMBER ZRANGE \
    ZRANGEBYLEX ZRANGEBYSCORE ZRANGESTORE ZRANK ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE ZREVRANK ZSCAN \
    ZSCORE MEMORY OBJECT";

#[test]
fn every_command_of_a_script_is_allowed() {
    let allowed: BTreeSet<String> =
        words().iter().filter_map(|word| word.strip_prefix('+')).map(str::to_uppercase).collect();
    let known: BTreeSet<&str> = COMMANDS.split_whitespace().collect();
    for script in SCRIPTS {
        let code = script.body.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        // Quoted words in capitals are commands, but for words of answers and options.
        let quoted = code.split('\'').skip(1).step_by(2).filter(|word| known.contains(*word));
        for name in quoted {
            assert!(
                allowed.contains(name),
                "{} uses {name}, which deploy/users.acl does not allow",
                script.name
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_works_with_these_rights_and_nothing_else_does() {
    let bed = Bed::own_server(Default::default()).await.unwrap();
    let admin = bed.store().await.unwrap();
    // Instead of the one that each such server knows, for its own namespace.
    admin.command("ACL DELUSER", At::Any, vec!["minutehand".into()]).await.unwrap();
    let user: Vec<bytes::Bytes> = words()[1..].iter().map(|word| word.clone().into()).collect();
    admin.command("ACL SETUSER", At::Any, user).await.unwrap();
    let settings = ConnectSettings {
        username: Some("minutehand".into()),
        password: Some("CHANGE-ME".into()),
        ..bed.settings()
    };
    let store = Store::connect(settings.clone()).await.unwrap();
    let space = Space::open(store.clone(), Namespace::new("mh").unwrap()).await.unwrap();
    let client = Client::new(space.clone());
    let stop = CancellationToken::new();
    let pod = tokio::spawn(Pod::new(space.clone(), PodSettings::default()).run(stop.clone()));
    let executor = Executor::builder(space.clone())
        .handle("good", |_, _| async { Ok(()) })
        .handle("bad", |_, _| async { Err(HandlerError::fatal("no")) })
        .handle("again", |task, _| async move {
            if task.attempt == 1 { Err(HandlerError::retry_after(1, true, "once more")) } else { Ok(()) }
        })
        .build()
        .unwrap();
    let executor = tokio::spawn(executor.run(stop.clone()));
    let task = |name: &str| NewTask::to(QueueName::new(name).unwrap());
    for name in ["good", "bad", "again"] {
        for n in 0..20 {
            let key = Some(Key::new(format!("{name}{n}").into_bytes(), 0).unwrap());
            let timed = NewTask { expire_after_ms: Some(60_000), key, ..task(name) };
            client.submit(timed).await.unwrap();
        }
    }
    let later = |name: &str| NewTask { due: Due::In(3_600_000), ..task(name) };
    let id = client.submit(later("good")).await.unwrap().id;
    client.reschedule(id, Due::In(7_200_000), "t").await.unwrap();
    client.reprioritize(id, Priority::P0, "t").await.unwrap();
    client.cancel(id, "t", "").await.unwrap();
    let queue = QueueName::new("good").unwrap();
    client.freeze(&Scope::Queue(queue.clone()), "t", "").await.unwrap();
    client.thaw(&Scope::Queue(queue.clone()), "t").await.unwrap();
    client.pause(&queue, "t", "").await.unwrap();
    client.resume(&queue).await.unwrap();
    let new = NewToken {
        name: "t".into(),
        roles: vec![minutehand::model::access::Role::Read],
        queues: vec![],
        expires_after_ms: None,
    };
    client.token_create(new, "t").await.unwrap();
    assert_eq!(client.notes(None, 10).await.unwrap().len(), 1);
    let done = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            let counts = client.status().await.unwrap().counts;
            if (counts.succeeded, counts.dead, counts.pending + counts.running) == (40, 20, 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    done.await.unwrap();
    let letters = client.dead_list(&DeadFilter::default()).await.unwrap();
    client.dead_delete(&[letters[0].id], "t").await.unwrap();
    client.redrive(&[letters[1].id], None, "t").await.unwrap();
    client.trace(letters[1].id).await.unwrap();
    assert!(client.replay(false).await.unwrap().ok);
    stop.cancel();
    pod.await.unwrap().unwrap();
    executor.await.unwrap().unwrap();
    assert!(check(&space, CheckOptions::default()).await.unwrap().ok);

    // Nothing was refused on the way; what is not meant for it is.
    let log = admin.command("ACL LOG", At::Any, Vec::new()).await.unwrap().array("ACL LOG").unwrap();
    assert!(log.is_empty(), "{log:?}");
    for (name, args) in
        [("GET", vec!["other"]), ("KEYS", vec!["*"]), ("FLUSHALL", vec![]), ("CONFIG SET", vec!["save", ""])]
    {
        let args = args.into_iter().map(Into::into).collect();
        let refused = store.command(name, At::Any, args).await;
        assert!(matches!(refused, Err(StoreError::NoPermission { .. })), "{name}: {refused:?}");
    }
    let elsewhere =
        Space::open(Store::connect(settings).await.unwrap(), Namespace::new("mh2").unwrap()).await;
    assert!(matches!(elsewhere, Err(StoreError::NoPermission { .. })), "{elsewhere:?}");
}
