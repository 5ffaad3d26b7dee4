//! Submitting twice what shall be done once.

use super::until::until;
use minutehand::client::NewTask;
use minutehand::embed::Scheduler;
use minutehand::model::{Key, QueueName, State};

pub async fn run(redis: String, namespace: String) -> anyhow::Result<()> {
    let scheduler = Scheduler::connect(&redis, &namespace)
        .await?
        .handle("orders", |task, _ctx| async move {
            println!("order {}", String::from_utf8_lossy(&task.payload));
            Ok(())
        })
        .start()?;
    // Kept for an hour after the order is done.
    let order = NewTask {
        key: Some(Key::new(format!("order-{}", uuid::Uuid::new_v4()).into_bytes(), 3_600_000)?),
        payload: "4711".into(),
        ..NewTask::to(QueueName::new("orders")?)
    };
    let first = scheduler.client().submit(order.clone()).await?;
    until(scheduler.client(), first.id, State::Succeeded).await?;
    let second = scheduler.client().submit(order).await?;
    anyhow::ensure!(first.created && !second.created && first.id == second.id, "it was made twice");
    scheduler.stop().await?;
    Ok(())
}
