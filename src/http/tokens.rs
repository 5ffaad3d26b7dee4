//! `/v1/tokens` and `/v1/notes`: who may come in, and what operators did.

use super::Api;
use super::caller::Caller;
use super::error::Problem;
use super::wire::{Asked, Out, Wire};
use crate::client::NewToken;
use crate::limits;
use crate::model::{FieldError, Reason, UnixMs};
use crate::store::access::{Note, TokenRecord};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A token without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "id": "5be07a11c9", "name": "ci", "roles": ["submit"], "queues": ["mail", "push.*"],
    "created": "2026-12-01T08:30:00Z", "created_by": "cli:ann"
}))]
pub(super) struct TokenView {
    /// Under which it is kept; the second part of its text.
    id: String,
    /// What people call it.
    name: String,
    /// What it is good for: submit, work, read, operate, admin.
    roles: Vec<String>,
    /// Queues it is good for; none for all.
    queues: Vec<String>,
    /// When it was made.
    created: String,
    /// By whom.
    created_by: String,
    /// From when on it is no longer good.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
}

impl From<TokenRecord> for TokenView {
    fn from(token: TokenRecord) -> Self {
        Self {
            id: token.id,
            name: token.name,
            roles: token.roles.iter().map(ToString::to_string).collect(),
            queues: token.queues.iter().map(|queue| queue.as_str().to_owned()).collect(),
            created: UnixMs(token.created_ms).to_string(),
            created_by: token.created_by,
            expires: token.expires_ms.map(|ms| UnixMs(ms).to_string()),
        }
    }
}

/// All tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TokensAnswer {
    /// By their names.
    tokens: Vec<TokenView>,
}

/// List tokens, without their secrets.
#[utoipa::path(
    get, path = "/v1/tokens", tag = "access",
    responses((status = 200, description = "all tokens", body = TokensAnswer))
)]
pub(super) async fn list(State(api): State<Api>, out: Out) -> Result<Response, Problem> {
    let tokens = api.client.tokens().await?.into_iter().map(TokenView::from).collect();
    out.ok(&TokensAnswer { tokens })
}

/// A token to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "ci", "roles": ["submit"], "queues": ["mail", "push.*"], "expires_after_ms": 2_592_000_000i64 }))]
pub(super) struct NewTokenBody {
    /// What people call it.
    #[schema(min_length = 1, max_length = 64)]
    name: String,
    /// What it is good for: submit, work, read, operate, admin.
    #[schema(min_items = 1)]
    roles: Vec<String>,
    /// Queues it is good for, such as mail or push.*; all if not given.
    #[serde(default)]
    queues: Vec<String>,
    /// How long it is good, in ms; for ever if not given.
    #[serde(default)]
    #[schema(minimum = 1)]
    expires_after_ms: Option<i64>,
}

/// A token that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NewTokenAnswer {
    /// The token; it is shown this once and kept nowhere.
    token: String,
    /// The rest of it.
    #[serde(flatten)]
    view: TokenView,
}

/// Make a token.
#[utoipa::path(
    post, path = "/v1/tokens", tag = "access", request_body = NewTokenBody,
    responses((status = 201, description = "the token, shown this once", body = NewTokenAnswer))
)]
pub(super) async fn create(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Wire(body): Wire<NewTokenBody>,
) -> Result<Response, Problem> {
    let roles = body.roles.iter().map(|role| role.parse()).collect::<Result<_, FieldError>>();
    let queues = body.queues.iter().map(|queue| queue.parse()).collect::<Result<_, FieldError>>();
    let new = NewToken {
        name: body.name,
        roles: roles.map_err(|error| FieldError { field: "roles", ..error })?,
        queues: queues.map_err(|error| FieldError { field: "queues", ..error })?,
        expires_after_ms: body.expires_after_ms,
    };
    let (token, record) = api.client.token_create(new, caller.who()).await?;
    out.with(StatusCode::CREATED, &NewTokenAnswer { token: token.to_string(), view: record.into() })
}

/// What a revocation did.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RevokedAnswer {
    /// The token's id.
    revoked: String,
}

/// Make a token worthless within seconds.
#[utoipa::path(
    delete, path = "/v1/tokens/{id}", tag = "access", params(("id" = String, Path, description = "its id")),
    responses((status = 200, description = "it is gone", body = RevokedAnswer))
)]
pub(super) async fn revoke(
    State(api): State<Api>,
    caller: Caller,
    out: Out,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    if api.client.token_revoke(&id, caller.who()).await? {
        return out.ok(&RevokedAnswer { revoked: id });
    }
    Err(Problem::not_found(format!("there is no token {}", crate::model::field::shown(&id))))
}

/// Which notes.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NotesQuery {
    /// At most so many, 100 if not given.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<usize>,
    /// Where the last answer ended: its `next`.
    cursor: Option<String>,
}

/// What operators did.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NotesAnswer {
    /// The latest first.
    notes: Vec<Note>,
    /// Give it as `cursor` for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// What operators did, the latest first.
#[utoipa::path(
    get, path = "/v1/notes", tag = "access", params(NotesQuery),
    responses((status = 200, description = "a page of notes", body = NotesAnswer))
)]
pub(super) async fn notes(
    State(api): State<Api>,
    out: Out,
    Asked(query): Asked<NotesQuery>,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(100);
    if !(1..=limits::HTTP_PAGE_MAX_ROWS).contains(&limit) {
        let message = format!("{limit} must lie between 1 and {}", limits::HTTP_PAGE_MAX_ROWS);
        return Err(Problem::field("limit", Reason::OutOfRange, message));
    }
    let notes = api.client.notes(query.cursor.as_deref(), limit).await?;
    let next = notes.last().filter(|_| notes.len() == limit).map(|note| note.id.clone());
    out.ok(&NotesAnswer { notes, next })
}
