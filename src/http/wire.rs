//! Bodies: JSON or msgpack, by `Content-Type` on the way in and `Accept` on the way out.

use super::error::Problem;
use crate::limits;
use crate::model::{FieldError, Reason};
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::convert::Infallible;

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Msgpack,
}

pub(super) const JSON: &str = "application/json";
pub(super) const MSGPACK: &str = "application/msgpack";

impl Format {
    fn of(text: &str) -> Option<Self> {
        match text.split(';').next().unwrap_or("").trim().to_ascii_lowercase().as_str() {
            "application/json" | "text/json" => Some(Self::Json),
            "application/msgpack" | "application/x-msgpack" | "application/vnd.msgpack" => {
                Some(Self::Msgpack)
            }
            _ => None,
        }
    }

    /// What the sender says that its body is.
    pub fn content(headers: &HeaderMap) -> Option<Self> {
        Self::of(headers.get(header::CONTENT_TYPE)?.to_str().ok()?)
    }

    fn accepted(headers: &HeaderMap) -> Self {
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
        accept
            .split(',')
            .find_map(Self::of)
            .or_else(|| Self::content(headers).filter(|_| accept.is_empty() || accept.contains("*/*")))
            .unwrap_or(Self::Json)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Json => JSON,
            Self::Msgpack => MSGPACK,
        }
    }
}

/// How the caller wants its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Out(pub Format);

impl<S: Sync> FromRequestParts<S> for Out {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(Format::accepted(&parts.headers)))
    }
}

impl Out {
    /// 200 with a value.
    pub fn ok<T: Serialize>(self, value: &T) -> Result<Response, Problem> {
        self.with(StatusCode::OK, value)
    }

    /// A value.
    pub fn with<T: Serialize>(self, status: StatusCode, value: &T) -> Result<Response, Problem> {
        let bytes = self.encode(value)?;
        let kind = HeaderValue::from_static(self.0.name());
        Ok((status, [(header::CONTENT_TYPE, kind)], bytes).into_response())
    }

    /// A value's bytes.
    pub fn encode<T: Serialize>(self, value: &T) -> Result<Vec<u8>, Problem> {
        let bytes = match self.0 {
            Format::Json => serde_json::to_vec(value).map_err(|error| error.to_string()),
            Format::Msgpack => rmp_serde::to_vec_named(value).map_err(|error| error.to_string()),
        };
        bytes.map_err(|error| {
            tracing::error!(error, "an answer could not be written");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the answer could not be written")
        })
    }

    /// A payload as it is shown: text where it is text, bytes in msgpack, else base64.
    pub fn payload(self, bytes: &[u8]) -> (Option<Payload>, Option<String>) {
        match (self.0, std::str::from_utf8(bytes)) {
            (Format::Msgpack, _) => (Some(Payload(Bytes::copy_from_slice(bytes))), None),
            (Format::Json, Ok(_)) => (Some(Payload(Bytes::copy_from_slice(bytes))), None),
            (Format::Json, Err(_)) => (None, Some(STANDARD.encode(bytes))),
        }
    }
}

/// A body that was read and understood.
#[derive(Debug)]
pub(super) struct Wire<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Wire<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let format = Format::content(request.headers()).ok_or_else(unknown_type)?;
        let bytes = read(request.into_body(), limits::HTTP_BODY_MAX_BYTES).await?;
        decode(format, &bytes).map(Self)
    }
}

/// A body that may be left out.
#[derive(Debug)]
pub(super) struct WireOr<T>(pub T);

impl<T: DeserializeOwned + Default, S: Sync> FromRequest<S> for WireOr<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let format = Format::content(request.headers());
        let bytes = read(request.into_body(), limits::HTTP_BODY_MAX_BYTES).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        decode(format.ok_or_else(unknown_type)?, &bytes).map(Self)
    }
}

fn unknown_type() -> Problem {
    let message = format!("Content-Type must be {JSON} or {MSGPACK}");
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
}

/// A whole body of at most so many bytes.
pub(super) async fn read(body: Body, max_bytes: usize) -> Result<Bytes, Problem> {
    match http_body_util::Limited::new(body, max_bytes).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) => Err(broken(&*error, max_bytes)),
    }
}

/// A body that could not be read.
fn broken(error: &(dyn std::error::Error + 'static), max_bytes: usize) -> Problem {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return too_large(max_bytes);
        }
        cause = error.source();
    }
    Problem::new(StatusCode::BAD_REQUEST, "bad_body", format!("the body could not be read: {error}"))
}

pub(super) fn too_large(max_bytes: usize) -> Problem {
    let message = format!("the body is longer than {max_bytes} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}

/// Reads a value; an error names the field where one is to blame.
pub(super) fn decode<T: DeserializeOwned>(format: Format, bytes: &[u8]) -> Result<T, Problem> {
    if is_list(format, bytes) {
        // A list of values without their names would be read too.
        return Err(Problem::field("body", Reason::InvalidType, "a list is given; an object was asked for"));
    }
    match format {
        Format::Json => {
            let mut json = serde_json::Deserializer::from_slice(bytes);
            let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
                let path = error.path().to_string();
                let error = error.into_inner();
                misread(path, &error.to_string(), error.is_data())
            })?;
            json.end().map_err(|error| misread(".".to_owned(), &error.to_string(), false))?;
            Ok(value)
        }
        Format::Msgpack => {
            let mut msgpack = rmp_serde::Deserializer::from_read_ref(bytes);
            let value = serde_path_to_error::deserialize(&mut msgpack).map_err(|error| {
                let path = error.path().to_string();
                let error = error.into_inner();
                let data = matches!(
                    error,
                    rmp_serde::decode::Error::Syntax(_)
                        | rmp_serde::decode::Error::TypeMismatch(_)
                        | rmp_serde::decode::Error::OutOfRange
                        | rmp_serde::decode::Error::Uncategorized(_)
                        | rmp_serde::decode::Error::Utf8Error(_)
                );
                misread(path, &error.to_string(), data)
            })?;
            Ok(value)
        }
    }
}

fn is_list(format: Format, bytes: &[u8]) -> bool {
    match format {
        Format::Json => bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'['),
        Format::Msgpack => bytes.first().is_some_and(|byte| matches!(byte, 0x90..=0x9f | 0xdc | 0xdd)),
    }
}

/// A body that is not what was asked for. `data`: it is well-formed, and says something else.
fn misread(path: String, said: &str, data: bool) -> Problem {
    let said = said.split(" at line ").next().unwrap_or(said);
    let quoted = said.split('`').nth(1).unwrap_or_default().to_owned();
    let inside = (!matches!(path.as_str(), "." | "?" | "")).then_some(path);
    if said.starts_with("missing field") {
        let field = inside.map_or(quoted.clone(), |path| format!("{path}.{quoted}"));
        return Problem::field(field, Reason::Missing, "this field must be given");
    }
    if said.starts_with("unknown field") {
        // The path of an unknown field ends with it.
        return Problem::field(inside.unwrap_or(quoted), Reason::Unknown, said);
    }
    match inside {
        Some(path) => Problem::field(path, Reason::InvalidType, said),
        None if data => Problem::field("body", Reason::InvalidType, said),
        None => Problem::new(StatusCode::BAD_REQUEST, "bad_body", format!("the body cannot be read: {said}")),
    }
}

/// A query string; an error names the field.
#[derive(Debug)]
pub(super) struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(error) => {
                let text = error.body_text();
                let said = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
                let (path, said) = match said.split_once(": ") {
                    Some((path, rest)) if !path.contains(' ') => (path.to_owned(), rest),
                    _ => ("query".to_owned(), said),
                };
                Err(misread(path, said, true))
            }
        }
    }
}

/// A payload in a body: text, or bytes where the format has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload(pub Bytes);

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&String::from_utf8_lossy(&self.0))
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl serde::de::Visitor<'_> for Read {
            type Value = Payload;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E>(self, text: &str) -> Result<Payload, E> {
                Ok(Payload(Bytes::copy_from_slice(text.as_bytes())))
            }
            fn visit_string<E>(self, text: String) -> Result<Payload, E> {
                Ok(Payload(text.into()))
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Payload, E> {
                Ok(Payload(Bytes::copy_from_slice(bytes)))
            }
            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Payload, E> {
                Ok(Payload(bytes.into()))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// The payload that a body gives, in either of its two fields.
pub(super) fn payload(text: Option<Payload>, base64: Option<&str>) -> Result<Option<Bytes>, FieldError> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(FieldError::new(
            "payload_base64",
            Reason::InvalidType,
            "payload is given as well; only one of the two can hold",
        )),
        (Some(payload), None) => Ok(Some(payload.0)),
        (None, Some(text)) => match STANDARD.decode(text) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) => {
                Err(FieldError::new("payload_base64", Reason::InvalidType, format!("not base64: {error}")))
            }
        },
        (None, None) => Ok(None),
    }
}

/// A header's text, where it has one.
pub(super) fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Problem> {
    match headers.get(name) {
        None => Ok(None),
        Some(value) => match value.to_str() {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Problem::field(
                name.to_owned(),
                Reason::InvalidType,
                "the header has characters other than visible ASCII",
            )),
        },
    }
}

/// A text shown to people: cut where it is long.
pub(super) fn clipped(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        Some((at, _)) => Cow::Owned(format!("{}…", &text[..at])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Body {
        queue: String,
        #[serde(default)]
        in_ms: Option<i64>,
        #[serde(default)]
        payload: Option<Payload>,
    }

    fn refused(text: &str) -> String {
        let problem = decode::<Body>(Format::Json, text.as_bytes()).unwrap_err();
        let value = serde_json::to_value(problem.body()).unwrap();
        format!("{} {} {}", value["status"], value["code"].as_str().unwrap(), value["field"])
    }

    #[test]
    fn what_cannot_be_read_names_its_field() {
        assert_eq!(refused(r#"{"queue":"q","in_ms":"12"}"#), r#"422 invalid_type "in_ms""#);
        assert_eq!(refused(r#"{"queue":"q","in_ms":1.5}"#), r#"422 invalid_type "in_ms""#);
        assert_eq!(refused(r#"{"queue":"q","in_ms":1e400}"#), r#"422 invalid_type "in_ms""#);
        assert_eq!(refused(r#"{"queue":"q","in_ms":NaN}"#), r#"422 invalid_type "in_ms""#);
        assert_eq!(refused(r#"{"in_ms":1}"#), r#"422 missing "queue""#);
        assert_eq!(refused(r#"{"queue":"q","x":1}"#), r#"422 unknown "x""#);
        assert_eq!(
            refused("[]"),
            r#"422 missing "queue""#.replace("missing", "invalid_type").replace("queue", "body")
        );
        assert_eq!(refused("{"), "400 bad_body null");
        assert_eq!(refused(r#"{"queue":"q"} x"#), "400 bad_body null");
    }

    #[test]
    fn payloads_are_text_or_bytes() {
        let json: Body = decode(Format::Json, br#"{"queue":"q","payload":"a\u0000"}"#).unwrap();
        assert_eq!(json.payload, Some(Payload(Bytes::from_static(b"a\0"))));
        let bytes = [&[0x82, 0xa5][..], b"queue", &[0xa1], b"q", &[0xa7], b"payload", &[0xc4, 2, 0xff, 0xfe]]
            .concat();
        let msgpack: Body = decode(Format::Msgpack, &bytes).unwrap();
        assert_eq!(msgpack.payload, Some(Payload(Bytes::from_static(b"\xff\xfe"))));
        assert_eq!(rmp_serde::to_vec(&msgpack.payload).unwrap(), [0xc4, 2, 0xff, 0xfe]);
        assert_eq!(payload(None, Some("//4=")), Ok(Some(Bytes::from_static(b"\xff\xfe"))));
        assert_eq!(payload(None, Some("?")).unwrap_err().field, "payload_base64");
    }
}
