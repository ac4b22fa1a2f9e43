//! The memory management, in the place of cubecl's own.

use super::cubecl_server::memory_management::relocation::RelocationNeed;
use super::cubecl_server::memory_management::{
    Cleanup, DEDICATED_POOL_POS, ErrorGraph, FailureId, ManagedMemoryBinding, ManagedMemoryHandle,
    MemoryAllocationMode, MemoryLocation, MemoryPoolsReport, MemoryUsage, PERSISTENT_POOL_POS, PageGuard,
    PageUpdate, Taint,
};
use super::cubecl_server::server::IoError;
use super::cubecl_server::storage::ManagedResource;
use super::errors::{refused, unknown};
use super::modes::Modes;
use super::report::report;
use super::resource::{PoolResource, usage};
use super::slots::{Slot, Slots};
use gpu_vmm::pool::{Block, Pool};
use gpu_vmm::{Backend, Bytes, Result as VmmResult, Stream};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The tag of the blocks for persistent allocations.
const PERSISTENT: &str = "persistent";

/// The position of the pool for automatic allocations in a location.
const AUTOMATIC_POOL_POS: u8 = 0;

/// A memory management for one stream, with the methods of cubecl's `MemoryManagement`, whose allocations are blocks of a pool.
///
/// No layer of pages lies between: each reservation is a block, in the order of the stream. Persistent allocations have the tag
/// `persistent`, so their pages contain no others, and they can be [suspended](Pool::suspend) as a whole. An allocation whose
/// last handle is gone is freed when the pool has no other free memory at hand, and by a cleanup.
#[derive(Debug)]
pub struct PoolMemory<B: Backend> {
    pool: Pool<B>,
    persistent: Pool<B>,
    stream: Stream<'static>,
    alignment: Bytes,
    modes: Modes,
    slots: Arc<Mutex<Slots<B>>>,
}

impl<B: Backend> PoolMemory<B> {
    /// Creates a memory management for work on `stream`. Every address is a multiple of `alignment`, a power of two in bytes.
    ///
    /// A stream that is destroyed before the process ends must be [forgotten](Pool::forget_stream) by the pool first.
    ///
    /// # Errors
    ///
    /// Those of [`Pool::tagged`].
    pub fn new(pool: &Pool<B>, stream: Stream<'static>, alignment: usize) -> VmmResult<Self> {
        Ok(Self {
            pool: pool.clone(),
            persistent: pool.tagged(PERSISTENT)?,
            stream,
            alignment: Bytes(alignment as u64),
            modes: Modes::new(),
            slots: Arc::new(Mutex::new(Slots::new())),
        })
    }

    /// Creates a memory management for work on another stream. Each frees the allocations of the others that no handle refers to,
    /// if it needs memory.
    #[must_use]
    pub fn for_stream(&self, stream: Stream<'static>) -> Self {
        let Self { pool, persistent, alignment, slots, .. } = self;
        let (pool, persistent, slots) = (pool.clone(), persistent.clone(), Arc::clone(slots));
        Self { pool, persistent, stream, alignment: *alignment, modes: Modes::new(), slots }
    }

    /// Returns the pool.
    pub const fn pool(&self) -> &Pool<B> {
        &self.pool
    }

    /// Opens a window in which reservations have the mode. `Auto` closes the innermost window.
    pub fn mode(&mut self, mode: MemoryAllocationMode) {
        self.modes.set(mode);
    }

    /// Frees the allocations that no handle refers to. An explicit cleanup then returns all memory without a block to the driver,
    /// and waits for pending work.
    pub fn cleanup(&mut self, cleanup: Cleanup, failures: &mut ErrorGraph) {
        if cleanup == Cleanup::Explicit {
            self.lock().sweep(failures);
            // cubecl's cleanup reports no errors. The memory stays in the pool then, and serves the next request.
            let _ = self.trim();
        }
    }

    /// Returns all memory without a block to the driver. Waits for pending work.
    ///
    /// # Errors
    ///
    /// [`IoError::Unknown`] with the driver's error.
    pub fn trim(&self) -> Result<Bytes, IoError> {
        self.pool.trim(Bytes::ZERO).map_err(|error| unknown(error.to_string()))
    }

    /// Reserves `size` bytes. With [`PageUpdate::Forbidden`], only memory that is free and mapped serves the reservation.
    ///
    /// # Errors
    ///
    /// - [`IoError::PageUpdateForbidden`] if no such memory is at hand
    /// - [`IoError::BufferTooBig`] for more than the device has
    /// - [`IoError::OutOfMemory`] if the driver or the pool's budget has no memory left
    /// - [`IoError::Unknown`] with the driver's error
    pub fn reserve(
        &mut self,
        size: u64,
        update: PageUpdate,
        failures: &mut ErrorGraph,
    ) -> Result<ManagedMemoryHandle, IoError> {
        let mode = self.modes.current();
        let mut slots = self.lock();
        slots.sweep_some(failures);
        // cubecl has handles of zero bytes. They need an entry and no memory.
        let block = match size {
            0 => None,
            _ => Some(self.block(&mut slots, (size, mode), update, failures)?),
        };
        let Self { stream, .. } = *self;
        let pool = match mode {
            MemoryAllocationMode::Auto => AUTOMATIC_POOL_POS,
            MemoryAllocationMode::Persistent => PERSISTENT_POOL_POS,
            MemoryAllocationMode::Dedicated => DEDICATED_POOL_POS,
        };
        Ok(slots.insert(Slot { block, size, stream, mode, cursor: 0, taint: Taint::default() }, pool))
    }

    /// Allocates a block from memory at hand. If there is none, looks for allocations that no handle refers to: at all of them if
    /// that is due, and always before an error is returned.
    fn block(
        &self,
        slots: &mut Slots<B>,
        (size, mode): (u64, MemoryAllocationMode),
        update: PageUpdate,
        failures: &mut ErrorGraph,
    ) -> Result<Block<B>, IoError> {
        let pool = match mode {
            MemoryAllocationMode::Persistent => &self.persistent,
            _ => &self.pool,
        };
        let request = || pool.request(Bytes(size)).stream(self.stream).alignment(self.alignment);
        if let Some(block) = request().alloc_mapped() {
            return Ok(block);
        }
        let swept = slots.is_sweep_due() || matches!(update, PageUpdate::Forbidden);
        if swept {
            slots.sweep(failures);
        }
        let allocate = || match update {
            PageUpdate::Allow | PageUpdate::AddOnly => {
                request().alloc().map_err(|error| refused(size, &error))
            }
            PageUpdate::Forbidden => request()
                .alloc_mapped()
                .ok_or_else(|| IoError::PageUpdateForbidden { size, backtrace: Default::default() }),
        };
        match allocate() {
            Err(_) if !swept => {
                slots.sweep(failures);
                allocate()
            }
            answer => answer,
        }
    }

    /// Lets `assigned` name the reservation `reserved`, from the point `cursor` of the stream's work on.
    ///
    /// # Errors
    ///
    /// [`IoError::NotFound`] if `reserved` is no reservation.
    pub fn bind(
        &mut self,
        reserved: ManagedMemoryHandle,
        assigned: ManagedMemoryHandle,
        cursor: u64,
        failures: &mut ErrorGraph,
    ) -> Result<(), IoError> {
        self.lock().bind(&reserved, assigned, cursor, failures)
    }

    /// Returns the point of the stream's work from which on other streams may use the allocation.
    ///
    /// # Errors
    ///
    /// [`IoError::NotFound`] if the binding names no allocation.
    pub fn get_cursor(&self, binding: ManagedMemoryBinding) -> Result<u64, IoError> {
        Ok(self.lock().get(binding.descriptor())?.cursor)
    }

    /// Returns the memory behind a binding, without `offset_start` bytes at its start and `offset_end` at its end.
    ///
    /// # Errors
    ///
    /// - [`IoError::NotFound`] if the binding names no allocation
    /// - [`IoError::Unknown`] if the offsets are beyond it
    pub fn get_resource(
        &mut self,
        binding: ManagedMemoryBinding,
        offset_start: Option<u64>,
        offset_end: Option<u64>,
    ) -> Result<PoolResource, IoError> {
        let slots = self.lock();
        let Slot { size, block, .. } = slots.get(binding.descriptor())?;
        let (start, end) = (offset_start.unwrap_or(0), offset_end.unwrap_or(0));
        let Some(rest) = start.checked_add(end).and_then(|cut| size.checked_sub(cut)) else {
            return Err(unknown(format!(
                "offsets of {start} and {end} are beyond the {size} bytes of the allocation"
            )));
        };
        PoolResource::within(block.as_ref(), start, rest)
    }

    /// Returns the memory behind a binding as [`get_resource`](Self::get_resource) does, and keeps it allocated.
    ///
    /// # Errors
    ///
    /// Those of [`get_resource`](Self::get_resource).
    pub fn managed_resource(
        &mut self,
        binding: ManagedMemoryBinding,
        offset_start: Option<u64>,
        offset_end: Option<u64>,
    ) -> Result<ManagedResource<PoolResource>, IoError> {
        let resource = self.get_resource(binding.clone(), offset_start, offset_end)?;
        Ok(ManagedResource::new(binding, resource))
    }

    /// Keeps the allocation at a location while the guard lives, for a graph that has its address.
    pub fn guard(&mut self, location: MemoryLocation) -> Option<PageGuard> {
        let handle = self.lock().handle_at(location)?.clone();
        Some(PageGuard::allocation(handle.binding()))
    }

    /// Returns a failure that left bytes of a range unwritten, if there is one.
    pub fn failure(&self, binding: &ManagedMemoryBinding, range: Range<u64>) -> Option<FailureId> {
        self.lock().get(binding.descriptor()).ok()?.taint.failure(&range)
    }

    /// Notes that a failure left a range unwritten.
    pub fn taint(
        &mut self,
        binding: &ManagedMemoryBinding,
        range: Range<u64>,
        failure: FailureId,
        failures: &mut ErrorGraph,
    ) {
        if let Ok(slot) = self.lock().get_mut(binding.descriptor()) {
            slot.taint.taint(range, failure, failures);
        }
    }

    /// Notes that a range is written again.
    pub fn written(&mut self, binding: &ManagedMemoryBinding, range: Range<u64>, failures: &mut ErrorGraph) {
        if let Ok(slot) = self.lock().get_mut(binding.descriptor()) {
            slot.taint.written(range, failures);
        }
    }

    /// Returns the usage of the pool, in the form of cubecl's reports. `bytes_reserved` is the physical memory that the pool
    /// holds for all streams.
    pub fn usage(&self) -> MemoryUsage {
        usage(&self.pool)
    }

    /// Returns the allocations of this stream by mode. `bytes_reserved` has what their blocks occupy, not the pool's free memory,
    /// which belongs to no stream.
    pub fn memory_report(&self) -> MemoryPoolsReport {
        report(self.lock().live().filter(|slot| slot.stream == self.stream))
    }

    /// Returns the memory that the blocks of this stream occupy.
    pub fn bytes_allocated(&self) -> u64 {
        self.memory_report().usage().bytes_reserved
    }

    /// Nothing: the pool's free pages serve any request, so no allocation has to move.
    pub const fn relocation_need(&self) -> RelocationNeed {
        RelocationNeed::Nothing
    }

    /// False: no page is outdated.
    pub const fn has_outdated(&self) -> bool {
        false
    }

    fn lock(&self) -> MutexGuard<'_, Slots<B>> {
        // No call leaves the table half changed.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Frees the allocations of the stream, as a storage does that is dropped.
impl<B: Backend> Drop for PoolMemory<B> {
    fn drop(&mut self) {
        self.lock().remove_stream(self.stream);
    }
}
