//! The configuration of a pool.

use crate::ledger::Ledger;
use crate::settings::{Callbacks, Settings};
use crate::{Pool, PoolStats, Unfreed};
use gpu_vmm_core::extend::check_virtual_memory;
use gpu_vmm_core::{
    Access, Alignment, Backend, Bytes, Detail, DeviceId, Error, Grant, Operation, Properties, Result,
};
use gpu_vmm_premap::PremapThread;
use std::sync::Arc;

/// The configuration of a [`Pool`] before it is created. It is a plain value, which any thread may have. The pool calls its callbacks
/// without a lock, on the thread whose call needs them, and at the same time on several threads.
#[derive(Clone, Debug)]
pub struct PoolBuilder<'a, B: Backend> {
    backend: &'a B,
    device: DeviceId,
    memory: Option<Properties>,
    budget: Option<Bytes>,
    keep: Bytes,
    page: Bytes,
    slack: Option<u32>,
    addresses: Option<Bytes>,
    restorable: bool,
    scrub: bool,
    shareable: bool,
    debug: bool,
    premap: Option<(PremapThread, Bytes)>,
    calls: Callbacks,
}

/// The variable that sets the budget of pools without one of their own.
const VARIABLE: &str = "GPU_VMM_BUDGET";

/// A quarter of the address space of a process on any platform that GPUs run on.
const ADDRESSES: Bytes = Bytes(1 << 45);

impl<B: Backend> Pool<B> {
    /// Begins the configuration of a pool on `backend`.
    pub fn builder(backend: &B) -> PoolBuilder<'_, B> {
        PoolBuilder::new(backend)
    }
}

impl<'a, B: Backend> PoolBuilder<'a, B> {
    fn new(backend: &'a B) -> Self {
        Self {
            backend,
            device: DeviceId(0),
            memory: None,
            budget: None,
            keep: Bytes(u64::MAX),
            page: Bytes::ZERO,
            slack: None,
            addresses: None,
            restorable: false,
            scrub: false,
            shareable: false,
            debug: false,
            premap: None,
            calls: Callbacks::default(),
        }
    }

    /// Sets the device whose memory the pool manages; the default is device 0.
    #[must_use]
    pub fn device(mut self, device: DeviceId) -> Self {
        self.device = device;
        self.memory = self.memory.map(|memory| Properties { device, ..memory });
        self
    }

    /// Sets the properties of the memory, and its device. The default is device memory that cannot be exported.
    /// [`first_supported`](gpu_vmm_core::first_supported) chooses from several. [`Pool::with_memory`] adds further kinds of memory.
    #[must_use]
    pub fn memory(mut self, properties: Properties) -> Self {
        (self.device, self.memory) = (properties.device, Some(properties));
        self
    }

    /// Sets the most physical memory that the pool may hold, of all kinds together. The default is the value of the environment variable
    /// `GPU_VMM_BUDGET`, such as `8GiB`, and no limit if the variable is not set.
    #[must_use]
    pub fn budget(mut self, budget: Bytes) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Sets how much free memory the pool keeps of each [kind](Pool::with_memory); it keeps all by default. When blocks are freed, the
    /// pool returns free memory above this limit to the driver, once no work uses its addresses any more.
    #[must_use]
    pub fn keep(mut self, keep: Bytes) -> Self {
        self.keep = keep;
        self
    }

    /// Sets the size in which the pool creates and maps physical memory: a power of two. The minimum is the granularity or 2 MiB,
    /// whichever is more, and the granularity is the
    /// [recommended](Backend::recommended_granularity) one. It is the default too, except on devices with 64 GiB and more, where the
    /// default is 8 MiB.
    ///
    /// The driver takes as long to create and map a large page as a small one (some 60 µs on an H100), but more of a large page may
    /// lie unused next to its blocks. On recorded programs, pages of 8 MiB took half of the time of pages of 4 MiB in the first pass,
    /// and held up to 0.4 % more.
    #[must_use]
    pub fn page(mut self, page: Bytes) -> Self {
        self.page = page;
        self
    }

    /// Sets the percentage by which the pool may exceed the most memory that its blocks ever needed at one time, before it maps
    /// free memory from other addresses instead of creating new memory. The default is 1, or 7 once the pool serves several
    /// streams. A program whose sizes change all the time makes fewer driver calls with a higher value.
    #[must_use]
    pub fn slack(mut self, percent: u32) -> Self {
        self.slack = Some(percent);
        self
    }

    /// Sets how many bytes of addresses the pool may reserve; the default is 32 TiB. Blocks without a tag begin with as many as the device
    /// has memory, and each tag with 16 times the largest size of each group of sizes that it uses, at most the device's memory. A range takes at most half of the
    /// addresses that are left, unless a block needs more.
    #[must_use]
    pub fn addresses(mut self, addresses: Bytes) -> Self {
        self.addresses = Some(addresses);
        self
    }

    /// Reserves all addresses where another process can reserve them too
    /// ([`Placement::Restorable`](gpu_vmm_core::Placement::Restorable)), so that it can restore the pool from a file. Each tag reserves
    /// multiples of 32 MiB of these 24 TiB.
    #[must_use]
    pub fn restorable(mut self) -> Self {
        self.restorable = true;
        self
    }

    /// Overwrites memory with zeros when it passes from one tag to another. Fresh memory is zero on CUDA and the host already.
    #[must_use]
    pub fn scrub(mut self) -> Self {
        self.scrub = true;
        self
    }

    /// Creates memory that can be exported to other processes of this machine, as [`Pool::memory_at`] returns it. A driver that
    /// refuses such memory provides ordinary memory instead.
    #[must_use]
    pub fn shareable(mut self) -> Self {
        self.shareable = true;
        self
    }

    /// Records where each block was allocated, for [`Pool::unfreed`]. This costs some hundred nanoseconds for each block.
    #[must_use]
    pub fn debug(mut self) -> Self {
        self.debug = true;
        self
    }

    /// Maps `by` bytes behind the highest large block of each tag in advance, on `thread`. A pool that grows
    /// then hardly waits for the driver. The memory counts as kept, and is within the budget.
    #[must_use]
    pub fn premap(mut self, thread: &PremapThread, by: Bytes) -> Self {
        self.premap = Some((thread.clone(), by));
        self
    }

    /// Sets a callback that receives the blocks that are left when the pool is dropped, once for each [kind](Pool::with_memory) that has
    /// any. Enables [`debug`](PoolBuilder::debug).
    #[must_use]
    pub fn on_unfreed(mut self, report: impl Fn(&[Unfreed]) + Send + Sync + 'static) -> Self {
        self.calls.unfreed = Some(Arc::new(report));
        self.debug()
    }

    /// Sets a callback for when memory or addresses are short. It receives the statistics of the kind of memory that is short, and the
    /// requested size, may free blocks of this pool or other memory, and returns whether the pool should try again.
    #[must_use]
    pub fn on_out_of_memory(
        mut self,
        free: impl Fn(&PoolStats, Bytes) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.calls.out_of_memory = Some(Arc::new(free));
        self
    }

    /// Returns the backend and the device of the pool.
    #[cfg(feature = "snapshot")]
    pub(crate) fn place(&self) -> (&'a B, DeviceId) {
        (self.backend, self.device)
    }

    /// Returns the properties of new memory.
    #[cfg(feature = "snapshot")]
    pub(crate) fn properties(&self) -> Properties {
        let memory = self.memory.unwrap_or(Properties::on(self.device));
        if self.shareable { memory.shareable() } else { memory }
    }

    /// Creates the pool. It reserves and creates nothing before the first block.
    ///
    /// On a [device without virtual memory management](gpu_vmm_core::Device::no_virtual_memory), the pool consists of plain
    /// allocations. All calls for blocks work there. Memory cannot move to other addresses, so that only allocations without a
    /// block return to the driver. [`shareable`](PoolBuilder::shareable), [`premap`](PoolBuilder::premap) and
    /// [`restorable`](PoolBuilder::restorable) have no effect, and
    /// [`Pool::suspend`], [`Pool::allow_access`] and [`Pool::memory_at`] return
    /// [`Unsupported`](gpu_vmm_core::Detail::Unsupported).
    ///
    /// # Errors
    ///
    /// [`NoSuchDevice`](gpu_vmm_core::Detail::NoSuchDevice), or the reason why the device is not usable;
    /// [`BadAlignment`](gpu_vmm_core::Detail::BadAlignment) for a page that is not a power of two;
    /// [`ExceedsDevice`](gpu_vmm_core::Detail::ExceedsDevice) for a page larger than the device's memory;
    /// [`Unsupported`](gpu_vmm_core::Detail::Unsupported) for a page larger than the budget.
    pub fn build(self) -> Result<Pool<B>> {
        const OPERATION: Operation = Operation::CreatePool;
        let Self {
            backend,
            device,
            memory,
            budget,
            keep,
            page,
            slack,
            addresses,
            restorable,
            scrub,
            shareable,
            debug,
            premap,
            calls,
        } = self;
        if !page.is_zero() && Alignment::new(page).is_none() {
            return Err(Error::new(OPERATION, Detail::BadAlignment { alignment: page }));
        }
        let from_environment = if budget.is_none() { budget_of_environment()? } else { None };
        let ledger =
            Ledger::new(budget.or(from_environment).unwrap_or(Bytes(u64::MAX)), from_environment.is_some());
        let budget = ledger.budget();
        let memory = memory.unwrap_or(Properties::on(device));
        let described = backend.device(OPERATION, device)?;
        let (total, plain) = (described.total_memory, described.no_virtual_memory.is_some());
        if plain && memory != Properties::on(device) {
            check_virtual_memory(OPERATION, backend, device)?;
        }
        // A plain allocation has all of its memory from the beginning.
        let premap = if plain { None } else { premap };
        if page > total {
            return Err(Error::new(OPERATION, Detail::ExceedsDevice { requested: page, device, total }));
        }
        if page > budget {
            let reason = format!(
                "nothing fits: the budget of {budget} is less than one page of {page}; raise the budget or use smaller pages"
            );
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        let settings = Settings {
            memory,
            access: vec![Grant { device, access: Access::ReadWrite }],
            total,
            keep,
            page,
            slack,
            addresses: addresses.unwrap_or(ADDRESSES),
            restorable,
            scrub,
            shareable,
            plain,
            debug,
            premap: premap.as_ref().map_or(Bytes::ZERO, |(_, by)| *by),
        };
        Pool::make(backend, settings, ledger, calls, premap.map(|(thread, _)| thread))
    }
}

/// Returns the budget that the environment sets, if it does.
fn budget_of_environment() -> Result<Option<Bytes>> {
    match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(value) => budget_from(&value.to_string_lossy()).map(Some),
    }
}

/// Parses the value of the variable.
fn budget_from(text: &str) -> Result<Bytes> {
    text.parse().map_err(|error| {
        let reason = format!("{VARIABLE} is {text:?}; set it to an amount of memory, such as 8GiB: {error}");
        Error::new(Operation::CreatePool, Detail::Unsupported { reason })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[test]
    fn default_limits_are_wide() {
        let backend = gpu_vmm_host::HostConfig::new().memory(Bytes::gib(1)).open().unwrap();
        let limits = |builder: PoolBuilder<'_, _>| {
            let pool = builder.budget(Bytes::mib(64)).build().unwrap();
            let core = pool.owner.inner.core(Operation::QueryPool).unwrap();
            let Settings { addresses, keep, premap, .. } = core.settings;
            [addresses, keep, premap]
        };
        let all = Bytes(u64::MAX);
        let default = [Bytes::gib(32 << 10), all, Bytes::ZERO];
        assert_eq!(limits(Pool::builder(&backend)), default);
        let set = Pool::builder(&backend).addresses(Bytes::gib(2)).keep(Bytes::mib(6));
        assert_eq!(limits(set)[..2], [Bytes::gib(2), Bytes::mib(6)]);
    }

    #[test]
    fn the_variable_is_an_amount_of_memory() {
        assert_eq!(budget_from("1.5GiB").unwrap(), Bytes::mib(1536));
        let text = budget_from("lots").unwrap_err().to_string();
        let wrong = "GPU_VMM_BUDGET is \"lots\"; set it to an amount of memory, such as 8GiB: ";
        assert!(text.starts_with(&format!("create pool: not supported: {wrong}")), "{text}");
    }
}
