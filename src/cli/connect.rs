//! From settings to a client, and from its errors to exit codes.

use super::dev;
use super::error::CliError;
use crate::client::{Client, ClientError, Defaults, NewTask, SubmitError};
use crate::executor::WebhookSettings;
use crate::model::seal::KeyRing;
use crate::model::spec::Extras;
use crate::model::{Namespace, QueueName, Retry};
use crate::settings::{Loaded, Origin, Settings, Span};
use crate::store::{ConnectSettings, Space, Store, StoreError};
use crate::webhook::{Allowed, Keys, SenderSettings};
use crate::{clock, limits, metric};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Where a single server listens that was installed without any settings.
const USUAL_URL: &str = "redis://127.0.0.1:6379";

/// How Redis is reached. Without a URL: that of a running `minutehand dev`, else the usual port.
pub fn settings(settings: &Settings) -> Result<ConnectSettings, CliError> {
    let redis = &settings.redis;
    let url = match redis.url.trim() {
        "" => dev::find().map_or_else(|| USUAL_URL.to_owned(), |found| found.url),
        url => url.to_owned(),
    };
    let password = match redis.password_file.as_os_str().is_empty() {
        true => None,
        false => Some(password(&redis.password_file)?),
    };
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Ok(ConnectSettings {
        url,
        username: text(&redis.username),
        password,
        pool_size: redis.pool as usize,
        call_timeout_ms: redis.call_timeout.ms().unsigned_abs(),
        connect_timeout_ms: redis.connect_timeout.ms().unsigned_abs(),
        ca_file: (!redis.ca_file.as_os_str().is_empty()).then(|| redis.ca_file.clone()),
        allow_evicting: redis.allow_evicting,
        ..ConnectSettings::default()
    })
}

fn password(file: &Path) -> Result<String, CliError> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        CliError::usage("redis.password_file", format!("{} cannot be read: {error}", file.display()))
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Connects and opens the namespace.
pub async fn space(loaded: &Loaded) -> Result<Space, CliError> {
    Ok(try_space(loaded).await?)
}

/// Why a try to start failed.
#[derive(Debug)]
pub enum Obstacle {
    /// It may pass by itself: no server there yet, no name for it, no master among its sentinels, a server that loads
    /// its file or is full.
    Passing(StoreError),
    /// Somebody has to change something.
    Lasting(CliError),
}

impl From<StoreError> for Obstacle {
    fn from(error: StoreError) -> Self {
        if error.is_retryable() { Self::Passing(error) } else { Self::Lasting(error.into()) }
    }
}

impl From<CliError> for Obstacle {
    fn from(error: CliError) -> Self {
        Self::Lasting(error)
    }
}

impl From<Obstacle> for CliError {
    fn from(obstacle: Obstacle) -> Self {
        match obstacle {
            Obstacle::Passing(error) => error.into(),
            Obstacle::Lasting(error) => error,
        }
    }
}

/// Connects and opens the namespace, once.
pub async fn try_space(loaded: &Loaded) -> Result<Space, Obstacle> {
    let namespace = Namespace::new(&loaded.settings.namespace).map_err(CliError::from)?;
    let store = Store::connect(settings(&loaded.settings)?).await.inspect_err(|error| {
        // What fails later is counted where it fails.
        metric::handles().redis_errors.add(error.cause(), 1);
    })?;
    Ok(Space::open(store, namespace).await?)
}

/// Tries again and again what a service needs at its start, as long as what is in the way may pass by itself: services
/// and their Redis are started in any order. Tells `waits` of each obstacle and the log of each new one. Nothing when it
/// is told to stop meanwhile.
pub async fn patiently<T>(
    stop: &CancellationToken,
    attempt: impl AsyncFn() -> Result<T, Obstacle>,
    waits: impl Fn(&StoreError),
) -> Result<Option<T>, CliError> {
    let begun = clock::mono();
    let (mut wait_ms, mut told) = (START_AGAIN_MIN_MS, Told::default());
    let tries = async {
        loop {
            let error = match attempt().await {
                Ok(done) => return Ok(done),
                Err(Obstacle::Passing(error)) => error,
                Err(Obstacle::Lasting(error)) => return Err(error),
            };
            waits(&error);
            let waited_s = begun.elapsed().as_secs();
            if told.is_due(&error.to_string(), clock::mono()) {
                tracing::warn!(%error, waited_s, "cannot start yet; trying again until redis lets it");
            }
            // Not in step with the others that wait for the same server.
            let pause = wait_ms / 2 + fastrand::u64(0..=wait_ms / 2);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            wait_ms = (wait_ms * 2).min(limits::RECONNECT_MAX_MS);
        }
    };
    match stop.run_until_cancelled(tries).await {
        Some(Ok(done)) => {
            if told.at.is_some() {
                tracing::info!(waited_ms = clock::elapsed_ms(begun), "redis lets it start");
            }
            Ok(Some(done))
        }
        Some(Err(error)) => Err(error),
        None => {
            tracing::info!("told to stop before redis let it start");
            Ok(None)
        }
    }
}

/// First pause before another try to start; doubled up to [`limits::RECONNECT_MAX_MS`].
const START_AGAIN_MIN_MS: u64 = 50;
/// Shortest time between two lines about what is in the way, where it keeps changing.
const TOLD_MIN: Duration = Duration::from_secs(1);
/// Longest time without a line while it stays the same.
const TOLD_MAX: Duration = Duration::from_secs(30);

/// What was said last of what is in the way: said at once where it is new, else now and then.
#[derive(Debug, Default)]
struct Told {
    at: Option<Instant>,
    what: String,
}

impl Told {
    fn is_due(&mut self, what: &str, now: Instant) -> bool {
        let since = self.at.map(|at| now.saturating_duration_since(at));
        let due = since.is_none_or(|since| since >= if self.what == what { TOLD_MAX } else { TOLD_MIN });
        if due {
            (self.at, self.what) = (Some(now), what.to_owned());
        }
        due
    }
}

/// The keys that payloads are sealed and opened with, where there are any.
pub fn keys(settings: &Settings) -> Result<Option<Arc<KeyRing>>, CliError> {
    let file = &settings.crypto.keys_file;
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    let wrong = |what: String| CliError {
        code: "setting",
        ..CliError::usage("crypto.keys_file", format!("{}: {what}", file.display()))
    };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let keys = text.parse::<KeyRing>().map_err(|error| wrong(error.detail))?;
    Ok(Some(Arc::new(keys)))
}

/// A client for one command.
pub async fn client(loaded: &Loaded) -> Result<Client, CliError> {
    let keys = keys(&loaded.settings)?;
    // Boxed: futures within futures are laid out to a limited depth.
    let space = Box::pin(space(loaded)).await?;
    let client = Client::with_defaults(space, defaults(&loaded.settings)?);
    Ok(match keys {
        Some(keys) => client.with_keys(keys),
        None => client,
    })
}

/// What tasks get where neither they nor their queues say something.
pub fn defaults(settings: &Settings) -> Result<Defaults, CliError> {
    let defaults = &settings.defaults;
    let some = |span: Span| (span.ms() > 0).then(|| span.ms());
    let small = |ms: i64| u32::try_from(ms).unwrap_or(u32::MAX);
    Ok(Defaults {
        retry: defaults.backoff.parse::<Retry>()?.with_retries(defaults.retries)?,
        lease_ms: some(defaults.lease).filter(|ms| *ms != limits::LEASE_MS).map(small),
        timeout_ms: some(defaults.timeout).map(small),
        start_within_ms: some(defaults.start_within),
        expire_after_ms: some(defaults.expire_after),
    })
}

/// A task of this queue that has what the flags say; its queue and the settings say the rest.
pub fn task(loaded: &Loaded, queue: QueueName) -> Result<NewTask, CliError> {
    let defaults = &loaded.settings.defaults;
    let flag = |key: &str| matches!(loaded.origin(key), Origin::Flag(_));
    let span = |key, span: Span| flag(key).then(|| span.ms());
    let small = |ms: i64| u32::try_from(ms).unwrap_or(u32::MAX);
    Ok(NewTask {
        retries: flag("defaults.retries").then_some(defaults.retries),
        backoff: if flag("defaults.backoff") { Some(defaults.backoff.parse::<Retry>()?) } else { None },
        lease_ms: span("defaults.lease", defaults.lease).map(small),
        timeout_ms: span("defaults.timeout", defaults.timeout).map(small),
        start_within_ms: span("defaults.start_within", defaults.start_within),
        expire_after_ms: span("defaults.expire_after", defaults.expire_after),
        durability: defaults.durability.parse()?,
        extras: Extras {
            dispatch_ms: span("defaults.dispatch_timeout", defaults.dispatch_timeout).map(small),
            ..Extras::default()
        },
        ..NewTask::to(queue)
    })
}

/// How web calls are made.
pub fn webhook(settings: &Settings) -> Result<WebhookSettings, CliError> {
    let webhook = &settings.webhook;
    let keys = match webhook.keys.as_os_str().is_empty() {
        true => Keys::default(),
        false => Keys::read(&webhook.keys)?,
    };
    Ok(WebhookSettings {
        sender: SenderSettings {
            timeout: webhook.timeout.duration(),
            keys,
            allowed: Allowed::read(&webhook.allow)?,
            redirects: webhook.redirects as usize,
            per_host: webhook.per_host as usize,
            ..SenderSettings::default()
        },
        batch: webhook.batch as usize,
        retry_refused: webhook.retry_refused,
        ..WebhookSettings::default()
    })
}

/// Who acts, for a task's history: the user and the machine.
pub fn who() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    let user: String =
        user.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).take(24).collect();
    if user.is_empty() { "cli".to_owned() } else { format!("cli:{user}") }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::Unreachable { .. } | StoreError::Timeout { .. } => Self::unreachable(message)
                .hint("is it running there? --redis or MINUTEHAND_REDIS names another; `minutehand dev` starts one here"),
            StoreError::BadUrl { what } => Self { code: "setting", ..Self::usage("redis.url", what) },
            StoreError::CannotPromise { .. } => Self { code: "cannot_promise", ..Self::failed(message) }
                .hint("set the server up for it, or ask for less with --durability or defaults.durability"),
            StoreError::Refused { .. } => Self { code: "redis_refused", ..Self::failed(message) },
            _ => Self { code: "redis", ..Self::failed(message) },
        }
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Field(error) => error.into(),
            ClientError::Store(error) => error.into(),
            ClientError::NotFound(_) => Self::not_found(error.to_string()),
            ClientError::WrongState { .. } => Self { code: "wrong_state", ..Self::failed(error.to_string()) },
            ClientError::Conflict { .. } => Self { code: "version", ..Self::failed(error.to_string()) },
            ClientError::NotDurable { .. } => Self { code: "not_durable", ..Self::failed(error.to_string()) }
                .hint("the task may or may not stand; to send it again is safe with --key"),
            ClientError::OverBacklog { ref queue, .. } => {
                Self { code: "over_backlog", ..Self::failed(error.to_string()) }
                    .hint(format!("`minutehand queue set {queue} --backlog` changes its bound"))
            }
            ClientError::OverQuota { .. } => Self { code: "over_quota", ..Self::failed(error.to_string()) }
                .hint("`minutehand quota` shows and changes it"),
            ClientError::FateUnknown(_) => Self { code: "fate_unknown", ..Self::failed(error.to_string()) },
        }
    }
}

impl From<SubmitError> for CliError {
    fn from(error: SubmitError) -> Self {
        ClientError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::error::Exit;
    use crate::settings::{Flag, Sources};
    use std::path::PathBuf;

    #[test]
    fn errors_of_redis_have_their_exit_codes() {
        let gone = StoreError::Unreachable { url: "redis://h".into(), cause: "refused".into(), sent: false };
        assert_eq!(CliError::from(gone).exit, Exit::Unreachable);
        let late = StoreError::Timeout { script: "get", timeout_ms: 5 };
        assert_eq!(CliError::from(late).exit, Exit::Unreachable);
        let bad = CliError::from(StoreError::BadUrl { what: "has no scheme".into() });
        assert_eq!(
            (bad.exit, bad.field.as_deref(), bad.message.as_str()),
            (Exit::Usage, Some("redis.url"), "has no scheme")
        );
        let id = crate::model::TaskId::new(crate::model::Minute(1), crate::model::Bucket::default(), 1);
        assert_eq!(CliError::from(ClientError::NotFound(id)).exit, Exit::NotFound);
        assert_eq!(CliError::from(StoreError::Closed).exit, Exit::Failed);
    }

    #[test]
    fn what_is_in_the_way_is_told_at_once_where_it_is_new_and_else_now_and_then() {
        let (start, mut told) = (clock::mono(), Told::default());
        let mut at = |ms: u64, what| told.is_due(what, start + Duration::from_millis(ms));
        assert_eq!([at(0, "refused"), at(10, "refused"), at(999, "loading")], [true, false, false]);
        assert_eq!([at(1_000, "loading"), at(1_500, "refused"), at(2_000, "refused")], [true, false, true]);
        assert_eq!([at(31_999, "refused"), at(32_000, "refused")], [false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_may_pass_is_waited_for() {
        use std::cell::{Cell, RefCell};
        let gone =
            || StoreError::Unreachable { url: "redis://h".into(), cause: "refused".into(), sent: false };
        let (tries, seen, stop) = (Cell::new(0), RefCell::new(Vec::new()), CancellationToken::new());
        let waits = |error: &StoreError| seen.borrow_mut().push(error.cause());
        let third = async || {
            tries.set(tries.get() + 1);
            if tries.get() < 3 { Err(Obstacle::from(gone())) } else { Ok(tries.get()) }
        };
        assert_eq!(patiently(&stop, third, waits).await, Ok(Some(3)));
        assert_eq!(*seen.borrow(), ["unreachable", "unreachable"]);
        for lasting in [
            StoreError::BadUrl { what: "no scheme".into() },
            StoreError::NoPermission { what: "this login".into() },
            StoreError::TooOld { flavor: "redis", version: "6.2".into() },
            StoreError::UnsafeEviction { policy: "allkeys-lru".into() },
        ] {
            let ended = patiently::<()>(&stop, async || Err(lasting.clone().into()), waits).await;
            assert_eq!(ended, Err(lasting.clone().into()));
        }
        assert_eq!(seen.borrow().len(), 2);
        let hanging = async || std::future::pending().await;
        let told = stop.clone();
        let (ended, ()) = tokio::join!(patiently::<()>(&stop, hanging, waits), async { told.cancel() });
        assert_eq!(ended, Ok(None));
    }

    #[test]
    fn flags_reach_the_tasks_and_settings_the_defaults() {
        let queue = QueueName::new("q").unwrap();
        let flag = |name, key, value: &str| Flag { name, key, value: value.into() };
        let load = |flags: Vec<Flag>, env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Settings::load(&Sources { flags, env, ..Sources::default() }).unwrap()
        };
        let plain = load(Vec::new(), &[]);
        assert_eq!(task(&plain, queue.clone()), Ok(NewTask::to(queue.clone())));
        assert_eq!(defaults(&plain.settings), Ok(Defaults::default()));
        // What the installation says is no wish of the task: a queue may say otherwise.
        let set = load(
            Vec::new(),
            &[("MINUTEHAND__DEFAULTS__RETRIES", "7"), ("MINUTEHAND__DEFAULTS__LEASE", "4s")],
        );
        assert_eq!(task(&set, queue.clone()), Ok(NewTask::to(queue.clone())));
        let base = defaults(&set.settings).unwrap();
        assert_eq!((base.retry.retries, base.lease_ms, base.timeout_ms), (7, Some(4_000), None));
        let flags = vec![
            flag("--backoff", "defaults.backoff", "fixed:200ms"),
            flag("--lease", "defaults.lease", "30s"),
            flag("--timeout", "defaults.timeout", "0s"),
        ];
        let found = task(&load(flags, &[]), queue).unwrap();
        assert_eq!((found.retries, found.backoff.unwrap().wait_ms(3)), (None, 200));
        assert_eq!((found.lease_ms, found.timeout_ms), (Some(30_000), Some(0)));
    }

    #[test]
    fn settings_reach_the_store() {
        let path = std::env::temp_dir().join(format!("minutehand-{}", uuid::Uuid::new_v4()));
        std::fs::write(&path, "pw\n").unwrap();
        let mut loaded = Settings::load(&Sources::default()).unwrap().settings;
        loaded.redis.url = "redis://h:1".into();
        loaded.redis.username = "u".into();
        loaded.redis.password_file = path.clone();
        let found = settings(&loaded).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            (found.url.as_str(), found.username.as_deref(), found.password.as_deref()),
            ("redis://h:1", Some("u"), Some("pw"))
        );
        assert_eq!((found.call_timeout_ms, found.connect_timeout_ms, found.ca_file), (2_000, 500, None));
        loaded.redis.password_file = PathBuf::from("/nowhere");
        assert_eq!(settings(&loaded).unwrap_err().field.as_deref(), Some("redis.password_file"));
    }
}
