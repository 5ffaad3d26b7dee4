//! Tasks of a known shape.

use bytes::Bytes;
use minutehand::model::spec::Extras;
use minutehand::model::{
    Bucket, Key, LaneCode, LaneGroup, Priority, QueueName, Retry, Spec, TaskId, Tier, UnixMs,
};
use minutehand::store::Space;
use minutehand::store::intake::Row;

use super::stat::Failure;

/// Rows of one call.
pub const BATCH: usize = 500;
/// Bytes of a payload: JSON, as in the comparison with other schedulers.
pub const PAYLOAD: usize = 100;
/// First due time: the start of a minute in 2030, so that nothing depends on the day of the run.
pub const BASE_MS: i64 = 1_893_456_000_000;

/// How tasks lie.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// How many.
    pub tasks: usize,
    /// Over how many buckets.
    pub buckets: u16,
    /// Due within how many ms.
    pub span_ms: i64,
    /// Over how many queues.
    pub queues: usize,
    /// Over how many priorities; one means P3.
    pub priorities: usize,
    /// Whether each has an idempotency key.
    pub keyed: bool,
    /// Whether rows come in order of due time; else as drawn.
    pub sorted: bool,
}

impl Shape {
    /// One queue, one priority, due sets of at most 4,000 tasks.
    pub fn narrow(tasks: usize, buckets: u16) -> Self {
        let minutes = tasks.div_ceil(usize::from(buckets) * 4_000).max(1);
        let span_ms = i64::try_from(minutes).unwrap_or(1) * 60_000;
        Self { tasks, buckets, span_ms, queues: 1, priorities: 1, keyed: false, sorted: true }
    }

    /// 1,000 queues and 6 priorities over 30 days.
    pub fn wide(tasks: usize, buckets: u16) -> Self {
        Self { span_ms: 30 * 86_400_000, queues: 1_000, priorities: 6, ..Self::narrow(tasks, buckets) }
    }

    /// All due in one minute.
    pub fn hot(tasks: usize, buckets: u16) -> Self {
        Self { span_ms: 60_000, ..Self::narrow(tasks, buckets) }
    }
}

/// What a namespace calls the lanes of a shape.
pub async fn lanes(space: &Space, shape: &Shape) -> Result<Vec<LaneCode>, Failure> {
    let mut out = Vec::new();
    for queue in 0..shape.queues {
        let group = LaneGroup::of(QueueName::new(&format!("push.{queue}"))?);
        let code = space.lane_group(&group).await?;
        if shape.priorities == 1 {
            out.push(LaneCode::new(code, Priority::P3, Tier::FRESH));
        } else {
            out.extend(
                Priority::ALL[..shape.priorities].iter().map(|p| LaneCode::new(code, *p, Tier::FRESH)),
            );
        }
    }
    Ok(out)
}

/// The batches of a shape: each of one bucket, in the order in which they are sent. Drawn from a seed, so
/// that every run sends the same.
pub struct Batches<'a> {
    shape: Shape,
    lanes: &'a [LaneCode],
    chance: fastrand::Rng,
    at: usize,
}

impl<'a> Batches<'a> {
    /// All batches of a shape.
    pub fn new(shape: Shape, lanes: &'a [LaneCode]) -> Self {
        Self { shape, lanes, chance: fastrand::Rng::with_seed(7), at: 0 }
    }

    fn row(&mut self, bucket: Bucket, number: usize) -> Row {
        let shape = self.shape;
        let offset = if shape.sorted {
            // Exact for up to 2^53 task-milliseconds.
            (number as f64 / shape.tasks as f64 * shape.span_ms as f64) as i64
        } else {
            self.chance.i64(0..shape.span_ms)
        };
        let due = UnixMs(BASE_MS + offset);
        let lane = self.lanes[self.chance.usize(..self.lanes.len())];
        let mut payload =
            format!("{{\"user\":{number},\"device\":\"{:016x}\",\"text\":\"", self.chance.u64(..));
        while payload.len() < PAYLOAD - 2 {
            payload.push(char::from(self.chance.u8(b'a'..=b'z')));
        }
        payload.push_str("\"}");
        let key = shape.keyed.then(|| Key {
            bytes: Bytes::from(format!("{:024x}", self.chance.u128(..) >> 32)),
            window_ms: 86_400_000,
        });
        let spec = Spec {
            lane,
            due,
            retry: Retry::default(),
            key,
            placement: None,
            plan: None,
            deadline: None,
            start_before: None,
            lease_ms: None,
            timeout_ms: None,
            bound: false,
            extras: Extras::default(),
            payload: payload.into(),
        };
        Row::new(TaskId::new(due.minute(), bucket, self.chance.u64(..)), spec)
    }
}

impl Iterator for Batches<'_> {
    type Item = (Bucket, Vec<Row>);

    fn next(&mut self) -> Option<Self::Item> {
        let buckets = usize::from(self.shape.buckets);
        // Task n lies in bucket n mod buckets, so that batches of all buckets advance together.
        let round = self.at / buckets * BATCH * buckets;
        let bucket_number = self.at % buckets;
        let numbers: Vec<usize> = (0..BATCH)
            .map(|i| round + i * buckets + bucket_number)
            .take_while(|number| *number < self.shape.tasks)
            .collect();
        if numbers.is_empty() {
            return None;
        }
        self.at += 1;
        let bucket = Bucket::new(u16::try_from(bucket_number).ok()?)?;
        Some((bucket, numbers.into_iter().map(|number| self.row(bucket, number)).collect()))
    }
}
