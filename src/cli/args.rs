//! The command line. Names, options and exit codes are stable; scripts rely on them.

use super::import::input::Format;
use crate::settings::{Flag, LogFormat};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For machines: one JSON value on stdout; errors as one JSON object on stderr.
    Json,
}

const AFTER: &str = "\
Exit codes: 0 done, 1 failed or done in part, 2 wrong use, 3 no such task, 4 Redis is away.
Settings come from --config files, the environment (MINUTEHAND_REDIS, MINUTEHAND_NAMESPACE,
MINUTEHAND__SECTION__KEY) and flags; the last holds. `minutehand config show --origin` tells.";

/// Schedules work that must start at a given time, in very large numbers.
#[derive(Debug, Parser)]
#[command(name = "minutehand", version, about, after_help = AFTER, max_term_width = 100, propagate_version = true)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
}

/// Options of every command.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Everywhere")]
pub struct Global {
    /// Where Redis is, such as redis://host:6379 [env: MINUTEHAND_REDIS]
    #[arg(long, global = true, value_name = "URL")]
    pub redis: Option<String>,
    /// Name of the installation's data in Redis [env: MINUTEHAND_NAMESPACE] [default: mh]
    #[arg(long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// File with settings; may be given several times, the last one holds [env: MINUTEHAND_CONFIG]
    #[arg(long, global = true, value_name = "FILE.toml")]
    pub config: Vec<PathBuf>,
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORM")]
    pub output: Output,
    /// error, warn, info, debug, trace, or a filter [default: info for dev, serve and work, else warn]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Form of log lines on stderr [default: text]
    #[arg(long, global = true, value_enum, value_name = "FORM")]
    pub log_format: Option<LogFormat>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Everything on this machine: a private Redis, a pod and the HTTP port
    Dev(DevArgs),
    /// Replay a day of 1,014 flights as pushes and report how punctual they were
    Demo(DemoArgs),
    /// Run a pod: claims what is due and hands it to executors
    Serve(ServeArgs),
    /// Run an executor: a command, an HTTP address or nothing for each task
    Work(WorkArgs),
    /// Submit one task and print its id
    Submit(SubmitArgs),
    /// Submit a plan from a CSV or NDJSON file
    Import(ImportArgs),
    /// Show one task
    Get(IdArgs),
    /// Cancel a task
    Cancel(IdArgs),
    /// Change when a task is due
    Reschedule(RescheduleArgs),
    /// Change how urgent a task is
    Reprioritize(ReprioritizeArgs),
    /// Change a task's payload, retries or time-outs
    Edit(EditArgs),
    /// Let nothing more of a queue, a plan or of everything start; what runs goes on
    Freeze(FreezeArgs),
    /// Let what was frozen start again
    Thaw(FreezeArgs),
    /// Downstreams, which several queues share: list, show, set, open, close, reset
    #[command(subcommand)]
    Downstream(super::downstream::DownstreamCommand),
    /// Hold all tasks that have failed, or let them go on: off, on, show
    #[command(subcommand)]
    Retries(super::downstream::RetriesCommand),
    /// Queues: list, show, set, pause, resume, open, close, reset
    #[command(subcommand)]
    Queue(super::queue::QueueCommand),
    /// Executors: list, show, drain, resume
    #[command(subcommand)]
    Executor(super::executor::ExecutorCommand),
    /// Buckets: how many, why, what comes; pin their number or bound it
    #[command(subcommand)]
    Bucket(super::bucket::BucketCommand),
    /// Tell a task's whole life, with causes
    Trace(IdArgs),
    /// Dead letters: list, show, redrive, delete
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Follow what happens, or check what happened
    #[command(subcommand)]
    Events(EventsCommand),
    /// Hear how tasks end: subscribe, list, show, unsubscribe, follow
    #[command(subcommand)]
    Outcome(super::outcome::OutcomeCommand),
    /// Tokens of the HTTP port: create, list, revoke
    #[command(subcommand)]
    Token(TokenCommand),
    /// Show or bound how many tasks the namespace may hold
    Quota(QuotaArgs),
    /// Remove everything of the namespace for good
    Purge(PurgeArgs),
    /// Keys with which payloads are encrypted
    #[command(subcommand)]
    Key(KeyCommand),
    /// Tell what operators did: froze, redrove, made tokens
    Notes(NotesArgs),
    /// Show counts, lag, pods, executors and Redis
    Status(StatusArgs),
    /// Look for damage in the data: exit code 1 if there is any
    Check(CheckArgs),
    /// Show settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    #[command(hide = true)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// What to freeze or thaw.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("scope").required(true).args(["queue", "plan", "all"])), after_help = "\
Nothing more starts within a second; offers that have not started come back out of the inboxes.
Examples:
  minutehand freeze --queue push.sms --why 'gateway is down'
  minutehand freeze --plan spring-sale --why 'wrong text'
  minutehand thaw --queue push.sms")]
pub struct FreezeArgs {
    /// This queue
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// The tasks that were submitted or imported under this plan
    #[arg(long, value_name = "NAME")]
    pub plan: Option<String>,
    /// Everything in the namespace
    #[arg(long)]
    pub all: bool,
    /// Why, for those who look at it later
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub why: String,
}

/// What to do with dead letters.
#[derive(Debug, Subcommand)]
pub enum DeadCommand {
    /// List dead letters, oldest first in each bucket
    List(DeadWhich),
    /// Show one, with its attempts
    Show(IdArgs),
    /// Set dead letters back to pending, with their history and fresh tries
    #[command(after_help = "\
Examples:
  minutehand dead redrive ID
  minutehand dead redrive --queue push.sms --reason 'gateway*' --rate 100/s --yes")]
    Redrive {
        /// Which
        #[command(flatten)]
        pick: DeadPick,
        /// How fast they become due: 100/s, 30/m [default: all at once]
        #[arg(long, value_name = "RATE")]
        rate: Option<String>,
    },
    /// Remove dead letters for good
    Delete {
        /// Which
        #[command(flatten)]
        pick: DeadPick,
    },
}

/// Which dead letters.
#[derive(Debug, Args)]
pub struct DeadWhich {
    /// Of this queue
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// Dead for at least this long, such as 1h
    #[arg(long, value_name = "TIME")]
    pub older_than: Option<String>,
    /// Reason or last error contains this, or fits it where it has a *, which stands for anything
    #[arg(long, value_name = "PATTERN")]
    pub reason: Option<String>,
    /// At most so many in a list
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
}

/// Ids, or a filter.
#[derive(Debug, Args)]
pub struct DeadPick {
    /// Ids of dead letters
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Or all that fit
    #[command(flatten)]
    pub which: DeadWhich,
    /// Every dead letter
    #[arg(long)]
    pub all: bool,
    /// Do it for all that fit
    #[arg(long)]
    pub yes: bool,
}

/// What to do with events.
#[derive(Debug, Subcommand)]
pub enum EventsCommand {
    /// Print events as they happen
    Tail(TailArgs),
    /// Feed events through the table of states and report every illegal step; exit code 1 if there is one
    #[command(after_help = "\
Examples:
  minutehand events replay
  minutehand events tail --from-start --once --output json > events.ndjson
  minutehand events replay events.ndjson --must-end")]
    Replay(ReplayArgs),
}

/// Options of `events tail`.
#[derive(Debug, Args)]
pub struct TailArgs {
    /// Only of tasks of this queue that still exist
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// Only of this type: submitted, claimed, started, succeeded, retried, died, …
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
    /// Begin with the oldest that is kept
    #[arg(long)]
    pub from_start: bool,
    /// End when there is nothing more
    #[arg(long)]
    pub once: bool,
}

/// Options of `events replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// One event a line, as `events tail --output json` prints them; - for stdin [default: those in Redis]
    pub file: Option<String>,
    /// Tasks that have not ended are faults
    #[arg(long)]
    pub must_end: bool,
    /// The file begins where events were trimmed: tasks may begin anywhere
    #[arg(long)]
    pub trimmed: bool,
}

/// Options of `dev`.
#[derive(Debug, Args)]
#[command(after_help = "\
Other commands find this Redis when no URL is given.
Examples:
  minutehand dev
  minutehand dev --data ./data --listen 127.0.0.1:0")]
pub struct DevArgs {
    /// Where Redis keeps its data [default: .minutehand in this directory]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The HTTP port.
    #[command(flatten)]
    pub port: PortArgs,
}

/// The HTTP port of `serve` and `dev`.
#[derive(Debug, Clone, Default, Args)]
pub struct PortArgs {
    /// Where HTTP is answered: /v1, /docs, /metrics, /healthz, /readyz [default: 127.0.0.1:8700]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Certificate for TLS, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<String>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<String>,
    /// Let everybody in who reaches the port, without a token
    #[arg(long)]
    pub insecure: bool,
}

impl PortArgs {
    fn flags(&self) -> Vec<Flag> {
        let insecure = self.insecure.then(|| "true".to_owned());
        [
            ("--listen", "pod.listen", self.listen.clone()),
            ("--tls-cert", "http.tls_cert", self.tls_cert.clone()),
            ("--tls-key", "http.tls_key", self.tls_key.clone()),
            ("--insecure", "http.insecure", insecure),
        ]
        .into_iter()
        .filter_map(|(name, key, value)| Some(Flag { name, key, value: value? }))
        .collect()
    }
}

/// Options of `token`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token and print it, this once
    #[command(after_help = "\
Roles: submit (submit, look up, cancel, move), work (take tasks), read (see everything), operate (read, submit,
freeze, redrive, settings of queues), admin (everything, tokens too).
Examples:
  minutehand token create --name ci --role submit --queue mail --queue 'push.*' --expires 30d
  minutehand token create --name ops --role operate")]
    Create {
        /// What people call it
        #[arg(long, value_name = "NAME")]
        name: String,
        /// submit, work, read, operate or admin; may be given several times
        #[arg(long, required = true, value_name = "ROLE")]
        role: Vec<String>,
        /// Queue it is good for, such as mail or push.*; may be given several times [default: all]
        #[arg(long, value_name = "PATTERN")]
        queue: Vec<String>,
        /// How long it is good, such as 12h or 30d [default: for ever]
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// List tokens, without their secrets
    List,
    /// Make a token worthless within seconds
    Revoke {
        /// Its id, the part between the two underscores
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// Options of `quota`.
#[derive(Debug, Args)]
#[command(after_help = "\
Counted are tasks that have not ended, and for bytes dead letters too: their payloads, keys and options, without what Redis
adds. Clients look once a second, so it is passed by what they submit in one. Of tasks that were there before a quota for
bytes some may not be counted: those of an hour and bucket with more than 1,000 tasks.
Examples:
  minutehand quota
  minutehand quota --tasks 1000000 --bytes 2000000000
  minutehand quota --tasks 0")]
pub struct QuotaArgs {
    /// At most so many; 0 for any number
    #[arg(long, value_name = "N")]
    pub tasks: Option<u64>,
    /// At most so many bytes of them; 0 for any number
    #[arg(long, value_name = "N")]
    pub bytes: Option<u64>,
}

/// Options of `purge`.
#[derive(Debug, Args)]
#[command(after_help = "\
Tasks, dead letters, events, settings of queues and tokens go. Refused while a pod or an executor lives in it.
Example:
  minutehand purge --namespace trial --yes trial")]
pub struct PurgeArgs {
    /// The namespace once more, so that it is meant
    #[arg(long, value_name = "NAMESPACE", required = true)]
    pub yes: String,
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Print a new key, a line for the file that crypto.keys_file names
    #[command(after_help = "\
Examples:
  minutehand key new >keys && chmod 600 keys
  MINUTEHAND__CRYPTO__KEYS_FILE=keys minutehand submit --queue mail --payload secret")]
    New {
        /// Its name, at most 16 characters [default: one from today's date]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
}

/// Options of `notes`.
#[derive(Debug, Args)]
pub struct NotesArgs {
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
}

/// Options of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0 only if every task succeeded exactly once.
Examples:
  minutehand demo
  minutehand demo --speed 3600 --pods 3 --executors 4")]
pub struct DemoArgs {
    /// How many of the plan's seconds pass in one
    #[arg(long, default_value_t = 1_200.0, value_name = "TIMES", allow_negative_numbers = true)]
    pub speed: f64,
    /// Pods that compete for the tasks
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub pods: u32,
    /// Executors that run them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub executors: u32,
}

/// Options of `serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Any number of pods share the work; each may be killed at any time. On an address that other machines reach
it starts once there is a token (`minutehand token create`), or with --insecure.
Example:
  minutehand serve --redis redis://db:6379 --listen 0.0.0.0:8700 --tls-cert cert.pem --tls-key key.pem")]
pub struct ServeArgs {
    /// The HTTP port.
    #[command(flatten)]
    pub port: PortArgs,
}

/// Options of `work`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("handler").required(true).args(["exec", "http", "discard"]))]
#[command(after_help = "\
--exec runs CMD by `sh -c` with the payload on stdin. Exit code 0 is a success; 75 (temporary failure) is tried
again after 5s and not counted; 65 (bad data) is not tried again; another one is a failure whose error is the end of
stderr. A last line `retry-after: 30s` on stderr says when to try again: not counted with 75, else counted.

--http posts the payload. 2xx is a success; 429 and 503 with Retry-After are tried again then and not counted; 408,
425, 429 and 5xx are failures; 3xx and other 4xx are not tried again.
Examples:
  minutehand work --queue push --slots 64 --exec './send.sh'
  minutehand work --queue push --http http://127.0.0.1:9000/push
  minutehand work --queue push --discard")]
pub struct WorkArgs {
    /// Queue to take tasks from; may be given several times
    #[arg(long, required = true, value_name = "NAME")]
    pub queue: Vec<String>,
    /// Tasks that run at the same time [default: what suits --kind]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub slots: Option<u32>,
    /// What tasks spend their time with: io, 8 slots for each processor, or cpu, one for each and one more [default: io]
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Run this command for each task
    #[arg(long, value_name = "CMD")]
    pub exec: Option<String>,
    /// Send each task to this address (POST); a status from 200 to 299 is a success
    #[arg(long, value_name = "URL")]
    pub http: Option<String>,
    /// With --http: send up to so many tasks in one call, as JSON
    #[arg(long, value_name = "N", conflicts_with_all = ["exec", "discard"], value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub batch: Option<u32>,
    /// Succeed at once; tasks still pass inbox, start and ack
    #[arg(long)]
    pub discard: bool,
    /// Label this executor offers, such as gpu or zone=a; may be given several times
    #[arg(long, value_name = "LABEL")]
    pub label: Vec<String>,
    /// Name shown in status [default: the host's]
    #[arg(long)]
    pub name: Option<String>,
    /// File in which begun and unreported work outlives a crash; one for each executor
    #[arg(long, value_name = "FILE")]
    pub journal: Option<String>,
    /// Answer HTTP there: /metrics and /healthz, such as 127.0.0.1:8701
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
}

/// When a task is due.
#[derive(Debug, Clone, Default, Args)]
pub struct DueArgs {
    /// Due this long after now by Redis's clock, such as 10s, 5m or 1h30m
    #[arg(long = "in", value_name = "TIME", conflicts_with = "at", allow_hyphen_values = true)]
    pub wait: Option<String>,
    /// Due at this instant, such as 2026-12-24T18:00:00+01:00; one in the past is due at once
    #[arg(long, value_name = "RFC3339", allow_hyphen_values = true)]
    pub at: Option<String>,
}

/// Time-outs of a task, and how safe it must be before its submit answers.
#[derive(Debug, Clone, Default, Args)]
pub struct CareArgs {
    /// Longest run of its handler, such as 30s; 0s for none [default: 0s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub timeout: Option<String>,
    /// Longest time from hand-out to start, 1s to 24h; then it is handed out again [default: 15s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub dispatch_timeout: Option<String>,
    /// Skip it if it has not started this long after it was due; 0s for never [default: 0s]
    #[arg(long, visible_alias = "start-before", value_name = "TIME", allow_hyphen_values = true)]
    pub start_within: Option<String>,
    /// Let it expire, wherever it is, this long after it was due; 0s for never [default: 0s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub expire_after: Option<String>,
    /// How long it is good without renewal once it has started, 1s to 24h [default: 30s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub lease: Option<String>,
    /// Answer when it is as safe as this: memory, everysec, always, wait:N, waitaof:L:N [default: memory]
    #[arg(long, value_name = "LEVEL")]
    pub durability: Option<String>,
}

impl CareArgs {
    fn flags(&self) -> [Option<Flag>; 6] {
        let flag = |name, key, value: &Option<String>| value.clone().map(|value| Flag { name, key, value });
        [
            flag("--timeout", "defaults.timeout", &self.timeout),
            flag("--dispatch-timeout", "defaults.dispatch_timeout", &self.dispatch_timeout),
            flag("--start-within", "defaults.start_within", &self.start_within),
            flag("--expire-after", "defaults.expire_after", &self.expire_after),
            flag("--lease", "defaults.lease", &self.lease),
            flag("--durability", "defaults.durability", &self.durability),
        ]
    }
}

/// Options of `submit`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  minutehand submit --queue mail --in 10s --payload 'hello'
  minutehand submit --queue mail --at 2026-12-24T18:00:00+01:00 --key order-17 --payload @body.json
  minutehand submit --queue mail --start-within 5m --timeout 30s --durability wait:1 --payload 'soon or never'
  date | minutehand submit --queue mail --retries 5 --backoff exponential:1s:x2:10m --payload -")]
pub struct SubmitArgs {
    /// Queue of the task
    #[arg(long, value_name = "NAME")]
    pub queue: String,
    /// When it is due; at once if not given.
    #[command(flatten)]
    pub due: DueArgs,
    /// P0 (most urgent) to P5
    #[arg(long, default_value = "P3", value_name = "P0-P5")]
    pub priority: String,
    /// Placement key: recipient, tenant or order; its queue may have limits for each
    #[arg(long, value_name = "KEY")]
    pub placement: Option<String>,
    /// Idempotency key: a second task with the same key is not created, the first one's id is printed
    #[arg(long, allow_hyphen_values = true)]
    pub key: Option<String>,
    /// Tries after the first one, 0 to 254 [default: 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub retries: Option<u32>,
    /// Wait before them: fixed:200ms, linear:5s:10m or exponential:5s:x5:1h [default: exponential:5s:x5:1h]
    #[arg(long, value_name = "POLICY")]
    pub backoff: Option<String>,
    /// Time-outs, and how safe it must be.
    #[command(flatten)]
    pub care: CareArgs,
    /// Label an executor must have, such as gpu or zone=a; may be given several times
    #[arg(long, value_name = "LABEL")]
    pub label: Vec<String>,
    /// How long it is thought to run, such as 200ms; by this executors are chosen [default: its queue's average]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub cost: Option<String>,
    /// Web address that is called to have it done (POST), by a pod
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Who hears of its end: a web address, or a subscription
    #[arg(long, value_name = "URL|NAME")]
    pub notify: Option<String>,
    /// Tasks with the same key go to the same executor, where their queue is routed by consistent_hash
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub routing_key: Option<String>,
    /// Plan it belongs to: all tasks of a plan can be frozen as one
    #[arg(long, value_name = "NAME")]
    pub plan: Option<String>,
    /// Text, @FILE for a file's content, or - for stdin; at most 1 MiB
    #[arg(long, default_value = "", value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub payload: String,
}

/// Options of `import`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("queues").required(true).args(["queue", "queue_column"]))]
#[command(after_help = "\
Columns that are neither due, queue, key, placement nor priority become the payload, a msgpack map.
Values of CSV are strings; those of NDJSON keep their types. gzip is unpacked where it is found.

Due times are RFC 3339, local times in --tz, or whole numbers: 10 digits are seconds since 1970,
13 are milliseconds. A local time that the clock leaves out means the first instant after the
gap; one that it shows twice, the first of the two. Times in the past are due at once.

With --key, a file that is imported again makes no task twice: also after a crash, and with
--rebase.

Exit code 1 if a row was bad; the good ones went in, but with --strict none did.

Examples:
  minutehand import plan.csv --due send_at --tz Europe/Berlin --queue push --key id
  zcat plan.ndjson.gz | minutehand import - --queue-column queue --strict
  minutehand import examples/flights-2013-11-27.csv --due departure --tz America/New_York \\
      --queue flights --key flight --rebase 2013-11-27T05:00:00=now --speed 600")]
pub struct ImportArgs {
    /// A file, or - for stdin
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,
    /// csv or ndjson [default: by the file's name, else by its first byte]
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Column of the due time
    #[arg(long, default_value = "due", value_name = "COLUMN")]
    pub due: String,
    /// Time zone of due times without an offset, such as Europe/Berlin
    #[arg(long, value_name = "ZONE")]
    pub tz: Option<String>,
    /// Queue of all tasks
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// Column of the queue
    #[arg(long, value_name = "COLUMN")]
    pub queue_column: Option<String>,
    /// Column of the placement key: recipient, tenant or order
    #[arg(long, value_name = "COLUMN")]
    pub placement: Option<String>,
    /// Column of the idempotency key; keys are kept for 7 days after their task ended
    #[arg(long, value_name = "COLUMN")]
    pub key: Option<String>,
    /// Plan that all tasks belong to: they can be frozen as one
    #[arg(long, value_name = "NAME")]
    pub plan: Option<String>,
    /// Priority of all tasks [default: P3]
    #[arg(long, value_name = "P0-P5", conflicts_with = "priority_column")]
    pub priority: Option<String>,
    /// Column of the priority; an empty cell means P3
    #[arg(long, value_name = "COLUMN")]
    pub priority_column: Option<String>,
    /// Tries after the first one, 0 to 254 [default: 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub retries: Option<u32>,
    /// Wait before them, as for submit
    #[arg(long, value_name = "POLICY")]
    pub backoff: Option<String>,
    /// Time-outs, and how safe tasks must be.
    #[command(flatten)]
    pub care: CareArgs,
    /// Replay an old plan: its time T is now (T is read in --tz unless it has an offset)
    #[arg(long, value_name = "T=now")]
    pub rebase: Option<String>,
    /// With --rebase: how many of the plan's seconds pass in one
    #[arg(long, value_name = "TIMES", requires = "rebase", allow_negative_numbers = true)]
    pub speed: Option<f64>,
    /// Read everything first; send nothing if one row is bad
    #[arg(long)]
    pub strict: bool,
    /// Draw tasks per minute and send nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// The id of a task.
#[derive(Debug, Args)]
pub struct IdArgs {
    /// Id of the task, as submit printed it
    pub id: String,
}

/// Options of `reschedule`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("when").required(true).args(["wait", "at"]))]
pub struct RescheduleArgs {
    /// Id of the task, as submit printed it
    pub id: String,
    /// When it shall be due.
    #[command(flatten)]
    pub due: DueArgs,
}

/// Options of `reprioritize`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  minutehand reprioritize ID P0")]
pub struct ReprioritizeArgs {
    /// Id of the task, as submit printed it
    pub id: String,
    /// P0 (most urgent) to P5
    #[arg(value_name = "P0-P5")]
    pub priority: String,
}

/// Options of `edit`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["payload", "retries", "backoff", "timeout", "lease", "start_within", "expire_after"]))]
#[command(after_help = "\
A pending task and a dead letter are changed at once. A run that is under way goes on with what it began with, but
for its retries and its total time-out, which count from now on; the rest counts from the next attempt on.
Examples:
  minutehand edit ID --payload @body.json
  minutehand edit ID --retries 10 --backoff fixed:30s --timeout 2m
  minutehand edit ID --execution \"$MINUTEHAND_EXECUTION_ID\" --payload 'go on at row 400'")]
pub struct EditArgs {
    /// Id of the task, as submit printed it
    pub id: String,
    /// Text, @FILE for a file's content, or - for stdin; at most 1 MiB
    #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub payload: Option<String>,
    /// Tries after the first one, 0 to 254
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub retries: Option<u32>,
    /// Wait before them: fixed:200ms, linear:5s:10m or exponential:5s:x5:1h
    #[arg(long, value_name = "POLICY")]
    pub backoff: Option<String>,
    /// Longest run of its handler; 0s for none
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub timeout: Option<String>,
    /// How long it is good without renewal once it has started, 1s to 24h; 0s for the usual 30 s
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub lease: Option<String>,
    /// Skip it if it has not started this long after it is due; 0s for never
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub start_within: Option<String>,
    /// Let it expire this long after it is due; 0s for never
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub expire_after: Option<String>,
    /// Who hears of its end: a web address, or a subscription
    #[arg(long, value_name = "URL|NAME")]
    pub notify: Option<String>,
    /// Only while this execution of it has the grant: for handlers that edit their own task
    #[arg(long, value_name = "EXECUTION ID")]
    pub execution: Option<String>,
}

/// Options of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {}

/// Options of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {}

/// What `config` shows.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the settings that hold, as TOML; passwords are masked
    Show {
        /// Say for each value where it came from
        #[arg(long)]
        origin: bool,
        /// Print the manual instead: every key with its default and what it does
        #[arg(long, conflicts_with = "origin")]
        defaults: bool,
    },
}

impl Global {
    /// What these flags set.
    pub fn flags(&self) -> Vec<Flag> {
        let log_format = self.log_format.map(|format| match format {
            LogFormat::Text => "text".to_owned(),
            LogFormat::Json => "json".to_owned(),
        });
        [
            ("--redis", "redis.url", self.redis.clone()),
            ("--namespace", "namespace", self.namespace.clone()),
            ("--log-level", "log.level", self.log_level.clone()),
            ("--log-format", "log.format", log_format),
        ]
        .into_iter()
        .filter_map(|(name, key, value)| Some(Flag { name, key, value: value? }))
        .collect()
    }
}

impl Command {
    /// What a command's own flags set.
    pub fn flags(&self) -> Vec<Flag> {
        let flag = |name, key, value: Option<String>| value.map(|value| Flag { name, key, value });
        match self {
            Self::Dev(DevArgs { port, .. }) | Self::Serve(ServeArgs { port }) => port.flags(),
            Self::Work(WorkArgs { slots, kind, journal, listen, .. }) => [
                flag("--listen", "executor.listen", listen.clone()),
                flag("--slots", "executor.slots", slots.map(|n| n.to_string())),
                flag("--kind", "executor.kind", kind.clone()),
                flag("--journal", "executor.journal", journal.clone()),
            ]
            .into_iter()
            .flatten()
            .collect(),
            Self::Submit(SubmitArgs { retries, backoff, care, .. })
            | Self::Import(ImportArgs { retries, backoff, care, .. }) => [
                flag("--retries", "defaults.retries", retries.map(|n| n.to_string())),
                flag("--backoff", "defaults.backoff", backoff.clone()),
            ]
            .into_iter()
            .chain(care.flags())
            .flatten()
            .collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the command runs until it is told to stop, so that its log is worth reading.
    pub const fn is_service(&self) -> bool {
        matches!(self, Self::Dev(_) | Self::Serve(_) | Self::Work(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::error::ErrorKind> {
        Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.kind())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_lines_of_the_manual_parse() {
        for line in [
            "minutehand dev",
            "minutehand demo --speed 600 --pods 3",
            "minutehand serve --listen 127.0.0.1:8700",
            "minutehand work --queue Q --slots 4 --exec true",
            "minutehand work --queue Q --queue R --http http://x/ --label gpu",
            "minutehand work --queue Q --discard",
            "minutehand submit --queue Q --in 10s --priority P0 --key K --retries 2 --backoff fixed:200ms --payload -",
            "minutehand submit --queue Q --at 2026-12-24T18:00:00Z --payload -text",
            "minutehand import - --queue Q --tz UTC --strict --dry-run --priority P1 --key k --format csv",
            "minutehand import f.csv --queue-column q --rebase 2013-11-27T05:00:00=now --speed 600",
            "minutehand get ID --output json --redis redis://h --namespace n --config a.toml --config b.toml",
            "minutehand submit --queue Q --timeout 30s --start-within 5m --expire-after 1h --lease 1m --durability wait:1",
            "minutehand submit --queue Q --start-before 5m",
            "minutehand import f.csv --queue Q --timeout 30s --durability always",
            "minutehand work --queue Q --discard --journal /var/lib/mh/journal",
            "minutehand work --queue Q --discard --kind cpu",
            "minutehand submit --queue Q --label gpu --label zone=a --cost 200ms --routing-key K",
            "minutehand submit --queue Q --url https://example.com/hook",
            "minutehand submit --queue Q --notify https://example.com/done",
            "minutehand outcome subscribe mails --queue mail --url https://example.com/done",
            "minutehand outcome subscribe one --task 0mBBZ-RGXFDo9dTn --if-version 0",
            "minutehand outcome list",
            "minutehand outcome show mails",
            "minutehand outcome unsubscribe mails",
            "minutehand outcome follow mails --once",
            "minutehand work --queue Q --http http://x/ --batch 100",
            "minutehand executor list",
            "minutehand executor drain ex-1 --output json",
            "minutehand executor replay routes.ndjson",
            "minutehand cancel ID",
            "minutehand reschedule ID --in 5m",
            "minutehand reprioritize ID P0",
            "minutehand edit ID --payload -x --retries 3 --timeout 0s",
            "minutehand freeze --plan spring-sale",
            "minutehand submit --queue Q --plan spring-sale",
            "minutehand status --output json",
            "minutehand bucket spread",
            "minutehand bucket list --output json",
            "minutehand bucket history --all --limit 5",
            "minutehand bucket agenda --ahead 2h --tz Europe/Berlin",
            "minutehand bucket set --pin 16",
            "minutehand bucket set --pin none --min 8 --max 64 --auto",
            "minutehand bucket replay f.json",
            "minutehand check",
            "minutehand config show --origin",
            "minutehand queue list --output json",
            "minutehand queue set Q --rate 100/s --burst 20 --running 50",
            "minutehand queue open Q --why x",
            "minutehand downstream set D --rate 5/m --breaker 50%:20:30s:fresh",
            "minutehand downstream reset D",
            "minutehand retries off --why x",
            "minutehand queue set Q --retries 5 --lease auto",
            "minutehand queue pause Q --why x",
        ] {
            assert!(parse(line).is_ok(), "{line}: {:?}", parse(line).unwrap_err());
        }
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in [
            "minutehand work --queue Q",
            "minutehand work --discard",
            "minutehand work --queue Q --discard --exec true",
            "minutehand work --queue Q --discard --batch 5",
            "minutehand submit --in 5s",
            "minutehand submit --queue Q --in 5s --at 2026-12-24T18:00:00Z",
            "minutehand import f.csv",
            "minutehand import f.csv --queue a --queue-column b",
            "minutehand import f.csv --queue a --speed 5",
            "minutehand reschedule ID",
            "minutehand edit ID",
            "minutehand edit ID --execution E",
            "minutehand reprioritize ID",
            "minutehand freeze --plan a --queue b",
            "minutehand config",
            "minutehand stauts",
            "minutehand demo --pods 0",
            "minutehand bucket set",
            "minutehand bucket set --auto --manual",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn flags_name_the_settings_they_set() {
        let cli =
            parse("minutehand submit --queue q --retries 3 --redis redis://h --log-format json").unwrap();
        let keys: Vec<_> =
            cli.global.flags().into_iter().chain(cli.command.flags()).map(|f| (f.key, f.value)).collect();
        let expected = [("redis.url", "redis://h"), ("log.format", "json"), ("defaults.retries", "3")]
            .map(|(k, v)| (k, v.to_owned()));
        assert_eq!(keys, expected);
    }
}
