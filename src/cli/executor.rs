//! `minutehand executor`: who runs tasks, and routing decisions looked at again.

use super::args::Output;
use super::error::{CliError, Exit};
use super::{connect, render};
use crate::client::{Client, Drained, ExecutorView};
use crate::model::route::record::Decision;
use crate::settings::Loaded;
use clap::{Args, Subcommand};
use serde_json::json;
use std::io::BufRead;
use std::path::PathBuf;

/// Longest line of a file of decisions.
const LINE_MAX_BYTES: u64 = 1 << 20;

/// What to do with executors.
#[derive(Debug, Subcommand)]
pub enum ExecutorCommand {
    /// List the executors that live
    List,
    /// Show one with all it says of itself
    Show(ExecutorArg),
    /// Give it nothing new; what lies in its inbox goes back at once, what it has taken goes on
    #[command(after_help = "\
A name stands for all instances that have it. A restarted executor is a new instance and is not drained.
Examples:
  minutehand executor drain push-eu-1
  minutehand executor resume push-eu-1")]
    Drain(ExecutorArg),
    /// Let it be given tasks again
    Resume(ExecutorArg),
    /// Make recorded routing decisions again; exit code 1 if one comes out differently
    #[command(after_help = "\
`serve` writes a fair sample of its decisions into the file that pod.route_record names.
Example:
  minutehand executor replay routes.ndjson")]
    Replay {
        /// One decision a line
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// An executor.
#[derive(Debug, Args)]
pub struct ExecutorArg {
    /// Its instance id, or its name
    #[arg(value_name = "ID|NAME")]
    pub executor: String,
}

/// Does what was asked.
pub async fn run(command: &ExecutorCommand, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    match command {
        ExecutorCommand::List => {
            let all = connect::client(loaded).await?.executor_views().await?;
            render::show(output, &to_json(&all)?, |_| list(&all));
        }
        ExecutorCommand::Show(arg) => {
            let all = connect::client(loaded).await?.executor_views().await?;
            let found = pick(&all, &arg.executor)?;
            // One object for one instance, a list where a name stands for several.
            let value = match found.as_slice() {
                [one] => to_json(one)?,
                several => to_json(&several)?,
            };
            render::show(output, &value, |_| {
                found.iter().map(|executor| details(executor)).collect::<Vec<_>>().join("\n")
            });
        }
        ExecutorCommand::Drain(arg) | ExecutorCommand::Resume(arg) => {
            let client = connect::client(loaded).await?;
            let drain = matches!(command, ExecutorCommand::Drain(_));
            let done = steer(&client, &arg.executor, drain).await?;
            render::show(output, &to_json(&done)?, |_| {
                done.iter().map(|done| told(done, drain)).collect::<Vec<_>>().join("\n")
            });
        }
        ExecutorCommand::Replay { file } => return replay(file, output),
    }
    Ok(Exit::Ok)
}

fn to_json<T: serde::Serialize>(value: &T) -> Result<serde_json::Value, CliError> {
    serde_json::to_value(value).map_err(|error| CliError::failed(error.to_string()))
}

/// The instance of an id, else all that have the name.
fn pick<'a>(all: &'a [ExecutorView], wanted: &str) -> Result<Vec<&'a ExecutorView>, CliError> {
    let by = |fits: &dyn Fn(&ExecutorView) -> bool| all.iter().filter(|view| fits(view)).collect::<Vec<_>>();
    let mut found = by(&|view| view.record.id == wanted);
    if found.is_empty() {
        found = by(&|view| view.record.name == wanted);
    }
    if found.is_empty() {
        let error = CliError::not_found(format!("no executor {} lives", render::safe(wanted)));
        return Err(error.hint("`minutehand executor list` shows those that do"));
    }
    Ok(found)
}

async fn steer(client: &Client, wanted: &str, drain: bool) -> Result<Vec<Drained>, CliError> {
    let all = client.executor_views().await?;
    let mut done = Vec::new();
    for view in pick(&all, wanted)? {
        let id = &view.record.id;
        let answer = if drain {
            client.drain_executor(id, &connect::who()).await?
        } else {
            client.resume_executor(id).await?
        };
        done.extend(answer);
    }
    Ok(done)
}

fn told(done: &Drained, drain: bool) -> String {
    let id = render::safe(&done.id);
    match (drain, done.changed) {
        (true, true) => {
            format!("{id} is given nothing new; {} of its inbox went back", done.handed_back)
        }
        (true, false) => format!("{id} was drained already"),
        (false, true) => format!("{id} is given tasks again"),
        (false, false) => format!("{id} was not drained"),
    }
}

fn list(all: &[ExecutorView]) -> String {
    if all.is_empty() {
        return "no executor lives".to_owned();
    }
    let head =
        ["id", "name", "host", "queues", "labels", "slots", "urgent", "busy", "load ms", "state", "version"];
    let rows = all.iter().map(|view| {
        let record = &view.record;
        vec![
            render::safe(&record.id),
            render::safe(&record.name),
            render::safe(&record.host),
            render::safe(&record.queues.join(",")),
            render::safe(&record.labels.join(",")),
            record.slots.to_string(),
            record.urgent_slots.to_string(),
            record.busy.to_string(),
            format!("{:.0}", record.load_ms),
            view.state.to_owned(),
            render::safe(&record.version),
        ]
    });
    render::table(&head, rows.collect())
}

fn details(view: &ExecutorView) -> String {
    let record = &view.record;
    let dash = |text: String| if text.is_empty() { "-".to_owned() } else { render::safe(&text) };
    let averages =
        record.averages.iter().map(|(queue, ms)| format!("{queue} {ms:.1} ms")).collect::<Vec<_>>();
    render::pairs(&[
        ("id", dash(record.id.clone())),
        ("name", dash(record.name.clone())),
        ("state", view.state.to_owned()),
        ("host", format!("{} (process {})", render::safe(&record.host), record.pid)),
        ("version", dash(record.version.clone())),
        ("queues", dash(record.queues.join(", "))),
        ("labels", dash(record.labels.join(", "))),
        ("pools", format!("normal {}, urgent {}", view.pools.normal, view.pools.urgent)),
        ("in hand", format!("{} of {} that it may hold", record.busy, record.capacity)),
        ("work in hand", format!("{:.0} ms", record.load_ms)),
        ("average run", dash(averages.join(", "))),
        ("journal", dash(record.journal_at.clone())),
        ("clock", format!("{} \u{b5}s off Redis's", record.clock_offset_us)),
    ])
}

/// Makes decisions again, from a file alone.
fn replay(file: &PathBuf, output: Output) -> Result<Exit, CliError> {
    let unreadable = |error: std::io::Error| {
        CliError::usage("file", format!("{} cannot be read: {error}", file.display()))
    };
    let mut reader = std::io::BufReader::new(std::fs::File::open(file).map_err(unreadable)?);
    let (mut stand, mut differ, mut number, mut line) = (0u64, Vec::new(), 0u64, String::new());
    loop {
        line.clear();
        number += 1;
        let read =
            std::io::Read::take(&mut reader, LINE_MAX_BYTES).read_line(&mut line).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        if line.trim().is_empty() {
            continue;
        }
        let decision: Decision = serde_json::from_str(&line).map_err(|error| {
            CliError::usage("file", format!("line {number} is no routing decision: {error}"))
        })?;
        let again = decision.replay();
        if again == decision.chosen {
            stand += 1;
        } else {
            differ.push(
                json!({ "line": number, "task": decision.task, "chosen": decision.chosen, "again": again }),
            );
        }
    }
    let value = json!({ "ok": differ.is_empty(), "stand": stand, "differ": differ });
    render::show(output, &value, |_| {
        let mut lines = vec![format!("{stand} decisions come out the same")];
        for one in &differ {
            lines.push(format!("line {}: {} then, {} now", one["line"], one["chosen"], one["again"]));
        }
        lines.join("\n")
    });
    Ok(if differ.is_empty() { Exit::Ok } else { Exit::Failed })
}
