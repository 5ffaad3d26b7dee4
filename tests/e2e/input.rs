//! Wrong input, door by door: the message names the field, nothing changes, nothing breaks.

use super::*;
use minutehand::testing::process::Ended;
use serde_json::Value;

const FLIGHTS_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/flights-2013-11-27.csv");

/// Ended as it should, with an error object that names the field, and with nothing on stdout.
fn refused(ended: &Ended, words: &[&str], code: i32, field: &str, part: &str) {
    assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{words:?}: {ended:?}");
    assert!(!ended.err.contains("panicked"), "{words:?}: {ended:?}");
    let error = ended.error();
    assert_eq!(error["field"].as_str().unwrap_or(""), field, "{words:?}: {ended:?}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(part), "{words:?}: {message}");
}

fn long(length: usize) -> String {
    "x".repeat(length)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_field_out_of_its_limit_is_named() {
    let town = Town::new(&[]).await;
    let (queue, key, label, space) = (long(129), long(513), long(65), long(33));
    let big = town.redis.dir().join("big");
    std::fs::write(&big, vec![0; (1 << 20) + 1]).unwrap();
    let payload = format!("@{}", big.display());
    let nine = [
        "--label=a",
        "--label=b",
        "--label=c",
        "--label=d",
        "--label=e",
        "--label=f",
        "--label=g",
        "--label=h",
        "--label=i",
    ];
    let submit = |rest: &[&'static str]| [&["submit", "--queue", "q"][..], rest].concat();
    let cases: Vec<(Vec<&str>, i32, &str, &str)> = vec![
        (vec!["submit", "--queue", ""], 2, "queue", "must not be empty"),
        (vec!["submit", "--queue", "a b"], 2, "queue", "`a b`"),
        (vec!["submit", "--queue", &queue], 2, "queue", "129 bytes; at most 128"),
        (vec!["submit", "--queue", "q", "--key", ""], 2, "key", "is empty"),
        (vec!["submit", "--queue", "q", "--key", &key], 2, "key", "513 bytes; at most 512"),
        (vec!["submit", "--queue", "q", "--label", &label], 2, "labels", "65 bytes; at most 64"),
        ([&["submit", "--queue", "q"][..], &nine].concat(), 2, "labels", "9 labels; at most 8"),
        (vec!["submit", "--queue", "q", "--payload", &payload], 2, "payload", "more than 1048576 bytes"),
        (vec!["submit", "--queue", "q", "--namespace", &space], 2, "namespace", "over 32 bytes"),
        (submit(&["--namespace", "a/b"]), 2, "namespace", "`a/b`"),
        (submit(&["--priority", "P6"]), 2, "priority", "P0 to P5"),
        (submit(&["--retries", "255"]), 2, "retries", "over the limit of 254"),
        (submit(&["--retries", "-1"]), 2, "retries", "-1"),
        (submit(&["--retries", "many"]), 2, "retries", "many"),
        (submit(&["--backoff", "often"]), 2, "backoff", "often"),
        (submit(&["--backoff", "fixed:8d"]), 2, "backoff", "over 7 days"),
        (submit(&["--backoff", "exponential:1s:x0.5"]), 2, "backoff", "between 1 and 100"),
        (submit(&["--url", "ftp://h/"]), 2, "url", "must begin with http:// or https://"),
        (submit(&["--url", "h"]), 2, "url", "is no web address"),
        (submit(&["--in", "-1s"]), 2, "in", "negative"),
        (submit(&["--in", "soon"]), 2, "in", "no"),
        (submit(&["--in", "99999999999999999999s"]), 2, "in", "length of time"),
        (submit(&["--in", "3661d"]), 2, "due", "more than 10 years ahead"),
        (submit(&["--at", "9999-12-31T23:59:59Z"]), 2, "at", "at most 10 years ahead"),
        (submit(&["--at", "2099-01-01T00:00:00Z"]), 2, "due", "more than 10 years ahead"),
        (submit(&["--at", "10000-01-01T00:00:00Z"]), 2, "at", "RFC 3339"),
        (submit(&["--at", "1969-12-31T23:59:59Z"]), 2, "due", "before 1970"),
        (submit(&["--at", "2027-02-30T00:00:00Z"]), 2, "at", "RFC 3339"),
        (submit(&["--at", "2027-01-01T00:00:00"]), 2, "at", "RFC 3339"),
        (submit(&["--redis", "http://h"]), 2, "redis.url", ""),
        (submit(&["--redis", "redis://h:99999"]), 2, "redis.url", "port"),
        (submit(&["--log-level", "a=b=c"]), 2, "log-level", "no level or filter"),
        (submit(&["--config", "/nowhere.toml"]), 2, "", "/nowhere.toml"),
        (vec!["work", "--queue", "q", "--discard", "--slots", "0"], 2, "slots", "1..=10000"),
        (vec!["work", "--queue", "q", "--discard", "--slots", "10001"], 2, "slots", "1..=10000"),
        (vec!["work", "--queue", "a b", "--discard"], 2, "queue", "`a b`"),
        (vec!["work", "--queue", "q", "--discard", "--label", "a b"], 2, "labels", "`a b`"),
        (vec!["work", "--queue", "q", "--discard", "--name", "a b"], 2, "name", "`a b`"),
        (vec!["work", "--queue", "q", "--http", "ftp://h"], 2, "http", "http:// or https://"),
        (vec!["work", "--queue", "q"], 2, "exec", "--discard"),
        (vec!["serve", "--listen", "nonsense"], 2, "listen", "address"),
        (vec!["demo", "--speed", "0"], 2, "speed", "between 0.001 and 1000000"),
        (vec!["demo", "--pods", "17"], 2, "pods", "17"),
        (vec!["get", "nonsense"], 2, "id", "no task id"),
        (vec!["reschedule", "0-zzzzzzzzzzzzzz", "--in", "-1s"], 2, "in", "negative"),
        (vec!["get", "0-zzzzzzzzzzzzzz"], 3, "", "no task 0-zzzzzzzzzzzzzz"),
        (vec!["cancel", "0-zzzzzzzzzzzzzz"], 3, "", "no task 0-zzzzzzzzzzzzzz"),
        (vec!["reschedule", "0-zzzzzzzzzzzzzz", "--in", "1s"], 3, "", "no task 0-zzzzzzzzzzzzzz"),
        (vec!["submit"], 2, "queue", "--queue <NAME>"),
        (vec!["submit", "--queu", "q"], 2, "queu", "--queu"),
        (submit(&["--in", "1s", "--at", "2027-01-01T00:00:00Z"]), 2, "in", "--at"),
        (vec!["stauts"], 2, "", "stauts"),
    ];
    for (words, code, field, part) in cases {
        refused(&town.program.run(&[&words[..], &["--output", "json"]].concat()), &words, code, field, part);
    }
    for (key, value) in
        [("pod.lock", "1ms"), ("defaults.lease", "1ms"), ("executor.drain", "-1s"), ("pod.poll", "9s")]
    {
        let ended = town.program.clone().set(key, value).run(&["status", "--output", "json"]);
        refused(&ended, &[key, value], 2, key, "environment MINUTEHAND__");
    }
    assert_eq!(town.counts().await.0, Counts::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_that_cannot_be_read_say_why_and_send_nothing() {
    let town = Town::new(&[]).await;
    let flights = |rest: &[&'static str]| {
        [&["import", FLIGHTS_FILE, "--queue", "q", "--due", "departure"][..], rest].concat()
    };
    for (words, field, part) in [
        (flights(&["--tz", "Europe/Belin"]), "tz", "did you mean Europe/Berlin?"),
        (flights(&["--tz", "America/New_Yrok"]), "tz", "did you mean America/New_York?"),
        (flights(&["--tz", "berlin"]), "tz", "did you mean Europe/Berlin?"),
        (flights(&["--tz", "UTC", "--rebase", "nonsense"]), "rebase", "TIME=now"),
        (flights(&["--tz", "UTC", "--rebase", "soon=now"]), "rebase", "`soon` is no time"),
        (flights(&["--rebase", "2013-11-27T05:00:00=now"]), "rebase", "--tz"),
        (flights(&["--tz", "UTC", "--rebase", "2013-11-27T05:00:00=now", "--speed", "0"]), "speed", "0.001"),
        (flights(&["--tz", "UTC", "--rebase", "2013-11-27T05:00:00=now", "--speed", "-1"]), "speed", "0.001"),
        (flights(&["--tz", "UTC", "--speed", "5"]), "rebase", "--rebase"),
        (flights(&["--tz", "UTC", "--priority", "P7"]), "priority", "P0 to P5"),
        (flights(&["--tz", "UTC", "--key", "nope"]), "", "no column `nope` (--key)"),
        (vec!["import", FLIGHTS_FILE, "--queue", "q", "--due", "departur"], "", "did you mean `departure`?"),
        (
            vec!["import", FLIGHTS_FILE, "--queue-column", "nope", "--due", "departure"],
            "",
            "(--queue-column)",
        ),
        (vec!["import", "/nowhere.csv", "--queue", "q"], "", "/nowhere.csv: No such file"),
        (vec!["import", "/tmp", "--queue", "q"], "", "is a directory"),
    ] {
        let ended = town.program.run(&[&words[..], &["--output", "json"]].concat());
        refused(&ended, &words, 2, field, part);
    }
    let words = ["import", "-", "--queue", "q", "--output", "json"];
    for (bytes, part) in [
        (&b""[..], "the file is empty"),
        (b"\x1f\x8bnonsense", "gzip"),
        (b"due,due\n", "both named"),
        (b"due,\xff\n", "not UTF-8"),
    ] {
        refused(&town.program.run_with(&words, bytes), &words, 2, "", part);
    }
    assert_eq!(town.counts().await.0, Counts::default());
}

/// Line, column, position and reason of each bad row.
fn bad_rows(report: &Value) -> Vec<(u64, String, u64, String)> {
    let rows = report["bad_rows"].as_array().unwrap().iter();
    rows.map(|row| {
        let text = |name: &str| row[name].as_str().unwrap_or("").to_owned();
        (row["line"].as_u64().unwrap(), text("column"), row["position"].as_u64().unwrap_or(0), text("detail"))
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_rows_are_told_by_line_and_column_and_the_good_ones_go_in() {
    let town = Town::new(&[]).await;
    let plan = "due,q,prio,id\n\
        1970-01-01T00:00:00Z,q,P1,past\n\
        9999-12-31T23:59:59Z,q,P1,far\n\
        2027-01-01T00:00:00Z,a b,P1,name\n\
        2027-01-01T00:00:00Z,q,P9,priority\n\
        2027-02-30T00:00:00Z,q,P1,day\n\
        ,q,P1,none\n\
        2027-01-01T00:00:00Z,q,P1,\n\
        2027-01-01T00:00:00Z,q\n\
        2027-01-01T00:00:00Z,q,,good\n\
        2027-01-01T00:00:00Z,q,P1,\"open\n";
    let words = [
        "import",
        "-",
        "--queue-column",
        "q",
        "--priority-column",
        "prio",
        "--key",
        "id",
        "--output",
        "json",
    ];
    let expected = [
        (3, "due", 1, "at most 10 years ahead"),
        (4, "q", 2, "`a b`"),
        (5, "prio", 3, "P0 to P5"),
        (6, "due", 1, "no time"),
        (7, "due", 1, "empty"),
        (8, "id", 4, "is empty"),
        (9, "", 0, "the row has 2 columns, the header has 4 columns"),
        (11, "id", 4, "a quote is opened and never closed"),
    ];
    let strict = town.program.run_with(&[&words[..], &["--strict"]].concat(), plan.as_bytes());
    assert_eq!(strict.code, Some(1), "{strict:?}");
    assert_eq!(strict.error()["message"], "8 rows are bad; nothing was sent (--strict)");
    assert_eq!(town.counts().await.0, Counts::default());

    let loose = town.program.run_with(&words, plan.as_bytes());
    assert_eq!(loose.code, Some(1), "{loose:?}");
    for ended in [&strict, &loose] {
        assert!(!ended.err.contains("panicked"), "{ended:?}");
        let report = ended.json();
        let rows = bad_rows(&report);
        assert_eq!((report["rows"].as_u64(), rows.len()), (Some(10), expected.len()), "{report}");
        for ((line, column, position, detail), wanted) in rows.iter().zip(expected) {
            assert_eq!((*line, column.as_str(), *position), (wanted.0, wanted.1, wanted.2), "{detail}");
            assert!(detail.contains(wanted.3), "line {line}: {detail}");
        }
    }
    let counts = town.counts().await.0;
    assert_eq!((counts.submitted, counts.pending), (2, 2));
    // What is due in 1970 is due at once, and no earlier than it was sent.
    let _processes = (town.pod("pod-1"), town.program.start("work", &["work", "--queue", "q", "--discard"]));
    town.until("the task of 1970 has run", |counts| counts.succeeded == 1).await;
    let (_, lag) = town.counts().await;
    assert!(lag.max.unwrap() < 60_000, "{lag:?}");
    town.check().await;
}

/// What is read from a file of events says of each line that is none what is the matter, in words.
#[test]
fn a_line_that_is_no_event_is_told_plainly() {
    let program = program("redis://127.0.0.1:1", "mh");
    for (line, said) in [
        ("hello", "line 2 is no event: it is not JSON; `minutehand events tail --output json` writes"),
        ("{\"at\":", "line 2 is no event: it ends too early; was the file cut off?"),
        (
            "{\"a\":1}",
            "line 2 is no event: it needs `at`, `id`, `event`, `fence`, `executor` and `cause`, or `trimmed`",
        ),
        ("[1]", "line 2 is no event: it is JSON, but no object"),
        (
            "{\"at\":\"2026-01-01T00:00:00Z\",\"id\":\"x\",\"event\":\"claimed\",\"executor\":\"\",\"cause\":\"\"}",
            "line 2 is no event: id: `x` is no task id",
        ),
    ] {
        let ended = program.run_with(&["events", "replay", "-"], format!("\n{line}\n").as_bytes());
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.err.contains(said), "{said}: {ended:?}");
        assert!(!ended.err.contains("untagged") && !ended.err.contains("column"), "{ended:?}");
    }
    let none = program.run(&["events", "tail", "--type", "nonsense"]);
    assert!(none.err.contains("handed_back, set_aside, lost"), "{none:?}");
}

/// What is printed for people has no JSON in it, and says why nothing was done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_refusals_are_for_people() {
    let town = Town::new(&[]).await;
    let said = |words: &[&str]| {
        let ended = town.program.run(words);
        (ended.code, ended.out)
    };
    assert_eq!(said(&["dead", "list"]), (Some(0), "no dead letters\n".into()));
    assert_eq!(said(&["dead", "list", "--queue", "q"]), (Some(0), "no dead letter fits\n".into()));
    let nothing = (Some(0), "no dead letter fits; nothing was done\n".to_owned());
    assert_eq!(said(&["dead", "delete", "--queue", "q", "--yes"]), nothing);
    assert_eq!(said(&["dead", "redrive", "--all", "--yes"]), nothing);
    let id = TaskId::new(minutehand::model::Minute(29_408_521), Bucket::new(0).unwrap(), 7).to_string();
    let unknown = (Some(3), "0 of 1 deleted; 1 are not dead, or no longer\n".to_owned());
    assert_eq!(said(&["dead", "delete", &id]), unknown);
    town.program.json(&["queue", "set", "push", "--downstream", "apns"]);
    town.program.json(&["downstream", "set", "apns", "--rate", "5/s", "--running", "2"]);
    let (code, list) = said(&["downstream", "list"]);
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!((code, lines.len()), (Some(0), 2), "{list}");
    assert!(lines[0].starts_with("DOWNSTREAM  QUEUES  SET"), "{list}");
    assert!(lines[1].starts_with("apns ") && lines[1].contains("running=2"), "{list}");
    assert!(!list.contains(['{', '"']), "{list}");
}
