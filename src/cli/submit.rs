//! `minutehand submit`.

use super::args::{Output, SubmitArgs};
use super::error::{CliError, Exit};
use super::input::{When, payload, when};
use super::{connect, render};
use crate::client::{Due, NewTask};
use crate::limits;
use crate::model::slice::parse_duration_ms;
use crate::model::spec::Extras;
use crate::model::{FieldError, Key, Labels, PlanName, QueueName, Reason};
use crate::settings::Loaded;

/// Makes a task of options. Everything is checked before Redis is asked.
pub fn task(args: &SubmitArgs, loaded: &Loaded) -> Result<NewTask, CliError> {
    let key =
        args.key.as_ref().map(|key| Key::new(key.clone().into_bytes(), limits::KEY_WINDOW_MS)).transpose()?;
    let usual = connect::task(loaded, QueueName::new(&args.queue)?)?;
    let extras = Extras {
        cost_ms: args.cost.as_deref().map(cost).transpose()?,
        routing_key: args.routing_key.clone(),
        url: args.url.clone(),
        ..usual.extras
    };
    Ok(NewTask {
        extras,
        labels: Labels::new(&args.label)?,
        priority: args.priority.parse()?,
        due: due(when(&args.due)?),
        key,
        placement: args.placement.clone().map(|key| key.into_bytes().into()),
        plan: args.plan.as_deref().map(PlanName::new).transpose()?,
        payload: payload(&args.payload)?,
        ..usual
    })
}

fn cost(text: &str) -> Result<u32, FieldError> {
    let ms = parse_duration_ms("cost", text)?;
    u32::try_from(ms).map_err(|_| {
        FieldError::new("cost", Reason::OutOfRange, format!("{ms} ms must lie between 0 and 49 days"))
    })
}

/// What was written, for the client.
pub fn due(when: When) -> Due {
    match when {
        When::Now => Due::Now,
        When::In(ms) => Due::In(ms),
        When::At(at) => Due::At(at),
    }
}

/// Submits one task and prints its id.
pub async fn run(args: &SubmitArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let task = task(args, loaded)?;
    let done = connect::client(loaded).await?.submit(task).await?;
    match output {
        Output::Json => {
            let value = serde_json::json!({
                "id": done.id, "created": done.created, "due": done.due.to_string(), "now": done.now.to_string(),
            });
            render::print(&value.to_string());
        }
        Output::Table => {
            render::print(done.id.as_str());
            if !done.created {
                eprintln!("note: a task with this key was there already; this is its id");
            }
        }
    }
    Ok(Exit::Ok)
}
