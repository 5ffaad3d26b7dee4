//! How results are shown: tables for people, JSON for machines, and payloads that cannot do harm.

use super::args::Output;
pub use crate::model::base64::{decode as unbase64, encode as base64};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Map, Value};
use std::io::Write;

/// A number with a comma between thousands.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Characters in a line of the terminal; 100 elsewhere, so that logs stay readable.
pub fn width() -> usize {
    match console::Term::stdout().size_checked() {
        Some((_, columns)) => usize::from(columns),
        None => 100,
    }
}

/// Prints a line on stdout. A reader that has gone (`| head`) is no error of ours.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    if !text.ends_with('\n') {
        let _ = out.write_all(b"\n");
    }
    let _ = out.flush();
}

/// Prints what `table` makes of a value, or the value as JSON.
pub fn show(output: Output, value: &Value, table: impl FnOnce(&Value) -> String) {
    match output {
        Output::Json => print(&value.to_string()),
        Output::Table => print(&table(value)),
    }
}

/// A table without lines, as wide as it needs: it reads well and can be cut by other tools.
pub fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head.iter().map(|name| name.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    let columns: Vec<usize> = (0..head.len()).collect();
    for at in columns {
        let numbers = at > 0 && is_number(&table, at);
        if let Some(column) = table.column_mut(at) {
            column.set_padding((0, 2));
            if numbers {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    let text = table.to_string();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn is_number(table: &Table, at: usize) -> bool {
    let mut cells = table.row_iter().filter_map(|row| row.cell_iter().nth(at)).peekable();
    cells.peek().is_some()
        && cells.all(|cell| {
            let text = cell.content();
            text == "-"
                || text.starts_with(|c: char| c.is_ascii_digit())
                    && text.chars().all(|c| c.is_ascii_digit() || c == ',')
        })
}

/// Names and values below each other.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let wide = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<wide$}  {value}\n")).collect()
}

/// Text for a terminal: control characters are written out, so that data cannot steer it.
pub fn safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Adds a payload to a JSON object: `payload` when it is text, else `payload_base64`.
pub fn put_payload(object: &mut Map<String, Value>, payload: &[u8]) {
    match std::str::from_utf8(payload) {
        Ok(text) => object.insert("payload".to_owned(), text.into()),
        Err(_) => object.insert("payload_base64".to_owned(), base64(payload).into()),
    };
}

/// A payload for people: text as it is (made safe), a msgpack map as JSON, else the first bytes in hex.
pub fn payload_line(payload: &[u8]) -> String {
    const SHOWN: usize = 400;
    if payload.is_empty() {
        return "(empty)".to_owned();
    }
    if let Ok(text) = std::str::from_utf8(payload) {
        let mut short: String = text.chars().take(SHOWN).collect();
        if short.len() < text.len() {
            short.push('…');
        }
        return safe(&short);
    }
    if let Ok(Value::Object(map)) = rmp_serde::from_slice::<Value>(payload) {
        return safe(&Value::Object(map).to_string());
    }
    let hex: Vec<String> = payload.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
    let more = if payload.len() > 32 { " …" } else { "" };
    format!("{} bytes: {}{more}", grouped(payload.len() as u64), hex.join(" "))
}

/// A plain text of a JSON value: numbers grouped, strings without quotes, nothing for null.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => safe(text),
        Value::Number(number) => number.as_u64().map_or_else(|| number.to_string(), grouped),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Array(list) if list.is_empty() => "-".to_owned(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(_) => safe(&value.to_string()),
    }
}

/// One task: a line for each field, with the payload made safe.
pub fn task(value: &Value) -> String {
    let Some(object) = value.as_object() else { return plain(value) };
    let mut rows: Vec<(&str, String)> = Vec::new();
    for (name, value) in object {
        let text = match (name.as_str(), value.as_str()) {
            ("payload", Some(text)) => payload_line(text.as_bytes()),
            ("payload_base64", Some(text)) => payload_line(&unbase64(text).unwrap_or_default()),
            // The view says more of a state, or the same.
            ("state", Some(state)) => match object.get("view").and_then(Value::as_str) {
                Some(view) if view != state => format!("{state} ({view})"),
                _ => state.to_owned(),
            },
            ("view", _) => continue,
            ("cancel_asked", _) if *value == Value::Bool(false) => continue,
            ("attempts", _) => value.as_array().map(|list| attempts(list)).unwrap_or_default(),
            _ => plain(value),
        };
        rows.push((if name == "payload_base64" { "payload" } else { name }, text));
    }
    // What one looks for first comes first; the payload, which may be long, last.
    let rank = |name: &str| match name {
        "id" => 0,
        "state" => 1,
        "queue" => 2,
        "priority" => 3,
        "due" => 4,
        "attempts" => 8,
        "payload" => 9,
        _ => 5,
    };
    rows.sort_by_key(|(name, _)| rank(name));
    pairs(&rows)
}

fn attempts(list: &[Value]) -> String {
    let line = |attempt: &Value| match attempt.as_object() {
        Some(fields) => fields
            .iter()
            .map(|(name, value)| format!("{name} {}", plain(value)))
            .collect::<Vec<_>>()
            .join(", "),
        None => plain(attempt),
    };
    list.iter().map(line).collect::<Vec<_>>().join("\n  ")
}

/// The whole status: counts, lag, pods, executors, buckets, Redis.
pub fn status(value: &Value) -> String {
    let mut out = String::new();
    let number = |value: &Value| value.as_u64().map_or_else(|| plain(value), grouped);
    if let Some(counts) = value["counts"].as_object() {
        // In the order of a task's life. Rare states are left out while they are empty.
        let rows = [
            ("submitted", 2, true),
            ("waiting", 2, false),
            ("pending", 2, true),
            ("scheduled", 4, true),
            ("ready", 4, true),
            ("retrying", 4, true),
            ("held", 4, false),
            ("running", 2, true),
            ("succeeded", 2, true),
            ("dead", 2, true),
            ("cancelled", 2, false),
            ("expired", 2, false),
            ("skipped", 2, false),
            ("deleted", 2, false),
        ];
        out.push_str("TASKS\n");
        for (name, indent, always) in rows {
            let Some(count) = counts.get(name) else { continue };
            if always || count.as_i64() != Some(0) {
                out.push_str(&format!(
                    "{:indent$}{name:<wide$}{:>15}\n",
                    "",
                    number(count),
                    wide = 16 - indent
                ));
            }
        }
    }
    if let Some(lag) = value["lag_ms"].as_object() {
        let ms = |name: &str| lag.get(name).map_or_else(|| "-".to_owned(), |ms| format!("{} ms", number(ms)));
        out.push_str("\nLAG of the last 5 minutes: ");
        match lag.get("count").and_then(Value::as_u64) {
            None | Some(0) => out.push_str("no task has started\n"),
            Some(count) => out.push_str(&format!(
                "p50 {}, p95 {}, p99 {}, max {}; {} {}\n",
                ms("p50"),
                ms("p95"),
                ms("p99"),
                ms("max"),
                grouped(count),
                if count == 1 { "start" } else { "starts" }
            )),
        }
    }
    let redis = &value["redis"];
    if redis.is_object() {
        let flavor = redis["flavor"].as_str().unwrap_or("redis");
        let memory = redis["used_memory"].as_u64().map_or_else(|| "-".to_owned(), bytes);
        let (version, mode) = (plain(&redis["version"]), plain(&redis["mode"]));
        out.push_str(&format!("REDIS {}: {flavor} {version}, {mode}, {memory} used\n", plain(&redis["url"])));
    }
    let empty = Vec::new();
    let list = |name: &str| value[name].as_array().unwrap_or(&empty);
    for frozen in list("frozen") {
        let part = |name: &str| safe(frozen[name].as_str().unwrap_or_default());
        let cause = Some(part("cause")).filter(|cause| !cause.is_empty()).map(|cause| format!(": {cause}"));
        let (scope, since, who) = (part("scope"), part("since"), part("who"));
        out.push_str(&format!("FROZEN {scope} since {since} by {who}{}\n", cause.unwrap_or_default()));
    }
    if let Some(why) = value["no_retries"].as_str() {
        out.push_str(&format!("HELD {}\n", safe(why)));
    }
    for breaker in list("breakers").iter().filter(|breaker| breaker["state"] != "closed") {
        out.push_str(&format!("HELD {}\n", safe(breaker["text"].as_str().unwrap_or_default())));
    }
    for held in list("held") {
        out.push_str(&format!("HELD {}\n", safe(held["why"].as_str().unwrap_or_default())));
    }
    let text = |value: &Value| value.as_u64().map_or_else(|| plain(value), |n| n.to_string());

    out.push_str(&format!("\nPODS: {}\n", list("pods").len()));
    let row = |pod: &Value| {
        let buckets = pod["buckets"].as_array().map(|list| ranges(list)).unwrap_or_default();
        vec![
            plain(&pod["id"]),
            plain(&pod["host"]),
            text(&pod["pid"]),
            plain(&pod["listen"]),
            buckets,
            plain(&pod["version"]),
        ]
    };
    out.push_str(&table_or_nothing(
        &["id", "host", "pid", "http", "buckets", "version"],
        list("pods").iter().map(row),
    ));

    out.push_str(&format!("\nEXECUTORS: {}\n", list("executors").len()));
    let row = |executor: &Value| {
        let busy = format!("{}/{}", text(&executor["busy"]), text(&executor["slots"]));
        vec![
            plain(&executor["id"]),
            plain(&executor["host"]),
            text(&executor["pid"]),
            plain(&executor["queues"]),
            busy,
            plain(&executor["labels"]),
        ]
    };
    let names = ["id", "host", "pid", "queues", "busy", "labels"];
    out.push_str(&table_or_nothing(&names, list("executors").iter().map(row)));

    out.push_str(&format!("\nBUCKETS: {}\n", list("buckets").len()));
    let nodes: std::collections::BTreeSet<&str> =
        list("buckets").iter().filter_map(|bucket| bucket["node"].as_str()).collect();
    let several = nodes.len() > 1;
    let row = |bucket: &Value| {
        let mut row = vec![text(&bucket["bucket"])];
        row.extend(
            ["pending", "ready", "running", "succeeded", "dead"].map(|name| number(&bucket["counts"][name])),
        );
        row.push(plain(&bucket["next_due"]));
        row.push(if bucket["closed"] == Value::Bool(true) {
            "closing".to_owned()
        } else {
            plain(&bucket["holders"])
        });
        if several {
            row.push(plain(&bucket["node"]));
        }
        row
    };
    let mut names = vec!["bucket", "pending", "ready", "running", "succeeded", "dead", "next due", "held by"];
    if several {
        names.push("on node");
    }
    out.push_str(&table_or_nothing(&names, list("buckets").iter().map(row)));
    if several {
        let on = |node: &&str| list("buckets").iter().filter(|bucket| bucket["node"] == **node).count();
        let each = nodes.iter().map(|node| format!("{} {}", safe(node), on(node)));
        out.push_str(&format!("\nBUCKETS BY NODE: {}\n", each.collect::<Vec<_>>().join(", ")));
    }
    out
}

fn table_or_nothing(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() { String::new() } else { table(head, rows) }
}

/// Whole numbers in order, runs of them as `0-7`.
fn ranges(list: &[Value]) -> String {
    let mut numbers: Vec<u64> = list.iter().filter_map(Value::as_u64).collect();
    numbers.sort_unstable();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let text =
        |(first, last): (u64, u64)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    if runs.is_empty() { "-".to_owned() } else { runs.into_iter().map(text).collect::<Vec<_>>().join(",") }
}

/// A table of objects: a column for each name that one of them has.
pub fn list_of_objects(list: &[Value]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in list.iter().filter_map(Value::as_object).flat_map(|object| object.keys()) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return String::new();
    }
    names.sort_by_key(|name| match *name {
        "bucket" | "id" => 0,
        "name" | "kind" => 1,
        "detail" => 9,
        _ => 2,
    });
    let row = |value: &Value| names.iter().map(|name| plain(&value[*name])).collect();
    table(&names, list.iter().map(row).collect())
}

/// What `check` found.
pub fn check(value: &Value) -> String {
    let empty = Vec::new();
    let found = value["violations"].as_array().unwrap_or(&empty);
    if value["ok"].as_bool() == Some(true) && found.is_empty() {
        let seen = |name: &str| value[name].as_u64().unwrap_or(0);
        let (tasks, keys, took) =
            (grouped(seen("tasks_seen")), grouped(seen("keys_seen")), grouped(seen("took_ms")));
        let mut text = format!("ok: no damage in {tasks} tasks and {keys} keys ({took} ms)\n");
        if let Some(busy) = value["busy"].as_array().filter(|busy| !busy.is_empty()) {
            text.push_str(&format!("counters not compared, too busy: buckets {}\n", ranges(busy)));
        }
        return text;
    }
    // The list is cut; the counts by kind are not.
    let kinds = value["kinds"].as_object();
    let all = kinds.map_or(found.len() as u64, |kinds| kinds.values().filter_map(Value::as_u64).sum());
    let more = if all > found.len() as u64 {
        format!(", the first {}", grouped(found.len() as u64))
    } else {
        String::new()
    };
    let head = format!("{} {}{more}\n", grouped(all), if all == 1 { "violation" } else { "violations" });
    if found.iter().all(Value::is_object) {
        return head + &list_of_objects(found);
    }
    found.iter().fold(head, |out, one| out + &format!("  {}\n", plain(one)))
}

/// A number of bytes for people.
pub fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([bytes(5), bytes(2_048), bytes(3 << 30)], ["5 B", "2.0 KiB", "3.0 GiB"]);
    }

    #[test]
    fn payloads_are_shown_safely() {
        let mut object = Map::new();
        put_payload(&mut object, b"text");
        assert_eq!(Value::Object(object), json!({ "payload": "text" }));
        for bytes in [&b"\xff\xfe"[..], b"\xed\xa0\x80"] {
            let mut object = Map::new();
            put_payload(&mut object, bytes);
            assert_eq!(unbase64(object["payload_base64"].as_str().unwrap()).unwrap(), bytes);
        }
        assert_eq!(payload_line(b"\x1b[31mred\n"), "\\u{1b}[31mred\\n");
        assert_eq!(payload_line(b"\x81\xa1a\x01"), r#"{"a":1}"#);
        assert_eq!(payload_line(b""), "(empty)");
        assert_eq!(payload_line(&[0xff; 40]), format!("40 bytes: {} …", vec!["ff"; 32].join(" ")));
    }

    #[test]
    fn tables_line_up() {
        let text = table(
            &["pod", "buckets"],
            vec![vec!["a".into(), "12".into()], vec!["longer".into(), "1,234".into()]],
        );
        assert_eq!(text, "POD     BUCKETS\na            12\nlonger    1,234\n");
        assert_eq!(pairs(&[("id", "1".into()), ("state", "x".into())]), "id     1\nstate  x\n");
    }

    #[test]
    fn a_status_for_people() {
        let text = status(&json!({
            "counts": { "submitted": 1014, "pending": 1000, "scheduled": 1000, "ready": 0, "retrying": 0, "running": 2, "succeeded": 12, "dead": 0, "held": 0 },
            "lag_ms": { "p50": 1, "p95": 3, "p99": 9, "max": 1200, "count": 14 },
            "redis": { "version": "7.0.15", "mode": "single", "used_memory": 2048, "url": "redis://h", "flavor": "redis" },
            "pods": [{ "id": "pod-a", "host": "h", "pid": 13518, "listen": "127.0.0.1:1", "buckets": [0, 1, 2, 5], "version": "0.1.0" }],
            "executors": [],
            "buckets": [{ "bucket": 0, "holders": ["pod-a"], "closed": false, "counts": { "pending": 1000 } }],
        }));
        assert_eq!(
            text,
            "TASKS\n  submitted               1,014\n  pending                 1,000\n    scheduled             1,000\n    ready                     0\n    \
             retrying                  0\n  running                     2\n  succeeded                  12\n  dead                        0\n\n\
             LAG of the last 5 minutes: p50 1 ms, p95 3 ms, p99 9 ms, max 1,200 ms; 14 starts\n\
             REDIS redis://h: redis 7.0.15, single, 2.0 KiB used\n\n\
             PODS: 1\nID     HOST    PID  HTTP         BUCKETS  VERSION\npod-a  h     13518  127.0.0.1:1  0-2,5    0.1.0\n\n\
             EXECUTORS: 0\n\n\
             BUCKETS: 1\nBUCKET  PENDING  READY  RUNNING  SUCCEEDED  DEAD  NEXT DUE  HELD BY\n0         1,000      -        -          -     -         -  pod-a\n"
        );
    }

    #[test]
    fn a_status_tells_which_server_has_which_bucket_where_there_are_several() {
        let bucket = |bucket, node| json!({ "bucket": bucket, "node": node, "holders": ["p"], "counts": {} });
        let of = |buckets: Vec<Value>| status(&json!({ "pods": [], "executors": [], "buckets": buckets }));
        let text = of(vec![bucket(0, "h:1"), bucket(1, "h:2"), bucket(2, "h:1")]);
        assert!(text.contains("HELD BY  ON NODE\n0"), "{text}");
        assert!(text.contains("p        h:2\n"), "{text}");
        assert!(text.ends_with("\nBUCKETS BY NODE: h:1 2, h:2 1\n"), "{text}");
        assert!(!of(vec![bucket(0, "h:1"), bucket(1, "h:1")]).contains("h:1"));
    }

    #[test]
    fn a_task_and_a_check() {
        let text = task(&json!({ "due": "t", "id": "i", "payload_base64": "gaFhAQ==", "state": "pending" }));
        assert_eq!(text, "id       i\nstate    pending\ndue      t\npayload  {\"a\":1}\n");
        assert_eq!(
            check(
                &json!({ "ok": true, "violations": [], "tasks_seen": 1014, "keys_seen": 70, "took_ms": 12, "busy": [1, 2] })
            ),
            "ok: no damage in 1,014 tasks and 70 keys (12 ms)\ncounters not compared, too busy: buckets 1-2\n"
        );
        let text =
            check(&json!({ "ok": false, "violations": [{ "bucket": 3, "what": "run without lease" }] }));
        assert_eq!(text, "1 violation\nBUCKET  WHAT\n3       run without lease\n");
    }
}
