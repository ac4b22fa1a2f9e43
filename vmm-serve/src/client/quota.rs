//! A pool's part of a server's budget.

mod answers;
mod connection;
#[cfg(test)]
mod tests;

use super::{Client, milliseconds};
use crate::ServeError;
use crate::protocol::{MAX_WAIT_MS, Request};
use answers::Sleepers;
use connection::Link;
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::{Backend, BackingStore, Bytes, Detail, Error, Operation, Result};
use gpu_vmm_pool::{BudgetEffort, BudgetSource, Pool, WeakPool};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const OPERATION: Operation = Operation::ConnectPool;

/// A request asks for this much more of its pool's budget, so that not every page is requested by itself.
const MORE: u64 = 16;
const LEAST_MORE: Bytes = Bytes::mib(32);
const MOST_MORE: Bytes = Bytes::mib(512);

/// The time in which the server answers a request after its own limit: it waits for each program that does not answer.
const TO_REPLY: Duration = Duration::from_secs(600);

/// The time in which the server answers a request that waits for no other program.
const TO_REPLY_AT_ONCE: Duration = Duration::from_secs(10);

/// How often a reservation asks for more, while others take what it gets.
const ROUNDS: u32 = 64;

/// How a pool takes part in a server's budget.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QuotaOptions<B: Backend> {
    /// The program's name in lists and errors; the name of its executable file by default.
    pub name: String,
    /// Programs of a lower priority are asked first for memory, and their requests wait longer; 0 by default. Those above 0 are for the
    /// server's own user and for root.
    pub priority: i8,
    /// How long a request of the pool waits for memory that other programs have; 10 s by default.
    pub wait: Duration,
    /// Where the contents of tags go that [can sleep](Quota::let_sleep); ordinary memory by default.
    pub store: Option<BackingStore<B>>,
}

impl<B: Backend> Default for QuotaOptions<B> {
    fn default() -> Self {
        let program = std::env::current_exe().ok();
        let name = program.as_deref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
        let name = name.map_or_else(|| "program".to_owned(), |name| name.chars().take(64).collect());
        Self { name, priority: 0, wait: Duration::from_secs(10), store: None }
    }
}

/// A pool's part of a server's budget: [`Client::connect_pool`].
///
/// The pool creates its memory itself, within what the server grants. It requests more when it needs more, and a thread of this process
/// returns memory when the server asks for it: first what the pool does not use, then the memory of tags that [can sleep](Self::let_sleep).
///
/// The part lasts as long as the pool has memory, whether or not this value exists. If the server ends, the pool keeps its budget, and gets no
/// more until a server is there again at the same path.
///
/// # Thread safety
///
/// Every call may run on any thread and at the same time as every other one.
#[derive(Clone, Debug)]
pub struct Quota<B: Backend> {
    shared: Arc<Shared<B>>,
}

/// What the pool's source, its thread and [`Quota`] share.
#[derive(Debug)]
struct Shared<B: Backend> {
    pool: WeakPool<B>,
    process: Process,
    options: QuotaOptions<B>,
    /// The budget that the pool had before, which it does not exceed.
    most: u64,
    link: Link<B>,
    /// Locked by the one thread that changes the pool's budget, or tells a server of it.
    changes: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
    sleepers: Sleepers,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the one thread that requests memory, and those of the threads that wait for their turn, in their order; and when the
    /// wait of each ends.
    turns: VecDeque<(u64, Instant)>,
    /// The number of the next turn.
    next_turn: u64,
    /// The number of the last request, and the reply to it.
    request: u64,
    reply: Option<std::result::Result<u64, ServeError>>,
    /// The pool's budget, also after its last handle.
    granted: u64,
    /// What is never given back.
    reserved: u64,
    /// The budget that the last request needs.
    needs: u64,
    /// What was granted for it and is not used yet.
    fresh: Option<Fresh>,
    is_connected: bool,
    /// True if the pool has ended.
    has_ended: bool,
}

/// What was granted for a request, which must find it before others have it.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    /// The whole budget that the request needs: also what was free of it before, reserved or not, and what the pool holds and can use for it.
    budget: u64,
    until: Instant,
}

impl State {
    /// Returns what is neither reserved nor needed by a request.
    fn spare(&self) -> u64 {
        let fresh = self.fresh.filter(|fresh| fresh.until > Instant::now());
        self.granted.saturating_sub(fresh.map_or(0, |fresh| fresh.budget).max(self.reserved))
    }
}

/// A thread's turn to request memory, or its place among those that wait for theirs.
struct RequestTurn<'a, B: Backend> {
    shared: &'a Shared<B>,
    number: u64,
}

impl<B: Backend> Drop for RequestTurn<'_, B> {
    fn drop(&mut self) {
        self.shared.state().turns.retain(|(number, _)| *number != self.number);
        self.shared.changed.notify_all();
    }
}

/// The pool's reference.
#[derive(Debug)]
struct Source<B: Backend>(Arc<Shared<B>>);

impl<B: Backend> Client<B> {
    /// Lets the server divide the memory of the pool's device between this pool and those of other programs. From now on the pool's budget is
    /// what the server grants, at first what the pool holds, and never more than its budget before this call.
    ///
    /// # Errors
    ///
    /// [`ServeError::NoRoom`] and [`ServeError::OverLimit`] for a pool that holds more than there is;
    /// [`ServeError::BadRequest`] for a priority that is not allowed; [`Detail::Unsupported`] for a server of an earlier version,
    /// a device without an identity, and a pool that is connected already; errors of the connection. The pool is as before then.
    pub fn connect_pool(&self, pool: &Pool<B>, options: QuotaOptions<B>) -> Result<Quota<B>> {
        let device = pool.memory().device;
        let known = pool.backend().devices().iter().find(|known| known.id == device);
        let Some(uuid) = known.and_then(|known| known.uuid) else {
            let reason = format!("{device} has no identity that other processes know");
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        };
        let process = Process::current();
        process.check(OPERATION)?;
        let untagged = pool.tagged("")?;
        let most = pool.budget();
        let held = Bytes(held(pool).min(most.0));
        // Until the server has granted it, the pool gets no more.
        pool.set_budget(held)?;
        let link = Link::new(self, &options, uuid);
        let state = State { granted: held.0, is_connected: true, ..State::default() };
        let shared = Arc::new(Shared {
            // Without the handle's tag, which ends as if the pool were not connected.
            pool: untagged.downgrade(),
            process,
            options,
            most: most.0,
            link,
            changes: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            sleepers: Sleepers::default(),
        });
        let begun = shared.begin(pool, held);
        if begun.is_err() {
            shared.end();
            // It fails only for a pool that another thread has connected meanwhile.
            let _ = pool.set_budget(most);
        }
        begun.map(|()| Quota { shared })
    }
}

impl<B: Backend> Shared<B> {
    /// Joins the server, and attaches itself to the pool.
    fn begin(self: &Arc<Self>, pool: &Pool<B>, held: Bytes) -> Result<()> {
        self.link.join(held.0)?;
        let shared = Arc::clone(self);
        let spawned = thread::Builder::new().name("gpu-vmm-quota".to_owned()).spawn(move || shared.run());
        spawned.map_err(|error| {
            let reason = format!("the thread that answers the server cannot start: {error}");
            Error::new(OPERATION, Detail::Unsupported { reason })
        })?;
        // The thread may have a question already, and other threads request memory as soon as there is a source.
        let _changes = self.changes();
        let budget = pool.set_budget_source(Box::new(Source(Arc::clone(self))))?;
        // It may hold less by now, and the thread may have given a part already.
        let before = std::mem::replace(&mut self.state().granted, budget.0);
        let given = before.saturating_sub(budget.0);
        // If the server is gone by now, the thread tells the next one the right number.
        let _ = self.link.send(&Request::Give { ask: 0, bytes: given });
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this thread may request memory, after those that came before. Its own wait ends at a time that is returned with the turn:
    /// it waits no longer than that for a thread that waits longer, and to the end of one that does not. `None` if it is over. With
    /// `at_once`, only tries.
    fn turn(&self, wait: Duration, at_once: bool) -> Option<(RequestTurn<'_, B>, Instant)> {
        let mut state = self.state();
        if at_once && !state.turns.is_empty() {
            return None;
        }
        // Under the lock: of threads that wait as long, none ends before one that came earlier.
        let (number, until) = (state.next_turn, Instant::now() + limited(wait));
        state.next_turn += 1;
        state.turns.push_back((number, until));
        // Its end takes the lock: the guard ends first.
        let turn = RequestTurn { shared: self, number };
        while let Some((first, theirs)) = state.turns.front().copied()
            && first != number
        {
            let limit = if theirs <= until { theirs + TO_REPLY } else { until };
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        Some((turn, until))
    }

    fn pool(&self) -> Result<Pool<B>> {
        self.pool
            .upgrade()
            .ok_or_else(|| Error::of_extension(OPERATION, ServeError::bad("the pool has ended")))
    }

    /// Requests `missing` bytes for the pool. The caller has the turn.
    fn request(&self, missing: u64, asks: bool, wait: Duration) -> Result<()> {
        let number = {
            let mut state = self.state();
            let room = self.most.saturating_sub(state.granted);
            if missing > room {
                let whose = "the pool".to_owned();
                let (limit, has, requested) = (self.most, state.granted, missing);
                let over = ServeError::OverLimit { whose, limit, has, requested };
                return Err(Error::of_extension(OPERATION, over));
            }
            let more = (state.granted / MORE).clamp(LEAST_MORE.0, MOST_MORE.0);
            state.request += 1;
            state.reply = None;
            // Also if others get a part of the budget while it waits: the server then grants it that again.
            state.needs = state.granted.saturating_add(missing);
            let (number, most) = (state.request, missing.saturating_add(more).min(room));
            drop(state);
            let wait_ms = milliseconds(wait);
            self.link.send(&Request::Reserve { number, least: missing, most, wait_ms, asks })?;
            number
        };
        let until = Instant::now() + wait + if asks { TO_REPLY } else { TO_REPLY_AT_ONCE };
        let mut state = self.state();
        loop {
            if state.request == number
                && let Some(reply) = state.reply.take()
            {
                return reply.map(drop).map_err(|error| Error::of_extension(OPERATION, error.printable()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if !state.is_connected || state.has_ended || left.is_zero() {
                return Err(self.link.gone());
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the connection when the pool has no memory any more.
    fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        drop(state);
        self.changed.notify_all();
        self.link.end();
    }
}

impl<B: Backend> BudgetSource for Source<B> {
    fn raise(&self, budget: Bytes, missing: Bytes, effort: BudgetEffort) -> Result<()> {
        let Self(shared) = self;
        shared.process.check(OPERATION)?;
        let asks = effort == BudgetEffort::AskOthers;
        let pool = shared.pool()?;
        // A request that asks no other program does not wait.
        let wait = if asks { shared.options.wait } else { Duration::ZERO };
        let answer = match shared.turn(wait, !asks) {
            None => Err(busy()),
            Some((_turn, until)) => {
                let now = pool.budget();
                // What other threads got meanwhile may serve this one. Else it asks all the same, although it may lack less by now: of
                // threads that take turns, each would find another budget each time.
                if now != budget && now.0 >= held(&pool).saturating_add(missing.0) {
                    return Ok(());
                }
                let left = until.saturating_duration_since(Instant::now());
                match shared.request(missing.0, asks, left) {
                    Err(_) if now != budget => return Ok(()),
                    answer => answer,
                }
            }
        };
        // If others have too little, its own tags sleep for the pool. Without the turn: a thread that resumes one may wait for it.
        if asks && answer.is_err() && shared.sleep_one(&pool) { Ok(()) } else { answer }
    }

    fn request_ended(&self) {
        if self.0.process.is_this() {
            self.0.state().fresh = None;
        }
    }
}

impl<B: Backend> Drop for Source<B> {
    fn drop(&mut self) {
        if self.0.process.is_this() {
            self.0.end();
        }
    }
}

impl<B: Backend> Quota<B> {
    /// Returns what the server has granted; nothing in a forked child, which has no part of it.
    #[must_use]
    pub fn granted(&self) -> Bytes {
        // A thread of the parent may have had the lock at the fork.
        if self.shared.process.is_this() { Bytes(self.shared.state().granted) } else { Bytes::ZERO }
    }

    /// Returns true if the server is there; false in a forked child.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.process.is_this() && self.shared.state().is_connected
    }

    /// Reserves a part of the budget before it is used: waits up to `wait` until the server has granted `bytes` in all, and gives no part of
    /// that back until another call reserves less. The pool creates its memory when it needs it. Requests of other threads for more memory
    /// wait meanwhile, each no longer than its own limit.
    ///
    /// # Errors
    ///
    /// [`ServeError::BadRequest`] if other threads of the program request memory all the time;
    /// [`ServeError::NoRoom`], [`ServeError::OverLimit`], and errors of the connection; then what was reserved stays so.
    /// [`Detail::Forked`].
    pub fn reserve(&self, bytes: Bytes, wait: Duration) -> Result<()> {
        let shared = &self.shared;
        shared.process.check(OPERATION)?;
        let (_turn, until) = shared.turn(wait, false).ok_or_else(busy)?;
        for _ in 0..ROUNDS {
            let changes = shared.changes();
            let mut state = shared.state();
            let missing = bytes.0.saturating_sub(state.granted);
            if missing == 0 {
                (state.reserved, state.fresh) = (bytes.0, None);
                return Ok(());
            }
            drop((state, changes));
            shared.request(missing, true, until.saturating_duration_since(Instant::now()))?;
        }
        let taken = ServeError::bad("other programs took again and again what the server granted");
        Err(Error::of_extension(OPERATION, taken))
    }

    /// Tells the server that the memory of a tag can be suspended when others need it. Until [`wake`](Self::wake), the program does not use
    /// the tag's blocks, on the host or by work on a device. If the tag ends before, so does this: another tag that has its name later
    /// cannot sleep.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchTag`](gpu_vmm_pool::PoolError::NoSuchTag); [`Detail::Forked`].
    pub fn let_sleep(&self, tag: &str) -> Result<()> {
        let shared = &self.shared;
        shared.process.check(OPERATION)?;
        let pool = shared.pool()?;
        shared.sleepers.add(tag, pool.tag_id(tag)?);
        // A request of another program may wait for it. Without a server, none does.
        let _ = shared.link.send(&Request::Report(shared.report(&pool)));
        Ok(())
    }

    /// Makes a tag usable again: its memory stays from now on, and comes back if it was suspended, as by [`Pool::resume`]. Waits for memory that
    /// other programs have as long as the pool's requests do. Returns the size of the memory that came back.
    ///
    /// # Errors
    ///
    /// Those of [`Pool::resume`]; the memory is then suspended and can sleep no more.
    pub fn wake(&self, tag: &str) -> Result<Bytes> {
        let shared = &self.shared;
        shared.process.check(OPERATION)?;
        shared.sleepers.remove(tag);
        shared.pool()?.resume(tag)
    }
}

/// Returns what a pool holds, of all kinds.
fn held<B: Backend>(pool: &Pool<B>) -> u64 {
    pool.kinds().iter().map(|(_, stats)| stats.held).sum()
}

/// Returns a wait that the server permits. Longer ones may exceed the clock.
fn limited(wait: Duration) -> Duration {
    wait.min(Duration::from_millis(MAX_WAIT_MS))
}

fn busy() -> Error {
    let busy = ServeError::bad("another thread of this program waits for memory");
    Error::of_extension(OPERATION, busy)
}
