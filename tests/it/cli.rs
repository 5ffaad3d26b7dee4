//! The program as its users meet it: what it prints, where, and how it ends.

use minutehand::store::read;
use minutehand::testing::bed::Bed;
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

struct Cli {
    url: String,
    namespace: String,
}

impl Cli {
    fn of(bed: &Bed) -> Self {
        Self { url: bed.server().url(), namespace: bed.namespace().to_owned() }
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minutehand"));
        command.args(words.split_whitespace()).env("MINUTEHAND_REDIS", &self.url);
        command.env("MINUTEHAND_NAMESPACE", &self.namespace).env_remove("MINUTEHAND_CONFIG");
        command
    }

    fn run(&self, words: &str) -> (i32, String, String) {
        ended(self.command(words).stdin(Stdio::null()).output().unwrap())
    }

    fn run_with(&self, words: &str, stdin: &[u8]) -> (i32, String, String) {
        let mut child = self
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(stdin);
        ended(child.wait_with_output().unwrap())
    }

    fn json(&self, words: &str) -> Value {
        let (code, out, err) = self.run(&format!("{words} --output json"));
        assert_eq!(code, 0, "{words}: {err}");
        serde_json::from_str(&out).unwrap()
    }
}

fn ended(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

async fn cli() -> (Bed, Cli) {
    let bed = Bed::shared().await.unwrap();
    let cli = Cli::of(&bed);
    (bed, cli)
}

const FLIGHTS: &str = "import examples/flights-2013-11-27.csv --due departure --tz America/New_York --queue flights \
                       --key flight --rebase 2013-11-27T05:00:00=now --speed 60";

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_submitted_shown_moved_and_cancelled() {
    let (_bed, cli) = cli().await;
    let (code, out, err) =
        cli.run("submit --queue mail --in 1h --key order-17 --priority P1 --retries 4 --payload hello");
    assert_eq!((code, err.as_str()), (0, ""));
    let id = out.trim();
    assert_eq!(id.len(), 16);
    let task = cli.json(&format!("get {id}"));
    assert_eq!(
        (&task["state"], &task["payload"], &task["priority"]),
        (&"pending".into(), &"hello".into(), &"P1".into())
    );
    assert_eq!((&task["retries"], &task["key"]), (&4.into(), &"order-17".into()));

    let again = cli.json("submit --queue mail --key order-17");
    assert_eq!((again["id"].as_str(), again["created"].as_bool()), (Some(id), Some(false)));
    let moved = cli.json(&format!("reschedule {id} --at 2027-12-24T18:00:00+01:00"));
    assert_eq!(moved["due"], "2027-12-24T17:00:00.000Z");
    assert_eq!(cli.run(&format!("cancel {id}")).1, format!("{id} is cancelled\n"));
    assert_eq!(cli.json(&format!("get {id}"))["state"], "cancelled");
    let status = cli.json("status");
    assert_eq!((&status["counts"]["submitted"], &status["counts"]["cancelled"]), (&1.into(), &1.into()));
    assert_eq!(cli.json("check")["ok"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_arrive_byte_for_byte() {
    let (bed, cli) = cli().await;
    let space = bed.open().await.unwrap();
    let all: Vec<u8> = (0..=255).collect();
    let large = vec![0xa5; 1 << 20];
    for payload in [&b""[..], b"\xff\xfe", b"\xed\xa0\x80", &all, &large] {
        let (code, id, err) = cli.run_with("submit --queue bytes --in 1h --payload -", payload);
        assert_eq!(code, 0, "{err}");
        let id = id.trim().parse().unwrap();
        let found = read::get(&space, id).await.unwrap().unwrap();
        assert!(found.spec.unwrap().ends_with(payload));
        let shown = cli.json(&format!("get {id}"));
        assert_eq!(shown["payload"].is_string(), std::str::from_utf8(payload).is_ok());
        assert_eq!(cli.run(&format!("get {id}")).0, 0);
    }
    let (code, _, err) =
        cli.run_with("submit --queue bytes --payload - --output json", &vec![1; (1 << 20) + 1]);
    let error: Value = serde_json::from_str(&err).unwrap();
    assert_eq!(
        (code, &error["error"]["code"], &error["error"]["field"]),
        (2, &"too_long".into(), &"payload".into())
    );
    assert_eq!(cli.json("status")["counts"]["submitted"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_goes_in_once_however_often_it_is_imported() {
    let (_bed, cli) = cli().await;
    let first = cli.json(FLIGHTS);
    assert_eq!((&first["rows"], &first["created"], &first["bad"]), (&1014.into(), &1014.into(), &0.into()));
    let again = cli.json(FLIGHTS);
    assert_eq!((&again["created"], &again["duplicates"]), (&0.into(), &1014.into()));
    let text = std::fs::read("examples/flights-2013-11-27.csv").unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&text).unwrap();
    let words = FLIGHTS.replace("examples/flights-2013-11-27.csv", "-") + " --strict --output json";
    let (code, out, err) = cli.run_with(&words, &packed.finish().unwrap());
    assert_eq!(code, 0, "{err}");
    let third: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(third["duplicates"], 1014);
    assert_eq!(cli.json("status")["counts"]["pending"], 1014);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_are_named_and_strict_sends_nothing() {
    let (_bed, cli) = cli().await;
    let plan = b"due,id\n2027-01-01T00:00:00Z,a\nsoon,b\n2027-01-01T00:00:00Z,\n";
    let (code, out, err) = cli.run_with("import - --queue q --key id --strict", plan);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("bad row: line 3, column 1 (due): `soon` is no time"), "{err}");
    assert!(err.contains("bad row: line 4, column 2 (id): is empty"), "{err}");
    assert!(err.contains("error: 2 rows are bad; nothing was sent (--strict)"), "{err}");
    assert_eq!(cli.json("status")["counts"]["submitted"], 0);

    let (code, out, err) = cli.run_with("import - --queue q --key id", plan);
    assert!(err.contains("bad row: line 3, column 1 (due)"), "{err}");
    assert!(
        out.starts_with("imported 3 rows in ")
            && out.ends_with(": 1 created, 0 duplicates, 2 bad (left out)\n"),
        "{out}"
    );
    assert_eq!(code, 1);
    assert_eq!(cli.json("status")["counts"]["submitted"], 1);

    let drawn = cli.json(&format!("{FLIGHTS} --dry-run"));
    assert_eq!((&drawn["tasks"], &drawn["bad"]), (&1014.into(), &0.into()));
    assert_eq!(cli.json("status")["counts"]["submitted"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_use_names_the_field_and_changes_nothing() {
    let (_bed, cli) = cli().await;
    for (words, code, field) in [
        ("submit --queue a|b", 2, "queue"),
        ("submit --queue q --priority P9", 2, "priority"),
        ("submit --queue q --in -5s", 2, "in"),
        ("submit --queue q --in 4000d", 2, "due"),
        ("submit --queue q --at 9999-12-31T00:00:00Z", 2, "at"),
        ("submit --queue q --retries 255", 2, "retries"),
        ("submit --queue q --backoff often", 2, "backoff"),
        ("submit --queue q --payload @/nowhere", 2, "payload"),
        ("submit --queue q --redis http://h", 2, "redis.url"),
        ("submit --queue q --namespace a/b", 2, "namespace"),
        ("import examples/flights-2013-11-27.csv --queue q --tz Mars/Base", 2, "tz"),
        ("get nonsense", 2, "id"),
        ("cancel 0-zzzzzzzzzzzzzz", 3, ""),
        ("get 0-zzzzzzzzzzzzzz", 3, ""),
        ("status --redis unix:///nowhere/redis.sock", 4, ""),
    ] {
        let (found, out, err) = cli.run(&format!("{words} --output json"));
        assert_eq!((found, out.as_str()), (code, ""), "{words}: {err}");
        let error: Value = serde_json::from_str(&err).unwrap_or_else(|_| panic!("{words}: {err}"));
        assert_eq!(error["error"]["field"].as_str().unwrap_or(""), field, "{words}: {err}");
        assert!(!error["error"]["message"].as_str().unwrap().is_empty());
        assert!(cli.run(words).2.starts_with("error: "), "{words}");
    }
    assert_eq!(cli.run("submit").0, 2);
    assert_eq!(cli.run("--version").1, format!("minutehand {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(cli.json("status")["counts"]["submitted"], 0);
}

#[test]
fn settings_are_shown_with_their_origin() {
    let cli = Cli { url: "redis://u:secret@h:1".into(), namespace: "shown".into() };
    let (code, out, _) = cli.run("config show --origin");
    assert_eq!(code, 0);
    assert!(out.contains("namespace = \"shown\"  # environment MINUTEHAND_NAMESPACE\n"), "{out}");
    assert!(
        out.contains("url = \"redis://u:***@h:1\"  # environment MINUTEHAND_REDIS\n")
            && !out.contains("secret"),
        "{out}"
    );
    assert!(out.contains("lock = \"3s\"  # default\n"));
    let (code, _, err) =
        ended(cli.command("config show").env("MINUTEHAND__POD__LOK", "1s").output().unwrap());
    assert_eq!(code, 2);
    assert!(err.starts_with("error: pod.lok: is not a setting; did you mean pod.lock?"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_full_says_so() {
    let (_bed, cli) = cli().await;
    let set = cli.json("queue set full --backlog 8");
    assert_eq!(set["settings"]["backlog"], 8);
    for _ in 0..8 {
        assert_eq!(cli.run("submit --queue full --in 1h").0, 0);
    }
    let (code, _, err) = cli.run("submit --queue full --in 1h --output json");
    let err: Value = serde_json::from_str(&err).unwrap();
    assert_eq!((code, err["error"]["code"].as_str().unwrap()), (1, "over_backlog"), "{err}");
    assert_eq!(err["error"]["hint"], "`minutehand queue set full --backlog` changes its bound");
    // An import ends there; what it had sent stands.
    let (code, _, err) =
        cli.run_with("import - --queue full --due at", b"{\"at\":\"2030-01-01T00:00:00Z\"}\n");
    assert_eq!((code, err.contains("as many tasks that have not ended as it may (8)")), (1, true), "{err}");
    for wrong in ["0", "-1", "x", "1.5", "1000000001"] {
        let (code, _, err) = cli.run(&format!("queue set full --backlog {wrong}"));
        assert_eq!((code, err.contains("backlog: ")), (2, true), "{wrong}: {err}");
    }
    cli.json("queue set full --backlog default");
    assert_eq!(cli.run("submit --queue full --in 1h").0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn placement_keys_are_given_ruled_and_shown() {
    let (_bed, cli) = cli().await;
    let set = cli.json("queue set push --placement-running 2 --placement-rate 3/h --placement-day 5 --placement-collapse keep");
    let own = serde_json::json!({
        "running": 2, "rate": { "count": 3, "per_ms": 3_600_000 }, "per_day": 5, "collapse": "keep",
    });
    assert_eq!(set["settings"]["placement"], own);
    let first = cli.json("submit --queue push --in 1h --placement u-17");
    let second = cli.json("submit --queue push --in 1h --placement u-17");
    assert_eq!((&second["id"], &second["created"]), (&first["id"], &Value::Bool(false)));
    assert_eq!(cli.json(&format!("get {}", first["id"].as_str().unwrap()))["placement"], "u-17");
    let rows = b"{\"at\":\"2030-01-01T00:00:00Z\",\"to\":\"u-17\"}\n{\"at\":\"2030-01-01T00:00:00Z\",\"to\":\"u-18\"}\n{\"at\":\"2030-01-01T00:00:00Z\"}\n";
    let (code, out, err) = cli.run_with("import - --queue push --due at --placement to --output json", rows);
    let report: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(
        (code, &report["created"], &report["duplicates"]),
        (0, &Value::from(2), &Value::from(1)),
        "{out} {err}"
    );
    for (option, value) in [
        ("running", "0"),
        ("running", "65"),
        ("running", "x"),
        ("rate", "3"),
        ("rate", "101/h"),
        ("rate", "1/2d"),
        ("day", "-1"),
        ("order", "off"),
        ("collapse", "merge"),
    ] {
        let (code, _, err) = cli.run(&format!("queue set push --placement-{option} {value}"));
        assert_eq!(
            (code, err.contains(&format!("placement_{option}: "))),
            (2, true),
            "{option} {value}: {err}"
        );
    }
    let (code, _, err) = cli.run("queue set push --placement-order on");
    assert_eq!((code, err.contains("placement_running: ")), (2, true), "{err}");
    let set =
        cli.json("queue set push --placement-order on --placement-running default --placement-rate default");
    assert_eq!(set["settings"]["placement"]["ordered"], true);
    let long = "k".repeat(513);
    let (code, _, err) = cli.run(&format!("submit --queue push --placement {long}"));
    assert_eq!((code, err.contains("placement: has 513 bytes")), (2, true), "{err}");
}
