//! How far an import is: a bar on a terminal, a line every two seconds elsewhere.

use crate::cli::render::grouped;
use crate::clock;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);
/// Between two drawings of the bar.
pub const TICK: Duration = Duration::from_millis(100);

/// Shows on stderr how far an import is.
pub struct Progress {
    how: How,
    size: Option<u64>,
    read: Arc<AtomicU64>,
    start: Instant,
}

enum How {
    Silent,
    Bar(ProgressBar),
    Lines { next: Instant },
}

impl Progress {
    /// `quiet` shows nothing, for output that machines read.
    pub fn new(quiet: bool, size: Option<u64>, read: Arc<AtomicU64>) -> Self {
        let start = clock::mono();
        let how = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => How::Silent,
            (false, true) => How::Bar(bar(size)),
            (false, false) => How::Lines { next: start + LINE_EVERY },
        };
        Self { how, size, read, start }
    }

    /// Shows `rows` done.
    pub fn tick(&mut self, rows: u64) {
        let read = self.read.load(Ordering::Relaxed);
        let seconds = clock::mono().saturating_duration_since(self.start).as_secs_f64();
        match &mut self.how {
            How::Silent => {}
            How::Bar(bar) => {
                bar.set_message(describe(rows, seconds, None));
                match self.size {
                    Some(_) => bar.set_position(read),
                    None => bar.tick(),
                }
            }
            How::Lines { next } => {
                let now = clock::mono();
                if now >= *next {
                    *next = now + LINE_EVERY;
                    eprintln!("{}", describe(rows, seconds, self.size.map(|size| (read, size))));
                }
            }
        }
    }

    /// Prints a line without disturbing the bar.
    pub fn say(&self, line: &str) {
        match &self.how {
            How::Silent => {}
            How::Bar(bar) => bar.suspend(|| eprintln!("{line}")),
            How::Lines { .. } => eprintln!("{line}"),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let How::Bar(bar) = &self.how {
            bar.finish_and_clear();
        }
    }
}

fn bar(size: Option<u64>) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => (ProgressBar::new(size), "{bar:30} {percent:>3} %  {msg}, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {msg}"),
    };
    // The template is fixed; should it not parse, the bar looks as it does without one.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}

/// `12,000 rows (6,000 rows/s), 34 %, 4 s left`
fn describe(rows: u64, seconds: f64, read: Option<(u64, u64)>) -> String {
    let rate = if seconds > 0.0 { (rows as f64 / seconds).round() as u64 } else { 0 };
    let mut text = format!("{} rows ({} rows/s)", grouped(rows), grouped(rate));
    if let Some((read, size)) = read
        && read > 0
        && size > 0
    {
        let share = (read as f64 / size as f64).min(1.0);
        let left = seconds / share - seconds;
        text.push_str(&format!(", {:.0} %, {:.0} s left", share * 100.0, left));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_rate_and_time_left() {
        assert_eq!(describe(12_000, 2.0, Some((34, 100))), "12,000 rows (6,000 rows/s), 34 %, 4 s left");
        assert_eq!(describe(5, 0.0, None), "5 rows (0 rows/s)");
    }
}
