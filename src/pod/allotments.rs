//! Limits of queues and downstreams, as one pod keeps them.
//!
//! What may be handed out is granted by one script for each owner (see [`queue::allot`]); here lies what was
//! granted and not spent. A claim draws purses from it, and what it did not spend comes back. One loop asks for
//! more, says what was spent, and gives back what nobody here needs. Where no queue has a limit, a claim costs
//! one look at a flag.

use super::Shared;
use super::view::View;
use crate::clock;
use crate::limits;
use crate::model::UnixMs;
use crate::model::complaints::Complaints;
use crate::model::queue::{LimitOwner, LimitSettings, Rate};
use crate::store::StoreError;
use crate::store::due::{ClaimLimits, Claimed, Purse, Rule, Tally};
use crate::store::queue::{self, Allotted, Ask, BreakerAsk, BreakerState, BreakerView, ShareAsk, WindowAsk};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What was spent is told, and what is not needed given back, after this time.
const TELL_AFTER: Duration = Duration::from_millis(100);
/// How long an owner is left alone after an error.
const REST: Duration = Duration::from_millis(250);
/// Longest sleep of the loop that asks.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// Most that is wanted of one window at a time: what one round of claims could take.
const WANT_MAX: u32 = 2_000;
/// Where there are more limits than one claim can keep to, their queues take turns of this length.
const TURN: Duration = Duration::from_secs(1);
/// How often a pod hears how a breaker stands, where it has nothing to say of it.
const HEAR_EVERY_MS: i64 = 500;
/// Tiers of tasks that have failed.
const RETRIES: u8 = 0b111_1110;
/// All tiers.
const ALL: u8 = 0b111_1111;

/// What a pod holds of the limits of all owners.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    inner: Mutex<Inner>,
    /// Whether anything is limited.
    any: AtomicBool,
    /// Someone wants more.
    ask: Notify,
}

#[derive(Debug)]
struct Inner {
    owners: BTreeMap<LimitOwner, Owner>,
    /// Since when turns are counted.
    born: Instant,
    crowded: Complaints,
    no_retries: bool,
    /// Wakes the claim loops, by bucket.
    loops: HashMap<u16, Arc<Notify>>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            owners: BTreeMap::new(),
            born: clock::mono(),
            crowded: Complaints::default(),
            no_retries: false,
            loops: HashMap::new(),
        }
    }
}

#[derive(Debug)]
struct Owner {
    settings: LimitSettings,
    /// Its queues with their labels, by code.
    groups: Vec<u32>,
    windows: Vec<Window>,
    shares: BTreeMap<u16, Share>,
    scarce: bool,
    breaker: BreakerView,
    probes: u32,
    probes_wanted: u32,
    heard: [u64; 2],
    /// What was last counted, by bucket and group.
    tallies: HashMap<(u16, u32), [u64; 2]>,
    asked: Option<Instant>,
    asking: bool,
    /// Nothing is asked before.
    rest_until: Option<Instant>,
    told: bool,
}

#[derive(Debug)]
struct Window {
    name: String,
    rate: Rate,
    tiers: u8,
    /// Granted, and neither spent nor drawn.
    tokens: u32,
    /// Drawn by claims under way.
    drawn: u32,
    /// Until when they are good: by this process's clock and by Redis's.
    until: Option<(Instant, UnixMs)>,
    spent: Vec<(UnixMs, u32)>,
    /// Ripe tasks that were kept back, by bucket.
    wanted: BTreeMap<u16, u32>,
    more_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Share {
    /// Tasks that may run.
    most: u32,
    /// Tasks that run, as the last claim has it.
    runs: u32,
    wanted: u32,
    claiming: bool,
}

/// Where a purse came from.
#[derive(Debug, Clone)]
enum Source {
    Window { owner: LimitOwner, at: usize, amount: u32 },
    Share { owner: LimitOwner },
    Probes { owner: LimitOwner, amount: u32 },
    Closed,
}

/// How a claim ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Settled<'a> {
    /// It was answered.
    Claimed(&'a Claimed),
    /// Another pod holds the bucket: nothing was taken.
    Refused,
    /// Nobody knows: all that was drawn counts as spent.
    Unknown,
}

/// What a claim drew.
#[derive(Debug, Default)]
pub(crate) struct Draw {
    sources: Vec<Source>,
    counted: Vec<(LimitOwner, u32)>,
}

impl Owner {
    fn new() -> Self {
        Self {
            settings: LimitSettings::default(),
            groups: Vec::new(),
            windows: Vec::new(),
            shares: BTreeMap::new(),
            scarce: false,
            breaker: BreakerView::default(),
            probes: 0,
            probes_wanted: 0,
            heard: [0; 2],
            tallies: HashMap::new(),
            asked: None,
            asking: false,
            rest_until: None,
            told: true,
        }
    }

    fn set(&mut self, settings: &LimitSettings) {
        if self.settings == *settings {
            return;
        }
        self.settings = settings.clone();
        let mut before = std::mem::take(&mut self.windows);
        let mut window = |name: String, rate: Rate, tiers: u8| {
            let known = before.iter().position(|window| window.name == name);
            let known = known.map(|at| before.swap_remove(at));
            let new = known.unwrap_or_else(|| Window {
                name,
                rate,
                tiers,
                tokens: 0,
                drawn: 0,
                until: None,
                spent: Vec::new(),
                wanted: BTreeMap::new(),
                more_at: None,
            });
            self.windows.push(Window { rate, tiers, more_at: None, ..new });
        };
        if let Some(rate) = settings.rate {
            window("rate".to_owned(), rate, ALL);
        }
        for (at, rate) in settings.retry_windows.iter().enumerate() {
            let tiers = settings.tiers_of(at).fold(0, |mask, tier| mask | 1 << tier);
            window(format!("retry{}", rate.per_ms), *rate, tiers);
        }
        self.rest_until = None;
        self.told = false;
    }

    /// Which tiers the breaker keeps back now.
    fn held(&self) -> Option<(u8, bool)> {
        let tiers = if self.settings.breaker.is_some_and(|breaker| breaker.fresh) { ALL } else { RETRIES };
        match (&self.settings.forced, self.settings.breaker, self.breaker.state) {
            (Some(forced), ..) => forced.open.then_some((tiers, false)),
            (None, Some(_), BreakerState::Open) => Some((tiers, false)),
            (None, Some(_), BreakerState::HalfOpen) => Some((tiers, true)),
            _ => None,
        }
    }

    /// When something is to be asked, told or given back; nothing where nothing is.
    fn due(&self, now: Instant) -> Option<Instant> {
        if self.asking {
            return None;
        }
        let least = |ms: i64| self.asked.map_or(now, |asked| asked + clock::ms(ms));
        let soon = least(limits::ALLOT_EVERY_MS);
        let later = self.asked.map_or(now, |asked| asked + TELL_AFTER);
        let mut at: Option<Instant> = None;
        let mut want = |when: Instant| at = Some(at.map_or(when, |at| at.min(when)));
        for window in &self.windows {
            let wanted: u32 = window.wanted.values().sum();
            if wanted > window.tokens + window.drawn {
                want(window.more_at.map_or(soon, |more| more.max(soon)));
            }
            if !window.spent.is_empty() || (wanted == 0 && window.tokens > 0) {
                want(later);
            }
        }
        if self.settings.running.is_some() {
            for share in self.shares.values() {
                if share.wanted > 0 && share.runs >= share.most {
                    want(least(if self.scarce { 20 } else { limits::ALLOT_EVERY_MS }));
                } else if share.most > share.runs && share.wanted == 0 {
                    want(if self.scarce { soon } else { later });
                }
            }
        }
        if let Some(breaker) = &self.settings.breaker {
            if self.heard != [0; 2] || !self.told {
                want(later);
            }
            match self.breaker.state {
                BreakerState::HalfOpen if self.probes_wanted > 0 && self.probes == 0 => want(later),
                // Somebody has to see that its time has come.
                BreakerState::Open | BreakerState::HalfOpen => want(least(breaker.open_ms.clamp(50, 1_000))),
                // Other pods may have heard of failures.
                BreakerState::Closed => want(least(HEAR_EVERY_MS)),
            }
        } else if !self.told {
            want(later);
        }
        at.map(|at| self.rest_until.map_or(at, |rest| at.max(rest)))
    }

    /// Rules that each of its queues with labels adds to a claim; one that is only counted takes room as well.
    fn rules(&self) -> usize {
        let rules = self.windows.len()
            + usize::from(self.settings.running.is_some())
            + usize::from(self.held().is_some());
        rules.max(usize::from(self.settings.counts()))
    }

    /// What to ask for now. Shares that are not in use by a claim are given up first.
    fn ask(&mut self, now: Instant) -> Ask {
        self.asking = true;
        self.told = true;
        self.asked = Some(now);
        let windows = self.windows.iter_mut().map(|window| {
            if window.until.is_some_and(|(until, _)| now >= until) {
                // They were granted for a time; Redis counts them as spent.
                window.tokens = 0;
            }
            let wanted: u32 = window.wanted.values().sum();
            if wanted == 0 {
                window.tokens = 0;
            }
            let have = window.tokens + window.drawn;
            WindowAsk {
                name: window.name.clone(),
                rate: window.rate,
                kept: have,
                wanted: wanted.min(WANT_MAX).saturating_sub(have),
                spent: std::mem::take(&mut window.spent),
            }
        });
        let windows = windows.collect();
        let mut shares = Vec::new();
        if self.settings.running.is_some() {
            for (bucket, share) in &mut self.shares {
                let kept = if share.claiming { share.most.max(share.runs) } else { share.runs };
                if !share.claiming {
                    share.most = share.most.min(kept);
                }
                shares.push(ShareAsk { bucket: *bucket, kept, wanted: share.wanted.min(WANT_MAX) });
            }
        }
        let [succeeded, failed] = std::mem::take(&mut self.heard);
        let breaker = self.settings.breaker.map(|settings| BreakerAsk {
            settings,
            succeeded,
            failed,
            probes_wanted: self.probes_wanted.min(settings.probes),
        });
        Ask { windows, running: self.settings.running, shares, breaker }
    }

    /// Takes in what was granted; answers whether claims may bring more now.
    fn allotted(&mut self, ask: &Ask, sent: Instant, told: Allotted) -> bool {
        self.asking = false;
        let mut more = false;
        let good = Duration::from_millis(limits::ALLOTMENT_MS as u64 * 9 / 10);
        for (asked, (granted, wait_ms)) in ask.windows.iter().zip(told.windows) {
            let Some(window) = self.windows.iter_mut().find(|window| window.name == asked.name) else {
                continue;
            };
            window.tokens += granted;
            window.until = Some((sent + good, told.now.plus(limits::ALLOTMENT_MS * 9 / 10)));
            window.more_at = (granted < asked.wanted).then(|| sent + clock::ms(wait_ms));
            more |= granted > 0;
        }
        self.scarce = told.scarce;
        for (asked, most) in ask.shares.iter().zip(told.shares) {
            let Some(share) = self.shares.get_mut(&asked.bucket) else { continue };
            more |= most > share.runs && share.wanted > 0;
            share.most = most;
        }
        if let Some((view, probes)) = told.breaker {
            more |= view.state != self.breaker.state || probes > 0;
            if view.state != BreakerState::HalfOpen {
                self.probes = 0;
            }
            self.breaker = view;
            self.probes += probes;
        }
        more
    }
}

/// Which queues with labels stand aside because all limits together have more rules than one claim may: none goes
/// unlimited. `turn` says whose they are not, so that each has its own.
fn aside<'a>(owners: impl Iterator<Item = (&'a [u32], usize)>, turn: u64) -> Vec<u32> {
    let (mut rules, mut all): (BTreeMap<u32, usize>, usize) = (BTreeMap::new(), 0);
    let owners: Vec<_> = owners.collect();
    for (groups, each) in &owners {
        all += groups.len() * each;
    }
    if all <= limits::RULES_MAX {
        return Vec::new();
    }
    for (groups, each) in owners {
        for group in groups {
            *rules.entry(*group).or_default() += each;
        }
    }
    // Each turn goes on with about the next that fit.
    let fit = (rules.len() * limits::RULES_MAX / all).max(1);
    let start = (turn % rules.len() as u64) as usize * fit % rules.len();
    let mut left = limits::RULES_MAX;
    let order = rules.iter().skip(start).chain(rules.iter().take(start));
    let mut out: Vec<u32> = order
        .filter_map(|(group, rules)| {
            let fits = left >= *rules;
            left = if fits { left - rules } else { 0 };
            (!fits).then_some(*group)
        })
        .collect();
    out.sort_unstable();
    out
}

impl Limits {
    /// Takes in a new view.
    pub fn learn(&self, view: &View) {
        let mut inner = self.inner.lock();
        let mut groups: BTreeMap<LimitOwner, (LimitSettings, Vec<u32>)> = BTreeMap::new();
        for (code, (group, _)) in &view.groups {
            for (owner, settings) in view.queues.limits_of(&group.queue) {
                groups.entry(owner).or_insert_with(|| (settings.clone(), Vec::new())).1.push(*code);
            }
        }
        inner.owners.retain(|owner, _| groups.contains_key(owner));
        for (owner, (settings, mut codes)) in groups {
            codes.sort_unstable();
            let own = inner.owners.entry(owner).or_insert_with(Owner::new);
            own.groups = codes;
            own.set(&settings);
        }
        inner.no_retries = view.queues.switches.no_retries.is_some();
        self.any.store(inner.no_retries || !inner.owners.is_empty(), Ordering::Release);
        drop(inner);
        self.ask.notify_one();
    }

    /// Whether anything is limited.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Time has leapt, as only a test's does: what was granted for a while is good no longer.
    pub fn leapt(&self) {
        for owner in self.inner.lock().owners.values_mut() {
            for window in &mut owner.windows {
                (window.tokens, window.until, window.more_at) = (0, None, None);
            }
        }
    }

    /// What wakes a bucket's claim loop when a limit lets more go.
    pub fn wakes(&self, bucket: u16) -> Arc<Notify> {
        Arc::clone(self.inner.lock().loops.entry(bucket).or_default())
    }

    /// Forgets a bucket that this pod no longer claims from.
    pub fn leave(&self, bucket: u16) {
        let mut inner = self.inner.lock();
        inner.loops.remove(&bucket);
        for owner in inner.owners.values_mut() {
            for window in &mut owner.windows {
                window.wanted.remove(&bucket);
            }
            // Its shares stay with the bucket: whoever claims from it next says what runs there.
            owner.shares.remove(&bucket);
            owner.tallies.retain(|(own, _), _| *own != bucket);
        }
    }

    /// What one claim may take; what it draws is put aside until it is settled.
    pub fn draw(&self, bucket: u16, most: u32) -> (ClaimLimits, Draw) {
        if !self.any() {
            return Default::default();
        }
        let mut inner = self.inner.lock();
        let (mut out, mut draw) = (ClaimLimits::default(), Draw::default());
        out.no_retries = inner.no_retries;
        let now = clock::mono();
        let turn = now.saturating_duration_since(inner.born).as_secs() / TURN.as_secs();
        let aside = aside(inner.owners.values().map(|owner| (&owner.groups[..], owner.rules())), turn);
        if !aside.is_empty()
            && let Some(more) = inner.crowded.tell("rules", now)
        {
            tracing::warn!(
                queues_aside = aside.len(),
                at_most = limits::RULES_MAX,
                more_like_it = more,
                "more limits than one claim can keep to; their queues take turns of a second"
            );
        }
        for (name, owner) in &mut inner.owners {
            let mut groups = owner.groups.clone();
            if !aside.is_empty() {
                groups.retain(|group| aside.binary_search(group).is_err());
                if groups.is_empty() {
                    continue;
                }
            }
            let mut pay = |purse: Purse, tiers: u8, source: Source| {
                for group in &groups {
                    out.rules.push(Rule { group: *group, tiers, purse: out.purses.len() });
                }
                out.purses.push(purse);
                draw.sources.push(source);
            };
            let held = owner.held();
            for (at, window) in owner.windows.iter_mut().enumerate() {
                let good = window.until.filter(|(until, _)| now < *until);
                let others =
                    window.wanted.iter().filter(|(own, wanted)| **own != bucket && **wanted > 0).count();
                let amount = match good {
                    Some(_) => window.tokens.div_ceil(others as u32 + 1).min(most),
                    None => 0,
                };
                window.tokens -= amount;
                window.drawn += amount;
                if let Some((_, until)) = good.filter(|_| amount > 0) {
                    out.until = Some(out.until.map_or(until, |before| before.min(until)));
                }
                pay(Purse::Tokens(amount), window.tiers, Source::Window { owner: name.clone(), at, amount });
            }
            if owner.settings.running.is_some() {
                let share = owner.shares.entry(bucket).or_default();
                share.claiming = true;
                pay(Purse::Running(share.most), ALL, Source::Share { owner: name.clone() });
            }
            match held {
                Some((tiers, false)) => pay(Purse::Closed, tiers, Source::Closed),
                Some((tiers, true)) => {
                    let amount = std::mem::take(&mut owner.probes).min(most);
                    pay(Purse::Tokens(amount), tiers, Source::Probes { owner: name.clone(), amount });
                }
                None => {}
            }
            if owner.settings.counts() {
                draw.counted.extend(groups.iter().map(|group| (name.clone(), *group)));
            }
        }
        let mut counted: Vec<u32> = draw.counted.iter().map(|(_, group)| *group).collect();
        counted.sort_unstable();
        counted.dedup();
        out.counted = counted;
        out.closed = aside;
        (out, draw)
    }

    /// Takes back what a claim did not spend, and what it says of running tasks and outcomes.
    pub fn settle(&self, bucket: u16, asked: &ClaimLimits, draw: Draw, how: Settled<'_>, now: UnixMs) {
        if draw.sources.is_empty() && draw.counted.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        let claimed = match how {
            Settled::Claimed(claimed) => Some(claimed),
            _ => None,
        };
        let refused = matches!(how, Settled::Refused);
        let told = claimed.filter(|claimed| claimed.purses.len() == draw.sources.len());
        let now = claimed.map_or(now, |claimed| claimed.now);
        let tallies: HashMap<u32, Tally> = claimed
            .map(|claimed| asked.counted.iter().copied().zip(claimed.tallies.iter().copied()).collect())
            .unwrap_or_default();
        let mut wake: Vec<u16> = Vec::new();
        for (at, source) in draw.sources.into_iter().enumerate() {
            let purse = told.map(|claimed| claimed.purses[at]);
            match source {
                Source::Window { owner, at, amount } => {
                    let Some(window) =
                        inner.owners.get_mut(&owner).and_then(|owner| owner.windows.get_mut(at))
                    else {
                        continue;
                    };
                    let spent =
                        purse.map_or(if refused { 0 } else { amount }, |purse| purse.spent.min(amount));
                    window.drawn = window.drawn.saturating_sub(amount);
                    window.tokens += amount - spent;
                    if spent > 0 {
                        window.spent.push((now, spent));
                    }
                    if let Some(purse) = purse {
                        if purse.denied > 0 {
                            window.wanted.insert(bucket, purse.denied);
                        } else {
                            window.wanted.remove(&bucket);
                        }
                        // What is left is for others; those who could not use theirs do not wake each other.
                        if window.tokens > 0 && (spent > 0 || purse.denied == 0) {
                            wake.extend(window.wanted.keys());
                        }
                    }
                }
                Source::Share { owner } => {
                    let Some(owner) = inner.owners.get_mut(&owner) else { continue };
                    let runs =
                        owner.groups.iter().map(|group| tallies.get(group).map_or(0, |t| t.running)).sum();
                    let scarce = owner.scarce;
                    let share = owner.shares.entry(bucket).or_default();
                    share.claiming = false;
                    match purse {
                        Some(purse) => {
                            share.runs = runs;
                            share.wanted = purse.denied;
                            if scarce {
                                share.most = share.most.min(runs);
                            }
                        }
                        None if refused => {}
                        // Its fate is open: as many as may run do.
                        None => share.runs = share.runs.max(share.most),
                    }
                }
                Source::Probes { owner, amount } => {
                    let Some(owner) = inner.owners.get_mut(&owner) else { continue };
                    if let Some(purse) = purse {
                        owner.probes += amount - purse.spent.min(amount);
                        owner.probes_wanted = purse.denied;
                    } else if refused {
                        owner.probes += amount;
                    }
                }
                Source::Closed => {}
            }
        }
        for (owner, group) in draw.counted {
            let (Some(owner), Some(tally)) = (inner.owners.get_mut(&owner), tallies.get(&group)) else {
                continue;
            };
            let new = [tally.succeeded, tally.failed];
            // What was counted before this pod came is not news.
            if let Some(old) = owner.tallies.insert((bucket, group), new) {
                owner.heard[0] += new[0].saturating_sub(old[0]);
                owner.heard[1] += new[1].saturating_sub(old[1]);
            }
        }
        for bucket in wake {
            if let Some(wakes) = inner.loops.get(&bucket) {
                wakes.notify_one();
            }
        }
        drop(inner);
        self.ask.notify_one();
    }

    fn next(&self, now: Instant) -> Instant {
        let inner = self.inner.lock();
        let soonest = inner.owners.values().filter_map(|owner| owner.due(now)).min();
        soonest.map_or(now + SLEEP_MAX, |at| at.min(now + SLEEP_MAX))
    }

    fn asks(&self, now: Instant) -> Vec<(LimitOwner, Ask)> {
        let mut inner = self.inner.lock();
        let due = inner.owners.iter_mut().filter(|(_, owner)| owner.due(now).is_some_and(|at| at <= now));
        due.map(|(name, owner)| (name.clone(), owner.ask(now))).collect()
    }

    fn took(&self, name: &LimitOwner, ask: Ask, sent: Instant, answer: Result<Allotted, StoreError>) {
        let mut inner = self.inner.lock();
        let Some(owner) = inner.owners.get_mut(name) else { return };
        match answer {
            Ok(told) => {
                if owner.allotted(&ask, sent, told) {
                    for wakes in inner.loops.values() {
                        wakes.notify_one();
                    }
                }
            }
            Err(error) => {
                tracing::debug!(owner = %name, %error, "could not ask for more of a limit; trying again");
                owner.asking = false;
                owner.told = false;
                owner.rest_until = Some(clock::mono() + REST);
                // What was spent is told again; counted twice at worst, which keeps back and lets nothing go.
                for asked in ask.windows {
                    if let Some(window) = owner.windows.iter_mut().find(|window| window.name == asked.name) {
                        window.spent.extend(asked.spent);
                    }
                }
                if let Some(breaker) = ask.breaker {
                    owner.heard[0] += breaker.succeeded;
                    owner.heard[1] += breaker.failed;
                }
            }
        }
    }
}

/// Asks for more where claims want it, says what was spent, and gives back what is not needed, until `stop` fires.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let own = &shared.limits;
    let mut calls = JoinSet::new();
    loop {
        let now = clock::mono();
        for (owner, ask) in own.asks(now) {
            let shared = Arc::clone(&shared);
            calls.spawn(async move {
                let sent = clock::mono();
                let mut answer = queue::allot(&shared.space, &owner, &shared.settings.id, &ask).await;
                if let (true, Ok(told)) = (shared.space.holds_time(), &mut answer) {
                    // How long that time takes to pass nobody knows.
                    for ((granted, wait_ms), asked) in told.windows.iter_mut().zip(&ask.windows) {
                        if *granted < asked.wanted {
                            let wait = u64::try_from(std::mem::take(wait_ms)).unwrap_or(0).max(1);
                            let least = |known| if known == 0 { wait } else { wait.min(known) };
                            shared.tally.more_in_ms.update(Ordering::Relaxed, Ordering::Relaxed, least);
                        }
                    }
                }
                shared.limits.took(&owner, ask, sent, answer);
            });
        }
        if calls.is_empty() {
            shared.tally.asks.fetch_add(1, Ordering::Relaxed);
        }
        let wait = own.next(clock::mono()).saturating_duration_since(clock::mono());
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(wait.max(Duration::from_millis(1))) => {}
            () = own.ask.notified() => {}
            Some(_) = calls.join_next() => {}
        }
    }
    // What is left is said once more, so that nobody waits for it.
    calls.abort_all();
    let last: Vec<(LimitOwner, Ask)> = {
        let mut inner = own.inner.lock();
        let give_back = |(name, owner): (&LimitOwner, &mut Owner)| {
            for window in &mut owner.windows {
                window.wanted.clear();
            }
            owner.shares.values_mut().for_each(|share| share.wanted = 0);
            (name.clone(), owner.ask(clock::mono()))
        };
        inner.owners.iter_mut().map(give_back).collect()
    };
    for (owner, ask) in last {
        if let Err(error) = queue::allot(&shared.space, &owner, &shared.settings.id, &ask).await {
            tracing::debug!(%owner, %error, "could not give back what is left of a limit; it comes back by itself");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn queues_beyond_the_bound_stand_aside_and_each_has_its_turn() {
        let few: Vec<u32> = (0..64).collect();
        assert!(aside([(&few[..], 8)].into_iter(), 0).is_empty());
        let many: Vec<u32> = (0..1_500).collect();
        let owners = [(&many[..], 2), (&many[..300], 1)];
        let mut let_in = BTreeSet::new();
        for turn in 0..12 {
            let aside: BTreeSet<u32> = aside(owners.into_iter(), turn).into_iter().collect();
            let rules: usize =
                many.iter().filter(|g| !aside.contains(g)).map(|g| if *g < 300 { 3 } else { 2 }).sum();
            assert!((limits::RULES_MAX - 2..=limits::RULES_MAX).contains(&rules), "{rules} in turn {turn}");
            let_in.extend(many.iter().copied().filter(|group| !aside.contains(group)));
        }
        assert_eq!(let_in.len(), many.len());
    }
}
