//! Fuzz targets: whatever bytes come, a decoder answers a value or an error, in bounded memory.
//!
//! `fuzz/` runs them under libFuzzer (`make fuzz`); `tests/fuzz.rs` runs them for a short time with mutations of what is
//! well formed.

use crate::cli::import::due::DueReader;
use crate::cli::import::input::Format;
use crate::cli::import::row::{From, Plan};
use crate::cli::import::{Next, Rows};
use crate::model::{
    Bucket, Grant, Key, LaneCode, Minute, Nonce, PlanName, Priority, Spec, TaskId, Tier, UnixMs,
};
use crate::model::{QueueName, event, spec};
use crate::store::member::Offer;
use bytes::Bytes;
use std::io::Cursor;

/// A decoder under test.
pub struct Target {
    /// Its name, also that of its fuzz target.
    pub name: &'static str,
    /// Feeds it.
    pub feed: fn(&[u8]),
    /// What is well formed, to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: [Target; 6] = [
    Target { name: "spec", feed: self::spec, seeds: spec_seeds },
    Target { name: "offer", feed: offer, seeds: offer_seeds },
    Target { name: "event", feed: self::event, seeds: event_seeds },
    Target {
        name: "journal",
        feed: crate::executor::fuzz::journal,
        seeds: || {
            let [seeds, _] = crate::executor::fuzz::seeds();
            seeds
        },
    },
    Target {
        name: "outcome",
        feed: crate::executor::fuzz::outcome,
        seeds: || {
            let [_, seeds] = crate::executor::fuzz::seeds();
            seeds
        },
    },
    Target { name: "import", feed: import, seeds: import_seeds },
];

/// Feeds the target of this name.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    (target.feed)(bytes);
}

/// Reads anything as the spec of a task. What is read can be written and read again.
pub fn spec(bytes: &[u8]) {
    let _ = Spec::peek_plan(bytes);
    let _ = Spec::peek_key(&Bytes::copy_from_slice(bytes));
    let _ = Spec::peek_due(bytes, UnixMs(0));
    let home = UnixMs(1_764_511_260_000);
    if let Ok(read) = Spec::decode(&Bytes::copy_from_slice(bytes), home)
        && read.check().is_ok()
        && read.due.minute() == home.minute()
    {
        let again = Spec::decode(&read.encode(), home).expect("what was written can be read");
        assert_eq!(again, read);
    }
}

fn a_spec() -> Spec {
    Spec {
        lane: LaneCode::new(7, Priority::P2, Tier::FRESH),
        due: UnixMs(1_764_511_260_123),
        retry: crate::model::Retry { retries: 5, ..crate::model::Retry::default() },
        key: Some(Key { bytes: Bytes::from_static(b"order-17"), window_ms: 86_400_000 }),
        placement: Some(Bytes::from_static(b"tenant")),
        plan: PlanName::new("sale").ok(),
        deadline: Some(UnixMs(1_764_511_999_999)),
        start_before: Some(UnixMs(1_764_511_888_888)),
        lease_ms: Some(45_000),
        timeout_ms: Some(2_000),
        bound: true,
        extras: spec::Extras { cost_ms: Some(3), notify: Some("s".into()), ..spec::Extras::default() },
        payload: Bytes::from_static(b"\x00payload\xff"),
    }
}

fn spec_seeds() -> Vec<Vec<u8>> {
    let full = a_spec();
    let plain = Spec {
        retry: crate::model::Retry::default(),
        key: None,
        placement: None,
        plan: None,
        deadline: None,
        start_before: None,
        lease_ms: None,
        timeout_ms: None,
        bound: false,
        extras: spec::Extras::default(),
        ..full.clone()
    };
    vec![full.encode().to_vec(), plain.encode().to_vec()]
}

fn id() -> TaskId {
    TaskId::new(Minute(29_408_521), Bucket::default(), 7)
}

/// Reads anything as an offer in an inbox.
pub fn offer(bytes: &[u8]) {
    let _ = Offer::peek_plan(bytes);
    if let Some(offer) = Offer::decode(&Bytes::copy_from_slice(bytes)) {
        spec(&offer.spec);
    }
}

fn offer_seeds() -> Vec<Vec<u8>> {
    let offer = Offer {
        id: id(),
        grant: Grant::new(3, Nonce::new(9)),
        group: 7,
        urgent: false,
        due: UnixMs(1_764_511_260_123),
        attempt: 2,
        not_after: UnixMs(1_764_511_275_123),
        ahead: false,
        spec: a_spec().encode(),
    };
    vec![offer.encode().to_vec()]
}

/// Reads anything as an entry of an event stream: a kind, the length of its head, head and records; and as a line.
pub fn event(bytes: &[u8]) {
    if let [kind, length, rest @ ..] = bytes {
        let (head, records) = rest.split_at(usize::from(*length).min(rest.len()));
        let _ = event::decode(*kind, head, records);
    }
    let _ = serde_json::from_slice::<event::Line>(bytes);
}

fn event_seeds() -> Vec<Vec<u8>> {
    let (head, grant, id) = ("176451126012304ex-1", "00000002aaaaaaaaaa", id());
    let entry = |kind: u8, head: &str, records: String| {
        [&[kind, head.len() as u8][..], head.as_bytes(), records.as_bytes()].concat()
    };
    let mut seeds = vec![
        entry(b's', head, format!("{id}--6F--0{id}--6F--1")),
        entry(b'g', &format!("{head}{grant}"), format!("{id}{id}")),
        entry(b'c', head, format!("{id}{grant}{id}{grant}")),
        entry(b'o', head, format!("{id}{grant}04ex-9")),
        entry(b'b', head, format!("{id}{grant}")),
        entry(b'e', head, format!("{id}{grant}S----2----A")),
        entry(b'v', head, format!("{id}{grant}R17645112800000004boom")),
    ];
    seeds.push(format!(r#"{{"at":"2025-11-30T14:01:00.000Z","id":"{id}","event":"retried","fence":2,"executor":"ex-1","due":"2025-11-30T14:01:05.000Z","cause":"boom"}}"#).into_bytes());
    seeds.push(br#"{"trimmed":{"bucket":0,"before":"2025-11-30T14:01:00.000Z","events":4,"by_type":{"submitted":4}}}"#.to_vec());
    seeds
}

/// Reads anything as a plan to import: the first byte says in which form.
pub fn import(bytes: &[u8]) {
    let Some((form, text)) = bytes.split_first() else { return };
    let format = if form % 2 == 0 { Format::Csv } else { Format::Ndjson };
    let plan = Plan {
        placement: None,
        due: "due".into(),
        due_reader: DueReader::new(None),
        queue: From::Column("queue".into()),
        key: Some("key".into()),
        priority: From::Column("priority".into()),
        now: UnixMs(1_764_511_260_123),
    };
    let Ok(mut rows) = Rows::new(format, Cursor::new(text.to_vec()), plan) else { return };
    // A row is at least a byte, so there are no more of them than bytes.
    for _ in 0..=text.len() {
        match rows.next_row() {
            Ok(Next::End) | Err(_) => return,
            Ok(Next::Row(row)) => {
                assert!(QueueName::new(row.queue.as_str()).is_ok());
                assert!(row.payload.len() <= crate::limits::PAYLOAD_MAX_BYTES);
            }
            Ok(Next::Bad(row)) => assert!(row.to_string().len() < 2_000, "an error is a line, not a file"),
        }
    }
    panic!("more rows than bytes");
}

fn import_seeds() -> Vec<Vec<u8>> {
    let csv = b"\x00due,queue,key,priority,note\r\n2025-11-30T14:01:00Z,push,k1,P1,\"a, \"\"b\"\"\nc\"\r\n1764511260,push,k2,,\r\n";
    let ndjson = "\x01{\"due\":\"2025-11-30T14:01:00Z\",\"queue\":\"push\",\"key\":\"k1\",\"priority\":\"P1\",\"n\":[1,{\"a\":-1.5e3}],\"t\":\"\\u00e9\"}\n{\"due\":1764511260123,\"queue\":\"push\",\"key\":\"k2\",\"big\":18446744073709551615}\n";
    vec![csv.to_vec(), ndjson.as_bytes().to_vec()]
}
