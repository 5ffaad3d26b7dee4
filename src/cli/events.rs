//! `minutehand trace` and `minutehand events`: what happened.

use super::args::{EventsCommand, IdArgs, Output, ReplayArgs, TailArgs};
use super::error::{CliError, Exit};
use super::{connect, render};
use crate::client::{ClientError, TaskView, Trace};
use crate::model::event::{Event, Line, Move, Trimmed};
use crate::model::replay::{Replay, Report};
use crate::model::{QueueName, TaskId, UnixMs};
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
    let value =
        serde_json::Value::Array(life(&found, task.as_ref(), UnixMs(client.space().clock().now_ms()))?);
    render::show(output, &value, |_| {
        let mut lines = Vec::new();
        lines.extend(found.trimmed.as_ref().map(gone));
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

/// The same for machines: one array, in order. What is gone, attempts whose events are gone, and what holds the task
/// back now stand in it in the form of events.
fn life(found: &Trace, task: Option<&TaskView>, now: UnixMs) -> Result<Vec<Value>, CliError> {
    let entry = |at: &str, event: &str, fence: Option<u32>, executor: &str, cause: &str| serde_json::json!({ "at": at, "event": event, "fence": fence, "executor": executor, "cause": cause });
    let mut out = Vec::new();
    for event in &found.events {
        let value = serde_json::to_value(event).map_err(|error| CliError::failed(error.to_string()))?;
        out.push((event.at, value));
    }
    for attempt in task.iter().flat_map(|task| &task.attempts) {
        let told = |event: &Event| {
            event.fence == Some(attempt.fence)
                && matches!(event.event, Move::Retried | Move::Died | Move::Lost)
        };
        if !found.events.iter().any(told) {
            let at = attempt.at.to_string();
            out.push((
                attempt.at,
                entry(&at, "failed", Some(attempt.fence), &attempt.executor, &attempt.error),
            ));
        }
    }
    out.sort_by_key(|(at, _)| *at);
    let mut out: Vec<Value> = out.into_iter().map(|(_, value)| value).collect();
    if let Some(trimmed) = &found.trimmed {
        out.insert(0, entry(&trimmed.before.to_string(), "trimmed", None, "", &gone(trimmed)));
    }
    if let Some(why) = task.and_then(|task| task.held.as_ref()) {
        out.push(entry(&now.to_string(), "held", None, "", &format!("held: {why}")));
    }
    Ok(out)
}

fn gone(trimmed: &Trimmed) -> String {
    format!("events before {} are no longer kept: {} of its bucket", trimmed.before, trimmed.events)
}

fn row(event: &Event) -> Vec<String> {
    let due = event.due.map(|due| format!("due {due}"));
    let cause = [due, Some(render::safe(&event.cause)).filter(|cause| !cause.is_empty())];
    vec![
        event.at.to_string(),
        event.event.to_string(),
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
    args.queue.as_deref().map(QueueName::new).transpose()?;
    let client = connect::client(loaded).await?;
    let mut tail = client.events();
    if !args.from_start {
        tail.skip_past().await?;
    }
    let mut queues: std::collections::HashMap<TaskId, bool> = std::collections::HashMap::new();
    loop {
        let lines = tail.next_lines().await?;
        let quiet = lines.is_empty();
        for line in lines {
            let event = match line {
                Line::Event(event) => event,
                // Without it a replay would take a stream that was trimmed for one with holes.
                Line::Trimmed { .. } if output == Output::Json => {
                    render::print(&serde_json::to_string(&line).unwrap_or_default());
                    continue;
                }
                Line::Trimmed { trimmed } => {
                    let before = trimmed.before;
                    eprintln!(
                        "note: {} events of bucket {} before {before} are no longer kept",
                        trimmed.events, trimmed.bucket
                    );
                    continue;
                }
            };
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

/// Why a line is no event, for whoever made the file.
fn no_event(number: u64, line: &[u8]) -> CliError {
    let why = match serde_json::from_slice::<Value>(line) {
        Err(error) if error.is_eof() => "it ends too early; was the file cut off?".to_owned(),
        Err(_) => "it is not JSON; `minutehand events tail --output json` writes a JSON object in each line"
            .to_owned(),
        Ok(Value::Object(object)) => match serde_json::from_slice::<Event>(line) {
            // A line of JSON has but one line: where in it the reader stood says nothing.
            Err(error) if object.contains_key("id") || object.contains_key("event") => {
                let text = error.to_string();
                text.split(" at line ").next().unwrap_or(&text).to_owned()
            }
            _ => "it needs `at`, `id`, `event`, `fence`, `executor` and `cause`, or `trimmed`".to_owned(),
        },
        Ok(_) => "it is JSON, but no object".to_owned(),
    };
    CliError::usage("file", format!("line {number} is no event: {why}"))
}

fn kind(text: &str) -> Result<Move, CliError> {
    serde_json::from_value(Value::String(text.to_owned())).map_err(|_| {
        let detail = format!(
            "{text} is no type of event; there are submitted, claimed, offered, started, succeeded, retried, died, \
             cancelled, cancel_asked, expired, skipped, handed_back, set_aside, lost, moved, edited, redriven, deleted, repaired"
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
        let line: Line = serde_json::from_slice(&line).map_err(|_| no_event(number, &line))?;
        match line {
            Line::Event(event) => replay.feed(&event),
            Line::Trimmed { trimmed } => replay.trim(trimmed.bucket),
        }
    }
}
