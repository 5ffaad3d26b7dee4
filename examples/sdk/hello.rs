//! One task, and the function that does it.

use super::until::until;
use minutehand::client::NewTask;
use minutehand::embed::Scheduler;
use minutehand::model::{QueueName, State};

pub async fn run(redis: String, namespace: String) -> anyhow::Result<()> {
    let scheduler = Scheduler::connect(&redis, &namespace)
        .await?
        .handle("hello", |task, _ctx| async move {
            println!("{}", String::from_utf8_lossy(&task.payload));
            Ok(())
        })
        .start()?;
    let task = NewTask { payload: "hello, world".into(), ..NewTask::to(QueueName::new("hello")?) };
    let id = scheduler.client().submit(task).await?.id;
    until(scheduler.client(), id, State::Succeeded).await?;
    scheduler.stop().await?;
    Ok(())
}
