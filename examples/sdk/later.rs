//! A task that is due in half a second, and how punctual it is.

use super::until::until;
use minutehand::client::{Due, NewTask};
use minutehand::embed::Scheduler;
use minutehand::model::{QueueName, State};

pub async fn run(redis: String, namespace: String) -> anyhow::Result<()> {
    let scheduler = Scheduler::connect(&redis, &namespace)
        .await?
        .handle("later", |task, ctx| async move {
            println!("due {}, {} ms late", task.due, ctx.lag_ms());
            Ok(())
        })
        .start()?;
    let task = NewTask { due: Due::In(500), ..NewTask::to(QueueName::new("later")?) };
    let submitted = scheduler.client().submit(task).await?;
    until(scheduler.client(), submitted.id, State::Succeeded).await?;
    scheduler.stop().await?;
    Ok(())
}
