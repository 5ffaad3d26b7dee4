//! A long task that fails in the middle, and goes on where it was.

use super::until::until;
use minutehand::client::NewTask;
use minutehand::embed::Scheduler;
use minutehand::executor::{Context, HandlerError, HandlerResult, Task};
use minutehand::model::{QueueName, Retry, State};

async fn count(task: Task, ctx: Context) -> HandlerResult {
    let done = match ctx.last_checkpoint().await? {
        Some(bytes) => String::from_utf8_lossy(&bytes).parse::<u32>()?,
        None => 0,
    };
    for number in done + 1..=6 {
        println!("attempt {}: {number}", task.attempt);
        ctx.checkpoint(number.to_string()).await?;
        if number == 3 && task.attempt == 1 {
            return Err(HandlerError::failed("the machine is out of paper"));
        }
    }
    if task.attempt != 2 || done != 3 {
        return Err(HandlerError::fatal(format!("attempt {} began behind {done}", task.attempt)));
    }
    Ok(())
}

pub async fn run(redis: String, namespace: String) -> anyhow::Result<()> {
    let scheduler = Scheduler::connect(&redis, &namespace).await?.handle("counting", count).start()?;
    let task = NewTask {
        backoff: Some("fixed:50ms".parse::<Retry>()?),
        retries: Some(2),
        ..NewTask::to(QueueName::new("counting")?)
    };
    let id = scheduler.client().submit(task).await?.id;
    until(scheduler.client(), id, State::Succeeded).await?;
    scheduler.stop().await?;
    Ok(())
}
