//! Tasks that need something special, and where they run.

use super::until::until;
use minutehand::client::NewTask;
use minutehand::embed::Scheduler;
use minutehand::model::{Labels, QueueName, State};

pub async fn run(redis: String, namespace: String) -> anyhow::Result<()> {
    let scheduler = Scheduler::connect(&redis, &namespace)
        .await?
        .executor(|executor| executor.label("gpu").label("zone=a").slots(2))
        .handle("render", |task, ctx| async move {
            println!("{} asks for {:?}, runs on {}", task.id, task.labels.as_slice(), ctx.executor());
            Ok(())
        })
        .start()?;
    let task = |labels: &[&str]| -> anyhow::Result<NewTask> {
        Ok(NewTask { labels: Labels::new(labels)?, ..NewTask::to(QueueName::new("render")?) })
    };
    let client = scheduler.client();
    let fits = client.submit(task(&["gpu"])?).await?.id;
    let never = client.submit(task(&["tpu"])?).await?.id;
    until(client, fits, State::Succeeded).await?;
    let why = client.get(never).await?.and_then(|task| task.unserved);
    println!("{never} waits: {}", why.as_deref().unwrap_or("?"));
    anyhow::ensure!(why.as_deref() == Some("no executor has label tpu"), "{why:?}");
    client.cancel(never, "example", "nobody has one").await?;
    scheduler.stop().await?;
    Ok(())
}
