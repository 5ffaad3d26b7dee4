//! Installs the log and the metrics of a process. Nothing else in the crate touches globals.

use crate::metric::{FAMILIES, Kind, handles};
use crate::settings::{LogFormat, LogSettings};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use std::io::IsTerminal;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Why the log or the metrics could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter does not parse.
    #[error("log level {level:?} is no level or filter: {source}")]
    Filter {
        /// What was asked for.
        level: String,
        /// What the parser says.
        source: tracing_subscriber::filter::ParseError,
    },
    /// A log is installed already.
    #[error("a log is installed already: {0}")]
    Log(String),
    /// A recorder is installed already, or its buckets are wrong.
    #[error("metrics: {0}")]
    Metrics(#[from] BuildError),
}

/// Sends events of this process to stderr, as text or as one JSON object a line.
pub fn init_log(settings: &LogSettings) -> Result<(), TelemetryError> {
    // What fred has to say about lost connections, the store says better; who wants it names it.
    let filter = format!("fred=error,{}", settings.level)
        .parse::<EnvFilter>()
        .map_err(|source| TelemetryError::Filter { level: settings.level.clone(), source })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let done = match settings.format {
        LogFormat::Json => {
            log.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init()
        }
        LogFormat::Text => log.with_ansi(colours_on(&std::io::stderr())).try_init(),
    };
    done.map_err(|error| TelemetryError::Log(error.to_string()))
}

/// Whether colours may be written there: a terminal, and `NO_COLOR` is not set (or is empty).
pub fn colours_on(out: &impl IsTerminal) -> bool {
    out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Installs the recorder of this process and registers every family, so that all are there before
/// anything happened. Render the handle; call [`keep_metrics`] beside it.
pub fn init_metrics() -> Result<PrometheusHandle, TelemetryError> {
    let recorder = recorder()?;
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(BuildError::from)?;
    handles();
    Ok(handle)
}

/// A recorder with our bounds, not installed.
pub fn recorder() -> Result<PrometheusRecorder, TelemetryError> {
    let mut builder = PrometheusBuilder::new();
    for family in FAMILIES {
        if let Kind::Histogram(bounds) = family.kind {
            builder = builder.set_buckets_for_metric(Matcher::Full(family.name.to_owned()), bounds)?;
        }
    }
    Ok(builder.build_recorder())
}

/// Folds samples into their histograms until shutdown. Without it each sample stays in memory
/// (300 MB for 20 million) until somebody scrapes.
pub async fn keep_metrics(handle: PrometheusHandle, every: Duration, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(every) => handle.run_upkeep(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Handles;

    #[test]
    fn every_script_has_its_series() {
        let mut ours = crate::metric::SCRIPTS.to_vec();
        let mut theirs: Vec<_> = crate::store::SCRIPTS.iter().map(|script| script.name).collect();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn every_family_is_present_on_an_idle_server() {
        let recorder = recorder().unwrap();
        let handle = recorder.handle();
        let handles = metrics::with_local_recorder(&recorder, Handles::register);
        let text = handle.render();
        for family in FAMILIES {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram(_) => "histogram",
            };
            assert!(text.contains(&format!("# TYPE {} {kind}\n", family.name)), "{}\n{text}", family.name);
            assert!(text.contains(&format!("# HELP {} {}\n", family.name, family.help)), "{}", family.name);
            let sample =
                if kind == "histogram" { format!("{}_bucket", family.name) } else { family.name.to_owned() };
            for value in family.label.map_or(&[][..], |(_, values)| values) {
                let (label, _) = family.label.unwrap();
                assert!(text.contains(&format!("{sample}{{{label}=\"{value}\"")), "{sample} {value}\n{text}");
            }
        }
        handles.claims.add("tasks", 3);
        handles.start_lag.record(0.007);
        let text = handle.render();
        assert!(text.contains("minutehand_claims_total{result=\"tasks\"} 3\n"));
        assert!(text.contains("minutehand_start_lag_seconds_bucket{le=\"0.005\"} 0\n"));
        assert!(text.contains("minutehand_start_lag_seconds_bucket{le=\"0.01\"} 1\n"));
    }
}
