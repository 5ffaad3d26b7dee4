//! The audit: a healthy namespace has no damage, each planted damage is found and named, and tasks in motion are none.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use minutehand::model::{Key, LaneCode, Priority, TaskId, UnixMs};
use minutehand::store::check::{CheckOptions, CheckReport, Damage, check};
use minutehand::store::due::{self, Claim, Quota};
use minutehand::store::intake::{self, RowAnswer};
use minutehand::store::run::{self, Outcome, StartRow};
use minutehand::store::{At, Reply, Space, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use minutehand::testing::snapshot::snapshot;

/// A namespace with tasks in every state and place.
struct World {
    space: Space,
    /// Pending, at home, far ahead.
    pending: Vec<TaskId>,
    /// Pending, far ahead, with a total time-out.
    timed: TaskId,
    /// Pending, far ahead, keyed [`LIVE`].
    keyed: TaskId,
    /// Ripe, in its lane.
    ripe: TaskId,
    ripe_lane: LaneCode,
    /// Running, started.
    running: TaskId,
    /// Failed once, waiting for its second try.
    retrying: TaskId,
    /// A dead letter.
    dead: TaskId,
}

impl World {
    fn key(&self, name: &str) -> Bytes {
        self.space.guard(bucket()).key(name)
    }

    async fn run(&self, command: &'static str, name: &str, args: &[&[u8]]) -> Reply {
        let key = self.key(name);
        let mut all = vec![key.clone()];
        all.extend(args.iter().map(|arg| Bytes::copy_from_slice(arg)));
        self.space.store().command(command, At::Key(&key), all).await.unwrap()
    }

    fn task_key(id: TaskId) -> String {
        format!("task:{}", id.shelf())
    }

    async fn check(&self) -> CheckReport {
        check(&self.space, CheckOptions::default()).await.unwrap()
    }
}

const HOUR: i64 = 3_600_000;
/// A key that is too long for a field of its own.
const LIVE: &str = "order-4711/reminder";

async fn world(size: i64) -> World {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let normal = lane(&space, "push", Priority::P3).await;
    let urgent = lane(&space, "alarm", Priority::P0).await;
    let mut rows = Vec::new();
    for n in 0..size {
        rows.push(row(spec(if n % 5 == 0 { urgent } else { normal }, T0 + HOUR + n * 977)));
    }
    let pending: Vec<TaskId> = rows.iter().map(|row| row.id).collect();
    let timed =
        row(minutehand::model::Spec { deadline: Some(UnixMs(T0 + 3 * HOUR)), ..spec(normal, T0 + 2 * HOUR) });
    let key = |text: &'static str| Some(Key::new(text, HOUR).unwrap());
    let keyed = row(minutehand::model::Spec { key: key(LIVE), ..spec(normal, T0 + 2 * HOUR) });
    let done_keyed = row(minutehand::model::Spec { key: key("k-done"), ..spec(normal, T0 - 7_000) });
    let expiring =
        row(minutehand::model::Spec { deadline: Some(UnixMs(T0 + 10)), ..spec(normal, T0 + HOUR) });
    let skipped =
        row(minutehand::model::Spec { start_before: Some(UnixMs(T0 - 1)), ..spec(normal, T0 - 6_000) });
    let cancelled = row(spec(normal, T0 + HOUR));
    rows.extend([timed.clone(), keyed.clone(), done_keyed.clone(), expiring, skipped, cancelled.clone()]);
    for piece in rows.chunks(1_000) {
        assert!(submit(&space, piece).await.iter().all(|answer| *answer == RowAnswer::Created));
    }
    intake::cancel(&space, bucket(), "test", "not wanted", &[cancelled.id]).await.unwrap();

    // One dead letter that is deleted again, one that stays, one retry, one success, one skipped.
    let mut plain = Vec::new();
    for n in 0..4 {
        plain.push(task(&space, "push", T0 - 5_000 + n).await);
    }
    let claimed = claim(&space, &claim_all("p1")).await;
    assert_eq!(claimed.tasks.len(), 5);
    let outcome = |id: TaskId| match plain.iter().position(|known| *known == id) {
        Some(0 | 1) => Outcome::Fatal { error: "no such number".into() },
        Some(2) => Outcome::Failed { error: "timed out".into() },
        _ => Outcome::Succeeded,
    };
    for task in &claimed.tasks {
        run::ack(&space, bucket(), "ex", &[ack_row(task, outcome(task.id))], false).await.unwrap();
    }
    space.inject_now(Some(T0 + 10));
    let one = Claim { dead_keep_rows: 1, ..claim_all("p1") };
    assert_eq!(claim(&space, &one).await.tasks.len(), 0);

    // Running in all phases, and a backlog in lanes: one in turn, one set aside.
    let running = task(&space, "push", T0 - 4_000).await;
    task(&space, "push", T0 - 3_900).await;
    task(&space, "push", T0 - 3_800).await;
    let three = claim(&space, &claim_all("p1")).await.tasks;
    assert_eq!(three.len(), 3);
    // Each in a lease string of its own.
    let lease_ms = [60_000, 50_000];
    let hold = |at: usize| StartRow { id: three[at].id, grant: three[at].grant, lease_ms: lease_ms[at] };
    run::start(&space, bucket(), "ex", &[hold(0)]).await.unwrap();
    let as_it_is = StartRow { lease_ms: 0, ..hold(1) };
    run::offer(&space, bucket(), "p1", &[(as_it_is, "ex")]).await.unwrap();
    for n in 0..5 {
        task(&space, "push", T0 - 2_000 + n).await;
        task(&space, "nobody", T0 - 2_000 + n).await;
    }
    let nobody = lane(&space, "nobody", Priority::P3).await;
    let two =
        Claim { limit: 2, normal_limit: 2, quotas: vec![(nobody.group(), Quota::Closed)], ..claim_all("p1") };
    assert_eq!(claim(&space, &two).await.tasks.len(), 2);
    let ripe = task(&space, "push", T0 - 1_000).await;
    let one = Claim { limit: 1, normal_limit: 1, quotas: two.quotas.clone(), ..claim_all("p1") };
    assert_eq!(claim(&space, &one).await.tasks.len(), 1);

    let counts = read::counts(&space, bucket()).await.unwrap();
    let count = |name| counts.count(name);
    assert_eq!(
        ["succeeded", "dead", "deleted", "cancelled", "expired", "skipped"].map(count),
        [2, 1, 1, 1, 1, 1]
    );
    assert_eq!((count("running"), count("ready"), count("pending")), (6, 8, size + 2 + 1 + 8));
    assert_eq!(counts.parked, [(nobody, 5)]);
    // Two died in the same millisecond; which of them went is not said.
    let stays = read::get(&space, plain[0]).await.unwrap().is_some_and(|found| found.dead.is_some());
    let dead = plain[usize::from(!stays)];
    let (timed, keyed, retrying) = (timed.id, keyed.id, plain[2]);
    World { space, pending, timed, keyed, ripe, ripe_lane: normal, running, retrying, dead }
}

#[tokio::test]
async fn a_namespace_with_tasks_in_every_state_is_sound() {
    let world = world(4_000).await;
    let told = AtomicU64::new(0);
    let progress = |p: minutehand::store::check::CheckProgress| {
        told.fetch_max(p.tasks, Ordering::Relaxed);
    };
    let report = check(&world.space, CheckOptions { progress: Some(&progress), ..CheckOptions::default() })
        .await
        .unwrap();
    assert!(report.ok, "{report:#?}");
    assert_eq!((report.violations.len(), report.buckets, report.busy.len()), (0, 1, 0));
    // 4,000 and two far ahead, one to be retried, one dead, six running, eight ripe.
    assert_eq!(report.tasks_seen, 4_018);
    assert_eq!(told.into_inner(), 4_018);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["ok"], &json["violations"]), (&true.into(), &serde_json::json!([])));
}

/// Plants one damage and expects exactly its kind, once.
macro_rules! planted {
    ($name:ident, $kind:ident, |$world:ident| $plant:block $(, $more:expr)?) => {
        #[tokio::test]
        async fn $name() {
            let $world = world(20).await;
            $plant
            let report = $world.check().await;
            let kinds: Vec<_> = report.violations.iter().map(|v| v.kind).collect();
            assert_eq!(kinds, [Damage::$kind], "{report:#?}");
            assert!(!report.ok);
            assert_eq!(report.count(), 1);
            $( ($more)(&$world, &report.violations[0]); )?
        }
    };
}

type Found = minutehand::store::check::Violation;

planted!(
    a_due_task_without_a_spec,
    DueWithoutSpec,
    |world| {
        let id = world.pending[0];
        world.run("HDEL", &World::task_key(id), &[id.as_bytes()]).await;
    },
    |world: &World, found: &Found| {
        let id = world.pending[0];
        assert_eq!((found.bucket, found.id.as_deref()), (Some(0), Some(id.as_str())));
        assert_eq!(found.key.as_deref().unwrap().as_bytes(), world.key(&format!("due:{}u", id.home())));
    }
);

planted!(a_ripe_task_without_a_spec, DueWithoutSpec, |world| {
    world.run("HDEL", &World::task_key(world.ripe), &[world.ripe.as_bytes()]).await;
});

planted!(a_grant_without_a_spec, RunWithoutSpec, |world| {
    world.run("HDEL", &World::task_key(world.running), &[world.running.as_bytes()]).await;
});

planted!(a_dead_letter_without_a_spec, DeadWithoutSpec, |world| {
    world.run("HDEL", &World::task_key(world.dead), &[world.dead.as_bytes()]).await;
});

planted!(a_dead_letter_without_its_reason, DeadWithoutLetter, |world| {
    world.run("DEL", &format!("dead:{}", world.dead), &[]).await;
});

planted!(a_reason_without_its_dead_letter, LetterWithoutDead, |world| {
    world.run("HSET", &format!("dead:{}", world.running), &[b"reason", b"x"]).await;
});

planted!(
    a_task_that_is_nowhere,
    SpecWithoutPlace,
    |world| {
        let id = world.pending[1];
        let member = [&id.as_bytes()[..], world.ripe_lane.as_bytes()].concat();
        let gone = world.run("ZREM", &format!("due:{}", id.home()), &[&member]).await;
        assert_eq!(gone, Reply::Int(1));
    },
    |world: &World, found: &Found| assert_eq!(found.id.as_deref(), Some(world.pending[1].as_str()))
);

planted!(a_grant_that_is_gone, SpecWithoutPlace, |world| {
    world.run("HDEL", "run", &[world.running.as_bytes()]).await;
});

planted!(
    a_running_task_that_is_also_due,
    TwoPlaces,
    |world| {
        let id = world.running;
        let member = [&id.as_bytes()[..], world.ripe_lane.as_bytes()].concat();
        let name = format!("due:{}", id.home());
        world.run("ZADD", &name, &[(T0 - 4_000).to_string().as_bytes(), &member]).await;
        world
            .run("ZADD", "agenda", &[id.home().to_string().as_bytes(), id.home().to_string().as_bytes()])
            .await;
    },
    |world: &World, found: &Found| assert_eq!(found.id.as_deref(), Some(world.running.as_str()))
);

planted!(a_task_that_is_due_twice, TwoPlaces, |world| {
    let id = world.pending[1];
    let member = [&id.as_bytes()[..], world.ripe_lane.as_bytes()].concat();
    let minute = (id.home().0 + 7).to_string();
    let score = ((i64::from(id.home().0) + 7) * 60_000).to_string();
    world.run("ZADD", &format!("due:{minute}"), &[score.as_bytes(), &member]).await;
    world.run("ZADD", "agenda", &[minute.as_bytes(), minute.as_bytes()]).await;
});

planted!(a_task_in_the_wrong_minute, WrongPlace, |world| {
    let id = world.pending[1];
    let member = [&id.as_bytes()[..], world.ripe_lane.as_bytes()].concat();
    world.run("ZREM", &format!("due:{}", id.home()), &[&member]).await;
    let minute = (id.home().0 + 7).to_string();
    let score = ((i64::from(id.home().0) + 7) * 60_000).to_string();
    world.run("ZADD", &format!("due:{minute}"), &[score.as_bytes(), &member]).await;
    world.run("ZADD", "agenda", &[minute.as_bytes(), minute.as_bytes()]).await;
});

planted!(
    a_grant_that_no_lease_string_names,
    RunWithoutLease,
    |world| {
        // The next tenth of a second after 60 s from its start.
        let second = (T0 + 60_000) / 1_000;
        assert_eq!(world.run("UNLINK", &format!("lease:{second}.1"), &[]).await, Reply::Int(1));
    },
    |world: &World, found: &Found| assert_eq!(found.id.as_deref(), Some(world.running.as_str()))
);

planted!(a_counter_that_was_raised, CountersOff, |world| {
    world.run("HINCRBY", "counts", &[b"submitted", b"1"]).await;
});

planted!(
    a_counter_that_differs_from_its_place,
    CountersOff,
    |world| {
        world.run("HINCRBY", "counts", &[b"ready", b"-1"]).await;
    },
    |_: &World, found: &Found| assert_eq!(found.detail, "ready counts 7, lanes hold 8")
);

planted!(a_key_that_names_no_task, OrphanKey, |world| {
    world
        .run("HSET", "keys:3", &[b"k-orphan", &Key::value(TaskId::new(world.dead.home(), bucket(), 77))])
        .await;
});

planted!(a_key_that_names_another_task, OrphanKey, |world| {
    world.run("HSET", "keys:3", &[b"k-orphan", &Key::value(world.running)]).await;
});

planted!(
    a_task_whose_key_is_free,
    KeyMissing,
    |world| {
        let shard = Key::shard(LIVE.as_bytes());
        world.run("HDEL", &format!("keys:{shard}"), &[&Key::name(&LIVE.into())]).await;
    },
    |world: &World, found: &Found| assert_eq!(found.id.as_deref(), Some(world.keyed.as_str()))
);

planted!(
    a_task_under_a_name_that_its_key_does_not_have,
    KeyMissing,
    |world| {
        let (shard, name) = (format!("keys:{}", Key::shard(LIVE.as_bytes())), Key::name(&LIVE.into()));
        let (task, id) = (World::task_key(world.keyed), world.keyed);
        let Reply::Bytes(spec) = world.run("HGET", &task, &[id.as_bytes()]).await else { panic!("no spec") };
        let at = spec.windows(name.len()).position(|bytes| bytes == name).unwrap();
        let other = [&spec[..at], b"another-digest", &spec[at + name.len()..]].concat();
        world.run("HSET", &task, &[id.as_bytes(), &other]).await;
        world.run("HDEL", &shard, &[&name]).await;
        world.run("HSET", &shard, &[b"another-digest", &Key::value(id)]).await;
    },
    |world: &World, found: &Found| {
        assert_eq!(found.id.as_deref(), Some(world.keyed.as_str()));
        assert_eq!(found.detail, "it lies under a name that its idempotency key does not have");
    }
);

planted!(a_spec_of_another_version, SpecUnreadable, |world| {
    let id = world.pending[2];
    world
        .run("HSET", &World::task_key(id), &[id.as_bytes(), b"\x09not a spec at all, but long enough"])
        .await;
});

planted!(a_spec_cut_short, SpecUnreadable, |world| {
    let id = world.timed;
    world.run("HSET", &World::task_key(id), &[id.as_bytes(), b"\x01\x08"]).await;
});

planted!(a_place_record_of_a_task_that_is_gone, AtWithoutSpec, |world| {
    let id = minutehand::model::TaskId::new(UnixMs(T0).minute(), bucket(), 77);
    world.run("HSET", "at", &[id.as_bytes(), b"1764511260000--6F00000001010000"]).await;
});

planted!(a_place_record_that_is_none, RecordUnreadable, |world| {
    world.run("HSET", "at", &[world.retrying.as_bytes(), b"soon"]).await;
});

planted!(attempts_of_a_task_that_is_gone, TriesWithoutSpec, |world| {
    let id = minutehand::model::TaskId::new(UnixMs(T0).minute(), bucket(), 77);
    world.run("HSET", "tries", &[id.as_bytes(), b"x"]).await;
});

planted!(
    a_due_set_that_the_agenda_forgot,
    AgendaMissing,
    |world| {
        let minute = world.timed.home().to_string();
        assert_eq!(world.run("ZREM", "agenda", &[minute.as_bytes()]).await, Reply::Int(1));
    },
    |world: &World, found: &Found| {
        assert_eq!(
            found.key.as_deref().unwrap().as_bytes(),
            world.key(&format!("due:{}", world.timed.home()))
        );
    }
);

planted!(a_timer_that_the_agenda_forgot, AgendaMissing, |world| {
    let minute = (T0 + 3 * HOUR) / 60_000;
    assert_eq!(world.run("ZREM", "agenda", &[format!("t{minute}").as_bytes()]).await, Reply::Int(1));
});

planted!(a_lane_that_its_ring_forgot, RingMissing, |world| {
    let gone = world.run("ZREM", "ring:3", &[world.ripe_lane.as_bytes()]).await;
    assert_eq!(gone, Reply::Int(1));
});

planted!(a_timer_of_a_task_that_is_gone, TimerWithoutTask, |world| {
    let minute = (T0 + 3 * HOUR) / 60_000;
    let id = minutehand::model::TaskId::new(UnixMs(T0).minute(), bucket(), 77);
    world.run("ZADD", &format!("timer:{minute}"), &[b"1", id.as_bytes()]).await;
});

planted!(a_total_time_out_that_nothing_fires, TimerMissing, |world| {
    let minute = (T0 + 3 * HOUR) / 60_000;
    world.run("ZREM", &format!("timer:{minute}"), &[world.timed.as_bytes()]).await;
});

planted!(
    a_foreign_value_in_a_well_known_key,
    WrongType,
    |world| {
        world.run("DEL", "parked", &[]).await;
        world.run("SET", "parked", &[b"mine"]).await;
    },
    |world: &World, found: &Found| {
        assert_eq!(found.key.as_deref().unwrap().as_bytes(), world.key("parked"));
        assert_eq!(found.detail, "holds a string, expected a set");
    }
);

planted!(a_foreign_value_in_a_hash_of_specs, WrongType, |world| {
    let name = World::task_key(world.timed);
    world.run("DEL", &name, &[]).await;
    world.run("RPUSH", &name, &[b"mine"]).await;
});

planted!(
    a_foreign_key_in_a_bucket,
    ForeignKey,
    |world| {
        world.run("SET", "notes", &[b"mine"]).await;
    },
    |world: &World, found: &Found| assert_eq!(found.key.as_deref().unwrap().as_bytes(), world.key("notes"))
);

planted!(a_foreign_key_in_a_room, ForeignKey, |world| {
    let namespace = world.space.namespace();
    let key = Bytes::from(format!("{{{namespace}:lanes}}:notes"));
    let args = vec![key.clone(), Bytes::from_static(b"1")];
    world.space.store().command("SET", At::Key(&key), args).await.unwrap();
});

#[tokio::test]
async fn all_damages_are_counted_and_only_some_listed() {
    let world = world(20).await;
    for id in &world.pending {
        world.run("HDEL", &World::task_key(*id), &[id.as_bytes()]).await;
    }
    let report = check(&world.space, CheckOptions { list_max: 7, progress: None }).await.unwrap();
    assert_eq!((report.violations.len(), report.count()), (7, 20));
    assert_eq!(report.kinds.get("due_without_spec"), Some(&20));
}

#[tokio::test]
async fn an_audit_changes_nothing_and_sees_other_namespaces_as_none_of_its_business() {
    let (one, other) = (world(20).await, world(20).await);
    other.run("SET", "notes", &[b"mine"]).await;
    let before = snapshot(&one.space).await;
    assert!(one.check().await.ok);
    assert_eq!(snapshot(&one.space).await, before);
    assert_eq!(other.check().await.count(), 1);
}

/// Tasks move through all states while the audit runs again and again: what moves is not damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_in_motion_are_not_damage() {
    let world = world(2_000).await;
    let space = world.space.clone();
    space.inject_now(Some(T0 + HOUR));
    let stop = AtomicBool::new(false);
    let mover = async {
        let (mut round, mut now) = (0i64, T0 + HOUR);
        let normal = lane(&space, "push", Priority::P3).await;
        while !stop.load(Ordering::Relaxed) {
            round += 1;
            now += 777;
            space.inject_now(Some(now));
            let key = Key::new(format!("k{round}"), 1_000 * (round % 2)).unwrap();
            let mut rows: Vec<_> = (0..40).map(|n| row(spec(normal, now + n * 100))).collect();
            rows.push(row(minutehand::model::Spec {
                key: Some(key),
                deadline: Some(UnixMs(now + 3_000)),
                ..spec(normal, now + 2_000)
            }));
            submit(&space, &rows).await;
            intake::cancel(&space, bucket(), "t", "", &[rows[0].id, rows[1].id]).await.unwrap();
            intake::reschedule(&space, "t", rows[2].id, UnixMs(now + 90_000)).await.unwrap();
            intake::reprioritize(&space, "t", rows[3].id, Priority::P0).await.unwrap();
            let limit = if round % 3 == 0 { 30 } else { 200 };
            let claimed = claim(&space, &Claim { limit, normal_limit: limit, ..claim_all("p1") }).await.tasks;
            let starts: Vec<_> =
                claimed.iter().map(|t| StartRow { id: t.id, grant: t.grant, lease_ms: 30_000 }).collect();
            run::start(&space, bucket(), "ex", &starts).await.unwrap();
            let (give, keep): (Vec<_>, Vec<_>) =
                claimed.into_iter().enumerate().partition(|(n, _)| n % 7 == 0);
            let rows: Vec<_> = give.iter().map(|(_, t)| (t.id, t.grant)).collect();
            due::release(&space, bucket(), "p1", "test", &rows).await.unwrap();
            let acks: Vec<_> = keep
                .iter()
                .filter(|(n, _)| n % 11 != 0)
                .map(|(n, t)| match n % 5 {
                    0 => ack_row(t, Outcome::Failed { error: "boom".into() }),
                    1 => ack_row(t, Outcome::Fatal { error: "no".into() }),
                    _ => ack_row(t, Outcome::Succeeded),
                })
                .collect();
            run::ack(&space, bucket(), "ex", &acks, false).await.unwrap();
        }
        round
    };
    let watcher = async {
        let mut reports = Vec::new();
        for _ in 0..12 {
            reports.push(check(&world.space, CheckOptions::default()).await.unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        reports
    };
    let (rounds, reports) = tokio::join!(mover, watcher);
    assert!(rounds > 20, "{rounds} rounds");
    for report in reports {
        assert!(report.ok, "{report:#?}");
    }
    assert!(world.check().await.ok);
}
