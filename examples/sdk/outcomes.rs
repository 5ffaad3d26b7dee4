//! How tasks end, told to who submitted them: a subscription, and its outcomes batch by batch.

use minutehand::client::NewTask;
use minutehand::embed::Scheduler;
use minutehand::executor::HandlerError;
use minutehand::model::{QueueName, Subscription, SubscriptionName};
use std::collections::BTreeMap;

pub async fn run(redis: String, namespace: String) -> anyhow::Result<()> {
    let scheduler = Scheduler::connect(&redis, &namespace)
        .await?
        .handle("parcel", |task, _| async move {
            match &task.payload[..] {
                b"lost" => Err(HandlerError::fatal("nobody knows where it is")),
                _ => Ok(()),
            }
        })
        .start()?;
    let client = scheduler.client();
    // It hears of tasks that are submitted from now on.
    let name = SubscriptionName::new("parcels")?;
    let wish = Subscription { queue: Some("parcel".into()), by: "example".into(), ..Subscription::default() };
    client.subscribe(&name, wish, None).await?;
    let mut wanted = BTreeMap::new();
    for payload in ["here", "lost", "there"] {
        let task = NewTask { payload: payload.into(), ..NewTask::to(QueueName::new("parcel")?) };
        wanted.insert(client.submit(task).await?.id, payload);
    }
    let mut outcomes = client.outcomes(&name).await?;
    while !wanted.is_empty() {
        // To ask for the next batch confirms the one before: it does not come again. One that was not confirmed does, to
        // whoever asks next, so an outcome may come twice, under the same `delivery`.
        for outcome in outcomes.next().await?.outcomes {
            let Some(payload) = wanted.remove(&outcome.task) else { continue };
            println!("{payload}: {} {}", outcome.state, outcome.reason);
            let good = outcome.state == minutehand::model::State::Succeeded;
            anyhow::ensure!(good == (payload != "lost"), "{outcome:?}");
        }
    }
    outcomes.confirm().await?;
    anyhow::ensure!(client.subscription_behind(&name).await?.waiting == 0, "all was confirmed");
    client.unsubscribe(&name).await?;
    scheduler.stop().await?;
    Ok(())
}
