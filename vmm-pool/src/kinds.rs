//! The kinds of memory of a pool: device memory, host memory, memory that can be exported, and so on.
//!
//! Each kind has state of its own: addresses, frames, tags, streams and thread caches, so that a request finds only memory of its kind.
//! The kinds share a [`Ledger`] with the budget. A request of one kind that finds too little memory lets free memory of the others
//! return to the driver.

use crate::core::{Core, Shortage};
use crate::error::ExhaustedResource;
use crate::ledger::Ledger;
use crate::owner::Owner;
use crate::settings::{Callbacks, Settings};
use crate::shared::Inner;
use crate::stats::PoolStats;
use crate::waits::Ladder;
use gpu_vmm_core::extend::BlockOwner;
use gpu_vmm_core::{
    Backend, Bytes, Detail, DeviceId, Error, Operation, PhysicalMemory, Properties, Result, Stream,
};
use gpu_vmm_premap::PremapThread;
use gpu_vmm_premap::sync::{Mutex, MutexGuard, lock};
use std::fmt;
use std::sync::Arc;

/// The most kinds of memory of a pool.
const MOST: usize = 64;

/// How often a request lets memory of other kinds return to the driver, while other threads take it.
const ROUNDS: u32 = 64;

/// The kinds of a pool. They exist as long as a handle of the pool does.
pub(crate) struct Kinds<B: Backend> {
    /// The kinds that were added, in this order. They end before the first, which has the blocks that are kept by address.
    added: Mutex<Vec<Arc<Owner<B>>>>,
    pub(crate) first: Arc<Owner<B>>,
    pub(crate) ledger: Arc<Ledger>,
    /// The size of the device's memory, locked by the one thread that adds a kind or moves the pool to another device.
    pub(crate) total: Mutex<Bytes>,
    /// The settings, callbacks and thread for further kinds.
    settings: Settings,
    calls: Callbacks,
    premap: Option<PremapThread>,
}

/// Without the first kind, which the pool shows.
impl<B: Backend> fmt::Debug for Kinds<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kinds")
            .field("added", &self.added)
            .field("ledger", &self.ledger)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> Drop for Kinds<B> {
    fn drop(&mut self) {
        if !self.first.inner.process.is_this() {
            // A thread of the parent may have been changing the list at the fork.
            std::mem::forget(std::mem::replace(&mut self.added, Mutex::new(Vec::new())));
        }
    }
}

impl<B: Backend> Kinds<B> {
    /// Creates the first kind of a pool.
    pub(crate) fn new(
        backend: &B,
        settings: Settings,
        ledger: Ledger,
        calls: Callbacks,
        premap: Option<PremapThread>,
    ) -> Result<Self> {
        let ledger = Arc::new(ledger);
        let first = owner(backend, settings.clone(), &ledger, &calls, premap.as_ref())?;
        let total = Mutex::new(settings.total);
        Ok(Self { added: Mutex::new(Vec::new()), first, ledger, total, settings, calls, premap })
    }

    /// Locks the kinds that were added; none in a forked child, where a thread that the child lacks may hold the lock.
    fn added(&self) -> Option<MutexGuard<'_, Vec<Arc<Owner<B>>>>> {
        self.first.inner.process.is_this().then(|| lock(&self.added))
    }

    /// Returns all kinds, in the order in which they were added; in a forked child, the first alone.
    pub(crate) fn all(&self) -> Vec<Arc<Owner<B>>> {
        let mut all = vec![Arc::clone(&self.first)];
        all.extend(self.added().iter().flat_map(|added| added.iter()).map(Arc::clone));
        all
    }

    /// Returns the other kinds in the order in which they give way: the kind that was added last, and the pool's own last.
    fn others(&self, of: &Owner<B>) -> Vec<Arc<Owner<B>>> {
        let mut all = self.all();
        all.retain(|owner| !std::ptr::eq(&raw const **owner, of));
        all.reverse();
        all
    }

    pub(crate) fn find(&self, memory: Properties) -> Option<Arc<Owner<B>>> {
        if self.first.memory() == memory {
            return Some(Arc::clone(&self.first));
        }
        self.added()?.iter().find(|owner| owner.memory() == memory).map(Arc::clone)
    }

    /// Adds a kind, unless another thread does.
    pub(crate) fn add(&self, operation: Operation, memory: Properties) -> Result<Arc<Owner<B>>> {
        let refused = |reason| Err(Error::new(operation, Detail::Unsupported { reason }));
        self.first.inner.process.check(operation)?;
        // A pool that is moved gets no kind meanwhile.
        let total = lock(&self.total);
        let own = self.first.memory().device;
        if memory.device != own {
            return refused(format!(
                "the pool has memory of {own}, not of {}; build another pool",
                memory.device
            ));
        }
        self.first.inner.core(operation)?.check_virtual(operation)?;
        self.try_memory(memory)?;
        let new = owner(
            &self.first.backend,
            self.settings.of(memory, *total),
            &self.ledger,
            &self.calls,
            self.premap.as_ref(),
        )?;
        let mut added = lock(&self.added);
        if let Some(known) = added.iter().find(|owner| owner.memory() == memory).map(Arc::clone) {
            drop(added);
            return Ok(known);
        }
        if added.len() + 1 == MOST {
            drop(added);
            return refused(format!("the pool has {MOST} kinds of memory, the most that it can have"));
        }
        added.push(Arc::clone(&new));
        Ok(new)
    }

    /// Creates one granule of memory, if the budget has room for it, so that memory that the driver does not have is refused at once.
    fn try_memory(&self, memory: Properties) -> Result<()> {
        let backend = &self.first.backend;
        let size = backend.granularity_of(Operation::CreatePool, &memory)?.bytes();
        let inner = &self.first.inner;
        let mut core = inner.core(Operation::CreatePool)?;
        if !self.ledger.claim(size.0, 0) {
            return Ok(());
        }
        // Requests that find too little memory wait for the end of the trial.
        core.ongoing.begin();
        drop(core);
        let tried = PhysicalMemory::create(backend, size, memory).map(drop);
        self.ledger.give_back(size.0);
        inner.core(Operation::CreatePool)?.ongoing.end();
        inner.wake();
        match tried {
            // The device is full: the first block of the kind tells.
            Err(error) if error.is_out_of_memory() => Ok(()),
            tried => tried,
        }
    }

    /// Returns free memory of other kinds to the driver for a request that finds too little memory: the kind that was added last gives
    /// way first, and the pool's own last. If the driver's memory is short, only kinds in the same place give way. Waits for no work.
    /// Returns true if any memory was returned.
    pub(crate) fn give_way(
        &self,
        short: &Owner<B>,
        operation: Operation,
        (shortage, size): (&Shortage, Bytes),
        rounds: &mut u32,
    ) -> Result<bool> {
        let Some(scarce) = Scarce::of(shortage, short.memory()) else { return Ok(false) };
        let others = self.others(short);
        // What can never be served takes nothing from others.
        let is_beyond = matches!(scarce, Scarce::Budget(budget) if size > budget);
        if others.is_empty() || is_beyond || *rounds == ROUNDS {
            return Ok(false);
        }
        let core = short.inner.core(operation)?;
        let span = size.0.saturating_add(2 * core.page - 1) / core.page * core.page;
        // Free memory of the request's own kind serves it too, unless work still uses that.
        let own = if *rounds == 0 { core.frames.free() as u64 * core.page } else { 0 };
        let mut wanted = span.saturating_sub(own).max(core.page);
        if let Scarce::Budget(budget) = scarce {
            wanted = wanted.saturating_sub(core.room(budget));
        }
        drop(core);
        *rounds += 1;
        let mut is_any = false;
        for owner in others.iter().filter(|owner| scarce.is_of(owner.memory())) {
            if wanted == 0 {
                break;
            }
            let returned = match owner.return_free(operation, wanted) {
                Ok(returned) => returned.0,
                Err(error) => {
                    // The request must not fail for another kind.
                    owner.backend.drop_log().record(error);
                    0
                }
            };
            is_any |= returned > 0;
            wanted = wanted.saturating_sub(returned);
        }
        Ok(is_any)
    }

    /// Returns a number that grows whenever memory of any kind may have become free.
    pub(crate) fn returned(&self, operation: Operation) -> Result<u64> {
        self.all().iter().map(|owner| Ok(owner.inner.core(operation)?.returned())).sum()
    }

    /// Returns the statistics of each kind for an error, if there are several.
    pub(crate) fn several(&self) -> Box<[(Properties, PoolStats)]> {
        let all = self.all();
        let several = all.iter().filter(|_| all.len() > 1);
        several.map(|owner| (owner.memory(), owner.stats())).collect()
    }

    /// Forgets a stream in all kinds but one, before it is destroyed.
    pub(crate) fn forget_stream(
        &self,
        operation: Operation,
        except: &Owner<B>,
        stream: Stream<'static>,
    ) -> Result<()> {
        self.others(except).iter().try_for_each(|owner| owner.forget_stream(operation, stream))
    }

    /// Stops serving a stream in all kinds but one, when a registration of it ends, whether it captures or not. Kinds that it is
    /// registered with keep it.
    pub(crate) fn retire_stream(&self, except: &Owner<B>, stream: Stream<'static>) {
        for owner in self.others(except) {
            let Ok(mut core) = owner.inner.core(Operation::UnregisterStream) else { return };
            if let Some(index) = core.streams.known(stream)
                && !core.streams.is_registered(index)
            {
                owner.retire(&mut core, index);
            }
        }
    }
}

impl<B: Backend> Owner<B> {
    /// Returns up to about `wanted` bytes of free memory to the driver that no work uses.
    pub(crate) fn return_free(&self, operation: Operation, wanted: u64) -> Result<Bytes> {
        self.settle(operation, |_, _| true)?;
        let mapping = self.inner.mapping(operation)?;
        let mut core = mapping.core()?;
        core.poll();
        let free = core.frames.free() as u64 * core.page;
        mapping.trim(core, free.saturating_sub(wanted)).map(|(_, returned)| returned)
    }
}

/// What a request finds too little of.
#[derive(Clone, Copy, Debug)]
enum Scarce {
    /// The budget of all kinds.
    Budget(Bytes),
    /// The memory of a device, or of [the host](DeviceId::HOST).
    Memory(DeviceId),
}

impl Scarce {
    /// Returns what a request for memory with these properties lacks; none if it lacks something else than memory.
    fn of(shortage: &Shortage, memory: Properties) -> Option<Self> {
        let place = |error: &Error| match error.detail() {
            Detail::OutOfMemory { device, .. } => *device,
            _ => place_of(memory),
        };
        match shortage {
            Shortage::Memory(ExhaustedResource::Driver(error)) => Some(Self::Memory(place(error))),
            Shortage::Memory(
                ExhaustedResource::Budget(budget) | ExhaustedResource::BudgetOfEnvironment(budget),
            ) => Some(Self::Budget(*budget)),
            Shortage::Other(error) if error.is_out_of_memory() => Some(Self::Memory(place(error))),
            _ => None,
        }
    }

    /// Returns true if memory with these properties takes some of it.
    fn is_of(self, memory: Properties) -> bool {
        match self {
            Self::Budget(_) => true,
            Self::Memory(place) => place_of(memory) == place,
        }
    }
}

fn place_of(memory: Properties) -> DeviceId {
    if memory.location.is_host() { DeviceId::HOST } else { memory.device }
}

/// The waits of a request: for its own kind, and then for the others, whose free memory gives way.
#[derive(Debug)]
pub(crate) struct Waits<B: Backend> {
    own: Ladder,
    /// The other kinds that are left to wait for; none before the first of them.
    others: Option<Vec<(Arc<Owner<B>>, Ladder)>>,
}

impl<B: Backend> Waits<B> {
    pub(crate) const fn new() -> Self {
        Self { own: Ladder::Streams, others: None }
    }

    /// Returns true if nothing was waited for yet.
    pub(crate) const fn are_at_start(&self) -> bool {
        matches!(self.own, Ladder::Streams)
    }

    /// Waits for the next item, as [`Ladder::climb`]. Returns false if none is left.
    pub(crate) fn climb(&mut self, kinds: &Kinds<B>, own: &Owner<B>, operation: Operation) -> Result<bool> {
        let Owner { inner, backend, .. } = own;
        if self.own.climb(inner, backend, operation)? {
            return Ok(true);
        }
        let others = self.others.get_or_insert_with(|| {
            let others = kinds.others(own).into_iter().rev();
            others.map(|owner| (owner, Ladder::Streams)).collect()
        });
        while let Some((owner, ladder)) = others.last_mut() {
            if ladder.climb(&owner.inner, &owner.backend, operation)? {
                return Ok(true);
            }
            others.pop();
        }
        Ok(false)
    }
}

/// Creates the state of one kind.
fn owner<B: Backend>(
    backend: &B,
    settings: Settings,
    ledger: &Arc<Ledger>,
    calls: &Callbacks,
    premap: Option<&PremapThread>,
) -> Result<Arc<Owner<B>>> {
    let memory = settings.memory;
    let total = limit(memory, settings.total);
    let mut core = Core::new(backend, settings, ledger)?;
    // The tag of blocks without one.
    drop(core.tags.named("")?);
    let owner = Arc::new(Owner::new(backend, Inner::new(core), (memory, total), calls.clone(), premap));
    let known: Arc<dyn BlockOwner> = Arc::<Owner<B>>::clone(&owner);
    owner.inner.set_block_owner(Arc::downgrade(&known));
    Ok(owner)
}

/// Returns the size above which no block is tried. The size of the host's memory is not known: the driver refuses what exceeds it.
pub(crate) fn limit(memory: Properties, of_device: Bytes) -> Bytes {
    if memory.location.is_host() { Bytes(u64::MAX) } else { of_device }
}
