//! Waits until a task is where it should be.

use minutehand::client::Client;
use minutehand::model::{State, TaskId};
use std::time::Duration;

pub async fn until(client: &Client, id: TaskId, state: State) -> anyhow::Result<()> {
    while client.get(id).await?.is_none_or(|task| task.state != state) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
