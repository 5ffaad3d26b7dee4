//! Who may do what: every route of the API stands in a group that one role is for.
//!
//! Tokens are read from Redis every few seconds and whenever one was made or revoked; a request costs no call. Where the
//! port is open (on a loopback address, or by `--insecure`), everybody who reaches it may do everything, but who shows a
//! token may do what that is for; then pages of other sites are kept out by `Host` and `Origin`, since a browser on this
//! machine reaches it too.

use super::Api;
use super::caller::{Caller, forbidden};
use super::error::Problem;
use super::serve::Peer;
use crate::client::{Client, token_fits};
use crate::model::access::{Role, TokenText};
use crate::store::access::{TokenRecord, token_news};
use crate::{clock, limits};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often tokens are read when nothing wakes: what a lost wake-up delays a revocation by.
const READ_EVERY: Duration = Duration::from_secs(5);

/// Whether callers must show a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Everybody who reaches the port and shows no token may do everything; names of this machine only.
    Loopback,
    /// Everybody who reaches the port and shows no token may do everything.
    Open,
    /// Only with a token.
    Tokens,
}

/// What is known of tokens and of failed logins.
pub(super) struct Keeper {
    door: Door,
    tokens: RwLock<HashMap<String, TokenRecord>>,
    failures: Mutex<Failures>,
}

impl Keeper {
    pub fn new(door: Door) -> Self {
        Self { door, tokens: RwLock::default(), failures: Mutex::default() }
    }

    /// Reads the tokens, and again whenever they change, until shutdown.
    pub async fn keep(self: Arc<Self>, client: Client, shutdown: CancellationToken) {
        let mut news = token_news(client.space());
        loop {
            match client.tokens().await {
                Ok(tokens) => {
                    *self.tokens.write() =
                        tokens.into_iter().map(|token| (token.id.clone(), token)).collect();
                }
                // Those that are known stay good: who revokes cannot reach Redis either.
                Err(error) => tracing::warn!(%error, "could not read the tokens; trying again"),
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = news.recv() => {}
                () = tokio::time::sleep(READ_EVERY) => {}
            }
        }
    }

    /// Who asks, if they may do what `role` is for.
    fn admit(
        &self,
        client: &Client,
        headers: &HeaderMap,
        peer: IpAddr,
        roles: &[Role],
    ) -> Result<Caller, Problem> {
        if self.door == Door::Loopback {
            same_machine(headers)?;
        }
        let given = headers.get(header::AUTHORIZATION);
        let token = given
            .and_then(|given| given.to_str().ok()?.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .and_then(|(_, token)| token.trim().parse::<TokenText>().ok());
        // An open port looks at what reads as one of our tokens: who shows one wants to be known by it, and other
        // credentials are for whatever stands before this port.
        if self.door != Door::Tokens && token.is_none() {
            return Ok(Caller::new(format!("http:{peer}"), Vec::new()));
        }
        if given.is_none() {
            return Err(unauthorized("this needs a token: Authorization: Bearer mh_…"));
        }
        let now = clock::mono();
        let tokens = self.tokens.read();
        let found = token.as_ref().and_then(|token| {
            let record = tokens.get(&token.id);
            let fits = token_fits(client.space().namespace(), token, record);
            record.filter(|_| fits)
        });
        let Some(record) = found else {
            let failures = self.failures.lock().count(peer, now);
            if failures > limits::LOGIN_FAILURES_MAX {
                return Err(Problem::too_many(
                    "too_many_logins",
                    "too many tokens that are not good came from there",
                )
                .after(limits::LOGIN_WINDOW_MS.unsigned_abs() / 1_000));
            }
            if failures == limits::LOGIN_FAILURES_MAX {
                tracing::warn!(%peer, failures, "tokens that are not good; further ones are not looked at for a minute");
            }
            return Err(unauthorized("the token is not good, or no longer"));
        };
        if record.expires_ms.is_some_and(|at| at <= client.space().clock().now_ms()) {
            return Err(unauthorized("the token has expired"));
        }
        if !roles.iter().any(|role| record.roles.iter().any(|own| own.includes(*role))) {
            let names: Vec<&str> = roles.iter().map(|role| role.name()).collect();
            return Err(forbidden(format!("this needs a token with the role {}", names.join(" or "))));
        }
        Ok(Caller::new(format!("token:{}", record.name), record.queues.clone()))
    }
}

fn unauthorized(message: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}

/// Refuses requests that a page of another site made a browser of this machine send.
fn same_machine(headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_matches(['[', ']']);
    let own = name.is_empty()
        || name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if !own {
        return Err(forbidden("without tokens this port answers to localhost only"));
    }
    match headers.get(header::ORIGIN).map(HeaderValue::to_str) {
        None => Ok(()),
        Some(Ok(origin)) if origin.split_once("://").is_some_and(|(_, at)| at == host) => Ok(()),
        Some(_) => Err(forbidden("without tokens this port answers to pages of its own only")),
    }
}

/// Failed logins by address, of the last minute.
#[derive(Default)]
struct Failures {
    by_peer: HashMap<IpAddr, (Instant, u32)>,
}

impl Failures {
    /// Counts one more; answers how many there were.
    fn count(&mut self, peer: IpAddr, now: Instant) -> u32 {
        let window = clock::ms(limits::LOGIN_WINDOW_MS);
        if self.by_peer.len() >= limits::LOGIN_PEERS_MAX && !self.by_peer.contains_key(&peer) {
            self.by_peer.retain(|_, (since, _)| now.saturating_duration_since(*since) < window);
            if self.by_peer.len() >= limits::LOGIN_PEERS_MAX {
                // Whoever has that many addresses is not held up by this.
                self.by_peer.clear();
            }
        }
        let (since, count) = self.by_peer.entry(peer).or_insert((now, 0));
        if now.saturating_duration_since(*since) >= window {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count
    }
}

/// A group of routes: the API, and the roles one of which a caller must have.
#[derive(Clone)]
pub(super) struct Group {
    pub api: Api,
    pub roles: &'static [Role],
}

/// Lets in who may, and makes the caller known to the handlers.
pub(super) async fn guard(State(group): State<Group>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.0.ip());
    let Group { api, roles } = group;
    let caller = match api.keeper.admit(&api.client, request.headers(), peer, roles) {
        Ok(caller) => caller,
        Err(problem) => {
            let challenge = problem.status() == StatusCode::UNAUTHORIZED;
            let mut response = problem.into_response();
            if challenge {
                let value = HeaderValue::from_static("Bearer realm=\"minutehand\"");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
            }
            return response;
        }
    };
    // What operators do is written down before it is done.
    let operates = roles.iter().all(|role| matches!(role, Role::Operate | Role::Admin));
    if operates && request.method() != Method::GET {
        let action = format!("{} {}", request.method(), request.uri().path());
        if let Err(error) = api.client.note(caller.who(), &action, "", &format!("from {peer}")).await {
            return Problem::from(error).into_response();
        }
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_logins_are_counted_for_a_minute() {
        let (mut failures, now) = (Failures::default(), clock::mono());
        let peer = |n: u8| IpAddr::from([127, 0, 0, n]);
        assert_eq!((failures.count(peer(1), now), failures.count(peer(1), now)), (1, 2));
        assert_eq!(failures.count(peer(2), now), 1);
        assert_eq!(failures.count(peer(1), now + clock::ms(limits::LOGIN_WINDOW_MS)), 1);
        for n in 0..2 * limits::LOGIN_PEERS_MAX as u32 {
            failures.count(IpAddr::from(n.to_be_bytes()), now);
        }
        assert!(failures.by_peer.len() <= limits::LOGIN_PEERS_MAX);
    }

    #[test]
    fn pages_of_other_sites_are_kept_out() {
        let asked = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            same_machine(&headers).is_ok()
        };
        assert!(asked("localhost:8700", None) && asked("127.0.0.1:8700", None) && asked("[::1]:8700", None));
        assert!(asked("localhost", Some("http://localhost")));
        assert!(asked("localhost:8700", Some("http://localhost:8700")));
        assert!(!asked("evil.example:8700", None) && !asked("localhost:8700", Some("http://evil.example")));
        assert!(!asked("localhost:8700", Some("null")) && !asked("127.0.0.1.evil.example", None));
    }
}
