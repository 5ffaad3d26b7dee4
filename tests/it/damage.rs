//! What others took away: leases and specs that are gone.

use bytes::Bytes;
use minutehand::model::Priority;
use minutehand::store::check::{CheckOptions, Damage, check};
use minutehand::store::due::Claim;
use minutehand::store::run::{self, StartRow};
use minutehand::store::{At, read};
use minutehand::testing::bed::Bed;
use minutehand::testing::fixtures::*;
use minutehand::testing::snapshot::names;

#[tokio::test]
async fn leases_that_were_lost_lapse_all_the_same_and_tasks_without_a_spec_are_dropped() {
    let bed = Bed::shared().await.unwrap();
    let space = space(&bed).await;
    let lane = lane(&space, "push", Priority::P3).await;
    let rows: Vec<_> = (0..150).map(|n| row(spec(lane, T0 - 200 + n))).collect();
    submit(&space, &rows).await;
    let granted = claim(&space, &Claim { limit: 100, normal_limit: 100, ..claim_all("p1") }).await.tasks;
    assert_eq!(granted.len(), 100);
    let holds: Vec<_> =
        granted.iter().map(|task| StartRow { id: task.id, grant: task.grant, lease_ms: 2_000 }).collect();
    run::start(&space, bucket(), "ex", &holds).await.unwrap();
    // As an eviction or a bad restore would: no string names a lease any more, and fifty tasks have lost their specs.
    let run_raw = async |words: Vec<Bytes>| {
        let key = words[1].clone();
        let args = words[1..].to_vec();
        let name = if &words[0][..] == b"UNLINK" { "UNLINK" } else { "HDEL" };
        space.store().command(name, At::Key(&key), args).await.unwrap()
    };
    for key in names(&space).await {
        if key.windows(7).any(|part| part == b"}:lease") {
            run_raw(vec![Bytes::from_static(b"UNLINK"), key]).await;
        }
    }
    for row in &rows[100..] {
        let key = space.guard(bucket()).key(&format!("task:{}", row.id.shelf()));
        run_raw(vec![Bytes::from_static(b"HDEL"), key, Bytes::copy_from_slice(row.id.as_bytes())]).await;
    }
    let report = check(&space, CheckOptions::default()).await.unwrap();
    let found = |kind| report.violations.iter().filter(|violation| violation.kind == kind).count();
    assert_eq!((found(Damage::RunWithoutLease), found(Damage::DueWithoutSpec)), (100, 50), "{report:#?}");
    // Within a lease and the time of a walk through `run`, all hundred run again; of the others none was ever granted.
    let mut again = Vec::new();
    for second in 2..60 {
        space.inject_now(Some(T0 + second * 1_000));
        let tasks = claim(&space, &claim_all("p1")).await.tasks;
        ack_done(&space, &tasks).await;
        again.extend(tasks);
    }
    let mut ids: Vec<_> = again.iter().map(|task| (task.id, task.failures)).collect();
    ids.sort_unstable();
    let mut expected: Vec<_> = granted.iter().map(|task| (task.id, 1)).collect();
    expected.sort_unstable();
    assert_eq!(ids, expected);
    let counts = read::counts(&space, bucket()).await.unwrap();
    assert_eq!((counts.count("succeeded"), counts.count("deleted"), counts.count("pending")), (100, 50, 0));
    let report = check(&space, CheckOptions::default()).await.unwrap();
    assert!(report.ok, "{report:#?}");
}
