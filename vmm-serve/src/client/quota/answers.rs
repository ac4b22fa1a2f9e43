//! The thread that answers the server's questions. It alone changes the pool's budget.

use super::{Shared, State};
use crate::protocol::{ProgramReport, Reply, Request};
use gpu_vmm_core::{Backend, BackingStore, Bytes, Result, WaitFor};
use gpu_vmm_pool::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time between two attempts to find a server again.
const PAUSE: Duration = Duration::from_secs(1);

/// The tags that can sleep.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    tags: Mutex<Tags>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Tags {
    /// In the order in which they go to sleep.
    tags: Vec<Sleeper>,
    /// The tag that the thread suspends now.
    busy: Option<Box<str>>,
}

/// A tag that can sleep.
#[derive(Clone, Debug)]
struct Sleeper {
    tag: Box<str>,
    /// The memory that it had when the thread suspended it; 0 if it was not.
    asleep: u64,
}

impl Sleepers {
    fn lock(&self) -> MutexGuard<'_, Tags> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, tag: &str) {
        let mut tags = self.lock();
        if !tags.tags.iter().any(|known| *known.tag == *tag) {
            tags.tags.push(Sleeper { tag: tag.into(), asleep: 0 });
        }
    }

    /// Removes a tag. When this returns, the thread does not suspend it any more.
    pub(super) fn remove(&self, tag: &str) {
        let mut tags = self.lock();
        tags.tags.retain(|known| *known.tag != *tag);
        while tags.busy.as_deref() == Some(tag) {
            tags = self.changed.wait(tags).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn all(&self) -> Vec<Sleeper> {
        self.lock().tags.clone()
    }

    /// Calls `suspend` for a tag, unless it was removed meanwhile.
    fn suspend(&self, tag: &str, suspend: impl FnOnce() -> Result<Bytes>) -> Option<Result<Bytes>> {
        {
            let mut tags = self.lock();
            if !tags.tags.iter().any(|known| *known.tag == *tag) {
                return None;
            }
            while tags.busy.is_some() {
                tags = self.changed.wait(tags).unwrap_or_else(PoisonError::into_inner);
            }
            tags.busy = Some(tag.into());
        }
        // Observers of the memory are the program's.
        let suspended = catch_unwind(AssertUnwindSafe(suspend)).ok();
        let mut tags = self.lock();
        tags.busy = None;
        if let Some(Ok(memory)) = &suspended {
            let known = tags.tags.iter_mut().find(|known| *known.tag == *tag);
            // Zero if it sleeps already.
            known.into_iter().for_each(|known| known.asleep = known.asleep.max(memory.0));
        }
        drop(tags);
        self.changed.notify_all();
        suspended
    }
}

impl<B: Backend> Shared<B> {
    /// Answers until the pool has ended.
    pub(super) fn run(&self) {
        while !self.state().has_ended {
            let Some(socket) = self.link.socket() else {
                self.reconnect();
                continue;
            };
            while let Some(reply) = self.link.receive(&socket) {
                self.answer(reply);
            }
            self.state().is_connected = false;
            self.changed.notify_all();
        }
    }

    fn reconnect(&self) {
        let state = self.state();
        let is_over = |state: &mut State| !state.has_ended;
        let waited = self.changed.wait_timeout_while(state, PAUSE, is_over);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let (has_ended, granted) = (state.has_ended, state.granted);
        drop(state);
        if !has_ended && self.link.join(granted).is_ok() {
            let mut state = self.state();
            state.is_connected = true;
            if state.has_ended {
                drop(state);
                self.link.end();
            }
        }
    }

    fn answer(&self, reply: Reply) {
        match reply {
            Reply::Budget { number, granted } => {
                if let Ok(bytes) = granted {
                    self.state().granted += bytes;
                    // It fails without effect in a forked child, which has no thread.
                    let _ = self.pool.upgrade().map(|pool| pool.grant_budget(Bytes(bytes)));
                }
                let mut state = self.state();
                if state.request == number {
                    state.reply = Some(granted);
                }
                drop(state);
                self.changed.notify_all();
            }
            Reply::Ask { ask, bytes, sleeps } => {
                let given = self.pool.upgrade().map_or(0, |pool| self.give(&pool, bytes, sleeps));
                let _ = self.link.send(&Request::Give { ask, bytes: given });
            }
            Reply::Describe => {
                let report = self.pool.upgrade().map(|pool| self.report(&pool)).unwrap_or_default();
                let _ = self.link.send(&Request::Report(report));
            }
            _ => {}
        }
    }

    /// Gives back up to `bytes` of the budget. Returns how much.
    fn give(&self, pool: &Pool<B>, bytes: u64, sleeps: bool) -> u64 {
        let wanted = {
            let state = self.state();
            bytes.min(state.granted.saturating_sub(state.reserved))
        };
        let mut given = self.take(pool, wanted);
        if given < wanted {
            // What work still uses is waited for.
            let kept: u64 =
                pool.kinds().iter().map(|(_, stats)| stats.kept + stats.cached + stats.pending).sum();
            let _ = pool.trim(Bytes(kept.saturating_sub(wanted - given)));
            given += self.take(pool, wanted - given);
        }
        while sleeps && given < wanted && self.sleep_one(pool) {
            given += self.take(pool, wanted - given);
        }
        given
    }

    /// Suspends a tag that can sleep and does not yet. Returns false if there is none.
    pub(super) fn sleep_one(&self, pool: &Pool<B>) -> bool {
        self.sleepers.all().iter().filter(|one| one.asleep == 0).any(|Sleeper { tag, .. }| {
            let suspend = || pool.suspend(tag, &self.store(pool)?, WaitFor::all_devices());
            match self.sleepers.suspend(tag, suspend) {
                Some(Ok(memory)) => memory.0 > 0,
                // Its store may have no room. Another tag may be smaller.
                Some(Err(error)) => {
                    pool.backend().drop_log().record(error);
                    false
                }
                None => false,
            }
        })
    }

    fn take(&self, pool: &Pool<B>, most: u64) -> u64 {
        let mut state = self.state();
        // While the budget is locked: a reservation must not count on what goes.
        let most = most.min(state.granted.saturating_sub(state.reserved));
        let taken = pool.take_budget(Bytes(most)).unwrap_or_default().0;
        state.granted -= taken.min(state.granted);
        taken
    }

    fn store(&self, pool: &Pool<B>) -> Result<BackingStore<B>> {
        match &self.options.store {
            Some(store) => Ok(store.clone()),
            None => BackingStore::host(pool.backend()),
        }
    }

    pub(super) fn report(&self, pool: &Pool<B>) -> ProgramReport {
        let kinds = pool.kinds();
        let sum =
            |value: fn(&gpu_vmm_pool::PoolStats) -> u64| kinds.iter().map(|(_, stats)| value(stats)).sum();
        let sleepers = self.sleepers.all();
        let occupied = sleepers.iter().filter_map(|one| pool.occupied(&one.tag).ok());
        ProgramReport {
            reserved: self.state().reserved,
            held: sum(|stats| stats.held),
            live: sum(|stats| stats.live),
            // None of a tag that sleeps.
            can_sleep: occupied.map(|bytes| bytes.0).sum(),
            asleep: sleepers.iter().map(|one| one.asleep).sum(),
        }
    }
}
