//! `minutehand freeze` and `minutehand thaw`.

use super::args::{FreezeArgs, Output};
use super::error::{CliError, Exit};
use super::{connect, render};
use crate::model::{PlanName, QueueName};
use crate::settings::Loaded;
use crate::store::queue::Scope;

/// Freezes or thaws, and says what is frozen now.
pub async fn run(args: &FreezeArgs, freeze: bool, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let scope = match (&args.queue, &args.plan) {
        (Some(queue), _) => Scope::Queue(QueueName::new(queue)?),
        (_, Some(plan)) => Scope::Plan(PlanName::new(plan)?),
        _ => Scope::All,
    };
    let client = connect::client(loaded).await?;
    let who = connect::who();
    client.note(&who, if freeze { "freeze" } else { "thaw" }, &scope.to_string(), &args.why).await?;
    let frost = if freeze {
        client.freeze(&scope, &who, &args.why).await?
    } else {
        client.thaw(&scope, &who).await?
    };
    let value = serde_json::to_value(&frost).map_err(|error| CliError::failed(error.to_string()))?;
    render::show(output, &value, |_| {
        let name = |scope: &Scope| match scope {
            Scope::All => "everything".to_owned(),
            Scope::Queue(queue) => format!("queue {queue}"),
            Scope::Plan(plan) => format!("plan {plan}"),
        };
        let what = name(&scope);
        let mut lines = vec![match (freeze, frost.changed) {
            (true, true) => format!("{what} is frozen: nothing more of it starts"),
            (true, false) => format!("{what} was frozen already"),
            (false, true) => format!("{what} is thawed"),
            (false, false) => format!("{what} was not frozen"),
        }];
        for frozen in &frost.freeze.frozen {
            let why = if frozen.cause.is_empty() {
                String::new()
            } else {
                format!(": {}", render::safe(&frozen.cause))
            };
            lines.push(format!(
                "frozen since {}: {} by {}{why}",
                frozen.since,
                name(&frozen.scope),
                render::safe(&frozen.who)
            ));
        }
        for pod in &frost.pods_behind {
            lines.push(format!("pod {} has not followed yet", render::safe(pod)));
        }
        lines.join("\n")
    });
    Ok(if frost.pods_behind.is_empty() { Exit::Ok } else { Exit::Failed })
}
