//! The command line: one command a file, results by [`render`], endings by [`error::Exit`].

pub mod args;
mod bucket;
mod cancel;
mod check;
mod config;
pub mod connect;
mod dead;
mod demo;
pub mod dev;
pub mod downstream;
mod edit;
pub mod error;
mod events;
pub mod executor;
mod freeze;
mod get;
pub mod import;
pub mod input;
mod key;
mod outcome;
mod purge;
pub mod queue;
pub mod render;
mod reschedule;
mod serve;
mod signal;
mod status;
mod submit;
mod token;
mod waiting;
mod work;

use crate::settings::{Loaded, Settings, Sources};
use crate::{clock, telemetry};
use args::{Cli, Command, Output};
use clap::{CommandFactory, FromArgMatches};
use error::{CliError, Exit};
use std::ffi::OsString;
use std::path::PathBuf;

/// Reads the command line, does what it says, and gives the exit code.
pub fn run(line: Vec<OsString>) -> Exit {
    let cli = match Cli::command().try_get_matches_from(&line).and_then(|found| Cli::from_arg_matches(&found))
    {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &line),
    };
    let output = cli.global.output;
    match start(cli) {
        Ok(exit) => exit,
        Err(error) => error.report(output),
    }
}

/// What clap has to say: help and version on stdout, errors on stderr, as JSON where that was asked for.
fn refuse(error: &clap::Error, line: &[OsString]) -> Exit {
    let json = line.windows(2).any(|pair| pair[0] == "--output" && pair[1] == "json")
        || line.iter().any(|word| word == "--output=json");
    if json && error.use_stderr() {
        return usage(error).report(Output::Json);
    }
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Ok }
}

/// What clap found wrong: its first paragraph, and the option that it is about.
fn usage(error: &clap::Error) -> CliError {
    use clap::error::{ContextKind, ContextValue};
    let option = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) => option.as_str(),
        Some(ContextValue::Strings(options)) => options.first().map_or("", String::as_str),
        _ => "",
    };
    // `--queue <NAME>` is the field `queue`; so is `<--exec <CMD>|…>` the field `exec`.
    let field = option.trim_start_matches(['<', '-']);
    let field = &field[..field.find([' ', '=', '>', '|']).unwrap_or(field.len())];
    let text = error.to_string();
    let lines = text.lines().take_while(|line| !line.is_empty()).map(str::trim);
    let message = lines.collect::<Vec<_>>().join(" ");
    CliError::usage(field, message.trim_start_matches("error: "))
}

fn start(cli: Cli) -> Result<Exit, CliError> {
    if let Command::Completions { shell } = cli.command {
        clap_complete::generate(shell, &mut Cli::command(), "minutehand", &mut std::io::stdout());
        return Ok(Exit::Ok);
    }
    let mut loaded = Settings::load(&sources(&cli))?;
    if !cli.command.is_service() && loaded.origin("log.level") == crate::settings::Origin::Default {
        // One who submits a task wants an id and no log.
        loaded.settings.log.level = "warn".to_owned();
    }
    telemetry::init_log(&loaded.settings.log).map_err(|error| CliError::failed(error.to_string()))?;
    for warning in &loaded.warnings {
        tracing::warn!(key = warning.key, "{}", warning.detail);
    }
    let output = cli.global.output;
    match &cli.command {
        Command::Key(command) => key::run(command, output),
        Command::Config(command) => {
            config::run(command, &loaded, output);
            Ok(Exit::Ok)
        }
        Command::Bucket(bucket::BucketCommand::Replay { file }) => bucket::replay(file, output),
        // The one use of this machine's clock for due times: nothing is sent.
        Command::Import(args) if args.dry_run => {
            import::command::dry_run(args, crate::model::UnixMs(clock::wall_us() / 1_000), output)
        }
        command => {
            // Any will do; an error says that one is installed.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            let runtime = runtime.map_err(|error| CliError::failed(format!("could not start: {error}")))?;
            runtime.block_on(connected(command, &loaded, output))
        }
    }
}

/// The commands that talk to Redis.
async fn connected(command: &Command, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    match command {
        Command::Dev(args) => dev::run(args, loaded, output).await,
        Command::Demo(args) => demo::run(args, output).await,
        Command::Serve(_) => serve::run(loaded).await,
        Command::Work(args) => work::run(args, loaded, output).await,
        Command::Submit(args) => submit::run(args, loaded, output).await,
        Command::Import(args) => {
            // What can be wrong without Redis is said without it.
            import::command::plan(args, crate::model::UnixMs(0))?;
            let client = connect::client(loaded).await?;
            let any = crate::model::QueueName::new("any")?;
            let plan = args.plan.as_deref().map(crate::model::PlanName::new).transpose()?;
            let template = crate::client::NewTask { plan, ..connect::task(loaded, any)? };
            let now = crate::model::UnixMs(client.space().clock().now_ms());
            import::command::run(args, now, import::sink::ClientSink::new(client, template), output).await
        }
        Command::Get(args) => get::run(args, loaded, output).await,
        Command::Cancel(args) => cancel::run(args, loaded, output).await,
        Command::Reschedule(args) => reschedule::run(args, loaded, output).await,
        Command::Reprioritize(args) => edit::reprioritize(args, loaded, output).await,
        Command::Edit(args) => edit::run(args, loaded, output).await,
        Command::Freeze(args) => freeze::run(args, true, loaded, output).await,
        Command::Thaw(args) => freeze::run(args, false, loaded, output).await,
        Command::Downstream(command) => downstream::run(command, loaded, output).await,
        Command::Retries(command) => downstream::retries(command, loaded, output).await,
        Command::Executor(command) => executor::run(command, loaded, output).await,
        Command::Queue(command) => queue::run(command, loaded, output).await,
        Command::Bucket(command) => bucket::run(command, loaded, output).await,
        Command::Trace(args) => events::trace(args, loaded, output).await,
        Command::Dead(command) => dead::run(command, loaded, output).await,
        Command::Events(command) => events::run(command, loaded, output).await,
        Command::Outcome(command) => outcome::run(command, loaded, output).await,
        Command::Quota(args) => purge::quota(args, loaded, output).await,
        Command::Purge(args) => purge::run(args, loaded, output).await,
        Command::Token(command) => token::run(command, loaded, output).await,
        Command::Notes(args) => token::notes(args, loaded, output).await,
        Command::Status(_) => status::run(loaded, output).await,
        Command::Check(_) => check::run(loaded, output).await,
        // Done before a runtime was started.
        Command::Config(_) | Command::Key(_) | Command::Completions { .. } => Ok(Exit::Ok),
    }
}

fn sources(cli: &Cli) -> Sources {
    let env: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("MINUTEHAND"))
        .collect();
    let from_env = env.iter().find(|(name, value)| name == "MINUTEHAND_CONFIG" && !value.is_empty());
    let mut files: Vec<PathBuf> = from_env.map(|(_, path)| PathBuf::from(path)).into_iter().collect();
    files.extend(cli.global.config.iter().cloned());
    let flags = cli.global.flags().into_iter().chain(cli.command.flags()).collect();
    Sources { files, env, flags }
}
