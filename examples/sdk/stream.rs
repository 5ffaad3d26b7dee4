//! Many tasks, sent as they come, with back-pressure.

use minutehand::client::{Due, NewTask, StreamSettings};
use minutehand::embed::Scheduler;
use minutehand::model::QueueName;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const TASKS: u32 = 2_000;

pub async fn run(redis: String, namespace: String) -> anyhow::Result<()> {
    let done = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&done);
    let scheduler = Scheduler::connect(&redis, &namespace)
        .await?
        .handle("many", move |_task, _ctx| {
            counter.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(()))
        })
        .start()?;
    let mut stream = scheduler.client().stream(StreamSettings::default());
    for n in 0..TASKS {
        let due = Due::In(i64::from(n % 200));
        stream.push(NewTask { due, ..NewTask::to(QueueName::new("many")?) }).await?;
    }
    let sent = stream.finish().await?;
    println!("{sent:?}");
    while done.load(Ordering::SeqCst) < TASKS {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    scheduler.stop().await?;
    Ok(())
}
