//! `minutehand import`: options to a plan, and what people see of it.

use super::due::{DueReader, find_zone};
use super::input::Input;
use super::progress::Progress;
use super::row::{From, Plan};
use super::{Report, Sink, Survey, run as send, survey};
use crate::cli::args::{ImportArgs, Output};
use crate::cli::error::{CliError, Exit};
use crate::cli::render::{self, grouped};
use crate::model::{FieldError, Priority, QueueName, UnixMs};
use std::sync::Arc;

/// Turns options into a plan. `now` is the time from which a replay starts.
pub fn plan(args: &ImportArgs, now: UnixMs) -> Result<Plan, FieldError> {
    let zone = args.tz.as_deref().map(find_zone).transpose()?;
    let mut due_reader = DueReader::new(zone);
    if let Some(rebase) = &args.rebase {
        due_reader = due_reader.with_rebase(rebase, args.speed, now)?;
    }
    let queue = match (&args.queue, &args.queue_column) {
        (Some(name), _) => From::Fixed(QueueName::new(name)?),
        (None, column) => From::Column(column.clone().unwrap_or_default()),
    };
    let priority = match (&args.priority, &args.priority_column) {
        (Some(text), _) => From::Fixed(text.parse()?),
        (None, Some(column)) => From::Column(column.clone()),
        (None, None) => From::Fixed(Priority::default()),
    };
    let (key, placement) = (args.key.clone(), args.placement.clone());
    Ok(Plan { due: args.due.clone(), due_reader, queue, key, placement, priority, now })
}

/// Draws when the tasks would be due. Needs no Redis.
pub fn dry_run(args: &ImportArgs, now: UnixMs, output: Output) -> Result<Exit, CliError> {
    let plan = plan(args, now)?;
    let input = Input::open(&args.file, args.format)?;
    let survey = survey(&input, &plan)?;
    let exit = if survey.bad.count == 0 { Exit::Ok } else { Exit::Failed };
    match output {
        Output::Json => {
            let mut value = survey.timeline.to_json();
            if let Some(object) = value.as_object_mut() {
                object.insert("dry_run".to_owned(), true.into());
                object.insert("past".to_owned(), survey.past.into());
                object.insert("bad".to_owned(), survey.bad.count.into());
                object.insert(
                    "bad_rows".to_owned(),
                    serde_json::to_value(&survey.bad.shown).unwrap_or_default(),
                );
            }
            render::print(&value.to_string());
        }
        Output::Table => {
            show_bad(&survey);
            let mut text = survey.timeline.draw(&plan.due_reader.zone(), render::width());
            if survey.past > 0 && plan.due_reader.rebase().is_none() {
                text.push_str(&format!(
                    "{} of them are due in the past and would start at once\n",
                    grouped(survey.past)
                ));
            }
            if let Some(row) = survey.first.front() {
                text.push_str(&format!(
                    "first row: queue {}, {}, payload {}\n",
                    row.queue,
                    row.priority,
                    render::payload_line(&row.payload)
                ));
            }
            text.push_str(&format!("nothing was sent (--dry-run); {} bad\n", grouped(survey.bad.count)));
            render::print(&text);
        }
    }
    Ok(exit)
}

/// Sends the rows to `sink`; with `--strict` only if all are good.
pub async fn run<S: Sink>(args: &ImportArgs, now: UnixMs, sink: S, output: Output) -> Result<Exit, CliError> {
    let plan = plan(args, now)?;
    let mut input = Input::open(&args.file, args.format)?;
    let quiet = output == Output::Json;
    if args.strict {
        input.make_repeatable()?;
        let survey = survey(&input, &plan)?;
        if survey.bad.count > 0 {
            if quiet {
                let report = Report {
                    rows: survey.timeline.tasks() + survey.bad.count,
                    bad: survey.bad.count,
                    bad_rows: survey.bad.shown.clone(),
                    ..Report::default()
                };
                render::print(&serde_json::to_string(&report).unwrap_or_default());
            } else {
                show_bad(&survey);
            }
            let rows = if survey.bad.count == 1 { "row is" } else { "rows are" };
            let message = format!("{} {rows} bad; nothing was sent (--strict)", grouped(survey.bad.count));
            return Err(CliError::failed(message));
        }
    }
    if args.key.is_none() && !quiet {
        eprintln!("note: without --key, importing this file again makes every task again");
    }
    let mut progress = Progress::new(quiet, input.size, Arc::clone(&input.read));
    let (report, result) = send(input, plan, sink, &mut progress).await;
    let rest = report.bad - report.bad_rows.len() as u64;
    match output {
        Output::Json if report.rows == 0 && result.is_err() => {}
        Output::Json => render::print(&serde_json::to_string(&report).unwrap_or_default()),
        Output::Table => {
            if rest > 0 {
                eprintln!("bad row: … and {} more", grouped(rest));
            }
            if report.rows > 0 || result.is_ok() {
                render::print(&report.line());
            }
        }
    }
    match result {
        Ok(()) => Ok(report.exit()),
        Err(error) if report.created + report.duplicates == 0 || error.hint.is_some() => Err(error),
        Err(error) => Err(error.hint(match args.key {
            Some(_) => "what went in stays; the same command again sends the rest and makes no task twice",
            None => "what went in stays; without --key the same command again would make those tasks twice",
        })),
    }
}

fn show_bad(survey: &Survey) {
    for row in &survey.bad.shown {
        eprintln!("bad row: {row}");
    }
    if let Some(rest) = survey.bad.rest() {
        eprintln!("{rest}");
    }
}
