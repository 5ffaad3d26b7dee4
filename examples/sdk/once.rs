//! A step that must not be done again when the task is tried again.

use super::until::until;
use minutehand::client::NewTask;
use minutehand::embed::Scheduler;
use minutehand::executor::HandlerError;
use minutehand::model::{QueueName, Retry, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub async fn run(redis: String, namespace: String) -> anyhow::Result<()> {
    let charged = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&charged);
    let scheduler = Scheduler::connect(&redis, &namespace)
        .await?
        .handle("checkout", move |task, ctx| {
            let counter = Arc::clone(&counter);
            async move {
                let charge = async { Ok(format!("receipt {}", counter.fetch_add(1, Ordering::SeqCst) + 1)) };
                let receipt: String = ctx.once("charge", charge).await?;
                println!("attempt {}: {receipt}", task.attempt);
                if task.attempt < 3 {
                    return Err(HandlerError::failed("the mail server is down"));
                }
                Ok(())
            }
        })
        .start()?;
    let task = NewTask {
        backoff: Some("fixed:50ms".parse::<Retry>()?),
        retries: Some(2),
        ..NewTask::to(QueueName::new("checkout")?)
    };
    let id = scheduler.client().submit(task).await?.id;
    until(scheduler.client(), id, State::Succeeded).await?;
    anyhow::ensure!(charged.load(Ordering::SeqCst) == 1, "charged more than once");
    scheduler.stop().await?;
    Ok(())
}
