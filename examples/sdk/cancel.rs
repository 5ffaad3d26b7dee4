//! Stopping a task that runs.

use super::until::until;
use minutehand::client::NewTask;
use minutehand::embed::Scheduler;
use minutehand::executor::HandlerError;
use minutehand::model::{QueueName, State};
use std::sync::Arc;
use tokio::sync::Notify;

pub async fn run(redis: String, namespace: String) -> anyhow::Result<()> {
    let begun = Arc::new(Notify::new());
    let tell = Arc::clone(&begun);
    let scheduler = Scheduler::connect(&redis, &namespace)
        .await?
        .handle("endless", move |_task, ctx| {
            let tell = Arc::clone(&tell);
            async move {
                tell.notify_one();
                ctx.cancelled().await;
                println!("told to stop: {}", ctx.stop().map_or_else(String::new, |stop| stop.to_string()));
                Err(HandlerError::failed("stopped"))
            }
        })
        .start()?;
    let id = scheduler.client().submit(NewTask::to(QueueName::new("endless")?)).await?.id;
    begun.notified().await;
    scheduler.client().cancel(id, "example", "enough of it").await?;
    until(scheduler.client(), id, State::Cancelled).await?;
    scheduler.stop().await?;
    Ok(())
}
