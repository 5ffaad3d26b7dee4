//! Executors that live elsewhere and poll: a worker in any language, seen through a door such as HTTP.
//!
//! Each worker is an executor with an inbox of its own; the door takes for it, notes what it hands over, and reports
//! outcomes under the grants that the worker gives back. It keeps nothing that another door must know: when a worker was
//! last reported, how long its tasks take, a subscription, and what it will hand over in a moment. So a worker may ask any
//! pod, each time another one.
//!
//! A task that is handed over is *offered*, for as long as its lease: nobody knows yet whether the answer arrived. It is
//! *started* with the worker's first word about it, and only a lapse after that counts as a failure. What cannot be
//! handed over, because the worker went away meanwhile, is given back; and so is what a worker that names what has
//! arrived does not name.
//!
//! For workers whose tasks are short some are fetched ahead, so that the next one is there when they ask: they lie here,
//! if the worker asks at no other door, else in its inbox. And Redis is told of a hand-over only if it lasts, as executors
//! say `start` only of tasks that do. What a worker does not come for goes back within a tenth of a second or two.
//!
//! How long tasks run is what the worker says, else the time from hand-over to outcome. Routing weighs by it, and
//! automatic leases follow from it. A door learns of the tasks that it has handed over itself; where workers ask several,
//! each learns of its share.

mod known;
mod worker;

pub use worker::{Handed, Held, WORKER_ID_MAX_BYTES, Wish, Worker};

use crate::executor::hands::{self, Queue, Recent};
use crate::executor::inbox::Queues;
use crate::executor::link::{self, Outcome, Take, Wake};
use crate::executor::{backoff, report};
use crate::model::{Bucket, ExecutionId, Grant, LaneGroup, Progress, QueueName, Spec, TaskId, UnixMs};
use crate::store::member::{self, Offer};
use crate::store::run::{self, AckAnswer, AckRow, MarkAnswer, StartAnswer, StartRow};
use crate::store::{Space, StoreError, Subscription, due};
use crate::{clock, limits};
use known::{Given, Known, Ran, TELL_LATER};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use worker::handed;

/// Notes of progress that are written at the same time.
const MARKS_AT_ONCE: usize = 32;

/// Hands tasks to workers that poll. Cheap to clone.
#[derive(Clone)]
pub struct Door {
    inner: Arc<Inner>,
}

struct Inner {
    space: Space,
    known: Mutex<HashMap<String, Known>>,
    /// Bytes of what lies here for workers.
    shelves: Arc<AtomicUsize>,
    /// Executions that ended here lately.
    recent: Mutex<Recent>,
    /// Queues of which tasks were handed over here.
    queues: Queues,
    /// Somebody reports how long their tasks run.
    reporting: AtomicBool,
    /// Tasks for which progress was kept through this door; dropped when they end through it.
    marked: Mutex<HashSet<TaskId>>,
    /// Somebody looks after what workers leave behind.
    minding: AtomicBool,
    shutdown: CancellationToken,
}

/// A poll that is open.
struct Open<'a> {
    door: &'a Door,
    worker: &'a str,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.door.with(self.worker, |known| known.open = known.open.saturating_sub(1));
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Door({:?})", self.inner.space)
    }
}

impl Door {
    /// A door; `shutdown` ends what waits at it.
    pub fn new(space: Space, shutdown: CancellationToken) -> Self {
        let inner = Inner {
            space,
            known: Mutex::default(),
            shelves: Arc::default(),
            recent: Mutex::default(),
            queues: Queues::new(HashMap::new(), None),
            reporting: AtomicBool::new(false),
            marked: Mutex::default(),
            minding: AtomicBool::new(false),
            shutdown,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Looks at what is known of a worker, if anything is.
    fn with<T>(&self, worker: &str, look: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.inner.known.lock().get_mut(worker).map(look)
    }

    /// Hands over at most as many tasks as the worker wishes and has slots for; waits for the first.
    ///
    /// Dropping the future loses nothing: what was taken meanwhile is given back.
    pub async fn poll(&self, worker: &Worker, wish: Wish) -> Result<Vec<Handed>, StoreError> {
        let until = clock::mono() + wish.wait;
        let id = Worker::executor(&worker.id);
        self.report(worker, wish.in_hand).await?;
        let mut wakes = self.kept(&worker.id);
        if wakes.is_none() && self.with(&worker.id, |known| known.is_quick()) == Some(true) {
            wakes = Some(member::inbox_wakes(&self.inner.space, &id));
        }
        let _open =
            self.with(&worker.id, |known| known.open += 1).map(|()| Open { door: self, worker: &worker.id });
        loop {
            self.report(worker, wish.in_hand).await?;
            while let Some(wake) = wakes.as_mut().and_then(Subscription::try_recv) {
                self.heed(&worker.id, &wake.payload);
            }
            let (to, handed) = oneshot::channel();
            let (door, taker) = (self.clone(), worker.clone());
            // It runs to its end even if nobody waits for it any more.
            tokio::spawn(async move {
                let found = door.take(&taker, wish).await;
                if let Err(Ok(unheard)) = to.send(found)
                    && !unheard.is_empty()
                {
                    let rows: Vec<_> =
                        unheard.iter().map(|task| (task.execution.id, task.execution.grant)).collect();
                    door.give_back(&Worker::executor(&taker.id), "the worker went away", &rows).await;
                }
            });
            let handed = handed.await.map_err(|_| StoreError::Closed)??;
            let now = clock::mono();
            if !handed.is_empty() || now >= until || self.inner.shutdown.is_cancelled() {
                self.keep(&worker.id, wakes);
                return Ok(handed);
            }
            let Some(waiting) = &mut wakes else {
                // What came before the subscription stood is looked for once more.
                wakes = Some(member::inbox_wakes(&self.inner.space, &id));
                continue;
            };
            let poll = (now + clock::ms(limits::POLL_MS)).min(until);
            tokio::select! {
                Some(wake) = waiting.recv() => self.heed(&worker.id, &wake.payload),
                () = tokio::time::sleep_until(poll.into()) => {}
                () = self.inner.shutdown.cancelled() => {}
            }
        }
    }

    /// Hears what an inbox's channel says beside that something is in it.
    fn heed(&self, worker: &str, payload: &[u8]) {
        match Wake::read(payload) {
            Wake::Inbox | Wake::Urgent => {}
            Wake::Cancel(id) => {
                self.with(worker, |known| known.wish(id));
            }
            // Pods recall what is in the inbox; what is not frozen of this comes again.
            Wake::Freeze => {
                let rows = self.with(worker, Known::clear_shelf).unwrap_or_default();
                self.give_back_soon(Worker::executor(worker), "frozen", rows);
            }
        }
    }

    fn give_back_soon(&self, executor: String, cause: &'static str, rows: Vec<(TaskId, Grant)>) {
        if !rows.is_empty() {
            let door = self.clone();
            tokio::spawn(async move { door.give_back(&executor, cause, &rows).await });
        }
    }

    fn kept(&self, id: &str) -> Option<Subscription> {
        self.with(id, |known| known.wakes.take()).flatten()
    }

    fn keep(&self, id: &str, wakes: Option<Subscription>) {
        if let Some(wakes) = wakes {
            self.with(id, |known| known.wakes = Some(wakes));
        }
    }

    /// Says that the worker lives, unless that was said lately and has not changed.
    async fn report(&self, worker: &Worker, in_hand: u32) -> Result<(), StoreError> {
        let now = clock::mono();
        let space = &self.inner.space;
        let offset = space.clock().now_us() - clock::wall_us();
        let record = {
            let mut known = self.inner.known.lock();
            match known.get_mut(&worker.id) {
                Some(known) if known.is_reported(worker, now) => {
                    known.asked = now;
                    return Ok(());
                }
                _ => {}
            }
            if known.len() >= limits::POLL_WORKERS_MAX {
                // Those that have gone without a word.
                known.retain(|_, known| now.duration_since(known.asked) < clock::ms(limits::LOST_AFTER_MS));
            }
            let mut record = worker.record(in_hand, offset);
            if let Some(known) = known.get(&worker.id) {
                known.add_to(&mut record);
            }
            record
        };
        member::beat_executor(space, &record).await?;
        let mut known = self.inner.known.lock();
        let room = known.len() < limits::POLL_WORKERS_MAX;
        match known.get_mut(&worker.id) {
            Some(known) => {
                known.worker = worker.clone();
                known.reported(&record, now);
            }
            None if room => {
                known.insert(
                    worker.id.clone(),
                    Known::new(worker.clone(), Arc::clone(&self.inner.shelves), now),
                );
            }
            // Reported with each poll.
            None => {}
        }
        Ok(())
    }

    /// Takes what is on the worker's shelf or in its inbox, and hands it over.
    async fn take(&self, worker: &Worker, wish: Wish) -> Result<Vec<Handed>, StoreError> {
        let id = Worker::executor(&worker.id);
        let most = wish.most.min(worker.slots.saturating_sub(wish.in_hand));
        let shelved = self.with(&worker.id, |known| {
            known.asks(wish.in_hand, clock::mono());
            known.unshelve(most)
        });
        let mut offers = shelved.unwrap_or_default();
        let found = offers.len() as u32;
        if found > 0 && found == most {
            self.refill(worker, found);
        } else {
            // Nothing is kept for one that can take nothing now.
            let room = self.with(&worker.id, |known| known.shelf_room(clock::mono())).filter(|_| most > 0);
            let ask = (most - found).saturating_add(room.unwrap_or(0));
            match self.fetch(worker, wish.in_hand.saturating_add(found), ask).await {
                Ok(more) => offers.extend(more),
                // What was found goes to it all the same.
                Err(error) if found > 0 => {
                    tracing::debug!(%error, worker = worker.id, "could not fetch more")
                }
                Err(error) => return Err(error),
            }
            self.shelve(&worker.id, offers.split_off(offers.len().min(most as usize)));
        }
        if offers.is_empty() {
            return Ok(Vec::new());
        }
        let (handed, given) = self.hand_over(worker, &id, offers).await;
        let unnoted = given.iter().any(|given| !given.noted);
        self.with(&worker.id, |known| known.handed(given, wish.tells, clock::mono()));
        if unnoted {
            self.mind();
        }
        Ok(handed)
    }

    /// Takes more for a worker's shelf while it works.
    fn refill(&self, worker: &Worker, handed: u32) {
        let refills = self.with(&worker.id, |known| {
            let in_hand = known.refills(handed, clock::mono())?;
            Some((in_hand, known.shelf_room(clock::mono())))
        });
        let Some((in_hand, room)) = refills.flatten() else { return };
        let (door, worker) = (self.clone(), worker.clone());
        tokio::spawn(async move {
            let offers = door.fetch(&worker, in_hand, room).await.unwrap_or_else(|error| {
                tracing::debug!(%error, worker = worker.id, "could not fetch ahead");
                Vec::new()
            });
            door.shelve(&worker.id, offers);
            door.with(&worker.id, Known::refilled);
        });
    }

    /// Keeps what was taken for a worker.
    fn shelve(&self, worker: &str, offers: Vec<Offer>) {
        let rows = offers.iter().map(|offer| (offer.id, offer.grant)).collect();
        if self.with(worker, |known| known.shelve(offers)).is_none() {
            self.give_back_soon(Worker::executor(worker), "the worker left", rows);
        }
    }

    /// Takes at most so many out of a worker's inbox, and tells pods what room is left.
    async fn fetch(&self, worker: &Worker, in_hand: u32, most: u32) -> Result<Vec<Offer>, StoreError> {
        let id = Worker::executor(&worker.id);
        let ahead = self.with(&worker.id, |known| known.ahead).unwrap_or(0);
        let capacity = worker.slots.saturating_add(ahead);
        let normal = most.min(limits::BATCH_MAX_ROWS as u32);
        let ask = Take { normal, urgent: 0, in_hand, capacity, urgent_capacity: 0 };
        let taken = member::take(&self.inner.space, &id, ask).await?;
        let count = u32::try_from(taken.offers.len()).unwrap_or(u32::MAX);
        let used = in_hand.saturating_add(count).saturating_add(taken.waiting);
        let (free, waiting, hungry) = (capacity.saturating_sub(used), taken.waiting, taken.hungry);
        self.tell(
            &id,
            match self.inner.known.lock().get_mut(&worker.id) {
                Some(known) => known.room(free, waiting, hungry, clock::mono()),
                None => hungry.into_iter().collect(),
            },
        );
        if ahead > 0 || free > 0 {
            self.mind();
        }
        Ok(taken.offers)
    }

    /// Tells pods that there is room at an executor. Hints; nobody waits for them.
    fn tell(&self, executor: &str, pods: impl IntoIterator<Item = String>) {
        for pod in pods {
            let (space, id) = (self.inner.space.clone(), executor.to_owned());
            tokio::spawn(async move {
                let _ = member::tell_room(&space, &pod, &id).await;
            });
        }
    }

    /// Looks after what workers leave behind, for as long as they do.
    fn mind(&self) {
        if self.inner.minding.swap(true, Ordering::AcqRel) {
            return;
        }
        let door = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = door.inner.shutdown.cancelled() => return door.clear_shelves(),
                    () = tokio::time::sleep(TELL_LATER) => {}
                }
                if door.look_around() {
                    continue;
                }
                door.inner.minding.store(false, Ordering::Release);
                // Somebody may have come since.
                if !door.look_around() || door.inner.minding.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }

    /// What is kept for workers goes back.
    fn clear_shelves(&self) {
        for (id, known) in &mut *self.inner.known.lock() {
            self.give_back_soon(Worker::executor(id), "the port closes", known.clear_shelf());
        }
    }

    /// Does what is to be done for workers that do not ask just now; answers whether there may be more soon.
    fn look_around(&self) -> bool {
        let (now, mut more) = (clock::mono(), false);
        for (id, known) in &mut *self.inner.known.lock() {
            let chores = known.chores(now);
            more |= chores.more;
            self.tell(&Worker::executor(id), chores.tell);
            if !chores.note.is_empty() {
                let (door, id) = (self.clone(), Worker::executor(id));
                tokio::spawn(async move { door.note(&id, chores.note).await });
            }
            if let Some(shelved) = chores.recall {
                let (door, id) = (self.clone(), Worker::executor(id));
                let (in_hand, capacity) = (known.in_hand, known.worker.slots);
                tokio::spawn(async move { door.recall(&id, in_hand, capacity, shelved).await });
            }
        }
        more
    }

    /// Tells Redis what a worker has in hand.
    async fn note(&self, id: &str, rows: Vec<StartRow>) {
        let mut by_bucket: BTreeMap<Bucket, Vec<(StartRow, &str)>> = BTreeMap::new();
        for row in rows {
            by_bucket.entry(row.id.bucket()).or_default().push((row, id));
        }
        for (bucket, rows) in by_bucket {
            if let Err(error) = run::offer(&self.inner.space, bucket, id, &rows).await {
                // They come back at their dispatch time-out unless the worker speaks of them before.
                tracing::warn!(%bucket, rows = rows.len(), %error, "could not note what a worker has in hand");
            }
        }
    }

    /// What is known of a queue here. Its lease is asked for when it is first met, and followed from then on.
    async fn queue(&self, name: &QueueName) -> Arc<Queue> {
        let (queue, new) = self.inner.queues.meet(name);
        if new {
            self.report_runs(&[Arc::clone(&queue)]).await;
            self.keep_reporting();
        }
        queue
    }

    async fn report_runs(&self, queues: &[Arc<Queue>]) {
        for queues in queues.chunks(limits::RUNS_QUEUES_MAX) {
            let new = report::news(queues);
            let told = link::add_runs(&self.inner.space, &new).await;
            report::heard(queues, &new, told);
        }
    }

    /// Reports how long tasks run, and follows leases, until the door closes.
    fn keep_reporting(&self) {
        if self.inner.reporting.swap(true, Ordering::AcqRel) {
            return;
        }
        let door = self.clone();
        tokio::spawn(async move {
            while !door.inner.shutdown.is_cancelled() {
                tokio::select! {
                    () = door.inner.shutdown.cancelled() => {}
                    () = report::pause() => {}
                }
                door.report_runs(&door.inner.queues.all()).await;
            }
        });
    }

    /// Gives back what was fetched ahead for a worker that does not come for it.
    async fn recall(&self, id: &str, in_hand: u32, capacity: u32, mut rows: Vec<(TaskId, Grant)>) {
        let normal = limits::BATCH_MAX_ROWS as u32;
        let ask = Take { normal, urgent: 0, in_hand, capacity, urgent_capacity: 0 };
        match member::take(&self.inner.space, id, ask).await {
            Ok(taken) => rows.extend(taken.offers.iter().map(|offer| (offer.id, offer.grant))),
            Err(error) => tracing::debug!(%error, id, "could not take back what was fetched ahead"),
        }
        self.give_back(id, "its worker works on something else", &rows).await;
    }

    /// Notes what is handed over, unless it will soon have ended; the rest is refused, or comes back by itself.
    async fn hand_over(&self, worker: &Worker, id: &str, offers: Vec<Offer>) -> (Vec<Handed>, Vec<Given>) {
        let space = &self.inner.space;
        let quick = self.with(&worker.id, |known| known.is_quick()) == Some(true);
        let margin_ms = hands::START_MARGIN.as_millis() as i64;
        let mut by_bucket: BTreeMap<Bucket, Vec<Ready>> = BTreeMap::new();
        let (mut refused, mut back) = (Vec::new(), Vec::new());
        let (mut out, mut given) = (Vec::new(), Vec::new());
        for offer in offers {
            let execution = ExecutionId { id: offer.id, grant: offer.grant };
            // A pod that heard no answer has offered it once more.
            let (held, wished) = self
                .with(&worker.id, |known| (known.holds(&execution), known.is_wished(&offer.id)))
                .unwrap_or_default();
            if held || self.inner.recent.lock().has(&execution) {
                continue;
            }
            let group = match space.group_of(offer.group).await {
                Ok(group) => group,
                Err(error) => {
                    tracing::warn!(%execution, %error, "could not look up the queue of an offer");
                    back.push((offer.id, offer.grant));
                    continue;
                }
            };
            if !worker.queues.is_empty() && !worker.queues.contains(&group.queue) {
                let error = format!("executor {id} does not serve queue {}", group.queue);
                let ms = crate::executor::inbox::MISDIRECTED_MS;
                refused.push(row(execution, Outcome::RetryAfter { ms, counted: false, error }));
                continue;
            }
            match Spec::decode(&offer.spec, offer.id.home().start()) {
                Ok(spec) => {
                    let now_ms = space.clock().now_ms();
                    if spec.start_before.is_some_and(|latest| now_ms > latest.0) {
                        refused.push(row(execution, Outcome::Skipped));
                        continue;
                    }
                    let queue = self.queue(&group.queue).await;
                    let lease_ms = spec.lease_ms.map_or_else(|| queue.lease_ms(), i64::from);
                    let task = Ready { offer, group, spec, queue, lease_ms };
                    if quick && !wished && now_ms + margin_ms < task.offer.not_after.0 {
                        given.push(task.given(false));
                        out.push(task.handed(UnixMs(now_ms + lease_ms), now_ms));
                    } else {
                        by_bucket.entry(task.offer.id.bucket()).or_default().push(task);
                    }
                }
                Err(error) => {
                    tracing::error!(%execution, %error, "a task cannot be read");
                    refused.push(row(execution, Outcome::Fatal { error: error.to_string() }));
                }
            }
        }
        let calls = by_bucket.into_iter().map(|(bucket, tasks)| async move {
            let rows: Vec<(StartRow, &str)> = tasks.iter().map(|task| (task.row(), id)).collect();
            let answers = run::offer(space, bucket, id, &rows).await;
            if let Err(error) = &answers {
                // They come back at their dispatch time-out, or at their lease if the call arrived.
                tracing::warn!(%bucket, rows = rows.len(), %error, "could not hand tasks to a worker");
            }
            (tasks, answers.unwrap_or_default())
        });
        for (tasks, answers) in futures_util::future::join_all(calls).await {
            let now_ms = space.clock().now_ms();
            for (task, answer) in tasks.into_iter().zip(answers) {
                match answer {
                    StartAnswer::Ok { deadline, cancel: false } => {
                        given.push(task.given(true));
                        out.push(task.handed(deadline, now_ms));
                    }
                    StartAnswer::Ok { cancel: true, .. } => {
                        refused.push(row(task.execution(), Outcome::Cancelled));
                    }
                    StartAnswer::Stale => {
                        let execution = task.execution();
                        tracing::info!(%execution, "grant no longer stands; not handed over");
                    }
                }
            }
        }
        self.give_back(id, "unknown queue", &back).await;
        if !refused.is_empty()
            && let Err(error) = self.settle(id, refused, false).await
        {
            tracing::warn!(%error, "could not refuse tasks for a worker; they come back when their grants lapse");
        }
        (out, given)
    }

    /// Reports outcomes; the answers stand in the order of the rows. `again`: some of them were sent before. A run time
    /// below 0 is one that the worker does not say.
    pub async fn ack(
        &self,
        executor: &str,
        mut rows: Vec<AckRow>,
        again: bool,
    ) -> Result<Vec<AckAnswer>, StoreError> {
        let now = clock::mono();
        self.of(executor, |known| {
            for row in &mut rows {
                let execution = ExecutionId { id: row.id, grant: row.grant };
                let ran = Ran {
                    took_ms: (row.took_ms >= 0).then_some(row.took_ms),
                    failed: row.outcome.is_failure(),
                    again,
                };
                row.took_ms = known.ended(&execution, ran, now).unwrap_or(-1);
            }
        });
        rows.iter_mut().for_each(|row| row.took_ms = row.took_ms.max(0));
        self.settle(executor, rows, again).await
    }

    /// Reports outcomes of tasks that were handed over, or could not be.
    async fn settle(
        &self,
        executor: &str,
        rows: Vec<AckRow>,
        again: bool,
    ) -> Result<Vec<AckAnswer>, StoreError> {
        let ended: Vec<TaskId> = rows.iter().map(|row| row.id).collect();
        {
            let mut recent = self.inner.recent.lock();
            rows.iter().for_each(|row| recent.add(&ExecutionId { id: row.id, grant: row.grant }));
        }
        let mut answers = vec![AckAnswer::Stale; rows.len()];
        let mut by_bucket: BTreeMap<Bucket, Vec<(usize, AckRow)>> = BTreeMap::new();
        for (at, row) in rows.into_iter().enumerate() {
            by_bucket.entry(row.id.bucket()).or_default().push((at, row));
        }
        let sent = clock::mono();
        let calls = by_bucket.into_iter().map(|(bucket, rows)| async move {
            let (places, rows): (Vec<usize>, Vec<AckRow>) = rows.into_iter().unzip();
            let mut repeated = again;
            let mut failures = 0;
            loop {
                match run::ack(&self.inner.space, bucket, executor, &rows, repeated).await {
                    Ok(answers) => return Ok::<_, StoreError>((places, answers)),
                    Err(error) => {
                        failures += 1;
                        let pause = backoff(failures);
                        let late = sent.elapsed() + pause > clock::ms(limits::POLL_PATIENCE_MS);
                        if !error.is_retryable() || late {
                            return Err(error);
                        }
                        repeated |= error.fate_unknown();
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        });
        for done in futures_util::future::join_all(calls).await {
            let (places, found) = done?;
            crate::executor::observe::acked(&found, sent.elapsed());
            for (place, answer) in places.into_iter().zip(found) {
                answers[place] = answer;
            }
        }
        self.forget_progress(ended.into_iter().zip(&answers));
        Ok(answers)
    }

    /// Drops the progress of tasks that have ended, where it was said through this door. Where it was another one, or
    /// this fails, it goes by its time.
    fn forget_progress<'a>(&self, answers: impl Iterator<Item = (TaskId, &'a AckAnswer)>) {
        let mut marked = self.inner.marked.lock();
        if marked.is_empty() {
            return;
        }
        let ends = |answer: &AckAnswer| !matches!(answer, AckAnswer::Retrying { .. } | AckAnswer::Stale);
        let ids: Vec<TaskId> =
            answers.filter(|(id, answer)| ends(answer) && marked.remove(id)).map(|(id, _)| id).collect();
        drop(marked);
        let space = self.inner.space.clone();
        tokio::spawn(async move {
            for id in ids {
                if let Err(error) = run::unmark(&space, id).await {
                    tracing::debug!(%id, %error, "could not drop the progress of a task");
                }
            }
        });
    }

    /// Keeps how far workers are with their tasks; the answers stand in the order of the rows.
    pub async fn progress(
        &self,
        executor: &str,
        rows: &[(ExecutionId, Progress)],
    ) -> Result<Vec<MarkAnswer>, StoreError> {
        let mut answers = Vec::with_capacity(rows.len());
        let executions: Vec<ExecutionId> = rows.iter().map(|(execution, _)| *execution).collect();
        self.hear(executor, &executions).await?;
        for some in rows.chunks(MARKS_AT_ONCE) {
            let calls = some.iter().map(|(execution, progress)| async move {
                let value = serde_json::to_vec(progress).unwrap_or_default();
                let space = &self.inner.space;
                run::mark(space, execution.id, execution.grant, Progress::FIELD, value.into()).await
            });
            for ((execution, _), answer) in some.iter().zip(futures_util::future::join_all(calls).await) {
                let answer = answer?;
                let mut marked = self.inner.marked.lock();
                if answer == MarkAnswer::Kept && marked.len() < limits::JOURNAL_OPEN_MAX {
                    marked.insert(execution.id);
                }
                answers.push(answer);
            }
        }
        Ok(answers)
    }

    /// Renews what a worker holds, and has thus begun, for as long as it says, else for its lease; the answers stand in
    /// the order of the rows.
    pub async fn renew(
        &self,
        executor: &str,
        rows: &[(ExecutionId, Option<i64>)],
    ) -> Result<Vec<Held>, StoreError> {
        let known = |known: &mut Known| -> Vec<Option<i64>> {
            rows.iter().map(|(execution, _)| known.lease_ms(execution)).collect()
        };
        let usual = self.of(executor, known).unwrap_or_else(|| vec![None; rows.len()]);
        let lease = |((execution, said), usual): (&(ExecutionId, Option<i64>), Option<i64>)| {
            (*execution, said.or(usual).unwrap_or(limits::LEASE_MS))
        };
        let rows: Vec<(ExecutionId, i64)> = rows.iter().zip(usual).map(lease).collect();
        let held = self.start(executor, &rows).await?;
        self.alive(executor).await;
        Ok(held)
    }

    /// Hears which tasks of earlier answers have arrived at a worker. Others that it was handed, if it says so each time,
    /// go back at once.
    pub async fn arrived(&self, worker: &str, executions: &[ExecutionId]) -> Result<(), StoreError> {
        let executor = Worker::executor(worker);
        let lost = self.with(worker, |known| known.lost(executions)).unwrap_or_default();
        if !lost.is_empty() {
            self.give_back(&executor, "the answer that it was in did not arrive", &lost).await;
        }
        self.hear(&executor, executions).await
    }

    /// A worker speaks of tasks: those of which it had not spoken before are started.
    async fn hear(&self, executor: &str, executions: &[ExecutionId]) -> Result<(), StoreError> {
        let new = |known: &mut Known| {
            let new = executions.iter().filter(|one| !known.heard(one));
            new.map(|one| (*one, known.unnoted_ms(one))).collect()
        };
        let new = self
            .of(executor, new)
            .unwrap_or_else(|| executions.iter().map(|one| (*one, 0)).collect::<Vec<_>>());
        self.start(executor, &new).await?;
        Ok(())
    }

    /// Starts or renews; a lease of 0 stays as it is.
    async fn start(&self, executor: &str, rows: &[(ExecutionId, i64)]) -> Result<Vec<Held>, StoreError> {
        let mut answers = vec![Held::Stale; rows.len()];
        let mut by_bucket: BTreeMap<Bucket, (Vec<usize>, Vec<StartRow>)> = BTreeMap::new();
        for (at, (execution, lease_ms)) in rows.iter().enumerate() {
            let (places, rows) = by_bucket.entry(execution.id.bucket()).or_default();
            places.push(at);
            rows.push(StartRow { id: execution.id, grant: execution.grant, lease_ms: *lease_ms });
        }
        let calls = by_bucket.into_iter().map(|(bucket, (places, rows))| async move {
            Ok::<_, StoreError>((places, run::start(&self.inner.space, bucket, executor, &rows).await?))
        });
        for done in futures_util::future::join_all(calls).await {
            let (places, found) = done?;
            for (place, answer) in places.into_iter().zip(found) {
                answers[place] = match answer {
                    StartAnswer::Ok { deadline, cancel } => Held::Until(deadline, cancel),
                    StartAnswer::Stale => Held::Stale,
                };
            }
        }
        self.of(executor, |known| rows.iter().for_each(|(execution, _)| known.hear(execution)));
        Ok(answers)
    }

    /// The same as [`Door::with`], by the executor's id.
    fn of<T>(&self, executor: &str, look: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.with(Worker::of_executor(executor)?, look)
    }

    /// A worker that renews lives, even while it has no time to poll.
    async fn alive(&self, executor: &str) {
        if let Some(worker) = self.of(executor, |known| known.worker.clone())
            && let Err(error) = self.report(&worker, worker.slots).await
        {
            tracing::debug!(%error, executor, "could not say that a worker lives");
        }
    }

    /// Gives back what a worker has not worked on, uncounted; answers how many grants still stood.
    pub async fn give_back(&self, executor: &str, cause: &str, rows: &[(TaskId, Grant)]) -> usize {
        self.of(executor, |known| rows.iter().for_each(|(id, grant)| known.gone(*id, *grant)));
        let mut by_bucket: BTreeMap<Bucket, Vec<(TaskId, Grant)>> = BTreeMap::new();
        for row in rows {
            by_bucket.entry(row.0.bucket()).or_default().push(*row);
        }
        let mut stood = 0;
        for (bucket, rows) in by_bucket {
            match due::release(&self.inner.space, bucket, executor, cause, &rows).await {
                Ok(answers) => {
                    stood += answers.iter().filter(|a| !matches!(a, due::ReleaseAnswer::Stale)).count();
                }
                Err(error) => {
                    tracing::warn!(%bucket, rows = rows.len(), %error, "could not hand tasks back; they come back when their grants lapse");
                }
            }
        }
        crate::executor::observe::handed_back(stood as u64);
        stood
    }

    /// A worker goes: its inbox is closed, and what was in it goes back at once. Answers how many tasks that were.
    pub async fn leave(&self, id: &str) -> Result<usize, StoreError> {
        let known = self.inner.known.lock().remove(id);
        let mut rows = known.map(|mut known| known.clear_shelf()).unwrap_or_default();
        let executor = Worker::executor(id);
        let offers = match member::leave_executor(&self.inner.space, &executor).await {
            Ok(offers) => offers,
            Err(error) => {
                self.give_back(&executor, "the worker left", &rows).await;
                return Err(error);
            }
        };
        rows.extend(offers.iter().map(|offer| (offer.id, offer.grant)));
        Ok(self.give_back(&executor, "the worker left", &rows).await)
    }
}

/// A task that may be handed over.
struct Ready {
    offer: Offer,
    group: LaneGroup,
    spec: Spec,
    queue: Arc<Queue>,
    lease_ms: i64,
}

impl Ready {
    fn execution(&self) -> ExecutionId {
        ExecutionId { id: self.offer.id, grant: self.offer.grant }
    }

    fn row(&self) -> StartRow {
        StartRow { id: self.offer.id, grant: self.offer.grant, lease_ms: self.lease_ms }
    }

    fn given(&self, noted: bool) -> Given {
        let (queue, cost_ms) = (Arc::clone(&self.queue), self.spec.extras.cost_ms);
        Given { execution: self.execution(), queue, cost_ms, lease_ms: self.lease_ms, noted }
    }

    fn handed(self, lease_until: UnixMs, now_ms: i64) -> Handed {
        let lag_ms = (now_ms - self.offer.due.0).max(0);
        crate::executor::observe::started(lag_ms);
        let execution = self.execution();
        handed(execution, &self.offer, self.group, self.spec, self.lease_ms, lease_until, lag_ms)
    }
}

fn row(execution: ExecutionId, outcome: Outcome) -> AckRow {
    AckRow { id: execution.id, grant: execution.grant, outcome, lag_ms: -1, took_ms: 0 }
}
