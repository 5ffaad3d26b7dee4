//! What a pod may hand out under the limits of one queue or downstream: `lua/queue/allot.lua`.

use super::super::script;
use super::super::space::Space;
use super::super::{At, StoreError};
use crate::keys::Guard;
use crate::limits;
use crate::model::UnixMs;
pub use crate::model::breaker::BreakerState;
use crate::model::queue::{BreakerSettings, LimitOwner, Rate};
use serde::Serialize;

/// What a pod says and wants of one window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowAsk {
    /// Its name within its owner: the same for all pods.
    pub name: String,
    /// The limit.
    pub rate: Rate,
    /// What the pod holds and has not spent.
    pub kept: u32,
    /// What it wants beyond that.
    pub wanted: u32,
    /// What it has spent since it last asked, and when.
    pub spent: Vec<(UnixMs, u32)>,
}

/// What a pod says and wants of running tasks in one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareAsk {
    /// The bucket.
    pub bucket: u16,
    /// What runs there at most.
    pub kept: u32,
    /// How many more could run.
    pub wanted: u32,
}

/// What a pod has heard and wants of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerAsk {
    /// What it is set to.
    pub settings: BreakerSettings,
    /// Successes since it last asked.
    pub succeeded: u64,
    /// Failures since it last asked.
    pub failed: u64,
    /// Probes it could hand out.
    pub probes_wanted: u32,
}

/// All that a pod says and wants of one owner's limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ask {
    /// Windows: the rate and the retry windows.
    pub windows: Vec<WindowAsk>,
    /// Most tasks that run at the same time.
    pub running: Option<u32>,
    /// Buckets.
    pub shares: Vec<ShareAsk>,
    /// The breaker.
    pub breaker: Option<BreakerAsk>,
}

/// A breaker as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct BreakerView {
    /// Its state.
    pub state: BreakerState,
    /// Since when.
    #[serde(with = "crate::model::slice::rfc3339")]
    pub since: UnixMs,
    /// When an open one is tried.
    #[serde(with = "crate::model::slice::rfc3339")]
    pub until: UnixMs,
    /// Why it stands so.
    pub reason: String,
}

/// What a pod may hand out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allotted {
    /// Redis's time.
    pub now: UnixMs,
    /// For each window what was granted beyond what was kept, and after how many ms there may be more.
    pub windows: Vec<(u32, i64)>,
    /// For each bucket how many tasks may run.
    pub shares: Vec<u32>,
    /// Others wait for shares: what becomes free is to be given back.
    pub scarce: bool,
    /// The breaker, and the probes granted.
    pub breaker: Option<(BreakerView, u32)>,
}

fn state(letter: &[u8]) -> BreakerState {
    match letter {
        b"o" => BreakerState::Open,
        b"h" => BreakerState::HalfOpen,
        _ => BreakerState::Closed,
    }
}

/// Says what was spent and asks for more. Repeated, it grants more only as far as the limits allow.
pub async fn allot(space: &Space, owner: &LimitOwner, pod: &str, ask: &Ask) -> Result<Allotted, StoreError> {
    let spent: usize = ask.windows.iter().map(|window| window.spent.len()).sum();
    let mut args = space.args(16 + ask.windows.len() * 8 + spent * 2 + ask.shares.len() * 3, 512);
    args.bytes(pod.as_bytes()).number(limits::ALLOTMENT_MS).number(ask.windows.len());
    for window in &ask.windows {
        let Rate { count, per_ms, .. } = window.rate;
        args.bytes(window.name.as_bytes()).number(count).number(per_ms).number(window.rate.burst());
        args.number(window.kept).number(window.wanted).number(window.spent.len());
        for (at, count) in &window.spent {
            args.number(at.0).number(count);
        }
    }
    match ask.running {
        Some(most) => args.number(most),
        None => args.bytes(b""),
    };
    args.number(ask.shares.len());
    for share in &ask.shares {
        args.number(share.bucket).number(share.kept).number(share.wanted);
    }
    match &ask.breaker {
        Some(BreakerAsk { settings, succeeded, failed, probes_wanted }) => {
            args.number(settings.error_percent).number(settings.min_outcomes).number(settings.open_ms);
            args.number(settings.window_ms).number(settings.probes);
            args.number(succeeded).number(failed).number(probes_wanted);
        }
        None => {
            args.bytes(b"");
        }
    }
    let guard = Guard::room(space.namespace(), &format!("l:{}", owner.key()));
    let answer = space.call(&script::ALLOT, &guard, args).await?;
    let now = UnixMs(answer.now_ms());
    let mut fields = answer.ok()?;
    let mut out = Allotted { now, ..Allotted::default() };
    let small = |n: i64| u32::try_from(n).unwrap_or(0);
    for _ in &ask.windows {
        let granted = small(fields.int("granted")?);
        out.windows.push((granted, fields.int("wait")?));
    }
    if ask.running.is_some() {
        for _ in &ask.shares {
            out.shares.push(small(fields.int("share")?));
        }
        out.scarce = fields.int("scarce")? == 1;
    }
    if ask.breaker.is_some() {
        let view = BreakerView {
            state: state(&fields.bytes("state")?),
            since: UnixMs(fields.int("since")?),
            until: UnixMs(fields.int("until")?),
            reason: fields.text("reason")?,
        };
        out.breaker = Some((view, small(fields.int("probes")?)));
    }
    Ok(out)
}

/// How a breaker stood when a pod last asked; closed where none has.
pub async fn breaker(space: &Space, owner: &LimitOwner) -> Result<BreakerView, StoreError> {
    let key = Guard::room(space.namespace(), &format!("l:{}", owner.key())).key("breaker");
    let names = ["state", "since", "until", "reason"].map(|name| bytes::Bytes::from_static(name.as_bytes()));
    let args = std::iter::once(key.clone()).chain(names).collect();
    let told = space.store().command("HMGET", At::Key(&key), args).await?;
    let mut fields = told.fields("HMGET")?;
    let mut part = || match fields.next("a field") {
        Ok(super::super::Reply::Bytes(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Ok(_) => Ok(String::new()),
        Err(error) => Err(error),
    };
    let (letter, since, until, reason) = (part()?, part()?, part()?, part()?);
    let ms = |text: &str| UnixMs(text.parse().unwrap_or(0));
    Ok(BreakerView { state: state(letter.as_bytes()), since: ms(&since), until: ms(&until), reason })
}
