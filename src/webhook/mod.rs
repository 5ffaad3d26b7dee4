//! Messages to web addresses: signed, bounded, and only to where they may go.
//!
//! A [`Sender`] keeps connections open and lets only so many calls to one host run at a time. It follows
//! redirects only where it is told to, and refuses addresses that lie inside ([`net`]): by what the address
//! says, and again by what its name resolves to, so that no name can point a message at a machine behind the
//! fence. Messages are signed as in the Standard Webhooks scheme ([`sign`]), which libraries in most languages
//! verify.

pub mod net;
mod sender;
pub mod sign;

pub use net::{Allowed, Net};
pub use sender::{Answer, Message, SendError, Sender, SenderSettings, check_address};
pub use sign::{Key, Keys};
