//! The registry: the address ranges of all regions of the process, and what each region has mapped.
//!
//! A region is a plain value that its owner changes without a lock. So the registry has a record of its own for each region, which
//! the region changes together with its table of mappings. Other threads read the record. A record keeps nothing alive: it has
//! numbers and names, and a weak reference to the owner of the blocks.
//!
//! Two locks, one after the other and never together: the registry's, for the ranges, and a record's. Nothing is called under
//! either.
#![allow(unsafe_code)] // a registry for each process

use super::MemoryId;
use super::address_info::{AddressInfo, BlockAt, MappingAt};
use crate::driver::Backend;
#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
use crate::types::{
    AccessMap, Address, AddressRange, Bytes, InstanceId, Lock, Operation, Process, Properties, Result, Vendor,
};
use std::collections::BTreeMap;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// An owner of blocks in regions: a pool. For authors of allocators on regions.
pub trait BlockOwner: Send + Sync {
    /// Returns the allocated block that contains an address, if there is one.
    fn block_at(&self, address: Address) -> Option<BlockAt>;
}

/// The registry of the process that last registered a range. A forked child starts a new one, because a thread of the parent may
/// have held the lock of the old one.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());

#[derive(Debug)]
struct Registry {
    process: Process,
    /// By first address. No two overlap.
    ranges: Mutex<BTreeMap<Address, Range>>,
}

/// One reservation of a region, or its plain allocation.
#[derive(Clone, Debug)]
struct Range {
    reserved: AddressRange,
    /// The part of the region that lies in it: without the guards.
    usable: AddressRange,
    /// The offset of that part in the region.
    offset: Bytes,
    record: Arc<Record>,
}

/// The data of a region that other threads can read.
#[derive(Debug)]
pub(crate) struct Record {
    vendor: Vendor,
    instance: InstanceId,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    tag: Box<str>,
    is_suspended: bool,
    owner: Option<Weak<dyn BlockOwner>>,
    /// By the offset in the region.
    mappings: BTreeMap<Bytes, Recorded>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, is_suspended, owner, mappings } = self;
        let mut shown = f.debug_struct("State");
        shown.field("tag", tag).field("is_suspended", is_suspended).field("has_owner", &owner.is_some());
        shown.field("mappings", mappings).finish()
    }
}

/// One mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    pub(crate) size: Bytes,
    pub(crate) memory: MemoryId,
    pub(crate) properties: Properties,
    pub(crate) access: AccessMap,
    pub(crate) poisoned: bool,
}

impl Record {
    pub(crate) fn new<B: Backend>(backend: &B) -> Arc<Self> {
        let (vendor, instance) = (backend.vendor(), backend.instance());
        Arc::new(Self { vendor, instance, state: Lock::default() })
    }

    /// Creates an empty record of the same backend.
    pub(crate) fn empty(&self) -> Arc<Self> {
        let Self { vendor, instance, .. } = *self;
        Arc::new(Self { vendor, instance, state: Lock::default() })
    }

    /// Changes the record. In a forked child, the record stays as the parent left it.
    fn change(&self, change: impl FnOnce(&mut State)) {
        if let Ok(mut state) = self.state.lock(Operation::FindAddress) {
            change(&mut state);
        }
    }

    pub(crate) fn set_mapping(&self, offset: Bytes, mapping: Recorded) {
        self.change(|state| _ = state.mappings.insert(offset, mapping));
    }

    pub(crate) fn remove_mapping(&self, offset: Bytes) {
        self.change(|state| _ = state.mappings.remove(&offset));
    }

    pub(crate) fn set_tag(&self, tag: &str) {
        self.change(|state| state.tag = tag.into());
    }

    pub(crate) fn set_suspended(&self, is_suspended: bool) {
        self.change(|state| state.is_suspended = is_suspended);
    }

    pub(crate) fn set_owner(&self, owner: Weak<dyn BlockOwner>) {
        self.change(|state| state.owner = Some(owner));
    }

    /// Takes over the tag, the state and the owner of the record of a region that moves to new addresses.
    pub(crate) fn continue_from(&self, other: &Self) {
        let Ok(before) = other.state.lock(Operation::FindAddress) else { return };
        let (tag, is_suspended, owner) = (before.tag.clone(), before.is_suspended, before.owner.clone());
        drop(before);
        self.change(|state| {
            state.tag = tag;
            state.is_suspended = is_suspended;
            state.owner = owner;
        });
    }
}

/// The entry of one range, which ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    process: Process,
    base: Address,
    record: Arc<Record>,
}

impl Registered {
    /// Registers a range that a region has just reserved.
    pub(crate) fn new(
        record: &Arc<Record>,
        reserved: AddressRange,
        usable: AddressRange,
        offset: Bytes,
    ) -> Self {
        let registry = Registry::of_this_process();
        let range = Range { reserved, usable, offset, record: Arc::clone(record) };
        registry.lock().insert(reserved.base, range);
        Self { process: registry.process, base: reserved.base, record: Arc::clone(record) }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // In a forked child the range is the parent's.
        if !self.process.is_this() {
            return;
        }
        let mut ranges = Registry::of_this_process().lock();
        // Another region has the addresses if this one has lost them (HIP 7.1 and 7.2, after a suspension).
        if ranges.get(&self.base).is_some_and(|range| Arc::ptr_eq(&range.record, &self.record)) {
            ranges.remove(&self.base);
        }
    }
}

impl Registry {
    /// Returns the registry that was used last, possibly by the parent of this process.
    fn known() -> Option<&'static Self> {
        // SAFETY: a registry is never freed.
        unsafe { REGISTRY.load(Ordering::Acquire).as_ref() }
    }

    fn of_this_process() -> &'static Self {
        let known = REGISTRY.load(Ordering::Acquire);
        // SAFETY: as above.
        if let Some(registry) = unsafe { known.as_ref() }
            && registry.process.is_this()
        {
            return registry;
        }
        let new = Self { process: Process::current(), ranges: Mutex::default() };
        let new = Box::into_raw(Box::new(new));
        match REGISTRY.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it is never freed from now on.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: no other code has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: another thread of this process has made it, and it is never freed.
                unsafe { &*other }
            }
        }
    }

    /// Locks the ranges. No update spans a point that can panic.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Address, Range>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, address: Address) -> Option<Range> {
        let ranges = self.lock();
        let (_, range) = ranges.range(..=address).next_back()?;
        range.reserved.contains(address).then(|| range.clone())
    }
}

/// Finds the range that contains an address.
fn find(address: Address) -> Result<Option<Range>> {
    let Some(registry) = Registry::known() else { return Ok(None) };
    registry.process.check(Operation::FindAddress)?;
    Ok(registry.find(address))
}

/// Returns the range of a region of this backend instance that contains an address.
pub(crate) fn own_range<B: Backend>(backend: &B, address: Address) -> Option<AddressRange> {
    // In a forked child that has no region yet, the registry is the parent's.
    let registry = Registry::known().filter(|registry| registry.process.is_this());
    let found = registry.and_then(|registry| registry.find(address));
    found.filter(|range| range.record.instance == backend.instance()).map(|range| range.usable)
}

/// Returns what this process has at an address: the region or the pool that has reserved it, the memory that is mapped there, and
/// the access of each device to it. Returns `None` for an address of other code, and for one that nothing has reserved.
///
/// It searches all regions of the process, of every backend and thread, and calls no driver. A debugger can look up the address of a
/// fault, and a library can look up a pointer before it registers the memory. The answer is a copy: another thread can change the region
/// at any time. It locks and allocates, so a signal handler must not call it.
///
/// ```
/// # use gpu_vmm_core::{Backend, Bytes, Region, Result};
/// # fn example<B: Backend>(backend: &B) -> Result<()> {
/// let mut region = Region::builder(backend).reserve(Bytes::mib(64)).tag("weights").build()?;
/// region.grow_to(Bytes::mib(2))?;
/// let found = gpu_vmm_core::at(region.address() + Bytes(5))?.expect("a region of this process");
/// assert_eq!(&*found.tag, "weights");
/// assert_eq!(found.mapping.expect("memory").range.size, region.end());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`Detail::Forked`] in a forked child that has no region of its own.
pub fn at(address: Address) -> Result<Option<AddressInfo>> {
    let Some(Range { reserved, usable, offset, record }) = find(address)? else { return Ok(None) };
    let is_guard = !usable.contains(address);
    let state = record.state.lock(Operation::FindAddress)?;
    // The mappings' offsets count from the region's first address.
    let here = offset + (address - usable.base);
    let mapping = state.mappings.range(..=here).next_back().filter(|_| !is_guard);
    let mapping = mapping.filter(|(start, one)| here < **start + one.size).map(|(start, one)| MappingAt {
        range: AddressRange { base: usable.base + *start - offset, size: one.size },
        memory: one.memory,
        properties: one.properties,
        access: one.access,
        poisoned: one.poisoned,
    });
    let (tag, suspended, owner) = (state.tag.clone(), state.is_suspended, state.owner.clone());
    drop(state);
    let is_pool = owner.is_some();
    // This thread runs the end of a pool whose last other reference goes now. It holds no lock.
    let block = owner.and_then(|owner| owner.upgrade()).and_then(|owner| owner.block_at(address));
    let suspended = suspended || block.as_ref().is_some_and(|block| block.suspended);
    let Record { vendor, instance, .. } = *record;
    Ok(Some(AddressInfo {
        address,
        vendor,
        instance,
        reservation: reserved,
        region: usable,
        is_guard,
        tag,
        is_pool,
        suspended,
        mapping,
        block,
    }))
}
