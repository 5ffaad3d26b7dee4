//! `minutehand downstream` and `minutehand retries`: what several queues share.

use super::args::Output;
use super::error::{CliError, Exit};
use super::queue::{LimitArgs, force, in_one_line, json, late, lines};
use super::{connect, render};
use crate::client::DownstreamView;
use crate::model::queue::{DownstreamName, DownstreamSettings, LimitOwner};
use crate::settings::Loaded;
use clap::{Args, Subcommand};

/// What to do with downstreams: what tasks of several queues call upon, such as a push gateway.
#[derive(Debug, Subcommand)]
pub enum DownstreamCommand {
    /// List the downstreams that queues name, with their limits and breakers
    List,
    /// Show one
    Show(NameArg),
    /// Change the limits of a downstream; pods follow within a second
    #[command(after_help = "\
A queue names its downstream: minutehand queue set push --downstream apns
`default` takes a limit away again.
Example:
  minutehand downstream set apns --rate 500/s --running 200 --breaker 50%:20:30s:fresh")]
    Set(Box<DownstreamSet>),
    /// Open its breaker by hand: what has failed is held
    Open(NameWhy),
    /// Close its breaker by hand: failures do not open it
    Close(NameWhy),
    /// Leave its breaker to itself again
    Reset(NameArg),
}

/// A downstream's name.
#[derive(Debug, Args)]
pub struct NameArg {
    /// The downstream
    #[arg(value_name = "DOWNSTREAM")]
    pub name: String,
}

/// A downstream, and why.
#[derive(Debug, Args)]
pub struct NameWhy {
    /// Which
    #[command(flatten)]
    pub name: NameArg,
    /// Why, for those who look at it later
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub why: String,
}

/// Options of `downstream set`.
#[derive(Debug, Args)]
pub struct DownstreamSet {
    /// Which
    #[command(flatten)]
    pub name: NameArg,
    /// How much may be handed out
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Whether tasks that have failed may be tried again.
#[derive(Debug, Subcommand)]
pub enum RetriesCommand {
    /// Hold all tasks of the namespace that have failed; fresh ones go on
    Off {
        /// Why, for those who look at it later
        #[arg(long, value_name = "TEXT", default_value = "")]
        why: String,
    },
    /// Let them go on
    On,
    /// Show whether they are held
    Show,
}

/// Does what was asked of downstreams.
pub async fn run(command: &DownstreamCommand, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let name = |arg: &NameArg| DownstreamName::new(&arg.name);
    match command {
        DownstreamCommand::List => {
            let all = connect::client(loaded).await?.downstreams().await?;
            render::show(output, &json(&all)?, |_| list(&all));
        }
        DownstreamCommand::Show(arg) => {
            let name = name(arg)?;
            let view = connect::client(loaded).await?.downstream(&name).await?;
            if view == (DownstreamView { downstream: name.to_string(), ..DownstreamView::default() }) {
                let message = format!("no queue names downstream {name}, and nothing is set for it");
                return Err(CliError::not_found(message));
            }
            let value = json(&view)?;
            render::show(output, &value, |value| {
                let mut out = lines(&view.downstream, &value["settings"]["limits"]);
                out.push_str(&format!("queues: {}\n", some(&view.queues)));
                if let Some(breaker) = &view.breaker {
                    out.push_str(&format!("{}\n", render::safe(&breaker.text)));
                }
                out
            });
        }
        DownstreamCommand::Set(set) => {
            let name = name(&set.name)?;
            let apply = |settings: &mut DownstreamSettings| set.limits.apply(&mut settings.limits);
            // What can be wrong without Redis is said without it.
            if set.limits.burst.is_none() || set.limits.rate.is_some() {
                apply(&mut DownstreamSettings::default())?;
            }
            let client = connect::client(loaded).await?;
            client.note(&connect::who(), "downstream.set", name.as_str(), "").await?;
            let change = client.downstream_set(&name, apply).await?;
            render::show(output, &json(&change)?, |value| {
                if value["settings"]["limits"].as_object().is_none_or(serde_json::Map::is_empty) {
                    return format!("nothing is set for {}\n", change.downstream)
                        + &late(&change.pods_behind);
                }
                lines(&change.downstream, &value["settings"]["limits"]) + &late(&change.pods_behind)
            });
            return Ok(if change.pods_behind.is_empty() { Exit::Ok } else { Exit::Failed });
        }
        DownstreamCommand::Open(args) => {
            let owner = LimitOwner::Downstream(name(&args.name)?);
            return force(&owner, Some(true), &args.why, loaded, output).await;
        }
        DownstreamCommand::Close(args) => {
            let owner = LimitOwner::Downstream(name(&args.name)?);
            return force(&owner, Some(false), &args.why, loaded, output).await;
        }
        DownstreamCommand::Reset(arg) => {
            return force(&LimitOwner::Downstream(name(arg)?), None, "", loaded, output).await;
        }
    }
    Ok(Exit::Ok)
}

fn some(names: &[String]) -> String {
    if names.is_empty() { "-".to_owned() } else { render::safe(&names.join(", ")) }
}

fn list(all: &[DownstreamView]) -> String {
    if all.is_empty() {
        return "no downstreams yet: minutehand queue set QUEUE --downstream NAME\n".to_owned();
    }
    let row = |view: &DownstreamView| {
        let limits = json(&view.settings.limits).unwrap_or_default();
        let breaker = view.breaker.as_ref().map_or("-".to_owned(), |breaker| render::safe(&breaker.text));
        vec![render::safe(&view.downstream), some(&view.queues), in_one_line(&limits), breaker]
    };
    render::table(&["downstream", "queues", "set", "breaker"], all.iter().map(row).collect())
}

/// Holds retries, lets them go on, or says how it is.
pub async fn retries(command: &RetriesCommand, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let client = connect::client(loaded).await?;
    let change = match command {
        RetriesCommand::Off { why } => {
            client.note(&connect::who(), "retries.off", "", why).await?;
            client.set_retries(false, &connect::who(), why).await?
        }
        RetriesCommand::On => {
            client.note(&connect::who(), "retries.on", "", "").await?;
            client.set_retries(true, &connect::who(), "").await?
        }
        RetriesCommand::Show => {
            let off = client.retries_off().await?;
            render::show(output, &serde_json::json!({ "off": off }), |_| match &off {
                Some(pause) => {
                    let why = if pause.why.is_empty() { String::new() } else { format!(": {}", pause.why) };
                    render::safe(&format!("retries are off since {} by {}{why}", pause.since, pause.who))
                }
                None => "retries are on".to_owned(),
            });
            return Ok(Exit::Ok);
        }
    };
    render::show(output, &json(&change)?, |_| {
        let state = match (&change.off, change.changed) {
            (Some(_), true) => "retries are off: nothing that has failed is handed out",
            (Some(_), false) => "retries were off already",
            (None, true) => "retries are on",
            (None, false) => "retries were on already",
        };
        format!("{state}\n{}", late(&change.pods_behind))
    });
    Ok(if change.pods_behind.is_empty() { Exit::Ok } else { Exit::Failed })
}
