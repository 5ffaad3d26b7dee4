use super::due::{DueReader, find_zone};
use super::row::From;
use super::*;
use crate::model::{Priority, QueueName, UnixMs};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::collections::HashSet;
use std::io::{Cursor, Write};
use std::path::PathBuf;
use std::sync::Arc;

const NOW: UnixMs = UnixMs(1_764_511_260_123);

fn plan(due: &str) -> Plan {
    Plan {
        placement: None,
        due: due.to_owned(),
        due_reader: DueReader::new(Some(find_zone("America/New_York").unwrap())),
        queue: From::Fixed(QueueName::new("push").unwrap()),
        key: None,
        priority: From::Fixed(Priority::P3),
        now: NOW,
    }
}

fn keyed(due: &str, key: &str) -> Plan {
    Plan { key: Some(key.to_owned()), ..plan(due) }
}

fn all(format: Format, bytes: &[u8], plan: Plan) -> Result<(Vec<Row>, Vec<String>), ImportError> {
    let mut rows = Rows::new(format, Cursor::new(bytes.to_vec()), plan)?;
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    loop {
        match rows.next_row()? {
            Next::Row(row) => good.push(row),
            Next::Bad(row) => bad.push(row.to_string()),
            Next::End => return Ok((good, bad)),
        }
    }
}

fn map(row: &Row) -> BTreeMap<String, serde_json::Value> {
    rmp_serde::from_slice(&row.payload).unwrap()
}

#[test]
fn a_csv_row_is_a_task_and_its_other_columns_the_payload() {
    let text =
        b"at,flight,note\r\n2013-11-27T05:00:00,US1,\"a, \"\"b\"\"\nc\"\r\n\r\n2013-11-27T05:15:00Z,UA2,\r\n";
    let (rows, bad) = all(Format::Csv, text, keyed("at", "flight")).unwrap();
    assert!(bad.is_empty());
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].due.to_string(), "2013-11-27T10:00:00.000Z");
    assert_eq!(rows[0].key.as_deref(), Some(&b"US1"[..]));
    assert_eq!(&rows[0].payload[..], b"\x81\xa4note\xa8a, \"b\"\nc");
    assert_eq!(map(&rows[1])["note"], "");
    assert_eq!((rows[0].line, rows[1].line), (2, 5), "lines count quoted and blank ones");
}

#[test]
fn lines_are_counted_alike_in_all_kinds_of_file() {
    for text in [
        "at,x\n\n1764511260,\"a\n\nb\"\n\n\n1764511260,c\n1764511260,d",
        "at,x\r\n\r\n1764511260,\"a\n\nb\"\r\n\r\n\r\n1764511260,c\r\n1764511260,d\r\n",
        "at,x\r\n\r\n1764511260,\"a\r\n\r\nb\"\r\n\r\n\r\n1764511260,c\r\n1764511260,d\n",
    ] {
        let (rows, bad) = all(Format::Csv, text.as_bytes(), plan("at")).unwrap();
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(rows.iter().map(|row| row.line).collect::<Vec<_>>(), [3, 8, 9], "{text:?}");
        assert_eq!(map(&rows[2])["x"], "d");
    }
}

#[test]
fn a_quote_that_is_never_closed_is_a_bad_row_and_no_task() {
    for text in [
        "at,x\n1764511260,a\n1764511260,\"b\n1764511260,c\n",
        "at,x\r\n1764511260,a\r\n1764511260,\"b\r\n1764511260,c",
    ] {
        let (rows, bad) = all(Format::Csv, text.as_bytes(), plan("at")).unwrap();
        assert_eq!(rows.len(), 1, "{text:?}");
        assert_eq!(
            bad[0].to_string(),
            "line 3, column 2 (x): a quote is opened and never closed; what follows was not read"
        );
    }
    // Closed by the file's last byte, or a single line without an end: as they were meant.
    for text in ["at,x\n1764511260,\"b\nc\"", "at,x\n1764511260,\"b\nc\"\n", "at,x\n1764511260,c"] {
        let (rows, bad) = all(Format::Csv, text.as_bytes(), plan("at")).unwrap();
        assert!(bad.is_empty() && rows.len() == 1, "{text:?}: {bad:?}");
    }
}

#[test]
fn a_json_row_keeps_the_types_of_its_values() {
    let text = br#"{"at":"2013-11-27T05:00:00","n":9007199254740993,"f":0.5,"deep":{"a":[1,null]}}

{"at":1764511260123,"id":7,"queue":"other","p":"P0"}"#;
    let plan = Plan { queue: From::Fixed(QueueName::new("push").unwrap()), ..plan("at") };
    let (rows, bad) = all(Format::Ndjson, text, plan).unwrap();
    assert!(bad.is_empty(), "{bad:?}");
    let payload = map(&rows[0]);
    assert_eq!(payload["n"].as_u64(), Some(9_007_199_254_740_993));
    assert_eq!(payload["f"].as_f64(), Some(0.5));
    assert_eq!(payload["deep"], serde_json::json!({ "a": [1, null] }));
    assert_eq!((rows[1].line, rows[1].due), (3, NOW));
}

#[test]
fn queue_priority_and_key_may_come_from_columns() {
    let plan = Plan {
        queue: From::Column("q".into()),
        priority: From::Column("p".into()),
        key: Some("k".into()),
        placement: Some("to".into()),
        ..plan("at")
    };
    let text = b"at,q,p,k,x,to\n1764511260,a.b,P0,k1,1,u-17\n1764511260,c, ,k2,2,\n";
    let (rows, _) = all(Format::Csv, text, plan.clone()).unwrap();
    assert_eq!((rows[0].queue.as_str(), rows[0].priority), ("a.b", Priority::P0));
    assert_eq!((rows[1].queue.as_str(), rows[1].priority), ("c", Priority::P3));
    assert_eq!(map(&rows[0]).keys().collect::<Vec<_>>(), ["x"]);
    assert_eq!((rows[0].placement.as_deref(), &rows[1].placement), (Some(&b"u-17"[..]), &None));
    let text = b"{\"at\":1764511260,\"q\":\"a.b\",\"p\":1,\"k\":12,\"to\":7,\"x\":true}\n{\"at\":1764511260,\"q\":\"c\",\"k\":\"z\"}";
    let (rows, bad) = all(Format::Ndjson, text, plan).unwrap();
    assert!(bad.is_empty(), "{bad:?}");
    assert_eq!((rows[0].priority, rows[0].key.as_deref()), (Priority::P1, Some(&b"12"[..])));
    assert_eq!((rows[0].placement.as_deref(), &rows[1].placement), (Some(&b"7"[..]), &None));
    assert_eq!(rows[1].priority, Priority::P3);
}

#[test]
fn bad_rows_name_line_and_column_and_the_good_ones_stay() {
    let text = b"at,flight,x\nsoon,a,1\n2013-11-27T05:00:00,,2\n2013-11-27T05:00:00,b\n2013-11-27T05:00:00,ok,3\n\xff,c,4\n-1,d,5\n9998-12-31T00:00:00Z,e,6\n";
    let (rows, bad) = all(Format::Csv, text, keyed("at", "flight")).unwrap();
    assert_eq!(rows.len(), 1);
    let begins = [
        "line 2, column 1 (at): `soon` is no time;",
        "line 3, column 2 (flight): is empty",
        "line 4: the row has 2 columns, the header has 3",
        "line 6, column 1 (at): `\u{fffd}` is not UTF-8;",
        "line 7, column 1 (at): `-1` lies before 1970",
        "line 8, column 1 (at): 9998-12-31T00:00:00.000Z is more than 10 years ahead;",
    ];
    assert_eq!(bad.len(), begins.len(), "{bad:#?}");
    for (line, begin) in bad.iter().zip(begins) {
        assert!(line.starts_with(begin), "{line}");
    }
    let text = b"{\"at\":true}\n{\"x\":1}\nnonsense\n{\"at\":\"1764511260\",\"flight\":\"a\",\"flight\":\"b\"}\n{\"at\":1.5,\"flight\":\"a\"}\n[1]\n{\"at\":null,\"flight\":\"a\"}\n{\"at\":1764511260,\"flight\":\"ok\"}";
    let (rows, bad) = all(Format::Ndjson, text, keyed("at", "flight")).unwrap();
    assert_eq!(rows.len(), 1);
    let begins = [
        "line 1, column at: must be a string or a number",
        "line 2, column at: is missing (--due); the row has `x`",
        "line 3, character 1: a row must be an object",
        "line 4, column flight: is there twice",
        "line 5, column at: `1.5` is no time;",
        "line 6, character 1: a list; each line must be one object",
        "line 7, column at: is empty",
    ];
    assert_eq!(bad.len(), begins.len(), "{bad:#?}");
    for (line, begin) in bad.iter().zip(begins) {
        assert!(line.starts_with(begin), "{line}");
    }
}

#[test]
fn headers_must_name_what_is_needed() {
    let error = |text: &[u8], plan: Plan| match Rows::new(Format::Csv, Cursor::new(text.to_vec()), plan) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted"),
    };
    assert_eq!(error(b"", plan("at")), "the file is empty; its first row must name the columns");
    assert_eq!(
        error(b"departure,flight\n", plan("departur")),
        "there is no column `departur` (--due); the file has `departure`, `flight`; did you mean `departure`?"
    );
    assert_eq!(error(b"at,a,b,a\n", plan("at")), "columns 2 and 4 are both named `a`");
    assert_eq!(error(b"at,,b\n", plan("at")), "column 2 has no name in the header");
    assert!(error(b"at,x\r1,2\r", plan("at")).starts_with("lines must end with LF"));
    assert_eq!(error(b"at,\xff\n", plan("at")), "the name of column 2 is not UTF-8");
}

#[test]
fn bytes_that_are_no_text_stay_bytes() {
    let (rows, _) = all(Format::Csv, b"at,x,k\n1764511260,\xff\x00\xfe,\xff\n", keyed("at", "k")).unwrap();
    assert_eq!(&rows[0].payload[..], b"\x81\xa1x\xc4\x03\xff\x00\xfe");
    assert_eq!(rows[0].key.as_deref(), Some(&b"\xff"[..]));
    let (rows, _) = all(Format::Csv, b"at,x\n1764511260,a\x00b\n", plan("at")).unwrap();
    assert_eq!(map(&rows[0])["x"], "a\u{0}b");
}

#[test]
fn rows_are_bounded() {
    let open = [b"at,x\n1764511260,\"", &vec![b'y'; 6 << 20][..]].concat();
    let error = all(Format::Csv, &open, plan("at")).unwrap_err();
    assert!(
        error.to_string().starts_with("line 2: the row is longer than 4194304 bytes; is a quote not closed?"),
        "{error}"
    );
    let long =
        [b"{\"at\":1764511260,\"x\":\"", &vec![b'y'; 6 << 20][..], b"\"}\n{\"at\":1764511260}\n"].concat();
    let (rows, bad) = all(Format::Ndjson, &long, plan("at")).unwrap();
    assert_eq!((rows.len(), bad), (1, vec!["line 1: the line is longer than 4194304 bytes".to_owned()]));
    let large = [b"at,x\n1764511260,", &vec![b'y'; (1 << 20) + 1][..], b"\n1764511260,z\n"].concat();
    let (rows, bad) = all(Format::Csv, &large, plan("at")).unwrap();
    assert_eq!(rows.len(), 1);
    assert!(
        bad[0].starts_with("line 2: payload has 1048585 bytes; at most 1048576 are allowed"),
        "{}",
        bad[0]
    );
}

#[derive(Clone, Default)]
struct List {
    rows: Arc<Mutex<Vec<Row>>>,
    keys: Arc<Mutex<HashSet<bytes::Bytes>>>,
    fail_at: Option<usize>,
}

impl Sink for List {
    async fn submit(&self, rows: Vec<Row>) -> Result<Vec<Answer>, CliError> {
        if self.fail_at.is_some_and(|most| self.rows.lock().len() >= most) {
            return Err(CliError::unreachable("gone"));
        }
        let mut answers = Vec::new();
        for row in rows {
            let new = row.key.as_ref().is_none_or(|key| self.keys.lock().insert(key.clone()));
            answers.push(if new { Answer::Created } else { Answer::Duplicate });
            if new {
                self.rows.lock().push(row);
            }
        }
        Ok(answers)
    }
}

fn file(bytes: &[u8], name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("minutehand-{}-{name}", uuid::Uuid::new_v4()));
    std::fs::write(&path, bytes).unwrap();
    path
}

async fn import(bytes: &[u8], name: &str, plan: Plan, sink: &List) -> (Report, Result<(), CliError>) {
    let path = file(bytes, name);
    let input = Input::open(&path, None).unwrap();
    let mut progress = Progress::new(true, input.size, Arc::clone(&input.read));
    let done = run(input, plan, sink.clone(), &mut progress).await;
    std::fs::remove_file(&path).unwrap();
    done
}

#[tokio::test]
async fn the_example_plan_goes_in_once() {
    let text = std::fs::read("examples/flights-2013-11-27.csv").unwrap();
    let sink = List::default();
    let mut plan = keyed("departure", "flight");
    plan.due_reader =
        plan.due_reader.clone().with_rebase("2013-11-27T05:00:00=now", Some(600.0), NOW).unwrap();
    let (report, result) = import(&text, "plan.csv", plan.clone(), &sink).await;
    assert_eq!(result, Ok(()));
    assert_eq!((report.rows, report.created, report.duplicates, report.bad), (1_014, 1_014, 0, 0));
    assert_eq!(report.exit(), Exit::Ok);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&text).unwrap();
    plan.now = NOW.plus(5_000);
    let (report, _) = import(&packed.finish().unwrap(), "plan", plan, &sink).await;
    assert_eq!((report.created, report.duplicates), (0, 1_014));
    let rows = sink.rows.lock();
    assert_eq!((rows[0].due, rows.len()), (NOW, 1_014));
    assert_eq!(map(&rows[0])["tail"], "N198UW");
}

#[tokio::test]
async fn bad_rows_are_counted_beyond_those_shown() {
    let mut text = b"at\n".to_vec();
    for n in 0..10_000 {
        text.extend_from_slice(if n % 2 == 0 { b"1764511260\n" } else { b"never\n" });
    }
    let (report, result) = import(&text, "plan.csv", plan("at"), &List::default()).await;
    assert_eq!(result, Ok(()));
    assert_eq!((report.rows, report.created, report.bad), (10_000, 5_000, 5_000));
    assert_eq!((report.bad_rows.len(), report.exit()), (limits::BAD_ROWS_SHOWN_MAX, Exit::Failed));
}

#[tokio::test]
async fn an_import_stops_when_its_rows_cannot_be_sent() {
    let text = [&b"at\n"[..], &b"1764511260\n".repeat(100_000)].concat();
    let sink = List { fail_at: Some(8_000), ..List::default() };
    let (report, result) = import(&text, "plan.csv", plan("at"), &sink).await;
    assert_eq!(result.unwrap_err().exit, Exit::Unreachable);
    assert!(report.created >= 8_000 && report.created < 40_000, "{}", report.created);
    let (report, result) = import(b"at\n1764511260\n", "plan.csv", plan("when"), &sink).await;
    assert_eq!((report.created, result.unwrap_err().exit), (0, Exit::Usage));
}

#[test]
fn a_survey_counts_and_sends_nothing() {
    let path = file(b"at\n1764511260\n1764511320\nnever\n", "plan.csv");
    let input = Input::open(&path, None).unwrap();
    let survey = survey(&input, &plan("at")).unwrap();
    assert_eq!((survey.timeline.tasks(), survey.past, survey.bad.count), (2, 1, 1));
    std::fs::remove_file(&path).unwrap();
    assert!(Input::open(&path, None).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_rows_or_errors(bytes in proptest::collection::vec(any::<u8>(), 0..200), csv in any::<bool>()) {
        let format = if csv { Format::Csv } else { Format::Ndjson };
        let _ = all(format, &bytes, keyed("a", "b"));
        let _ = all(format, &[&b"a,b\n1764511260,"[..], &bytes].concat(), keyed("a", "b"));
        let _ = all(format, &[&b"{\"a\":1764511260,\"b\":"[..], &bytes].concat(), keyed("a", "b"));
    }

    #[test]
    fn any_cells_come_back_from_the_payload(cells in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..30), 1..20)) {
        let mut writer = ::csv::Writer::from_writer(Vec::new());
        let names: Vec<String> = (0..cells.len()).map(|n| format!("c{n}")).collect();
        writer.write_record(std::iter::once("at").chain(names.iter().map(String::as_str))).unwrap();
        writer.write_record(std::iter::once(&b"1764511260"[..]).chain(cells.iter().map(Vec::as_slice))).unwrap();
        let (rows, bad) = all(Format::Csv, &writer.into_inner().unwrap(), plan("at")).unwrap();
        prop_assert!(bad.is_empty());
        let mut at = &rows[0].payload[..];
        let count = if cells.len() < 16 { 1 } else { 3 };
        at = &at[count..];
        for (name, cell) in names.iter().zip(&cells) {
            let mut expected = bytes::BytesMut::new();
            pack::put_str(&mut expected, name);
            pack::put_cell(&mut expected, cell);
            prop_assert_eq!(&at[..expected.len()], &expected[..]);
            at = &at[expected.len()..];
        }
        prop_assert!(at.is_empty());
    }
}
