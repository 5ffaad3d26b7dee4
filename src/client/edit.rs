//! Changing what a task is, in whatever state it is.

use super::{Client, ClientError, NewTask, repeat, wrong_state};
use crate::limits;
use crate::model::field::{FieldError, Reason};
use crate::model::{ExecutionId, Retry, Spec, State, TaskId, UnixMs};
use crate::store::intake::{self, EditAnswer, WishAnswer};
use crate::store::{StoreError, queue, read};
use bytes::Bytes;

/// Times that an edit is made anew because somebody else changed the same task.
const CLASHES_MAX: u32 = 20;

/// What of a task shall change. What is not named stays as it is; a time of 0 takes a time-out away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edit {
    /// The payload.
    pub payload: Option<Bytes>,
    /// Tries after the first one, 0 to 254.
    pub retries: Option<u32>,
    /// Waits before them; its number of retries counts for nothing.
    pub backoff: Option<Retry>,
    /// Longest run of its handler, in ms.
    pub timeout_ms: Option<i64>,
    /// Lease of the started task, in ms; 0 for the usual one.
    pub lease_ms: Option<i64>,
    /// It is skipped when it has not started this many ms after it is due.
    pub start_within_ms: Option<i64>,
    /// It expires this many ms after it is due, wherever it is then.
    pub expire_after_ms: Option<i64>,
    /// The subscription that hears of its end: a name, or a web address.
    pub notify: Option<String>,
}

/// What an edit did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Edited {
    /// The state the task was in: pending, running or dead. What runs goes on with the payload and the time-outs it
    /// began with; its retries and total time-out count from now on, the rest from the next attempt on.
    pub state: State,
    /// Whether this call changed something.
    pub changed: bool,
}

impl Edit {
    /// The changed spec of a task that is due at `due`, and what is changed, in words.
    pub fn apply(&self, spec: &Spec, due: UnixMs) -> Result<(Spec, Vec<&'static str>), FieldError> {
        let mut new = spec.clone();
        if let Some(payload) = &self.payload {
            new.payload = payload.clone();
        }
        if let Some(backoff) = self.backoff {
            new.retry = backoff.with_retries(u32::from(new.retry.retries))?;
        }
        if let Some(retries) = self.retries {
            new.retry = new.retry.with_retries(retries)?;
        }
        let small = |field, ms: i64| match u32::try_from(ms) {
            Ok(0) => Ok(None),
            Ok(ms) => Ok(Some(ms)),
            Err(_) => Err(FieldError::new(
                field,
                Reason::OutOfRange,
                format!("{ms} ms must lie between 0 and {}", u32::MAX),
            )),
        };
        if let Some(ms) = self.timeout_ms {
            new.timeout_ms = small("timeout", ms)?;
        }
        if let Some(ms) = self.lease_ms {
            new.lease_ms = small("lease", ms)?;
        }
        let later = |field, ms: i64| match ms {
            0 => Ok(None),
            ms if ms < 0 => Err(FieldError::new(field, Reason::OutOfRange, format!("{ms} ms is negative"))),
            ms => Ok(Some(UnixMs(due.plus(ms).0.min(limits::DUE_MAX_MS)))),
        };
        if let Some(ms) = self.start_within_ms {
            new.start_before = later("start_within", ms)?;
        }
        if let Some(ms) = self.expire_after_ms {
            new.deadline = later("expire_after", ms)?;
        }
        if self.notify.is_some() {
            new.extras.notify.clone_from(&self.notify);
        }
        new.check()?;
        let named = [
            (new.payload != spec.payload, "payload"),
            (new.retry != spec.retry, "retries"),
            (new.timeout_ms != spec.timeout_ms, "time-out"),
            (new.lease_ms != spec.lease_ms, "lease"),
            (new.start_before != spec.start_before, "latest start"),
            (new.deadline != spec.deadline, "total time-out"),
            (new.extras.notify != spec.extras.notify, "who hears of its end"),
        ];
        let changed = named.into_iter().filter(|(changed, _)| *changed).map(|(_, name)| name).collect();
        Ok((new, changed))
    }
}

impl Client {
    /// The edit with its payload sealed, and by which key, where this client or the task has keys.
    async fn sealed_edit(&self, edit: &Edit, spec: &Spec) -> Result<(Edit, Option<String>), ClientError> {
        let Some(payload) = &edit.payload else { return Ok((edit.clone(), None)) };
        if self.keys.is_none() && spec.extras.sealed.is_some() {
            let detail = "of this task is sealed; give the keys to replace it";
            return Err(FieldError::new("payload", Reason::InvalidType, detail).into());
        }
        let queue = self.space().group_of(spec.lane.group()).await?.queue;
        let task = self.sealed(NewTask { payload: payload.clone(), ..NewTask::to(queue) })?;
        Ok((Edit { payload: Some(task.payload), ..edit.clone() }, task.extras.sealed))
    }

    /// Changes a task that is pending, running or dead; `who` goes into its history. With an `execution`, only while
    /// that one has the grant: for handlers that edit their own task.
    pub async fn edit(
        &self,
        id: TaskId,
        edit: &Edit,
        execution: Option<ExecutionId>,
        who: &str,
    ) -> Result<Edited, ClientError> {
        let space = self.space();
        let stale = |id| ClientError::WrongState {
            id,
            state: "not under that grant any more".to_owned(),
            advice: "its outcome and its edits count no longer: another attempt has it, or it has ended",
        };
        if execution.is_some_and(|execution| execution.id != id) {
            let detail = format!("is one of another task than {id}");
            return Err(FieldError::new("execution", Reason::OutOfRange, detail).into());
        }
        let mut edit = edit.clone();
        if let Some(notify) = &edit.notify {
            let table = repeat(space, || queue::refresh(space)).await?;
            edit.notify = Some(super::outcomes::named(space, &table, notify).await?);
        }
        for _ in 0..CLASHES_MAX {
            let Some(found) = repeat(space, || read::get(space, id)).await? else {
                return Err(ClientError::NotFound(id));
            };
            let grant = execution.map(|execution| execution.grant);
            if grant.is_some() && found.run.as_ref().map(|run| run.grant) != grant {
                return Err(stale(id));
            }
            let Some(bytes) = &found.spec else {
                return Err(wrong_state(id, WishAnswer::Ended(found.state)));
            };
            let spec = Spec::decode(bytes, id.home().start()).map_err(|error| StoreError::Script {
                name: "intake.edit",
                detail: format!("task {id} cannot be read: {error}; `minutehand check` says more"),
            })?;
            let (edits, due) = found.place.map_or((0, spec.due), |place| (place.edits, place.due));
            let (edit, sealed) = self.sealed_edit(&edit, &spec).await?;
            let (mut new, changed) = edit.apply(&spec, due)?;
            if edit.payload.is_some() {
                new.extras.sealed = sealed;
            }
            // A repeated call whose first sending arrived finds that what it wants stands.
            if changed.is_empty() {
                return Ok(Edited { state: found.state, changed: false });
            }
            let what = format!("edited: {}", changed.join(", "));
            let answer = repeat(space, || intake::edit(space, who, id, grant, edits, &new, &what)).await?;
            match answer {
                EditAnswer::Done(state) => return Ok(Edited { state, changed: true }),
                EditAnswer::Changed => {}
                EditAnswer::Stale => return Err(stale(id)),
                EditAnswer::Ended(state) => return Err(wrong_state(id, WishAnswer::Ended(state))),
                EditAnswer::Unknown => return Err(ClientError::NotFound(id)),
            }
        }
        let detail = format!("task {id} was changed by others {CLASHES_MAX} times in a row; try again");
        Err(StoreError::Script { name: "intake.edit", detail }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spec::tests::plain;

    #[test]
    fn what_is_not_named_stays_and_zero_takes_away() {
        let spec = plain(b"old");
        let due = spec.due.plus(5_000);
        let edit = Edit {
            payload: Some("new".into()),
            retries: Some(9),
            timeout_ms: Some(2_000),
            expire_after_ms: Some(60_000),
            ..Edit::default()
        };
        let (new, changed) = edit.apply(&spec, due).unwrap();
        assert_eq!(changed, ["payload", "retries", "time-out", "total time-out"]);
        assert_eq!((new.retry.retries, new.retry.base_ms), (9, spec.retry.base_ms));
        assert_eq!((new.timeout_ms, new.deadline), (Some(2_000), Some(due.plus(60_000))));
        let back = Edit { timeout_ms: Some(0), expire_after_ms: Some(0), ..Edit::default() };
        let (less, changed) = back.apply(&new, due).unwrap();
        assert_eq!((less.timeout_ms, less.deadline), (None, None));
        assert_eq!(changed, ["time-out", "total time-out"]);
        assert_eq!(Edit::default().apply(&spec, due).unwrap().1, Vec::<&str>::new());
        let field = |edit: Edit| edit.apply(&spec, due).unwrap_err().field;
        assert_eq!(field(Edit { retries: Some(255), ..Edit::default() }), "retries");
        assert_eq!(field(Edit { lease_ms: Some(10), ..Edit::default() }), "lease");
        assert_eq!(field(Edit { timeout_ms: Some(-1), ..Edit::default() }), "timeout");
        assert_eq!(field(Edit { start_within_ms: Some(-1), ..Edit::default() }), "start_within");
        let long = vec![0; limits::PAYLOAD_MAX_BYTES + 1];
        assert_eq!(field(Edit { payload: Some(long.into()), ..Edit::default() }), "payload");
    }
}
