//! The floor: the least that Redis has to do for the life of a task, as bare commands.
//!
//! Submit is ZADD and HSET; claim is ZRANGE, ZREMRANGEBYRANK, HMGET, HSET, APPEND; offer and take are
//! RPUSH and LPOP; ack is HDEL twice and XADD. Batches of 500, variadic, no Lua, one write a step. Ids,
//! members, records and payloads are as long as ours, and sets and hashes are cut as ours are.
//! Nothing is checked, no limit is kept, nothing can be cancelled, repeated or found out.

use crate::kit::redis::{Answer, Bare, Redis};
use crate::kit::shape::{BATCH, Batches, Shape};
use crate::kit::stat::Failure;
use minutehand::model::{LaneCode, Priority, Tier};
use minutehand::store::intake::Row;

/// CPU of the main thread by step and in all, µs a task.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub submit: f64,
    pub claim: f64,
    pub offer: f64,
    pub ack: f64,
    /// By the server's own account over the whole run.
    pub whole: f64,
}

/// Length of our record of a running task, with a pod's id of 12 bytes.
const RECORD: [u8; 52] = [b'r'; 52];
/// Length of the record of an ended task in the events.
const ENDED: usize = 45;

/// One run on a fresh server.
pub fn run(redis: &mut Redis, shape: Shape) -> Result<Cost, Failure> {
    let lane = [LaneCode::new(0, Priority::P3, Tier::FRESH)];
    let batches: Vec<(String, Vec<Row>)> = Batches::new(shape, &lane)
        .map(|(bucket, rows)| (format!("{{f{}}}:", bucket.number()), rows))
        .collect();
    let mut bare = redis.bare()?;
    let mut cost = Cost::default();
    let before = redis.cpu_us()?;
    let mut mark = redis.cpu_us_outside();
    for (tag, rows) in &batches {
        submit(&mut bare, tag, rows)?;
    }
    step(redis, &mut mark, &mut cost.submit);
    for (tag, rows) in &batches {
        claim(&mut bare, tag, rows)?;
        step(redis, &mut mark, &mut cost.claim);
        offer(&mut bare, rows)?;
        step(redis, &mut mark, &mut cost.offer);
        ack(&mut bare, tag, rows)?;
        step(redis, &mut mark, &mut cost.ack);
    }
    let tasks = shape.tasks as f64;
    cost.whole = (redis.cpu_us()? - before) / tasks;
    for part in [&mut cost.submit, &mut cost.claim, &mut cost.offer, &mut cost.ack] {
        *part /= tasks;
    }
    Ok(cost)
}

fn step(redis: &Redis, mark: &mut f64, into: &mut f64) {
    let now = redis.cpu_us_outside();
    *into += now - *mark;
    *mark = now;
}

/// Rows of one batch by minute: each minute has a set and a hash.
fn by_minute(rows: &[Row]) -> impl Iterator<Item = (String, &[Row])> {
    rows.chunk_by(|a, b| a.id.home() == b.id.home()).map(|part| (part[0].id.home().0.to_string(), part))
}

fn submit(bare: &mut Bare, tag: &str, rows: &[Row]) -> Result<(), Failure> {
    for (minute, part) in by_minute(rows) {
        bare.begin(2 + 2 * part.len()).word("ZADD").word(format!("{tag}due:{minute}"));
        for row in part {
            bare.word(row.spec.due.0.to_string());
            bare.word([&row.id.as_bytes()[..], row.spec.lane.as_bytes()].concat());
        }
        bare.begin(2 + 2 * part.len()).word("HSET").word(format!("{tag}task:{minute}"));
        for row in part {
            bare.word(row.id.as_bytes()).word(&row.spec.payload);
        }
    }
    bare.answers()?;
    Ok(())
}

fn claim(bare: &mut Bare, tag: &str, rows: &[Row]) -> Result<(), Failure> {
    for (minute, part) in by_minute(rows) {
        let (due, last) = (format!("{tag}due:{minute}"), (part.len() - 1).to_string());
        bare.add(&[b"ZRANGE", due.as_bytes(), b"0", last.as_bytes()]);
        bare.begin(2 + part.len()).word("HMGET").word(format!("{tag}task:{minute}"));
        for row in part {
            bare.word(row.id.as_bytes());
        }
        bare.add(&[b"ZREMRANGEBYRANK", due.as_bytes(), b"0", last.as_bytes()]);
    }
    bare.begin(2 + 2 * rows.len()).word("HSET").word(format!("{tag}run"));
    for row in rows {
        bare.word(row.id.as_bytes()).word(RECORD);
    }
    let ids: Vec<u8> = rows.iter().flat_map(|row| *row.id.as_bytes()).collect();
    bare.begin(3).word("APPEND").word(format!("{tag}lease:1")).word(ids);
    bare.answers()?;
    Ok(())
}

/// The same on sets and hashes of ours: all that is due in one minute. What it notes lies elsewhere.
pub fn claim_from(bare: &mut Bare, prefix: &str, rows: &[Row]) -> Result<(), Failure> {
    let (urgent, normal): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.spec.lane.priority().is_urgent());
    for (part, end) in [(urgent, "u"), (normal, "")] {
        let Some(first) = part.first() else { continue };
        let due = format!("{prefix}due:{}{end}", first.id.home());
        bare.add(&[b"ZRANGE", due.as_bytes(), b"0", b"-1"]);
        bare.begin(2 + part.len()).word("HMGET").word(format!("{prefix}task:{}", first.id.shelf()));
        for row in &part {
            bare.word(row.id.as_bytes());
        }
        bare.add(&[b"ZREMRANGEBYRANK", due.as_bytes(), b"0", b"-1"]);
    }
    bare.begin(2 + 2 * rows.len()).word("HSET").word("bare:run");
    for row in rows {
        bare.word(row.id.as_bytes()).word(RECORD);
    }
    let ids: Vec<u8> = rows.iter().flat_map(|row| *row.id.as_bytes()).collect();
    bare.begin(3).word("APPEND").word("bare:lease").word(ids);
    let found = bare.answers()?;
    let specs = found.iter().filter_map(|answer| match answer {
        Answer::List(list) => Some(list.iter().filter(|one| **one != Answer::Nil).count()),
        _ => None,
    });
    // Ids and specs.
    if specs.sum::<usize>() == 2 * rows.len() { Ok(()) } else { Err("not all of a minute was there".into()) }
}

fn offer(bare: &mut Bare, rows: &[Row]) -> Result<(), Failure> {
    bare.begin(2 + rows.len()).word("RPUSH").word("inbox");
    for row in rows {
        bare.word([&row.id.as_bytes()[..], &[b'g'; 18], &row.spec.payload].concat());
    }
    bare.answers()?;
    bare.begin(3).word("LPOP").word("inbox").word(BATCH.to_string());
    bare.answers()?;
    Ok(())
}

fn ack(bare: &mut Bare, tag: &str, rows: &[Row]) -> Result<(), Failure> {
    bare.begin(2 + rows.len()).word("HDEL").word(format!("{tag}run"));
    for row in rows {
        bare.word(row.id.as_bytes());
    }
    for (minute, part) in by_minute(rows) {
        bare.begin(2 + part.len()).word("HDEL").word(format!("{tag}task:{minute}"));
        for row in part {
            bare.word(row.id.as_bytes());
        }
    }
    bare.begin(7).word("XADD").word(format!("{tag}events")).word("*").word("k").word("e").word("d");
    bare.word(vec![b'e'; ENDED * rows.len()]);
    bare.answers()?;
    Ok(())
}
