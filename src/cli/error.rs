//! How a command ends: one enum of exit codes, and errors that say what, where and what to do next.

use super::args::Output;
use crate::model::FieldError;
use crate::settings::{Origin, SettingsError};
use std::fmt;
use std::process::ExitCode;

/// Exit codes. Stable: scripts rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Tried and failed, or done in part.
    Failed = 1,
    /// The command line, a setting or a value is wrong; nothing was done.
    Usage = 2,
    /// There is no such task.
    NotFound = 3,
    /// Redis does not answer. Services wait for it instead.
    Unreachable = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// The exit code that follows.
    pub exit: Exit,
    /// A stable code for machines: `usage`, `setting`, `not_found`, `redis_unreachable`, or the reason of a field.
    pub code: &'static str,
    /// The field, flag or setting to blame.
    pub field: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
}

impl CliError {
    /// A command that was tried and failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, code: "failed", field: None, message: message.into(), hint: None }
    }

    /// A wrong command line.
    pub fn usage(field: &str, message: impl Into<String>) -> Self {
        let field = (!field.is_empty()).then(|| field.to_owned());
        Self { exit: Exit::Usage, code: "usage", field, message: message.into(), hint: None }
    }

    /// Something that is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self { exit: Exit::NotFound, code: "not_found", field: None, message: message.into(), hint: None }
    }

    /// A Redis that does not answer.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Unreachable,
            code: "redis_unreachable",
            field: None,
            message: message.into(),
            hint: None,
        }
    }

    /// The same with what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The object that `--output json` prints on stderr.
    pub fn to_json(&self) -> serde_json::Value {
        let mut error =
            serde_json::json!({ "code": self.code, "field": self.field, "message": self.message });
        if let (Some(hint), Some(error)) = (&self.hint, error.as_object_mut()) {
            error.insert("hint".to_owned(), hint.clone().into());
        }
        serde_json::json!({ "error": error })
    }

    /// Prints it on stderr and gives the exit code.
    pub fn report(&self, output: Output) -> Exit {
        match output {
            Output::Json => eprintln!("{}", self.to_json()),
            Output::Table => eprintln!("error: {self}"),
        }
        self.exit
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CliError {}

impl From<FieldError> for CliError {
    fn from(error: FieldError) -> Self {
        Self {
            exit: Exit::Usage,
            code: error.reason.code(),
            field: Some(error.field.to_owned()),
            message: error.detail,
            hint: None,
        }
    }
}

impl From<SettingsError> for CliError {
    fn from(error: SettingsError) -> Self {
        match error.origin {
            // Who gave a flag knows it by that name.
            Origin::Flag(flag) => {
                Self { code: "setting", ..Self::usage(flag.trim_start_matches('-'), error.detail) }
            }
            origin => {
                let message = format!("{} (from {origin})", error.detail);
                Self { exit: Exit::Usage, code: "setting", field: error.key, message, hint: None }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Reason;

    #[test]
    fn people_and_machines_get_the_same() {
        let error =
            CliError::from(FieldError::new("queue", Reason::BadName, "`a b` has a space")).hint("try a-b");
        assert_eq!(error.to_string(), "queue: `a b` has a space\n  try a-b");
        assert_eq!(
            error.to_json().to_string(),
            r#"{"error":{"code":"bad_name","field":"queue","hint":"try a-b","message":"`a b` has a space"}}"#
        );
        let codes =
            [Exit::Ok, Exit::Failed, Exit::Usage, Exit::NotFound, Exit::Unreachable].map(|exit| exit as u8);
        assert_eq!(codes, [0, 1, 2, 3, 4]);
    }
}
