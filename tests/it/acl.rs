//! The Redis user of `deploy/users.acl` has the rights that the product needs, and no others.

use minutehand::client::{Client, DeadFilter, Due, NewTask, NewToken};
use minutehand::dev::redis::{ServerBinary, ServerOptions};
use minutehand::executor::{Executor, HandlerError};
use minutehand::model::{Key, Namespace, Priority, QueueName, Spec};
use minutehand::pod::{Pod, PodSettings};
use minutehand::store::check::{CheckOptions, check};
use minutehand::store::queue::Scope;
use minutehand::store::run::{self, Outcome, StartRow};
use minutehand::store::{At, ConnectSettings, SCRIPTS, Space, Store, StoreError};
use minutehand::store::{dead, due, intake};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use minutehand::testing::snapshot::snapshot;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The line of the file, word by word.
fn words() -> Vec<String> {
    let text = include_str!("../../deploy/users.acl");
    let line = text.lines().find(|line| line.starts_with("user ")).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
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

/// One call by a user who lacks a right: either it does without it, or it is refused and nothing has changed.
async fn whole_or_not_at_all<T>(
    admin: &Space,
    script: &str,
    lacks: &str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Option<T> {
    let before = snapshot(admin).await;
    let uses = SCRIPTS.iter().find(|one| one.name == script).unwrap().commands().contains(lacks);
    match call.await {
        Ok(answer) => {
            assert!(!uses, "{script} did without {lacks}");
            Some(answer)
        }
        Err(StoreError::NoPermission { what }) => {
            assert!(
                uses && what.contains(&format!("+{}", lacks.to_lowercase())),
                "{script}, {lacks}: {what}"
            );
            assert_eq!(snapshot(admin).await, before, "{script} stopped half-way without {lacks}");
            None
        }
        Err(error) => panic!("{script} without {lacks}: {error}"),
    }
}

#[tokio::test]
async fn a_right_that_is_taken_away_stops_a_script_before_it_writes() {
    rights_taken_away(ServerOptions::default()).await;
}

#[tokio::test]
async fn a_right_that_is_taken_away_on_a_valkey_stops_a_script_before_it_writes() {
    let Some(valkey) = ServerBinary::find_valkey() else {
        println!("skipped: there is no valkey-server; scripts/get-server --valkey brings one");
        return;
    };
    rights_taken_away(ServerOptions { binary: Some(valkey), ..ServerOptions::default() }).await;
}

async fn rights_taken_away(options: ServerOptions) {
    let bed = Bed::own_server(options).await.unwrap();
    let admin = space(&bed).await;
    let acl = async |words: &[&str]| {
        let words = words.iter().map(|word| bytes::Bytes::from((*word).to_owned())).collect();
        admin.store().command("ACL SETUSER", At::Any, words).await.unwrap()
    };
    // With patterns, as the documented user has them.
    let name = bed.namespace();
    let patterns = ["~{", "~{", "&{", "&{"].into_iter().zip([".", ":", ".", ":"]);
    let patterns: Vec<String> = patterns.map(|(before, after)| format!("{before}{name}{after}*")).collect();
    let whole: Vec<&str> =
        ["app", "on", ">pw", "+@all"].into_iter().chain(patterns.iter().map(String::as_str)).collect();
    acl(&whole).await;
    let settings =
        ConnectSettings { username: Some("app".into()), password: Some("pw".into()), ..bed.settings() };
    let app = Space::open(Store::connect(settings).await.unwrap(), admin.namespace().clone()).await.unwrap();
    app.inject_now(Some(T0));
    let lane = lane(&admin, "push", Priority::P3).await;
    let mut now = T0;
    let laden = |n: usize, now: i64| {
        let key = Some(Key::new(format!("{n}-{}", fastrand::u64(..)), 60_000).unwrap());
        row(Spec { key, deadline: Some((now + 3_600_000).into()), ..spec(lane, now) })
    };
    // Without TIME not even the question which right is missing can be answered.
    let all: BTreeSet<&str> =
        SCRIPTS.iter().flat_map(|script| script.commands()).filter(|name| *name != "TIME").collect();
    let (mut refused, mut done) = (0, 0);
    for lacks in all {
        // Of each kind some: waiting, running, dead, to be done by the admin if the user may not.
        [&admin, &app].iter().for_each(|space| space.inject_now(Some(now)));
        let rows: Vec<_> = (0..8).map(|n| laden(n, now)).collect();
        submit(&admin, &rows).await;
        let tasks = claim(&admin, &claim_all("p1")).await.tasks;
        assert_eq!(tasks.len(), 8, "{lacks}");
        let fatal = [ack_row(&tasks[0], Outcome::Fatal { error: "no".into() })];
        run::ack(&admin, bucket(), "ex", &fatal, false).await.unwrap();
        let later = row(spec(lane, now + 60_000));
        submit(&admin, std::slice::from_ref(&later)).await;
        acl(&["app", &format!("-{lacks}")]).await;
        let hold = |n: usize| [StartRow { id: tasks[n].id, grant: tasks[n].grant, lease_ms: 30_000 }];
        let (hold1, hold2) = (hold(1), hold(2));
        let outcome = |n: usize, outcome| [ack_row(&tasks[n], outcome)];
        let good = outcome(3, Outcome::Succeeded);
        let bad = outcome(4, Outcome::Failed { error: "no".into() });
        let own = rows.iter().find(|row| row.id == tasks[7].id).unwrap().spec.clone();
        let fresh = [laden(9, now)];
        let back = [(tasks[5].id, tasks[5].grant)];
        let (pending, running, dead) = ([later.id], [tasks[6].id], [(tasks[0].id, (now + 1_000).into())]);
        let taker = claim_all("p1");
        macro_rules! tried {
            ($($script:literal $call:expr;)*) => {
                $(match whole_or_not_at_all(&admin, $script, lacks, $call).await {
                    Some(_) => done += 1,
                    None => refused += 1,
                })*
            };
        }
        tried! {
            "intake.submit" intake::submit(&app, bucket(), &fresh, intake::Sending::default());
            "due.claim" due::claim(&app, bucket(), &taker);
            "run.start" run::start(&app, bucket(), "ex", &hold1);
            "run.renew" run::renew(&app, bucket(), "ex", &hold2);
            "run.offer" run::offer(&app, bucket(), "p1", &[(hold2[0], "ex")]);
            "run.mark" run::mark(&app, tasks[1].id, tasks[1].grant, b"p", "half".into());
            "run.ack" run::ack(&app, bucket(), "ex", &good, false);
            "run.ack" run::ack(&app, bucket(), "ex", &bad, false);
            "due.release" due::release(&app, bucket(), "ex", "drain", &back);
            "intake.reschedule" intake::reschedule(&app, "op", later.id, (now + 90_000).into());
            "intake.reprioritize" intake::reprioritize(&app, "op", later.id, Priority::P1);
            "intake.edit" intake::edit(&app, "op", tasks[7].id, None, 0, &own, "all");
            "intake.cancel" intake::cancel(&app, bucket(), "op", "", &pending);
            "intake.cancel" intake::cancel(&app, bucket(), "op", "", &running);
            "dead.redrive" dead::redrive(&app, bucket(), "op", &dead);
        }
        acl(&["app", "+@all"]).await;
        // With all rights everything ends, and nothing is damaged.
        let left = claim(&app, &claim_all("p1")).await.tasks;
        ack_done(&app, &left).await;
        ack_done(&app, &tasks).await;
        intake::cancel(&app, bucket(), "op", "", &pending).await.unwrap();
        let letters: Vec<_> =
            dead::page(&app, bucket(), 0.into(), 0).await.unwrap().iter().map(|one| one.id).collect();
        dead::delete(&app, bucket(), "op", &letters).await.unwrap();
        // Retries fall due, and leases lapse of what this user was granted.
        for _ in 0..4 {
            now += 20_000;
            app.inject_now(Some(now));
            let left = claim(&app, &claim_all("p1")).await.tasks;
            ack_done(&app, &left).await;
        }
        let counts = minutehand::store::read::counts(&admin, bucket()).await.unwrap();
        assert_eq!((counts.count("pending"), counts.count("running")), (0, 0), "{lacks}");
        let report = check(&admin, CheckOptions::default()).await.unwrap();
        assert!(report.ok, "{lacks}: {report:#?}");
        now += 10_000;
    }
    println!("{refused} calls refused, {done} done");
    assert!(refused > 100 && done > 100, "{refused} {done}");
}
