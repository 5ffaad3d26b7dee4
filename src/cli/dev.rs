//! `minutehand dev`: a private Redis that keeps its data, a pod, and the HTTP port.

use super::args::{DevArgs, Output};
use super::error::CliError;
use super::error::Exit;
use super::{render, serve, signal};
use crate::dev::redis::{DevError, Fsync, PrivateServer, ServerOptions};
use crate::model::Namespace;
use crate::settings::Loaded;
use crate::store::{ConnectSettings, Space, Store};
use serde::{Deserialize, Serialize};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Directory of the data where none is named.
const DATA_DIR: &str = ".minutehand";
/// File that says where a running `dev` is.
const FOUND_FILE: &str = "dev.json";

/// Where a running `dev` is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Address of its Redis.
    pub url: String,
    /// Its HTTP port.
    pub http: String,
}

/// Looks for a running `dev`: in this directory and those above it, then where the user's last one said.
pub fn find() -> Option<Found> {
    let here = std::env::current_dir().ok()?;
    let near = here.ancestors().map(|dir| dir.join(DATA_DIR).join(FOUND_FILE));
    near.chain(user_file()).find_map(|path| alive(&path))
}

/// What a file says, if the server there answers: a killed `dev` leaves its file behind.
fn alive(path: &Path) -> Option<Found> {
    let found: Found = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let socket = found.url.strip_prefix("unix://")?;
    UnixStream::connect(socket).ok().map(|_| found)
}

fn user_file() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(cache.join("minutehand").join(FOUND_FILE))
}

impl From<DevError> for CliError {
    fn from(error: DevError) -> Self {
        Self { code: "dev_redis", ..Self::failed(error.to_string()) }
    }
}

/// Runs everything on this machine until it is told to stop.
pub async fn run(args: &DevArgs, loaded: &Loaded, output: Output) -> Result<Exit, CliError> {
    let settings = &loaded.settings;
    let namespace = Namespace::new(&settings.namespace)?;
    let dir = args.data.clone().unwrap_or_else(|| PathBuf::from(DATA_DIR));
    if let Some(running) = alive(&dir.join(FOUND_FILE)) {
        let message = format!(
            "a `minutehand dev` runs in {} already, its HTTP port is {}",
            dir.display(),
            running.http
        );
        return Err(CliError::failed(message).hint("--data DIR starts another one beside it"));
    }
    let stop = signal::stop()?;
    let plan = serve::Plan::new(settings)?;
    let port = serve::Port::open(settings).await?;
    let server = PrivateServer::start(ServerOptions {
        data_dir: Some(dir.clone()),
        append_only: Some(Fsync::EverySecond),
        ..ServerOptions::default()
    })
    .await?;
    let redis = ConnectSettings { url: server.url(), ..super::connect::settings(settings)? };
    let space = Space::open(Store::connect(redis).await?, namespace).await?;
    let opened = serve::Opened::of(space, &plan, settings).await?;
    let served = serve::Served::new(port, plan, opened, settings)?;
    let found = Found { url: server.url(), http: served.url() };
    let files = publish(&dir, &found);
    let binary = server.binary();
    let flavor = if binary.valkey { "valkey" } else { "redis" };
    let value = serde_json::json!({
        "redis": found.url, "http": found.http, "data": server.dir().display().to_string(), "version": binary.version,
    });
    render::show(output, &value, |_| {
        let pairs = render::pairs(&[
            ("redis", format!("{} ({flavor} {})", found.url, binary.version)),
            ("data", server.dir().display().to_string()),
            ("http", format!("{}/docs /v1 /metrics /healthz /readyz", found.http)),
        ]);
        format!(
            "{pairs}\nOther commands find it by themselves; in a second terminal:\n\n  \
             minutehand work --queue hello --exec 'cat; echo'\n  \
             minutehand submit --queue hello --in 3s --payload 'hello'\n  \
             minutehand status\n\nCtrl-C stops it; the data stay.\n"
        )
    });
    let result = served.run(stop).await;
    for file in files {
        // Only our own: another `dev` may have put its place there since.
        if std::fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Found>(&text).ok()).as_ref()
            == Some(&found)
        {
            let _ = std::fs::remove_file(&file);
        }
    }
    server.shutdown().await;
    result.map(|()| Exit::Ok)
}

/// Writes down where we are, for other commands. That it cannot be written is no reason not to run.
fn publish(dir: &Path, found: &Found) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = user_file().into_iter().collect();
    files.push(dir.join(FOUND_FILE));
    let text = serde_json::to_vec(found).unwrap_or_default();
    files.retain(|file| {
        let written =
            file.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(file, &text));
        match written {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, file = %file.display(), "other commands will need --redis");
                false
            }
        }
    });
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_server_that_is_gone_is_not_believed() {
        let dir = std::env::temp_dir().join(format!("mh-{}", fastrand::u32(..)));
        std::fs::create_dir(&dir).unwrap();
        let socket = dir.join("s");
        let found = Found { url: format!("unix://{}", socket.display()), http: "http://h".into() };
        let file = dir.join(FOUND_FILE);
        std::fs::write(&file, serde_json::to_vec(&found).unwrap()).unwrap();
        assert_eq!(alive(&file), None);
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(alive(&file), Some(found));
        drop(listener);
        assert_eq!(alive(&file), None);
        std::fs::write(&file, "nonsense").unwrap();
        assert_eq!(alive(&file), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
