//! The thread that answers the server's questions. It alone changes the pool's budget, once the pool has its source.

use super::{Fresh, Shared, State};
use crate::ServeError;
use crate::protocol::{ProgramReport, Reply, Request};
use gpu_vmm_core::{Backend, BackingStore, Bytes, Error, Result, WaitFor};
use gpu_vmm_pool::{Pool, PoolStats, TagId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time in which a request must have used what was granted for it. Until it ends, others do not get that.
const TO_USE: Duration = Duration::from_secs(1);

/// The time between two attempts to find a server again.
const PAUSE: Duration = Duration::from_millis(250);

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
    /// The tag that a thread suspends now.
    busy: Option<Box<str>>,
}

/// A tag that can sleep.
#[derive(Clone, Debug)]
struct Sleeper {
    tag: Box<str>,
    id: TagId,
    /// The memory that it had when a thread suspended it last; 0 if none did.
    asleep: u64,
}

impl Sleepers {
    fn lock(&self) -> MutexGuard<'_, Tags> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, tag: &str, id: TagId) {
        let mut tags = self.lock();
        // An earlier tag of this name has ended.
        tags.tags.retain(|known| known.id == id || *known.tag != *tag);
        if !tags.tags.iter().any(|known| known.id == id) {
            tags.tags.push(Sleeper { tag: tag.into(), id, asleep: 0 });
        }
    }

    /// Returns the tags that can sleep, without those that have ended.
    fn of<B: Backend>(&self, pool: &Pool<B>) -> Vec<Sleeper> {
        let all = self.lock().tags.clone();
        let (there, ended): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|one| pool.tag_id(&one.tag).is_ok_and(|id| id == one.id));
        if !ended.is_empty() {
            self.lock().tags.retain(|known| !ended.iter().any(|one| one.id == known.id));
        }
        there
    }

    /// Removes a tag. When this returns, no thread suspends it any more.
    pub(super) fn remove(&self, tag: &str) {
        let mut tags = self.lock();
        tags.tags.retain(|known| *known.tag != *tag);
        while tags.busy.as_deref() == Some(tag) {
            tags = self.changed.wait(tags).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Calls `suspend` for a tag, unless it was removed meanwhile.
    fn suspend(&self, one: &Sleeper, suspend: impl FnOnce() -> Result<Bytes>) -> Option<Result<Bytes>> {
        {
            let mut tags = self.lock();
            // Before the look at the list: a tag may be removed during the wait.
            while tags.busy.is_some() {
                tags = self.changed.wait(tags).unwrap_or_else(PoisonError::into_inner);
            }
            if !tags.tags.iter().any(|known| known.id == one.id) {
                return None;
            }
            tags.busy = Some(one.tag.clone());
        }
        // Observers of the memory are the program's.
        let suspended = catch_unwind(AssertUnwindSafe(suspend)).ok();
        let mut tags = self.lock();
        tags.busy = None;
        if let Some(Ok(memory)) = &suspended {
            let known = tags.tags.iter_mut().find(|known| known.id == one.id);
            // Zero if it sleeps already.
            known.into_iter().filter(|_| memory.0 > 0).for_each(|known| known.asleep = memory.0);
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
        let has_ended = state.has_ended;
        drop(state);
        if has_ended {
            return;
        }
        let changes = self.changes();
        let granted = self.state().granted;
        let joined = self.link.join(granted);
        drop(changes);
        match joined {
            Ok(()) => {
                let mut state = self.state();
                state.is_connected = true;
                if state.has_ended {
                    drop(state);
                    self.link.end();
                }
            }
            // Others have the memory by now: the pool gives what it can before the next attempt.
            Err(error) => {
                let missing = beyond_limit(&error);
                if missing > 0 {
                    self.give(missing, true);
                }
            }
        }
    }

    fn answer(&self, reply: Reply) {
        match reply {
            Reply::Budget { number, granted } => {
                if let Ok(bytes) = granted {
                    let _changes = self.changes();
                    let mut state = self.state();
                    state.granted = state.granted.saturating_add(bytes);
                    state.fresh = Some(Fresh { budget: state.needs, until: Instant::now() + TO_USE });
                    drop(state);
                    // It fails without effect in a forked child, which has no thread.
                    guarded(|| {
                        let _ = self.pool.upgrade().map(|pool| pool.grant_budget(Bytes(bytes)));
                    });
                }
                let mut state = self.state();
                if state.request == number {
                    state.reply = Some(granted);
                }
                drop(state);
                self.changed.notify_all();
            }
            Reply::Ask { ask, bytes, sleeps } => {
                let given = self.give(bytes, sleeps);
                let _ = self.link.send(&Request::Give { ask, bytes: given });
            }
            Reply::Describe => {
                let report = guarded(|| self.pool.upgrade().map(|pool| self.report(&pool)));
                let _ = self.link.send(&Request::Report(report.unwrap_or_default()));
            }
            _ => {}
        }
    }

    /// Returns up to `bytes` of the budget to the server: first what the pool does not use, then the memory of tags that can sleep. Returns how
    /// much.
    fn give(&self, bytes: u64, sleeps: bool) -> u64 {
        let mut given = 0;
        // Whatever happens, the server must know what was taken.
        guarded(|| {
            if let Some(pool) = self.pool.upgrade() {
                self.give_of(&pool, (bytes, sleeps), &mut given);
            }
        });
        given
    }

    fn give_of(&self, pool: &Pool<B>, (bytes, sleeps): (u64, bool), given: &mut u64) {
        let wanted = bytes.min(self.state().spare());
        *given = self.take(pool, wanted);
        if *given < wanted {
            // What work still uses is waited for.
            let kept: u64 =
                pool.kinds().iter().map(|(_, stats)| stats.kept + stats.cached + stats.pending).sum();
            let _ = pool.trim(Bytes(kept.saturating_sub(wanted - *given)));
            *given += self.take(pool, wanted - *given);
        }
        while sleeps && *given < wanted && self.sleep_one(pool) {
            *given += self.take(pool, wanted - *given);
        }
    }

    /// Suspends a tag that can sleep and does not yet. Returns false if there is none. Waits for no thread that resumes a tag, which may
    /// wait for the server, and thus for the thread that answers it.
    pub(super) fn sleep_one(&self, pool: &Pool<B>) -> bool {
        self.sleepers.of(pool).iter().any(|one| {
            let suspend = || match pool.occupied(&one.tag)? {
                Bytes::ZERO => Ok(Bytes::ZERO),
                _ => pool.try_suspend(one.id, &self.store(pool)?, WaitFor::all_devices()),
            };
            match self.sleepers.suspend(one, suspend) {
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
        // A reservation waits: it must not count on what goes.
        let _changes = self.changes();
        let most = most.min(self.state().spare());
        // Without the state, which fences and observers of the program may look at.
        let taken = pool.take_budget(Bytes(most)).unwrap_or_default().0;
        let mut state = self.state();
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
        let sum = |value: fn(&PoolStats) -> u64| kinds.iter().map(|(_, stats)| value(stats)).sum();
        let sleepers = self.sleepers.of(pool);
        let occupied = sleepers.iter().filter_map(|one| pool.occupied(&one.tag).ok());
        let asleep = sleepers.iter().filter(|one| pool.is_suspended(&one.tag).unwrap_or(false));
        ProgramReport {
            reserved: self.state().reserved,
            held: sum(|stats| stats.held),
            live: sum(|stats| stats.live),
            // None of a tag that sleeps.
            can_sleep: occupied.map(|bytes| bytes.0).sum(),
            asleep: asleep.map(|one| one.asleep).sum(),
        }
    }
}

/// Calls what may call code of the program, such as a fence: a panic there must not end the thread, for which other programs wait.
fn guarded<T: Default>(call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_default()
}

/// Returns by how much a pool has more than the server has for it.
fn beyond_limit(error: &Error) -> u64 {
    match error.extension() {
        Some(ServeError::NoRoom { requested, free, .. }) => requested.saturating_sub(*free),
        Some(ServeError::OverLimit { limit, has, requested, .. }) => {
            has.saturating_add(*requested).saturating_sub(*limit)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails by panicking

    use super::*;
    use gpu_vmm_host::HostConfig;
    use std::sync::mpsc::channel;
    use std::thread;

    /// Two threads suspend: the thread that answers, and one that requests memory. The tag of the second wakes while that one waits.
    #[test]
    fn a_tag_that_woke_is_not_suspended_after_another() {
        let pool = Pool::builder(&HostConfig::new().open().unwrap()).build().unwrap();
        let sleepers = Sleepers::default();
        let tags = ["one", "other"].map(|tag| pool.tagged(tag).unwrap());
        ["one", "other"].iter().for_each(|tag| sleepers.add(tag, pool.tag_id(tag).unwrap()));
        let known = sleepers.of(&pool);
        let ((begins, begun), (ends, ended)) = (channel(), channel::<()>());
        thread::scope(|scope| {
            let sleepers = &sleepers;
            let first = &known[0];
            scope.spawn(move || {
                let suspend = || {
                    begins.send(()).unwrap();
                    ended.recv().unwrap();
                    Ok(Bytes(1))
                };
                sleepers.suspend(first, suspend)
            });
            begun.recv().unwrap();
            let second = scope.spawn(|| sleepers.suspend(&known[1], || Ok(Bytes(1))).is_some());
            thread::sleep(Duration::from_millis(20));
            sleepers.remove("other");
            ends.send(()).unwrap();
            assert!(!second.join().unwrap());
        });
        assert_eq!(sleepers.of(&pool).len(), 1);
        drop(tags);
    }
}
