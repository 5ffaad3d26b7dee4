//! Plain data and pure functions: no I/O, no clock, no await.
//!
//! What a task is and what may happen to it is decided here; the scripts in `lua/` do the same to
//! the data in Redis, and tests compare the two.

pub mod access;
pub mod base64;
pub mod bins;
pub mod breaker;
pub mod bucket;
pub mod complaints;
pub mod decide;
pub mod digest;
pub mod digits;
pub mod durability;
pub mod event;
pub mod field;
pub mod grant;
pub mod id;
pub mod lane;
pub mod outcome;
mod progress;
pub mod queue;
pub mod replay;
pub mod retry;
pub mod route;
pub mod runs;
pub mod seal;
pub mod share;
pub mod slice;
pub mod spec;
pub mod spread;
pub mod state;
pub mod subscription;
pub mod window;

pub use bucket::{Bucket, Namespace, Tag};
pub use durability::Durability;
pub use field::{FieldError, Reason};
pub use grant::{ExecutionId, Grant, Nonce};
pub use id::TaskId;
pub use lane::{Labels, LaneCode, LaneGroup, PlanName, Priority, QueueName, Tier};
pub use progress::Progress;
pub use queue::{DownstreamName, QueueSettings, QueueTable};
pub use retry::Retry;
pub use slice::{Minute, UnixMs};
pub use spec::{Key, Spec};
pub use state::{Phase, State};
pub use subscription::{Subscription, SubscriptionName};
