//! Values of the command line that need more than a parser: payloads and due times.

use super::args::DueArgs;
use super::error::CliError;
use crate::limits;
use crate::model::slice::parse_duration_ms;
use crate::model::{FieldError, Reason, UnixMs};
use bytes::Bytes;
use std::io::Read;

/// When a task shall be due, as it was written; Redis's clock says what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At once.
    Now,
    /// So many ms from now.
    In(i64),
    /// At this instant.
    At(UnixMs),
}

/// Reads `--in` and `--at`.
pub fn when(args: &DueArgs) -> Result<When, FieldError> {
    match (&args.wait, &args.at) {
        (Some(wait), _) => parse_duration_ms("in", wait).map(When::In),
        (None, Some(at)) => {
            UnixMs::parse_rfc3339(at).map(When::At).map_err(|error| FieldError { field: "at", ..error })
        }
        (None, None) => Ok(When::Now),
    }
}

/// Reads `--payload`: text, `@FILE`, or `-` for stdin. Stops reading one byte above the limit.
pub fn payload(text: &str) -> Result<Bytes, CliError> {
    let bounded = |reader: &mut dyn Read, from: &str| -> Result<Vec<u8>, CliError> {
        let mut bytes = Vec::new();
        let most = limits::PAYLOAD_MAX_BYTES as u64 + 1;
        reader
            .take(most)
            .read_to_end(&mut bytes)
            .map_err(|error| CliError::usage("payload", format!("{from} cannot be read: {error}")))?;
        Ok(bytes)
    };
    let bytes = match text {
        "-" => bounded(&mut std::io::stdin().lock(), "stdin")?,
        _ => match text.strip_prefix('@') {
            Some(path) => {
                let mut file = std::fs::File::open(path)
                    .map_err(|error| CliError::usage("payload", format!("{path} cannot be read: {error}")))?;
                bounded(&mut file, path)?
            }
            None => text.as_bytes().to_vec(),
        },
    };
    if bytes.len() > limits::PAYLOAD_MAX_BYTES {
        let detail = format!(
            "has more than {} bytes: store large data elsewhere and send its address",
            limits::PAYLOAD_MAX_BYTES
        );
        return Err(FieldError::new("payload", Reason::TooLong, detail).into());
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_name_their_flag() {
        let args = |wait: Option<&str>, at: Option<&str>| DueArgs {
            wait: wait.map(str::to_owned),
            at: at.map(str::to_owned),
        };
        assert_eq!(when(&args(None, None)), Ok(When::Now));
        assert_eq!(when(&args(Some("2147483648ms"), None)), Ok(When::In(2_147_483_648)));
        assert_eq!(
            when(&args(None, Some("2026-12-24T18:00:00+01:00"))),
            Ok(When::At(UnixMs(1_798_131_600_000)))
        );
        let code = |error: FieldError| (error.field, error.reason.code());
        assert_eq!(when(&args(Some("-1s"), None)).map_err(code), Err(("in", "out_of_range")));
        assert_eq!(when(&args(None, Some("soon"))).map_err(code), Err(("at", "invalid_type")));
    }

    #[test]
    fn payloads_come_from_text_and_files() {
        assert_eq!(payload("text").unwrap(), "text");
        assert_eq!(payload("").unwrap(), "");
        let path = std::env::temp_dir().join(format!("minutehand-{}", uuid::Uuid::new_v4()));
        std::fs::write(&path, b"\x00\xff").unwrap();
        let at = format!("@{}", path.display());
        assert_eq!(payload(&at).unwrap(), &b"\x00\xff"[..]);
        std::fs::write(&path, vec![1; limits::PAYLOAD_MAX_BYTES]).unwrap();
        assert_eq!(payload(&at).unwrap().len(), limits::PAYLOAD_MAX_BYTES);
        std::fs::write(&path, vec![1; limits::PAYLOAD_MAX_BYTES + 1]).unwrap();
        assert_eq!(payload(&at).unwrap_err().code, "too_long");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(payload(&at).unwrap_err().field.as_deref(), Some("payload"));
    }
}
