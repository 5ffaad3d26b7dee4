//! `minutehand trace` and `minutehand events`: what happened.

use super::args::{EventsCommand, IdArgs, Output, ReplayArgs, TailArgs};
use super::error::{CliError, Exit};
use super::{connect, render};
use crate::client::ClientError;
use crate::model::TaskId;
use crate::model::event::{Event, Move};
use crate::model::replay::{Replay, Report};
use crate::settings::Loaded;
use serde_json::Value;
use std::io::BufRead;
use std::time::Duration;

/// How often the tail looks for new events.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Longest line of a replayed file.
const LINE_MAX_BYTES: u64 = 64 << 10;

/// Tells a task's whole life.
pub async fn trace(args: &IdArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let id: TaskId = args.id.parse()?;
    let client = connect::client(loaded).await?;
    let found = client.trace(id).await?;
    let task = client.get(id).await?;
    if found.events.is_empty() && task.is_none() {
        return Err(ClientError::NotFound(id).into());
    }
    let value = serde_json::to_value(&found.events).map_err(|error| CliError::failed(error.to_string()))?;
    render::show(output, &value, |_| {
        let mut lines = Vec::new();
        if let Some(at) = found.gone_before {
            lines.push(format!("events before {at} are no longer kept"));
        }
        let rows = found.events.iter().map(row);
        lines.push(render::table(&["at", "event", "fence", "by", "cause"], rows.collect()));
        if let Some(task) = &task {
            // A dead letter's attempts are kept as long as the letter, however old the events are.
            for attempt in &task.attempts {
                let error = render::safe(&attempt.error);
                lines.push(format!(
                    "attempt under grant {} ended {} at {}: {error}",
                    attempt.fence,
                    attempt.at,
                    render::safe(&attempt.executor)
                ));
            }
            let due = task.due.map(|due| format!(", due {due}")).unwrap_or_default();
            lines.push(match &task.held {
                Some(why) => format!("now held: {}{due}", render::safe(why)),
                None => match &task.unserved {
                    Some(why) => {
                        format!("now {}, and nobody takes it: {}{due}", task.view, render::safe(why))
                    }
                    None => format!("now {}{due}", task.view),
                },
            });
        }
        lines.join("\n")
    });
    Ok(Exit::Ok)
}

fn name(event: Move) -> String {
    serde_json::to_value(event).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn row(event: &Event) -> Vec<String> {
    let due = event.due.map(|due| format!("due {due}"));
    let cause = [due, Some(render::safe(&event.cause)).filter(|cause| !cause.is_empty())];
    vec![
        event.at.to_string(),
        name(event.event),
        event.fence.map(|fence| fence.to_string()).unwrap_or_default(),
        render::safe(&event.actor),
        cause.into_iter().flatten().collect::<Vec<_>>().join("; "),
    ]
}

/// Follows events, or replays them.
pub async fn run(command: &EventsCommand, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    match command {
        EventsCommand::Tail(args) => tail(args, loaded, output).await,
        EventsCommand::Replay(args) => replay(args, loaded, output).await,
    }
}

async fn tail(args: &TailArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let wanted = args.kind.as_deref().map(kind).transpose()?;
    let client = connect::client(loaded).await?;
    let mut tail = client.events();
    if !args.from_start {
        tail.skip_past().await?;
    }
    let mut queues: std::collections::HashMap<TaskId, bool> = std::collections::HashMap::new();
    loop {
        let events = tail.next().await?;
        let quiet = events.is_empty();
        for event in events {
            if wanted.is_some_and(|wanted| wanted != event.event) {
                continue;
            }
            if let Some(queue) = &args.queue {
                // The queue stands in the spec, which is gone once the task has ended.
                if !queues.contains_key(&event.id) {
                    let task = client.get(event.id).await?;
                    let is = task.and_then(|task| task.queue).is_some_and(|found| found == *queue);
                    if queues.len() >= 100_000 {
                        queues.clear();
                    }
                    queues.insert(event.id, is);
                }
                if !queues.get(&event.id).copied().unwrap_or(false) {
                    continue;
                }
            }
            match output {
                Output::Json => render::print(&serde_json::to_string(&event).unwrap_or_default()),
                Output::Table => {
                    let [at, what, fence, by, cause] =
                        <[String; 5]>::try_from(row(&event)).unwrap_or_default();
                    render::print(&format!("{at}  {}  {what:<12} {fence:>3}  {by:<20}  {cause}", event.id));
                }
            }
        }
        if quiet && args.once {
            return Ok(Exit::Ok);
        }
        if quiet {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn kind(text: &str) -> Result<Move, CliError> {
    serde_json::from_value(Value::String(text.to_owned())).map_err(|_| {
        let detail = format!(
            "{text} is no type of event; there are submitted, claimed, offered, started, succeeded, retried, died, \
             cancelled, cancel_asked, expired, skipped, handed_back, lost, moved, redriven, deleted, repaired"
        );
        CliError::usage("type", detail)
    })
}

async fn replay(args: &ReplayArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let report = match args.file.as_deref() {
        None => connect::client(loaded).await?.replay(args.must_end).await?,
        Some("-") => from_lines(std::io::stdin().lock(), args)?,
        Some(path) => {
            let file = std::fs::File::open(path)
                .map_err(|error| CliError::usage("file", format!("{path} cannot be read: {error}")))?;
            from_lines(std::io::BufReader::new(file), args)?
        }
    };
    let value = serde_json::to_value(&report).map_err(|error| CliError::failed(error.to_string()))?;
    render::show(output, &value, |_| text(&report));
    Ok(if report.ok { Exit::Ok } else { Exit::Failed })
}

fn text(report: &Report) -> String {
    let mut lines = vec![format!(
        "{} events of {} tasks: {} ended, {} not; {} outcomes accepted, {} handed out again",
        report.events, report.tasks, report.ended, report.unfinished, report.accepted, report.redispatched
    )];
    for finding in &report.findings {
        lines.push(format!("{} {} {:?}: {}", finding.at, finding.id, finding.kind, finding.detail));
    }
    lines.push(match report.faults {
        0 => "every step is legal".to_owned(),
        n => format!("{n} faults"),
    });
    lines.join("\n")
}

/// Reads one event a line, as `events tail --output json` prints them.
fn from_lines(mut lines: impl BufRead, args: &ReplayArgs) -> Result<Report, CliError> {
    let mut replay = Replay::new(args.trimmed);
    let mut line = Vec::new();
    let mut number = 0u64;
    loop {
        line.clear();
        number += 1;
        let read = std::io::Read::take(&mut lines, LINE_MAX_BYTES).read_until(b'\n', &mut line);
        match read {
            Ok(0) => return Ok(replay.finish(args.must_end)),
            Ok(_) => {}
            Err(error) => return Err(CliError::failed(format!("line {number} cannot be read: {error}"))),
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let event: Event = serde_json::from_slice(&line)
            .map_err(|error| CliError::usage("file", format!("line {number} is no event: {error}")))?;
        replay.feed(&event);
    }
}
