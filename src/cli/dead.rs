//! `minutehand dead`: dead letters.

use super::args::{DeadCommand, DeadPick, DeadWhich, Output};
use super::error::{CliError, Exit};
use super::{connect, get, render};
use crate::client::{Client, ClientError, DeadFilter};
use crate::model::slice::parse_duration_ms;
use crate::model::{FieldError, QueueName, Reason, State, TaskId};
use crate::settings::Loaded;
use serde_json::json;

/// What is said where a filter finds nothing to do.
const NONE_FITS: &str = "no dead letter fits; nothing was done";

/// Lists, shows, redrives or deletes dead letters.
pub async fn run(command: &DeadCommand, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    match command {
        DeadCommand::List(which) => {
            let filter = DeadFilter { limit: Some(which.limit), ..filter(which)? };
            let letters = connect::client(loaded).await?.dead_list(&filter).await?;
            let value =
                serde_json::to_value(&letters).map_err(|error| CliError::failed(error.to_string()))?;
            render::show(output, &value, |_| {
                if letters.is_empty() {
                    let any = filter == DeadFilter { limit: filter.limit, ..DeadFilter::default() };
                    return if any { "no dead letters" } else { "no dead letter fits" }.to_owned();
                }
                let rows = letters.iter().map(|letter| {
                    vec![
                        letter.id.to_string(),
                        render::safe(&letter.queue),
                        letter.at.to_string(),
                        letter.attempts.len().to_string(),
                        render::safe(&letter.reason),
                        render::safe(&letter.error.chars().take(60).collect::<String>()),
                    ]
                });
                let head = ["id", "queue", "died", "attempts", "reason", "last error"];
                let mut text = render::table(&head, rows.collect());
                if letters.len() >= which.limit {
                    text.push_str(&format!(
                        "\nthese are {}; there may be more: --limit N shows more, --queue, --reason and --older-than fewer\n",
                        letters.len()
                    ));
                }
                text
            });
        }
        DeadCommand::Show(args) => {
            let id: TaskId = args.id.parse()?;
            let task = connect::client(loaded).await?.get(id).await?.ok_or(ClientError::NotFound(id))?;
            if task.state != State::Dead {
                return Err(CliError::not_found(format!("task {id} is {}, not dead", task.state)));
            }
            render::show(output, &get::json(&task)?, render::task);
        }
        DeadCommand::Redrive { pick, rate } => {
            let per_second = rate.as_deref().map(per_second).transpose()?;
            let client = connect::client(loaded).await?;
            let ids = chosen(&client, pick, "redrive").await?;
            client.note(&connect::who(), "dead.redrive", &format!("{} letters", ids.len()), "").await?;
            let done = client.redrive(&ids, per_second, &connect::who()).await?;
            let value = serde_json::to_value(&done).map_err(|error| CliError::failed(error.to_string()))?;
            render::show(output, &value, |_| {
                if ids.is_empty() {
                    return NONE_FITS.to_owned();
                }
                let mut text = format!("{} of {} redriven", done.redriven, ids.len());
                if done.unknown > 0 {
                    text.push_str(&format!("; {} are not dead, or no longer", done.unknown));
                }
                for (id, other) in &done.key_conflicts {
                    text.push_str(&format!("\nkey_conflict: {id} stays dead, task {other} has its key now"));
                }
                text
            });
            if done.redriven < ids.len() as u64 {
                return Ok(if done.redriven == 0 && done.key_conflicts.is_empty() && !ids.is_empty() {
                    Exit::NotFound
                } else {
                    Exit::Failed
                });
            }
        }
        DeadCommand::Delete { pick } => {
            let client = connect::client(loaded).await?;
            let ids = chosen(&client, pick, "delete").await?;
            client.note(&connect::who(), "dead.delete", &format!("{} letters", ids.len()), "").await?;
            let deleted = client.dead_delete(&ids, &connect::who()).await?;
            let value = json!({ "deleted": deleted, "unknown": ids.len() as u64 - deleted });
            render::show(output, &value, |_| {
                let unknown = ids.len() as u64 - deleted;
                if ids.is_empty() {
                    return NONE_FITS.to_owned();
                }
                let mut text = format!("{deleted} of {} deleted", ids.len());
                if unknown > 0 {
                    text.push_str(&format!("; {unknown} are not dead, or no longer"));
                }
                text
            });
            if deleted < ids.len() as u64 {
                return Ok(if deleted == 0 { Exit::NotFound } else { Exit::Failed });
            }
        }
    }
    Ok(Exit::Ok)
}

fn filter(which: &DeadWhich) -> Result<DeadFilter, CliError> {
    Ok(DeadFilter {
        queue: which.queue.as_deref().map(QueueName::new).transpose()?,
        older_than_ms: which
            .older_than
            .as_deref()
            .map(|text| parse_duration_ms("older_than", text))
            .transpose()?,
        reason: which.reason.clone(),
        limit: None,
    })
}

/// The ids that were named, or all that fit the filter: those only with `--yes`.
async fn chosen(client: &Client, pick: &DeadPick, verb: &str) -> Result<Vec<TaskId>, CliError> {
    if !pick.ids.is_empty() {
        return pick.ids.iter().map(|id| Ok(id.parse::<TaskId>()?)).collect();
    }
    let which = &pick.which;
    if which.queue.is_none() && which.older_than.is_none() && which.reason.is_none() && !pick.all {
        let detail =
            format!("name ids, or --queue, --reason, --older-than, or --all to {verb} every dead letter");
        return Err(CliError::usage("id", detail));
    }
    let letters = client.dead_list(&filter(which)?).await?;
    if !pick.yes {
        let detail = format!("would {verb} {} dead letters; say --yes to do it", letters.len());
        return Err(CliError::usage("yes", detail));
    }
    Ok(letters.into_iter().map(|letter| letter.id).collect())
}

/// Reads `100/s`, `30/m` or a plain number a second.
fn per_second(text: &str) -> Result<f64, FieldError> {
    let wrong = |reason| FieldError::new("rate", reason, format!("{text} is no rate; write 100/s or 30/m"));
    let (number, seconds) = match text.split_once('/') {
        None | Some((_, "s")) => (text.trim_end_matches("/s"), 1.0),
        Some((number, "m")) => (number, 60.0),
        Some((number, "h")) => (number, 3_600.0),
        _ => return Err(wrong(Reason::InvalidType)),
    };
    let number: f64 = number.parse().map_err(|_| wrong(Reason::InvalidType))?;
    if number.is_finite() && number > 0.0 { Ok(number / seconds) } else { Err(wrong(Reason::OutOfRange)) }
}

#[cfg(test)]
mod tests {
    use super::per_second;

    #[test]
    fn rates() {
        assert_eq!(per_second("100/s"), Ok(100.0));
        assert_eq!(per_second("30/m"), Ok(0.5));
        assert_eq!(per_second("2"), Ok(2.0));
        for wrong in ["", "x", "0", "-1/s", "1/d", "NaN", "inf"] {
            assert!(per_second(wrong).is_err(), "{wrong}");
        }
    }
}
