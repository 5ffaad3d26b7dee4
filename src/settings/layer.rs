//! Layers of settings: one table of known keys, values laid over it, and where each came from.

use super::{DEFAULT_TOML, Settings, check};
use crate::model::field::shown;
use crate::model::slice::parse_duration_ms;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use toml::{Table, Value};

/// Prefix of environment variables that set a key.
pub const ENV_PREFIX: &str = "MINUTEHAND__";

/// Short names in the environment for what nearly everybody sets.
pub const ENV_SHORT: [(&str, &str); 2] =
    [("MINUTEHAND_REDIS", "redis.url"), ("MINUTEHAND_NAMESPACE", "namespace")];

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The built-in file.
    Default,
    /// A file.
    File(PathBuf),
    /// An environment variable.
    Env(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A flag that was given: `--redis URL` sets `redis.url`.
#[derive(Debug, Clone)]
pub struct Flag {
    /// The flag as the user wrote it.
    pub name: &'static str,
    /// The key it sets.
    pub key: &'static str,
    /// Its value.
    pub value: String,
}

/// What lies over the defaults. Passed in, so that tests need no environment.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Files, the last one above the others.
    pub files: Vec<PathBuf>,
    /// Environment variables; those that do not concern us are passed over.
    pub env: Vec<(String, String)>,
    /// Flags.
    pub flags: Vec<Flag>,
}

/// What holds, and why.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// Legal but unwise combinations.
    pub warnings: Vec<check::Warning>,
    values: BTreeMap<String, (Value, Origin)>,
}

/// Settings that cannot be used. Says which key, from where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{detail} (from {origin})", .key.as_deref().map(|key| format!("{key}: ")).unwrap_or_default())]
pub struct SettingsError {
    /// The key, if one is to blame.
    pub key: Option<String>,
    /// Where it was found.
    pub origin: Origin,
    /// What is wrong and what would be right.
    pub detail: String,
}

impl SettingsError {
    pub(super) fn new(key: impl Into<String>, origin: Origin, detail: impl Into<String>) -> Self {
        Self { key: Some(key.into()), origin, detail: detail.into() }
    }
}

impl Loaded {
    /// Where the value of a key came from.
    pub fn origin(&self, key: &str) -> Origin {
        self.values.get(key).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// All keys with value and origin, passwords masked: top-level keys first, then by section.
    pub fn shown(&self) -> Vec<(String, Value, Origin)> {
        let mut rows: Vec<_> = self
            .values
            .iter()
            .map(|(key, (value, origin))| (key.clone(), masked(key, value), origin.clone()))
            .collect();
        rows.sort_by_key(|(key, _, _)| (key.contains('.'), key.clone()));
        rows
    }

    /// The settings as TOML that can be used as a file (but for masked passwords).
    pub fn to_toml(&self, origins: bool) -> String {
        let (mut out, mut section) = (String::new(), "");
        let rows = self.shown();
        for (key, value, origin) in &rows {
            let (here, name) = key.split_once('.').unwrap_or(("", key));
            if here != section {
                out.push_str(&format!("\n[{here}]\n"));
                section = here;
            }
            out.push_str(&format!("{name} = {value}"));
            if origins {
                out.push_str(&format!("  # {origin}"));
            }
            out.push('\n');
        }
        out
    }

    /// The settings as JSON: `{key: value}`, or `{key: {value, origin}}`.
    pub fn to_json(&self, origins: bool) -> serde_json::Value {
        let mut out = serde_json::Map::new();
        for (key, value, origin) in self.shown() {
            let value = serde_json::to_value(&value).unwrap_or_default();
            let entry = if origins {
                serde_json::json!({ "value": value, "origin": origin.to_string() })
            } else {
                value
            };
            let place = match key.split_once('.') {
                None => &mut out,
                Some((section, _)) => {
                    let table =
                        out.entry(section).or_insert_with(|| serde_json::Value::Object(Default::default()));
                    match table.as_object_mut() {
                        Some(table) => table,
                        None => continue,
                    }
                }
            };
            let name = key.split_once('.').map_or(key.as_str(), |(_, name)| name);
            place.insert(name.to_owned(), entry);
        }
        serde_json::Value::Object(out)
    }
}

/// Hides the password of a URL: everything between the first `:` after the scheme and the last `@`.
pub fn mask_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    // The authority ends at the first slash or question mark, but a careless password may hold
    // either: mask up to the last @ of the whole text rather than show half a password.
    let Some((user, host)) = rest.rsplit_once('@') else { return url.to_owned() };
    match user.split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:***@{host}"),
        None => url.to_owned(),
    }
}

fn masked(key: &str, value: &Value) -> Value {
    match value {
        Value::String(text) if key == "redis.url" => Value::String(mask_url(text)),
        other => other.clone(),
    }
}

pub(super) fn load(sources: &Sources) -> Result<Loaded, SettingsError> {
    let mut values = BTreeMap::new();
    let defaults: Table = DEFAULT_TOML.parse().map_err(|error: toml::de::Error| SettingsError {
        key: None,
        origin: Origin::Default,
        detail: error.message().to_owned(),
    })?;
    leaves("", defaults, &mut |key, value| {
        values.insert(key, (value, Origin::Default));
        Ok(())
    })?;
    let mut layers = Layers { values };
    for file in &sources.files {
        layers.file(file.clone())?;
    }
    layers.env(&sources.env)?;
    for flag in &sources.flags {
        layers.text(flag.key, &flag.value, Origin::Flag(flag.name))?;
    }
    layers.finish()
}

struct Layers {
    values: BTreeMap<String, (Value, Origin)>,
}

impl Layers {
    fn file(&mut self, path: PathBuf) -> Result<(), SettingsError> {
        let origin = Origin::File(path.clone());
        let broken = |detail: String| SettingsError { key: None, origin: origin.clone(), detail };
        let text =
            std::fs::read_to_string(&path).map_err(|error| broken(format!("cannot be read: {error}")))?;
        // The error of the parser shows line, column and the line itself.
        let table: Table = text.parse().map_err(|error| broken(format!("is not TOML: {error}")))?;
        leaves("", table, &mut |key, value| self.put(key, value, origin.clone()))
    }

    fn env(&mut self, vars: &[(String, String)]) -> Result<(), SettingsError> {
        for (name, key) in ENV_SHORT {
            if let Some((_, value)) = vars.iter().find(|(var, value)| var == name && !value.is_empty()) {
                self.text(key, value, Origin::Env(name.to_owned()))?;
            }
        }
        for (name, value) in vars {
            if let Some(path) = name.strip_prefix(ENV_PREFIX) {
                let key = path.to_lowercase().replace("__", ".");
                self.text(&key, value, Origin::Env(name.clone()))?;
            }
        }
        Ok(())
    }

    /// Lays a value over a key that must be known and of the same type.
    fn put(&mut self, key: String, value: Value, origin: Origin) -> Result<(), SettingsError> {
        let Some((known, _)) = self.values.get(&key) else { return Err(self.unknown(&key, origin)) };
        if known.type_str() != value.type_str() {
            let detail = format!("must be {}, not {}", kind(known), kind(&value));
            return Err(SettingsError::new(key, origin, detail));
        }
        self.values.insert(key, (value, origin));
        Ok(())
    }

    /// The same for a value that comes as text and takes the type of its key.
    fn text(&mut self, key: &str, text: &str, origin: Origin) -> Result<(), SettingsError> {
        let Some((known, _)) = self.values.get(key) else { return Err(self.unknown(key, origin)) };
        let value = match known {
            Value::Integer(_) => text.trim().parse().map(Value::Integer).ok(),
            Value::Boolean(_) => text.trim().parse().map(Value::Boolean).ok(),
            _ => Some(Value::String(text.to_owned())),
        };
        let Some(value) = value else {
            let detail = format!("{} must be {}", shown(text), kind(known));
            return Err(SettingsError::new(key, origin, detail));
        };
        self.put(key.to_owned(), value, origin)
    }

    fn unknown(&self, key: &str, origin: Origin) -> SettingsError {
        let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        // A right name in the wrong section is as near as a mistyped one.
        let near = super::nearest(key, self.values.keys().map(String::as_str)).map(str::to_owned);
        let near = self.values.keys().find(|known| last(known) == last(key)).cloned().or(near);
        let hint = match near {
            Some(near) => format!("did you mean {near}?"),
            None => "`minutehand config show` lists the keys there are".to_owned(),
        };
        SettingsError::new(key, origin, format!("is not a setting; {hint}"))
    }

    fn finish(self) -> Result<Loaded, SettingsError> {
        let origin_of = |key: &str| {
            self.values.get(key).map_or(Origin::Default, |(_, origin): &(Value, Origin)| origin.clone())
        };
        // Each length of time by itself, so that the error can name its key.
        let defaults: Table = DEFAULT_TOML.parse().unwrap_or_default();
        let mut spans = Vec::new();
        leaves("", defaults, &mut |key, value| {
            if value.as_str().is_some_and(|text| parse_duration_ms("value", text).is_ok()) {
                spans.push(key);
            }
            Ok(())
        })?;
        for key in spans {
            if let Some((Value::String(text), origin)) = self.values.get(&key) {
                parse_duration_ms("value", text)
                    .map_err(|error| SettingsError::new(key.clone(), origin.clone(), error.detail))?;
            }
        }
        let mut table = Table::new();
        for (key, (value, _)) in &self.values {
            match key.split_once('.') {
                None => {
                    table.insert(key.clone(), value.clone());
                }
                Some((section, name)) => {
                    let place = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
                    if let Value::Table(place) = place {
                        place.insert(name.to_owned(), value.clone());
                    }
                }
            }
        }
        let settings: Settings = table.try_into().map_err(|error: toml::de::Error| {
            let text = error.to_string();
            let key = text.split("in `").nth(1).and_then(|rest| rest.split('`').next()).map(str::to_owned);
            let origin = key.as_deref().map_or(Origin::Default, origin_of);
            SettingsError { key, origin, detail: error.message().to_owned() }
        })?;
        let warnings = check::check(&settings, &origin_of)?;
        Ok(Loaded { settings, warnings, values: self.values })
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "text in quotes",
        Value::Integer(_) => "a whole number",
        Value::Boolean(_) => "true or false",
        Value::Float(_) => "a number",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a section",
    }
}

/// Walks a table down to its values, naming each by its dotted path.
fn leaves(
    path: &str,
    table: Table,
    visit: &mut impl FnMut(String, Value) -> Result<(), SettingsError>,
) -> Result<(), SettingsError> {
    for (name, value) in table {
        let key = if path.is_empty() { name } else { format!("{path}.{name}") };
        match value {
            Value::Table(inner) => leaves(&key, inner, visit)?,
            value => visit(key, value)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;
    use crate::settings::{LogFormat, Span};

    fn env(pairs: &[(&str, &str)]) -> Sources {
        let env = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Sources { env, ..Sources::default() }
    }

    fn file(text: &str) -> (PathBuf, Sources) {
        let path = std::env::temp_dir().join(format!("minutehand-{}.toml", uuid::Uuid::new_v4()));
        std::fs::write(&path, text).unwrap();
        (path.clone(), Sources { files: vec![path], ..Sources::default() })
    }

    fn refused(sources: &Sources) -> String {
        load(sources).unwrap_err().to_string()
    }

    #[test]
    fn the_default_file_says_what_the_limits_say() {
        let loaded = load(&Sources::default()).unwrap();
        let s = &loaded.settings;
        assert_eq!(s.pod.lock.ms(), limits::LOCK_MS);
        assert_eq!(s.pod.poll.ms(), limits::POLL_MS);
        assert_eq!(s.pod.gather.ms(), limits::CLAIM_GATHER_MAX_MS as i64);
        assert_eq!(s.pod.look_ahead.ms(), limits::LOOK_AHEAD_MS);
        let executor = crate::executor::ExecutorSettings::default();
        assert_eq!(s.executor.slots, executor.slots);
        assert_eq!(s.executor.urgent_slots, executor.urgent_slots);
        assert_eq!(s.executor.prefetch, executor.prefetch);
        assert_eq!(s.executor.heartbeat.ms() as u64, executor.heartbeat_ms);
        assert_eq!(s.executor.ack_gather.ms() as u64, executor.ack_gather_ms);
        assert_eq!(s.executor.drain.ms() as u64, executor.drain_grace_ms);
        assert_eq!(s.executor.stop_grace.ms() as u64, executor.stop_grace_ms);
        assert_eq!(s.defaults.lease.ms(), limits::LEASE_MS);
        assert_eq!(s.defaults.dispatch_timeout.ms(), limits::DISPATCH_TIMEOUT_MS);
        assert_eq!(s.redis.call_timeout.ms(), limits::CALL_TIMEOUT_MS as i64);
        assert_eq!(s.redis.connect_timeout.ms(), limits::CONNECT_TIMEOUT_MS as i64);
        let retry: crate::model::Retry = s.defaults.backoff.parse().unwrap();
        assert_eq!(retry.with_retries(s.defaults.retries).unwrap(), crate::model::Retry::default());
        assert_eq!(s.namespace, crate::model::Namespace::DEFAULT);
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    }

    #[test]
    fn later_layers_hold_and_are_remembered() {
        let (path, mut sources) =
            file("namespace = \"a\"\n[pod]\nlock = \"4s\"\npoll = \"2s\"\n[log]\nformat = \"json\"");
        sources.env =
            env(&[("MINUTEHAND__POD__LOCK", "5s"), ("MINUTEHAND_REDIS", "redis://env"), ("PATH", "/bin")])
                .env;
        sources.flags = vec![Flag { name: "--redis", key: "redis.url", value: "redis://flag".into() }];
        let loaded = load(&sources).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(loaded.settings.namespace, "a");
        assert_eq!(loaded.settings.pod.lock, Span::from_ms(5_000));
        assert_eq!(loaded.settings.redis.url, "redis://flag");
        assert_eq!(loaded.settings.log.format, LogFormat::Json);
        assert_eq!(loaded.origin("namespace"), Origin::File(path));
        assert_eq!(loaded.origin("pod.lock").to_string(), "environment MINUTEHAND__POD__LOCK");
        assert_eq!(loaded.origin("redis.url").to_string(), "flag --redis");
        assert_eq!(loaded.origin("pod.listen"), Origin::Default);
        assert!(loaded.to_toml(true).starts_with("namespace = \"a\"  # file "));
        let again: Settings = toml::from_str(&loaded.to_toml(false)).unwrap();
        assert_eq!(again, loaded.settings);
        assert_eq!(loaded.to_json(true)["pod"]["lock"]["value"], "5s");
        assert_eq!(loaded.to_json(false)["pod"]["lock"], "5s");
    }

    #[test]
    fn a_wrong_value_is_named_with_its_origin() {
        for (name, value, expected) in [
            (
                "MINUTEHAND__POD__LOK",
                "5s",
                "pod.lok: is not a setting; did you mean pod.lock? (from environment MINUTEHAND__POD__LOK)",
            ),
            (
                "MINUTEHAND__REDIS__LOCK",
                "5s",
                "redis.lock: is not a setting; did you mean pod.lock? (from environment MINUTEHAND__REDIS__LOCK)",
            ),
            (
                "MINUTEHAND__REDIS__POOL",
                "many",
                "redis.pool: `many` must be a whole number (from environment MINUTEHAND__REDIS__POOL)",
            ),
        ] {
            assert_eq!(refused(&env(&[(name, value)])), expected);
        }
        for (name, value, key) in [
            ("MINUTEHAND__POD__LOCK", "5", "pod.lock: `5` has no unit"),
            ("MINUTEHAND__POD__LISTEN", "nowhere", "pod.listen: "),
            ("MINUTEHAND__LOG__FORMAT", "xml", "log.format: unknown variant `xml`"),
            ("MINUTEHAND__REDIS__POOL", "-1", "redis.pool: "),
            ("MINUTEHAND__REDIS__POOL", "0", "redis.pool: "),
            ("MINUTEHAND_NAMESPACE", "a b", "namespace: "),
        ] {
            let text = refused(&env(&[(name, value)]));
            assert!(text.starts_with(key) && text.ends_with(&format!("(from environment {name})")), "{text}");
        }
        let (path, sources) = file("[pod]\nlock = 5");
        assert!(
            refused(&sources).starts_with("pod.lock: must be text in quotes, not a whole number (from file ")
        );
        std::fs::write(&path, "[pod\n").unwrap();
        assert!(refused(&sources).contains("line 1"));
        std::fs::write(&path, "[pods]\nlock = \"3s\"").unwrap();
        assert!(refused(&sources).starts_with("pods.lock: is not a setting; did you mean pod.lock?"));
        std::fs::write(&path, "pod = 3").unwrap();
        assert!(refused(&sources).starts_with("pod: is not a setting"));
        std::fs::remove_file(&path).unwrap();
        assert!(refused(&sources).starts_with("cannot be read: "));
    }

    #[test]
    fn passwords_are_masked() {
        for (url, expected) in [
            ("redis://u:secret@h:1/0", "redis://u:***@h:1/0"),
            ("redis://:se@c/r?et@h", "redis://:***@h"),
            ("redis://h:6379", "redis://h:6379"),
            ("unix:///tmp/redis.sock", "unix:///tmp/redis.sock"),
            ("redis://user@h", "redis://user@h"),
        ] {
            assert_eq!(mask_url(url), expected);
        }
        let loaded = load(&env(&[("MINUTEHAND_REDIS", "redis://:pw@h")])).unwrap();
        assert!(!loaded.to_toml(true).contains("pw") && !loaded.to_json(true).to_string().contains("pw"));
    }
}
