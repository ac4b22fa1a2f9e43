//! How a pool comes to be.

use crate::settings::{Callbacks, Settings};
use crate::{Pool, PoolStats, Unfreed};
use gpu_vmm_core::{Alignment, Backend, Bytes, Detail, DeviceId, Error, Operation, Result};
use gpu_vmm_premap::PremapThread;
use std::sync::Arc;

/// Makes a [`Pool`].
#[derive(Clone, Debug)]
pub struct PoolBuilder<'a, B: Backend> {
    backend: &'a B,
    device: DeviceId,
    budget: Bytes,
    keep: Bytes,
    page: Bytes,
    slack: Option<u32>,
    addresses: Option<Bytes>,
    scrub: bool,
    debug: bool,
    premap: Option<(PremapThread, Bytes)>,
    calls: Callbacks,
}

/// So many times the device's memory is reserved for a tag: addresses cost nothing, and what lies between blocks is
/// used again only by what fits there.
const ADDRESSES_PER_TAG: u64 = 4;

/// A quarter of what a process has on any platform that GPUs run on.
const ADDRESSES: Bytes = Bytes(1 << 45);

impl<B: Backend> Pool<B> {
    /// A pool that is to be made on `backend`.
    pub fn builder(backend: &B) -> PoolBuilder<'_, B> {
        PoolBuilder::new(backend)
    }
}

impl<'a, B: Backend> PoolBuilder<'a, B> {
    fn new(backend: &'a B) -> Self {
        Self {
            backend,
            device: DeviceId(0),
            budget: Bytes(u64::MAX),
            keep: Bytes(u64::MAX),
            page: Bytes::ZERO,
            slack: None,
            addresses: None,
            scrub: false,
            debug: false,
            premap: None,
            calls: Callbacks::default(),
        }
    }

    /// The device whose memory it is; 0 where nothing is said.
    #[must_use]
    pub fn device(mut self, device: DeviceId) -> Self {
        self.device = device;
        self
    }

    /// The most physical memory that the pool may hold; no limit where nothing is said.
    #[must_use]
    pub fn budget(mut self, budget: Bytes) -> Self {
        self.budget = budget;
        self
    }

    /// How much memory the pool keeps in which nothing is; all where nothing is said. What is more goes back to the driver
    /// when blocks are freed, once no work uses its addresses any more.
    #[must_use]
    pub fn keep(mut self, keep: Bytes) -> Self {
        self.keep = keep;
        self
    }

    /// The size in which the pool creates and maps physical memory: a power of two; the granularity, or 2 MiB, where it is less
    /// or nothing is said. Mapping takes the driver about as long for a large piece as for a small one (20 µs on an H200),
    /// and in a large one more may lie unused beside its blocks: on recorded training runs four times the size
    /// took a quarter of the calls and held half a percent more.
    #[must_use]
    pub fn page(mut self, page: Bytes) -> Self {
        self.page = page;
        self
    }

    /// By how many hundredths the pool may hold more than was ever needed at one time, before it maps free memory from
    /// elsewhere rather than create new: 1 where nothing is said, and 7 once it serves several streams. Programs whose sizes
    /// change all the time make fewer driver calls with more.
    #[must_use]
    pub fn slack(mut self, percent: u32) -> Self {
        self.slack = Some(percent);
        self
    }

    /// How many addresses the pool may reserve; 32 TiB where nothing is said. A tag takes five times the device's memory of
    /// them, or what is left.
    #[must_use]
    pub fn addresses(mut self, addresses: Bytes) -> Self {
        self.addresses = Some(addresses);
        self
    }

    /// Has memory be overwritten with zeros where it passes from one tag to another. Fresh memory is zero on CUDA and the
    /// host already.
    #[must_use]
    pub fn scrub(mut self) -> Self {
        self.scrub = true;
        self
    }

    /// Has the pool remember where each block was allocated: [`Pool::unfreed`] tells. It costs some hundred nanoseconds for
    /// each block.
    #[must_use]
    pub fn debug(mut self) -> Self {
        self.debug = true;
        self
    }

    /// Has a thread see to it that `by` bytes behind the highest large block of each tag have memory behind them, before they
    /// are needed: so a pool that grows hardly waits for the driver. The memory counts as kept, and is within the budget.
    #[must_use]
    pub fn premap(mut self, thread: &PremapThread, by: Bytes) -> Self {
        self.premap = Some((thread.clone(), by));
        self
    }

    /// What is called with the blocks that are left when the pool is dropped; it turns [`debug`](PoolBuilder::debug) on.
    #[must_use]
    pub fn on_unfreed(mut self, report: impl Fn(&[Unfreed]) + Send + Sync + 'static) -> Self {
        self.calls.unfreed = Some(Arc::new(report));
        self.debug()
    }

    /// What is called when memory is short, with the statistics and what was asked for: it may free blocks of this pool, or
    /// other memory, and answers whether it is worth trying again.
    #[must_use]
    pub fn on_out_of_memory(
        mut self,
        free: impl Fn(&PoolStats, Bytes) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.calls.out_of_memory = Some(Arc::new(free));
        self
    }

    /// Makes it. Nothing is reserved or created before the first block.
    ///
    /// # Errors
    ///
    /// [`NoSuchDevice`](gpu_vmm_core::Detail::NoSuchDevice), or why the device is not usable;
    /// [`BadAlignment`](gpu_vmm_core::Detail::BadAlignment) for a page that is no power of two,
    /// [`ExceedsDevice`](gpu_vmm_core::Detail::ExceedsDevice) and [`Unsupported`](gpu_vmm_core::Detail::Unsupported) for one
    /// that is larger than the device's memory or the budget.
    pub fn build(self) -> Result<Pool<B>> {
        const OPERATION: Operation = Operation::CreatePool;
        let Self { backend, device, budget, keep, page, slack, addresses, scrub, debug, premap, calls } =
            self;
        if !page.is_zero() && Alignment::new(page).is_none() {
            return Err(Error::new(OPERATION, Detail::BadAlignment { alignment: page }));
        }
        let total = backend.device(OPERATION, device)?.total_memory;
        if page > total {
            return Err(Error::new(OPERATION, Detail::ExceedsDevice { requested: page, device, total }));
        }
        if page > budget {
            let reason =
                format!("nothing fits: the budget is {budget}, and memory is created in pages of {page}");
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        let settings = Settings {
            device,
            total,
            budget,
            keep,
            page,
            slack,
            addresses: addresses.unwrap_or(ADDRESSES),
            reserve_small: total,
            reserve: Bytes(total.0.saturating_mul(ADDRESSES_PER_TAG)),
            scrub,
            debug,
            premap: premap.as_ref().map_or(Bytes::ZERO, |(_, by)| *by),
        };
        Pool::make(backend, settings, calls, premap.map(|(thread, _)| thread))
    }
}
