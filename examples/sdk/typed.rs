//! Payloads of a type, plain functions as handlers.

use super::until::until;
use minutehand::client::NewTask;
use minutehand::embed::Scheduler;
use minutehand::executor::{Context, HandlerResult};
use minutehand::model::{QueueName, State};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
    subject: String,
}

async fn send(mail: Mail, ctx: Context) -> HandlerResult {
    ctx.progress(0.5, "connected").await;
    println!("to {}: {}", mail.to, mail.subject);
    Ok(())
}

pub async fn run(redis: String, namespace: String) -> anyhow::Result<()> {
    let scheduler = Scheduler::connect(&redis, &namespace)
        .await?
        .executor(|executor| executor.handle_json("mail", send))
        .start()?;
    let mail = Mail { to: "ada@example.com".into(), subject: "engine".into() };
    let queue = QueueName::new("mail")?;
    let good = NewTask { payload: serde_json::to_vec(&mail)?.into(), ..NewTask::to(queue.clone()) };
    let bad = NewTask { payload: "no JSON".into(), ..NewTask::to(queue) };
    let (good, bad) = (scheduler.client().submit(good).await?.id, scheduler.client().submit(bad).await?.id);
    until(scheduler.client(), good, State::Succeeded).await?;
    // What cannot be read is a dead letter at once: another attempt would read the same bytes.
    until(scheduler.client(), bad, State::Dead).await?;
    scheduler.stop().await?;
    Ok(())
}
