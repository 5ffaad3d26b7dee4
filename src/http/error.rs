//! The one place where errors become status codes and problem documents.

use crate::client::{ClientError, SubmitError};
use crate::limits;
use crate::model::{FieldError, Reason};
use crate::store::{Cause, StoreError};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::borrow::Cow;
use utoipa::ToSchema;

/// What every refusal and failure looks like: a problem document (RFC 9457) with a stable code.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(example = json!({
    "type": "about:blank", "title": "Unprocessable Entity", "status": 422,
    "code": "out_of_range", "field": "in_ms", "message": "a delay of -1 ms is negative"
}))]
#[schema(as = Problem)]
pub struct ProblemBody {
    /// Always `about:blank`: the code says what kind of problem it is.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: &'static str,
    /// The status.
    #[schema(value_type = u16)]
    status: u16,
    /// What went wrong, for machines: `out_of_range`, `not_found`, `wrong_state`, `unavailable` …
    #[schema(value_type = String)]
    code: Cow<'static, str>,
    /// The field to blame.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// What went wrong, for people.
    message: String,
    #[serde(skip)]
    retry_after_s: Option<u64>,
}

/// A refusal or failure on its way to the caller.
#[derive(Debug, Clone)]
pub struct Problem(Box<ProblemBody>);

impl Problem {
    /// A problem of this kind.
    pub fn new(status: StatusCode, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self(Box::new(ProblemBody {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Problem"),
            status: status.as_u16(),
            code: code.into(),
            field: None,
            message: message.into(),
            retry_after_s: None,
        }))
    }

    /// A field that was refused.
    pub fn field(field: impl Into<String>, reason: Reason, message: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, reason.code(), message);
        problem.0.field = Some(field.into());
        problem
    }

    /// Something that is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Too much at a time; worth another try after a while.
    pub fn too_many(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, code, message).after(1)
    }

    /// The same, naming the field to blame.
    #[must_use]
    pub fn of(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    /// The same, where the field belongs to a row of a list.
    #[must_use]
    pub fn in_row(mut self, list: &str, row: usize) -> Self {
        let field = self.0.field.take().map_or_else(String::new, |field| format!(".{field}"));
        self.of(format!("{list}[{row}]{field}"))
    }

    /// Not now; worth another try after a while.
    pub fn unavailable(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).after(1)
    }

    /// The same, worth another try after so many seconds.
    #[must_use]
    pub fn after(mut self, seconds: u64) -> Self {
        self.0.retry_after_s = Some(seconds);
        self
    }

    /// What it says.
    pub fn body(&self) -> &ProblemBody {
        &self.0
    }

    /// Its status.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// What a row of a bulk answer says of it.
    pub fn row(&self) -> super::bulk::RowError {
        super::bulk::RowError {
            code: self.0.code.to_string(),
            field: self.0.field.clone(),
            message: self.0.message.clone(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, after) = (self.status(), self.0.retry_after_s);
        let mut response = (status, Json(*self.0)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after));
        }
        response
    }
}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        Self::field(error.field, error.reason, error.detail)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match &error {
            StoreError::Refused { cause, .. } => {
                // Memory and disks take longer to mend than a failover.
                let seconds = if matches!(cause, Cause::Oom | Cause::Misconf) { 10 } else { 1 };
                Self::unavailable(format!("unavailable_{}", error.cause()), message).after(seconds)
            }
            StoreError::Unreachable { .. }
            | StoreError::Timeout { .. }
            | StoreError::Overloaded { .. }
            | StoreError::Closed => Self::unavailable("unavailable", message),
            StoreError::CannotPromise { .. } => Self::new(StatusCode::CONFLICT, "cannot_promise", message),
            // What a caller can do nothing about, and its operator can: not an error of this program.
            StoreError::WrongType { .. }
            | StoreError::NoPermission { .. }
            | StoreError::TooOld { .. }
            | StoreError::UnsafeEviction { .. }
            | StoreError::BadUrl { .. } => Self::unavailable("redis", message).after(30),
            StoreError::Script { .. } if message.contains("no more fit") => {
                Self::new(StatusCode::CONFLICT, Reason::TooMany.code(), message)
            }
            StoreError::BadReply { .. } | StoreError::Script { .. } => {
                tracing::error!(%error, "a request failed");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
            }
        }
    }
}

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Self {
        let message = error.to_string();
        match error {
            ClientError::Field(error) => error.into(),
            ClientError::Store(error) => error.into(),
            ClientError::NotFound(_) => Self::not_found(message),
            ClientError::WrongState { .. } => Self::new(StatusCode::CONFLICT, "wrong_state", message),
            ClientError::Conflict { .. } => Self::new(StatusCode::CONFLICT, "version", message),
            ClientError::NotDurable { .. } => Self::unavailable("not_durable", message),
            ClientError::OverBacklog { .. } => Self::too_many("over_backlog", message),
            ClientError::OverQuota { field, .. } => Self::too_many("over_quota", message).of(field).after(10),
            ClientError::FateUnknown(_) => Self::unavailable("fate_unknown", message),
        }
    }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        ClientError::from(error).into()
    }
}

/// For requests that took longer than [`limits::HTTP_TIMEOUT_MS`].
pub(super) fn timed_out() -> Problem {
    let seconds = limits::HTTP_TIMEOUT_MS / 1_000;
    Problem::unavailable(
        "timeout",
        format!("no answer within {seconds} s; what was asked for may or may not have been done"),
    )
}

/// For paths that do not exist.
pub(super) async fn no_such_path(uri: axum::http::Uri) -> Problem {
    Problem::not_found(format!("there is no {}; GET /openapi.json lists what there is", uri.path()))
}

/// For methods that a path does not have.
pub(super) async fn no_such_method(method: axum::http::Method) -> Problem {
    let message = format!("this path has no {method}; GET /openapi.json lists what there is");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_status() {
        let status = |error: StoreError| Problem::from(error).0.status;
        let gone = StoreError::Unreachable { url: "redis://h".into(), cause: "refused".into(), sent: false };
        assert_eq!(status(gone), 503);
        let oom = StoreError::Refused { script: "s", cause: Cause::Oom, detail: "OOM".into() };
        let oom = Problem::from(oom);
        assert_eq!((oom.0.status, &*oom.0.code, oom.0.retry_after_s), (503, "unavailable_oom", Some(10)));
        assert_eq!(status(StoreError::BadReply { script: "s", what: "w".into() }), 500);
        let field = Problem::from(FieldError::new("queue", Reason::BadName, "`a b` has a space"));
        assert_eq!(
            serde_json::to_string(&field.0).unwrap(),
            r#"{"type":"about:blank","title":"Unprocessable Entity","status":422,"code":"bad_name","field":"queue","message":"`a b` has a space"}"#
        );
    }
}
