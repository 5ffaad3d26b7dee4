//! `GET /openapi.json`, made from the code, and `GET /docs`, a page that shows it.

use super::error::ProblemBody;
use super::wire::{JSON, MSGPACK};
use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use utoipa::PartialSchema;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{ContentBuilder, Ref};
use utoipa::openapi::{InfoBuilder, OpenApi, RefOr, ResponseBuilder};

/// The page: no script, style or font from elsewhere.
const PAGE: &str = include_str!("docs.html");

/// Name of the schema of what every refusal looks like.
const PROBLEM: &str = "Problem";

/// Statuses that every operation may answer with beside its own.
const PROBLEMS: [(&str, &str); 10] = [
    ("400", "the body, the path or the query string cannot be read"),
    ("401", "no token, or one that is not good"),
    ("403", "the token is not good for this"),
    ("404", "there is no such thing"),
    ("409", "not in the state that it is in"),
    ("413", "the body is too long"),
    ("415", "a Content-Type that is not understood"),
    ("422", "a field was refused; nothing was changed"),
    ("429", "too much at a time, or too many failed logins; Retry-After says when to come again"),
    ("503", "Redis is away, full or late; Retry-After says when to come again"),
];

/// The document, with what all operations have in common.
pub(super) fn finish(mut api: OpenApi) -> OpenApi {
    api.info = InfoBuilder::new()
        .title("Minutehand")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Schedules work that must start at a given time. Bodies are JSON or msgpack: Content-Type says what \
             comes, Accept what shall come back. Every refusal is a problem document with a code, the field to blame \
             and a message.",
        ))
        .build();
    for item in api.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            complete(operation);
        }
    }
    if let Some(components) = &mut api.components {
        components.schemas.insert(PROBLEM.to_owned(), ProblemBody::schema());
    }
    api
}

fn complete(operation: &mut Operation) {
    if let Some(RefOr::T(body)) = &mut operation.request_body
        && let Some(json) = body.content.get(JSON).cloned()
    {
        body.content.insert(MSGPACK.to_owned(), json);
    }
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response
            && let Some(json) = response.content.get(JSON).cloned()
        {
            response.content.insert(MSGPACK.to_owned(), json);
        }
    }
    for (status, said) in PROBLEMS {
        operation.responses.responses.entry(status.to_owned()).or_insert_with(|| {
            let schema = RefOr::Ref(Ref::from_schema_name(PROBLEM));
            let content = ContentBuilder::new().schema(Some(schema)).build();
            ResponseBuilder::new()
                .description(said)
                .content("application/problem+json", content)
                .build()
                .into()
        });
    }
}

/// The document's text.
pub(super) fn text(api: &OpenApi) -> String {
    // It is made of strings and numbers.
    serde_json::to_string(api).unwrap_or_default()
}

/// The page.
pub(super) async fn page() -> Response {
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
    let headers = [(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy))];
    (headers, Html(PAGE)).into_response()
}
