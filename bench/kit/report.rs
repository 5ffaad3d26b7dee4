//! Tables for people, JSON for programs, and a line in the history for those who come after.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Map, Value, json};

use super::stat::Failure;

/// What a run found out.
pub struct Report {
    machine: Value,
    results: Map<String, Value>,
    json: Option<PathBuf>,
    history: bool,
}

fn shell(program: &str, args: &[&str]) -> String {
    let told = Command::new(program).args(args).output().map(|told| told.stdout).unwrap_or_default();
    String::from_utf8_lossy(&told).trim().to_owned()
}

impl Report {
    /// An empty one.
    pub fn new(json: Option<PathBuf>, history: bool) -> Self {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, m)| m);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let commit = shell("git", &["rev-parse", "--short", "HEAD"]);
        let dirty = if shell("git", &["status", "--porcelain"]).is_empty() { "" } else { "+" };
        let machine = json!({
            "date": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "commit": format!("{commit}{dirty}"),
            "cpu": model.unwrap_or("unknown"),
            "cores": cores,
            "load": fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').next().unwrap_or(""),
        });
        Self { machine, results: Map::new(), json, history }
    }

    /// The server's name and version, and where the run stands.
    pub fn head(&mut self, server: &str) {
        self.machine["server"] = server.into();
        let text = |name: &str| self.machine[name].as_str().unwrap_or("").to_owned();
        println!(
            "{}, {} ({} cores, load {}), commit {}, {}",
            server,
            text("cpu"),
            self.machine["cores"],
            text("load"),
            text("commit"),
            text("date")
        );
    }

    /// Adds a result.
    pub fn add(&mut self, name: &str, value: Value) {
        self.results.insert(name.to_owned(), value);
    }

    /// Writes JSON and history, where asked for.
    pub fn finish(mut self) -> Result<(), Failure> {
        let whole =
            json!({ "run": self.machine, "results": Value::Object(std::mem::take(&mut self.results)) });
        if let Some(path) = &self.json {
            fs::write(path, serde_json::to_string_pretty(&whole)? + "\n")?;
        }
        if self.history {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/history.jsonl");
            let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{whole}")?;
        }
        Ok(())
    }
}

/// Prints a table; numbers stand to the right.
pub fn table(title: &str, head: &[&str], rows: &[Vec<String>]) {
    println!("\n{title}");
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY).set_header(head.iter().copied());
    for row in rows {
        table.add_row(row.iter());
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    println!("{table}");
}
