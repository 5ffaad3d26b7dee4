//! When the tasks of an import are due: counted in bounded memory, drawn as a chart.

use crate::cli::render::grouped;
use crate::model::UnixMs;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Widths that a column may have. Each of [`STEPS`] is among them.
const NICE_MS: [i64; 20] = [
    1_000,
    5_000,
    10_000,
    30_000,
    60_000,
    120_000,
    300_000,
    600_000,
    1_200_000,
    1_800_000,
    3_600_000,
    7_200_000,
    10_800_000,
    21_600_000,
    43_200_000,
    86_400_000,
    7 * 86_400_000,
    28 * 86_400_000,
    91 * 86_400_000,
    364 * 86_400_000,
];
/// Widths at which tasks are counted, each a multiple of the one before.
const STEPS: [i64; 6] = [1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000];
/// Counters kept, some 16 MB; beyond it they are merged into the next step.
const COUNTERS_MAX: usize = 1 << 18;
/// Lines of a chart.
const HEIGHT: usize = 8;
/// Bins in JSON.
const JSON_BINS: usize = 1_000;

/// Counts of tasks by due time.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    step: usize,
    counts: BTreeMap<i64, u64>,
    ends: Option<(UnixMs, UnixMs)>,
    tasks: u64,
}

/// A stretch of time with its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// Its beginning, ms since 1970.
    pub at_ms: i64,
    /// Tasks due in it.
    pub tasks: u64,
}

impl Timeline {
    /// Counts one task.
    pub fn add(&mut self, due: UnixMs) {
        self.add_many(due, 1);
    }

    /// Counts tasks that are due at the same time.
    pub fn add_many(&mut self, due: UnixMs, tasks: u64) {
        self.tasks += tasks;
        self.ends = Some(self.ends.map_or((due, due), |(first, last)| (first.min(due), last.max(due))));
        *self.counts.entry(due.0.div_euclid(STEPS[self.step])).or_default() += tasks;
        while self.counts.len() > COUNTERS_MAX && self.step + 1 < STEPS.len() {
            let ratio = STEPS[self.step + 1] / STEPS[self.step];
            self.step += 1;
            let mut merged = BTreeMap::new();
            for (at, tasks) in std::mem::take(&mut self.counts) {
                *merged.entry(at.div_euclid(ratio)).or_default() += tasks;
            }
            self.counts = merged;
        }
    }

    /// How many there are.
    pub fn tasks(&self) -> u64 {
        self.tasks
    }

    /// First and last due time.
    pub fn ends(&self) -> Option<(UnixMs, UnixMs)> {
        self.ends
    }

    /// The minute with the most tasks; nothing when the plan is so long that minutes are not kept.
    pub fn busiest_minute(&self) -> Option<Bin> {
        if STEPS[self.step] > 60_000 {
            return None;
        }
        self.bins(60_000, 0).into_iter().reduce(|best, bin| if bin.tasks > best.tasks { bin } else { best })
    }

    /// Counts by `width_ms`, only where there are any. Bins begin where a clock `shift_ms` ahead of UTC is round.
    fn bins(&self, width_ms: i64, shift_ms: i64) -> Vec<Bin> {
        let mut out: Vec<Bin> = Vec::new();
        for (at, tasks) in &self.counts {
            let start = at * STEPS[self.step];
            let at_ms = (start + shift_ms).div_euclid(width_ms) * width_ms - shift_ms;
            match out.last_mut() {
                Some(last) if last.at_ms == at_ms => last.tasks += tasks,
                _ => out.push(Bin { at_ms, tasks: *tasks }),
            }
        }
        out
    }

    /// The smallest nice width with which all lie in at most `most` bins.
    fn width_ms(&self, most: usize) -> i64 {
        let Some((first, last)) = self.ends else { return 60_000 };
        let fits = |width: i64| (last.0 - first.0) / width + 2 <= most as i64;
        let mut nice = NICE_MS.into_iter().filter(|width| *width >= STEPS[self.step]);
        nice.find(|width| fits(*width)).unwrap_or(NICE_MS[NICE_MS.len() - 1])
    }

    /// For machines: first, last, busiest minute and at most a thousand bins.
    pub fn to_json(&self) -> serde_json::Value {
        let width = self.width_ms(JSON_BINS);
        let text = |at: i64| UnixMs(at).to_string();
        let bin = |bin: &Bin| serde_json::json!({ "at": text(bin.at_ms), "tasks": bin.tasks });
        serde_json::json!({
            "tasks": self.tasks,
            "first_due": self.ends.map(|(first, _)| first.to_string()),
            "last_due": self.ends.map(|(_, last)| last.to_string()),
            "busiest_minute": self.busiest_minute().as_ref().map(bin),
            "bin_ms": width,
            "bins": self.bins(width, 0).iter().map(bin).collect::<Vec<_>>(),
        })
    }

    /// For people: columns of tasks per minute over time, `width` characters wide, times in `zone`.
    pub fn draw(&self, zone: &TimeZone, width: usize) -> String {
        let Some((first, last)) = self.ends else { return "no tasks\n".to_owned() };
        let offset_ms = zone.to_offset(timestamp(first.0)).seconds() as i64 * 1_000;
        // A guess of the axis' width is enough to choose the columns.
        let space = width.clamp(40, 240) - 9;
        let bin_ms = self.width_ms(space);
        let bins = self.bins(bin_ms, offset_ms);
        let start = bins.first().map_or(first.0, |bin| bin.at_ms);
        let end = bins.last().map_or(start, |bin| bin.at_ms);
        let columns = ((end - start) / bin_ms + 1) as usize;
        let wide = (space / columns).clamp(1, 4);
        // By minutes, but where columns are narrower than one: a minute made up from a second misleads.
        let unit_ms = bin_ms.min(60_000);
        let mut per_unit = vec![0.0; columns];
        for bin in &bins {
            if let Some(place) = per_unit.get_mut(((bin.at_ms - start) / bin_ms) as usize) {
                *place = bin.tasks as f64 * unit_ms as f64 / bin_ms as f64;
            }
        }
        let top = round_up(per_unit.iter().copied().fold(0.0, f64::max));

        let mut out = String::new();
        let zone_name =
            zone.iana_name().map_or_else(|| zone.to_offset(timestamp(first.0)).to_string(), str::to_owned);
        let date = |at: i64, format: &str| timestamp(at).to_zoned(zone.clone()).strftime(format).to_string();
        let _ = writeln!(
            out,
            "{} tasks from {} to {} ({zone_name})",
            grouped(self.tasks),
            date(first.0, "%Y-%m-%d %H:%M:%S"),
            date(last.0, "%Y-%m-%d %H:%M:%S"),
        );
        if let Some(busiest) = self.busiest_minute() {
            let _ = writeln!(
                out,
                "busiest minute: {} tasks at {}",
                grouped(busiest.tasks),
                date(busiest.at_ms, "%Y-%m-%d %H:%M")
            );
        }
        let span = |ms: i64| crate::settings::Span::from_ms(ms).to_string();
        let _ = match unit_ms {
            60_000 if bin_ms == unit_ms => writeln!(out, "\ntasks per minute"),
            60_000 => writeln!(out, "\ntasks per minute, on average over {}", span(bin_ms)),
            _ => writeln!(out, "\ntasks per {}", span(unit_ms)),
        };
        for line in (0..HEIGHT).rev() {
            let label = if line % 2 == 1 || line == 0 {
                axis(top * (line + 1) as f64 / HEIGHT as f64)
            } else {
                String::new()
            };
            let label = if line == 0 { String::new() } else { label };
            let _ = write!(out, "{label:>7} {}", if label.is_empty() { '│' } else { '┤' });
            for value in &per_unit {
                let eighths =
                    (value / top * (HEIGHT * 8) as f64 - (line * 8) as f64).round().clamp(0.0, 8.0) as usize;
                // What is there is seen, however little it is.
                let eighths = if line == 0 && *value > 0.0 { eighths.max(1) } else { eighths };
                let block = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][eighths];
                out.extend(std::iter::repeat_n(block, wide));
            }
            while out.ends_with(' ') {
                out.pop();
            }
            out.push('\n');
        }
        let format = match bin_ms {
            ..60_000 => "%H:%M:%S",
            60_000..21_600_000 => "%H:%M",
            21_600_000..2_419_200_000 => "%b %d",
            _ => "%Y-%m",
        };
        let every = (14 / wide).max(1);
        let (mut rule, mut labels) = (String::new(), String::new());
        for column in 0..columns {
            let marked = column % every == 0;
            rule.push(if marked { '┬' } else { '─' });
            rule.extend(std::iter::repeat_n('─', wide - 1));
            if marked && column * wide + 8 <= space {
                let pad = column * wide - labels.chars().count();
                labels.extend(std::iter::repeat_n(' ', pad));
                labels.push_str(&date(start + column as i64 * bin_ms, format));
            }
        }
        let _ = writeln!(out, "{:>7} ┼{rule}\n{:>9}{labels}", "0", "");
        out
    }
}

fn timestamp(at_ms: i64) -> Timestamp {
    Timestamp::from_millisecond(at_ms).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// 1, 2 or 5 times a power of ten, or a multiple of the power: the top of an axis.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|top| *top >= value).unwrap_or(10.0 * power)
}

/// A number on the axis: no more digits than it needs.
fn axis(value: f64) -> String {
    if value >= 100.0 {
        grouped(value.round() as u64)
    } else {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_survive_a_merge() {
        let mut line = Timeline::default();
        for n in 0..(COUNTERS_MAX as i64 + 10) {
            line.add(UnixMs(1_764_511_200_000 + n * 1_000));
        }
        assert!(line.step == 1 && line.counts.len() <= COUNTERS_MAX / 9);
        assert_eq!(line.counts.values().sum::<u64>(), line.tasks());
        assert_eq!(line.busiest_minute(), Some(Bin { at_ms: 1_764_511_200_000, tasks: 60 }));
        assert!(line.bins(line.width_ms(70), 0).len() <= 70);
    }

    #[test]
    fn a_chart_of_three_minutes() {
        let mut line = Timeline::default();
        let start = 1_764_511_200_000;
        for (minute, tasks) in [(0, 8), (1, 1), (2, 4)] {
            for n in 0..tasks {
                line.add(UnixMs(start + minute * 60_000 + n));
            }
        }
        let text = line.draw(&TimeZone::UTC, 70);
        assert!(text.starts_with("13 tasks from 2025-11-30 14:00:00 to 2025-11-30 14:02:00 (UTC)\nbusiest minute: 8 tasks at 2025-11-30 14:00\n\ntasks per 5s\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 70), "{text}");
        assert_eq!(
            line.to_json()["bins"][0],
            serde_json::json!({ "at": "2025-11-30T14:00:00.000Z", "tasks": 8 })
        );
        assert_eq!(Timeline::default().draw(&TimeZone::UTC, 60), "no tasks\n");
    }

    #[test]
    fn axes_are_round() {
        for (value, top) in [(0.0, 1.0), (0.3, 0.32), (7.0, 8.0), (10.0, 10.0), (1_014.0, 1_200.0)] {
            assert!((round_up(value) - top).abs() < 1e-9, "{value}");
        }
        assert_eq!([axis(1_200.0), axis(2.5), axis(0.25), axis(4.0)], ["1,200", "2.5", "0.25", "4"]);
    }
}
