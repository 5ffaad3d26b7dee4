//! Who makes a request, and what they may.

use super::Api;
use super::error::Problem;
use crate::client::{Client, TaskView};
use crate::model::TaskId;
use crate::model::access::QueuePattern;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use std::sync::Arc;

/// Who makes a request; the access layer puts it there.
#[derive(Debug, Clone)]
pub(super) struct Caller(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// For histories: `http:127.0.0.1` or `token:<name>`.
    who: String,
    /// Patterns of queues; none for all.
    queues: Vec<QueuePattern>,
}

impl Caller {
    pub fn new(who: String, queues: Vec<QueuePattern>) -> Self {
        Self(Arc::new(Inner { who, queues }))
    }

    /// Its name in histories.
    pub fn who(&self) -> &str {
        &self.0.who
    }

    /// Whether it may see every queue.
    pub fn sees_all(&self) -> bool {
        self.0.queues.is_empty()
    }

    /// Whether it has to do with a queue.
    pub fn has(&self, queue: &str) -> bool {
        self.sees_all() || self.0.queues.iter().any(|pattern| pattern.fits(queue))
    }

    /// Refuses a queue that is none of its own.
    pub fn must_have(&self, queue: &str) -> Result<(), Problem> {
        if self.has(queue) {
            return Ok(());
        }
        Err(forbidden(format!("this token is not for queue {queue}")))
    }

    /// Refuses what concerns every queue where it does not have all of them.
    pub fn must_have_all(&self) -> Result<(), Problem> {
        if self.sees_all() {
            return Ok(());
        }
        Err(forbidden("this concerns every queue, and this token is for some only"))
    }

    /// Refuses a task that was looked up and is of a queue that is none of its own.
    pub fn must_see(&self, task: &TaskView) -> Result<(), Problem> {
        if self.sees_all() {
            return Ok(());
        }
        match &task.queue {
            Some(queue) => self.must_have(queue),
            None => Err(forbidden("the task has ended, so its queue is not known any more")),
        }
    }

    /// Refuses a task of a queue that is none of its own.
    pub async fn must_have_task(&self, client: &Client, id: TaskId) -> Result<(), Problem> {
        if self.sees_all() {
            return Ok(());
        }
        match client.get(id).await? {
            Some(task) => self.must_see(&task),
            None => Err(Problem::not_found(format!("there is no task {id}"))),
        }
    }
}

pub(super) fn forbidden(message: impl Into<String>) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", message)
}

impl FromRequestParts<Api> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| forbidden("nobody is known to have asked"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_queues() {
        let caller = Caller::new("t".into(), vec!["push.*".parse().unwrap(), "mail".parse().unwrap()]);
        assert!(caller.has("push.sms") && caller.has("mail"));
        assert!(!caller.has("mail.eu") && !caller.has("pus") && !caller.sees_all());
        assert_eq!(caller.must_have("x").unwrap_err().status(), StatusCode::FORBIDDEN);
        assert!(Caller::new("t".into(), Vec::new()).must_have_all().is_ok());
    }
}
