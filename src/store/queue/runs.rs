//! How long tasks of queues run: `lua/queue/runs.lua`.

use super::super::script;
use super::super::space::Space;
use super::super::{Reply, StoreError};
use crate::keys::Guard;
use crate::limits;
use crate::model::QueueName;
use crate::model::runs::Runs;

/// Adds runs of queues to those that are known of them; answers what is known then, queue by queue. Nothing to add
/// only asks. At most [`limits::RUNS_QUEUES_MAX`] queues.
pub async fn add_runs(space: &Space, new: &[(QueueName, Runs)]) -> Result<Vec<Runs>, StoreError> {
    if new.is_empty() {
        return Ok(Vec::new());
    }
    debug_assert!(new.len() <= limits::RUNS_QUEUES_MAX);
    let mut args = space.args(2 + new.len() * 64, 64 + new.len() * 512);
    args.number(limits::RUNS_FADE_MS);
    for (queue, runs) in new {
        args.bytes(queue.as_str().as_bytes())
            .number(runs.failed())
            .number(runs.max_ms())
            .number(runs.bins().len());
        for (bin, count) in runs.bins() {
            args.number(bin).number(count);
        }
    }
    let guard = Guard::room(space.namespace(), "runs");
    let mut fields = space.call(&script::RUNS, &guard, args).await?.ok()?;
    let mut out = Vec::with_capacity(new.len());
    for _ in new {
        let mut runs = Runs::default();
        for (name, value) in Reply::Array(fields.array("runs of a queue")?).pairs(script::RUNS.name)? {
            let value = value.int(script::RUNS.name)?;
            match &name[..] {
                b"f" => runs.set_failed(value),
                b"m" => runs.set_max_ms(value),
                b"at" => {}
                bin => {
                    let bin = std::str::from_utf8(bin).ok().and_then(|bin| bin.parse().ok());
                    let bin = bin.ok_or_else(|| fields.bad("a bin is no number"))?;
                    runs.set_bin(bin, value);
                }
            }
        }
        out.push(runs);
    }
    Ok(out)
}

/// What is known of one queue's runs.
pub async fn runs(space: &Space, queue: &QueueName) -> Result<Runs, StoreError> {
    Ok(add_runs(space, &[(queue.clone(), Runs::default())]).await?.pop().unwrap_or_default())
}
