//! What is done around every handler.

use super::until::until;
use minutehand::client::NewTask;
use minutehand::embed::Scheduler;
use minutehand::model::{QueueName, State};
use std::time::Instant;

pub async fn run(redis: String, namespace: String) -> anyhow::Result<()> {
    let scheduler = Scheduler::connect(&redis, &namespace)
        .await?
        .executor(|executor| {
            executor.layer(|task, ctx, next| async move {
                let queue = task.queue.clone();
                #[allow(clippy::disallowed_methods, reason = "an example of what users write")]
                let begin = Instant::now();
                let answer = next.run(task, ctx).await;
                println!("{queue} took {:?}: {answer:?}", begin.elapsed());
                answer
            })
        })
        .handle("timed", |_task, _ctx| async { Ok(()) })
        .start()?;
    let id = scheduler.client().submit(NewTask::to(QueueName::new("timed")?)).await?.id;
    until(scheduler.client(), id, State::Succeeded).await?;
    scheduler.stop().await?;
    Ok(())
}
