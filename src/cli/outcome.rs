//! `minutehand outcome`: who wants to hear how tasks end.

use super::args::Output;
use super::error::{CliError, Exit};
use super::{connect, render, signal};
use crate::client::{Client, OutcomeBatch, SubscriptionView};
use crate::model::{Subscription, SubscriptionName, TaskId, UnixMs};
use crate::settings::Loaded;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

/// What to do with subscriptions.
#[derive(Debug, Subcommand)]
pub enum OutcomeCommand {
    /// Hear of the ends of tasks that are submitted from now on
    #[command(after_help = "\
All that is named must fit. With nothing named it is for tasks that name it: submit --notify NAME.
With --url a pod sends outcomes there, signed; without it they are fetched: outcome follow, or GET /v1/subscriptions/NAME/outcomes.
Other processes that submit hear of a subscription within a second or so.
Examples:
  minutehand outcome subscribe mails --queue mail --url https://example.com/done
  minutehand outcome subscribe sale --plan spring-sale
  minutehand outcome subscribe one --task 0mBBZ-RGXFDo9dTn --url https://example.com/done")]
    Subscribe(SubscribeArgs),
    /// List subscriptions
    List,
    /// Show one, and how far it is behind
    Show(NameArg),
    /// Take one away; what it has not got is not delivered any more
    Unsubscribe(NameArg),
    /// Print outcomes as they come, one a line; what was printed does not come again
    Follow {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
        /// End when there is nothing more
        #[arg(long)]
        once: bool,
    },
}

/// A subscription's name.
#[derive(Debug, Args)]
pub struct NameArg {
    /// Its name
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Options of `outcome subscribe`.
#[derive(Debug, Args)]
pub struct SubscribeArgs {
    /// Its name: letters, digits and . _ -
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Tasks of this queue
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// Tasks of this plan
    #[arg(long, value_name = "NAME")]
    pub plan: Option<String>,
    /// Tasks with this idempotency key
    #[arg(long, allow_hyphen_values = true)]
    pub key: Option<String>,
    /// This task; it may stand already
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub task: Option<String>,
    /// Web address that outcomes are sent to
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Only where this version stands, as `show` tells it; 0 where there is none yet
    #[arg(long = "if-version", value_name = "N")]
    pub if_version: Option<u64>,
}

/// Does what was asked.
pub async fn run(command: &OutcomeCommand, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    match command {
        OutcomeCommand::Subscribe(args) => {
            let name = SubscriptionName::new(&args.name)?;
            let wish = Subscription {
                queue: args.queue.clone(),
                plan: args.plan.clone(),
                key: args.key.clone(),
                task: args.task.as_deref().map(str::parse::<TaskId>).transpose()?,
                url: args.url.clone(),
                since: UnixMs(0),
                by: connect::who(),
            };
            wish.check()?;
            let client = connect::client(loaded).await?;
            let done = client.subscribe(&name, wish, args.if_version).await?;
            render::show(output, &value(&done)?, |_| {
                let how = match &done.subscription.url {
                    Some(url) => format!("sent to {}", render::safe(url)),
                    None => format!("fetched by `minutehand outcome follow {name}`"),
                };
                format!("{name} hears of {}; outcomes are {how}", render::safe(&done.subscription.of()))
            });
        }
        OutcomeCommand::List => {
            let all = connect::client(loaded).await?.subscriptions().await?;
            render::show(output, &value(&all)?, |_| list(&all));
        }
        OutcomeCommand::Show(arg) => {
            let name = SubscriptionName::new(&arg.name)?;
            let client = connect::client(loaded).await?;
            let found = client.subscription(&name).await?.ok_or_else(|| missing(&name))?;
            let behind = client.subscription_behind(&name).await?;
            let mut shown = value(&found)?;
            if let (Value::Object(shown), Value::Object(behind)) = (&mut shown, value(&behind)?) {
                shown.extend(behind);
            }
            render::show(output, &shown, |_| {
                let wish = &found.subscription;
                let oldest = behind.oldest.map_or_else(String::new, |at| format!(", the oldest of {at}"));
                let failing = behind.why.as_deref().map(|why| {
                    let times =
                        if behind.tries == 1 { "once" } else { &format!("{} times in a row", behind.tries) };
                    ("failing", format!("{times}: {}", render::safe(why)))
                });
                let mut pairs = vec![
                    ("subscription", name.to_string()),
                    ("hears of", render::safe(&wish.of())),
                    (
                        "outcomes are",
                        wish.url
                            .as_deref()
                            .map_or("fetched".to_owned(), |url| format!("sent to {}", render::safe(url))),
                    ),
                    ("since", wish.since.to_string()),
                    ("made by", render::safe(&wish.by)),
                    ("version", found.version.to_string()),
                    ("not got yet", format!("{}{oldest}", behind.waiting)),
                    ("missed lately", format!("at most {}", behind.missed)),
                ];
                pairs.extend(failing);
                render::pairs(&pairs)
            });
        }
        OutcomeCommand::Unsubscribe(arg) => {
            let name = SubscriptionName::new(&arg.name)?;
            if !connect::client(loaded).await?.unsubscribe(&name).await? {
                return Err(missing(&name));
            }
            render::show(output, &json!({ "name": name.as_str(), "removed": true }), |_| {
                format!("{name} is gone")
            });
        }
        OutcomeCommand::Follow { name, once } => {
            let name = SubscriptionName::new(name)?;
            follow(&connect::client(loaded).await?, &name, *once, output).await?;
        }
    }
    Ok(Exit::Ok)
}

fn missing(name: &SubscriptionName) -> CliError {
    CliError::not_found(format!("there is no subscription {name}"))
        .hint("`minutehand outcome list` shows those there are")
}

fn value<T: serde::Serialize>(of: &T) -> Result<Value, CliError> {
    serde_json::to_value(of).map_err(|error| CliError::failed(error.to_string()))
}

fn list(all: &[SubscriptionView]) -> String {
    if all.is_empty() {
        return "nobody has subscribed".to_owned();
    }
    let rows = all.iter().map(|view| {
        let wish = &view.subscription;
        vec![
            view.name.clone(),
            render::safe(&wish.of()),
            wish.url.as_deref().map_or("(fetched)".to_owned(), render::safe),
            wish.since.to_string(),
            render::safe(&wish.by),
            view.version.to_string(),
        ]
    });
    render::table(&["name", "hears of", "sent to", "since", "by", "version"], rows.collect())
}

async fn follow(
    client: &Client,
    name: &SubscriptionName,
    once: bool,
    output: Output,
) -> Result<(), CliError> {
    let stop = signal::stop()?;
    let mut stream = client.outcomes(name).await?;
    loop {
        let batch = if once {
            stream.look().await?
        } else {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                batch = stream.next() => batch?,
            }
        };
        tell(&batch, output)?;
        // Printed is got.
        stream.confirm().await?;
        if once && batch == OutcomeBatch::default() {
            return Ok(());
        }
    }
}

fn tell(batch: &OutcomeBatch, output: Output) -> Result<(), CliError> {
    if batch.missed > 0 {
        match output {
            Output::Json => render::print(&json!({ "missed": batch.missed }).to_string()),
            Output::Table => {
                eprintln!("note: up to {} outcomes were lost before they were fetched", batch.missed)
            }
        }
    }
    for outcome in &batch.outcomes {
        match output {
            Output::Json => render::print(&value(outcome)?.to_string()),
            Output::Table => render::print(&format!(
                "{}  {}  {:9}  {}  {}",
                outcome.at,
                outcome.task,
                outcome.state.to_string(),
                render::safe(&outcome.queue),
                render::safe(&outcome.reason)
            )),
        }
    }
    Ok(())
}
