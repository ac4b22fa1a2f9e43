//! The objects that a [`FaultInject`](super::FaultInject) backend has created and the driver has not got back.
#![allow(unsafe_code)]

use super::fault_plan::Plan;
use gpu_vmm_core::{
    Access, Address, AddressRange, Bytes, Detail, DeviceId, Error, FabricHandle, Grant, Handle, Operation,
    Properties, Reservation, Result,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

#[cfg(unix)]
use std::os::fd::OwnedFd;
#[cfg(windows)]
use std::os::windows::io::OwnedHandle;

/// The numbers of a driver's live objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Handles of physical memory and of multicast objects.
    pub handles: usize,
    /// Address reservations.
    pub reservations: usize,
    /// Mappings in the reservations.
    pub mappings: usize,
    /// Bindings of memory to multicast objects.
    pub bindings: usize,
}

/// Physical memory of a [`FaultInject`](super::FaultInject) backend.
#[derive(Debug)]
pub struct FaultHandle<H> {
    pub(super) inner: H,
    plan: Arc<Plan>,
    _counted: Arc<()>,
}

impl<H> FaultHandle<H> {
    pub(super) fn new<R>(inner: H, plan: &Arc<Plan>, registry: &Registry<R>) -> Self {
        Self { inner, plan: Arc::clone(plan), _counted: Arc::clone(&registry.handles) }
    }
}

// SAFETY: every call is forwarded to the inner backend, or fails before it.
unsafe impl<H: Handle> Handle for FaultHandle<H> {
    fn size(&self) -> Bytes {
        self.inner.size()
    }

    fn properties(&self) -> Properties {
        self.inner.properties()
    }

    #[cfg(unix)]
    fn export(&self) -> Result<OwnedFd> {
        let _call = self.plan.call(Operation::ExportMemory)?;
        self.inner.export()
    }

    #[cfg(windows)]
    fn export_win32(&self) -> Result<OwnedHandle> {
        let _call = self.plan.call(Operation::ExportMemory)?;
        self.inner.export_win32()
    }

    fn export_fabric(&self) -> Result<FabricHandle> {
        let _call = self.plan.call(Operation::ExportMemory)?;
        self.inner.export_fabric()
    }
}

/// A driver's reservation with its mappings by offset.
#[derive(Debug)]
struct Held<R> {
    /// `None` once the reservation was reclaimed.
    inner: Option<R>,
    mappings: BTreeMap<Bytes, Bytes>,
}

impl<R: Reservation> Held<R> {
    fn inner(&mut self, operation: Operation) -> Result<&mut R> {
        let reason = "the reservation was reclaimed";
        self.inner
            .as_mut()
            .ok_or_else(|| Error::new(operation, Detail::Unsupported { reason: reason.to_owned() }))
    }
}

type Shared<R> = Mutex<Held<R>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every live object of a backend.
#[derive(Debug)]
pub(super) struct Registry<R> {
    handles: Arc<()>,
    reservations: Mutex<Vec<Weak<Shared<R>>>>,
    pub(super) bindings: AtomicUsize,
}

impl<R> Default for Registry<R> {
    fn default() -> Self {
        Self { handles: Arc::default(), reservations: Mutex::default(), bindings: AtomicUsize::new(0) }
    }
}

impl<R> Registry<R> {
    /// Returns the live reservations, also those whose region is gone.
    fn held(&self) -> Vec<Arc<Shared<R>>> {
        let mut reservations = lock(&self.reservations);
        reservations.retain(|held| held.upgrade().is_some_and(|held| lock(&held).inner.is_some()));
        reservations.iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn live(&self) -> Live {
        let held = self.held();
        Live {
            handles: Arc::strong_count(&self.handles) - 1,
            reservations: held.len(),
            mappings: held.iter().map(|held| lock(held).mappings.len()).sum(),
            bindings: self.bindings.load(Ordering::Relaxed),
        }
    }
}

impl<R: Reservation> Registry<R> {
    pub(super) fn access_at(&self, address: Address, device: DeviceId) -> Result<Option<Access>> {
        for held in self.held() {
            let held = lock(&held);
            let Some(inner) = &held.inner else { continue };
            let Some(offset) = address.0.checked_sub(inner.range().base.0).map(Bytes) else { continue };
            let mapping = held.mappings.range(..=offset).next_back();
            if mapping.is_some_and(|(start, length)| offset < *start + *length) {
                // SAFETY: the address is mapped, and the caller has checked the device.
                return unsafe { inner.access(offset, device) }.map(Some);
            }
        }
        Ok(None)
    }

    /// # Safety
    ///
    /// No region of the backend exists any more, and no device uses the memory.
    pub(super) unsafe fn reclaim(&self) -> Result<usize> {
        let all = self.held();
        for held in &all {
            let mut held = lock(held);
            let Held { inner: Some(inner), mappings } = &mut *held else { continue };
            while let Some((offset, length)) = mappings.first_key_value() {
                // SAFETY: one whole mapping, which no device uses, as the caller promises.
                unsafe { inner.unmap(*offset, *length) }?;
                mappings.pop_first();
            }
            held.inner = None;
        }
        Ok(all.len())
    }
}

/// A reservation of a [`FaultInject`](super::FaultInject) backend.
#[derive(Debug)]
pub struct FaultReservation<R> {
    held: Arc<Shared<R>>,
    range: AddressRange,
    /// Whether the addresses are lost to other code, by plan.
    lost: bool,
    plan: Arc<Plan>,
}

impl<R: Reservation> FaultReservation<R> {
    pub(super) fn new(inner: R, plan: &Arc<Plan>, registry: &Registry<R>) -> Self {
        let range = inner.range();
        let held = Arc::new(Mutex::new(Held { inner: Some(inner), mappings: BTreeMap::new() }));
        let mut reservations = lock(&registry.reservations);
        reservations.retain(|held| held.strong_count() > 0);
        reservations.push(Arc::downgrade(&held));
        drop(reservations);
        Self { held, range, lost: false, plan: Arc::clone(plan) }
    }

    fn taken(&self, operation: Operation) -> Error {
        Error::new(operation, Detail::AddressTaken { wanted: self.range.base, offered: self.range.end() })
    }
}

// SAFETY: every call is forwarded to the inner backend, or fails before it.
unsafe impl<R, H> Reservation for FaultReservation<R>
where
    R: Reservation<Handle = H>,
    H: Handle,
{
    type Handle = FaultHandle<H>;

    fn range(&self) -> AddressRange {
        self.range
    }

    unsafe fn map(&mut self, offset: Bytes, handle: &FaultHandle<H>) -> Result<()> {
        let _call = self.plan.call(Operation::Map)?;
        if self.lost {
            return Err(self.taken(Operation::Map));
        }
        let mut held = lock(&self.held);
        // SAFETY: the caller's promises are passed on; so in every function below.
        unsafe { held.inner(Operation::Map)?.map(offset, &handle.inner) }?;
        held.mappings.insert(offset, handle.size());
        Ok(())
    }

    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        let _call = self.plan.call(Operation::Unmap)?;
        let mut held = lock(&self.held);
        // SAFETY: as in `map`.
        unsafe { held.inner(Operation::Unmap)?.unmap(offset, length) }?;
        held.mappings.retain(|start, _| *start < offset || offset + length <= *start);
        Ok(())
    }

    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        let planned = self.plan.call(Operation::SetAccess);
        if planned.is_ok() || self.plan.carries_out() {
            // SAFETY: as in `map`.
            unsafe { lock(&self.held).inner(Operation::SetAccess)?.set_access(offset, length, grants) }?;
        }
        planned.map(drop)
    }

    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        // SAFETY: as in `map`.
        unsafe { lock(&self.held).inner(Operation::QueryAccess)?.access(offset, device) }
    }

    unsafe fn return_memory(&mut self) -> Result<()> {
        let _call = self.plan.call(Operation::ReturnMemory)?;
        // SAFETY: as in `map`.
        unsafe { lock(&self.held).inner(Operation::ReturnMemory)?.return_memory() }?;
        self.lost = self.plan.loses_addresses();
        if self.lost { Err(self.taken(Operation::ReturnMemory)) } else { Ok(()) }
    }

    fn regain(&mut self) -> Result<()> {
        let _call = self.plan.call(Operation::RegainAddresses)?;
        if self.lost && self.plan.loses_addresses() {
            return Err(self.taken(Operation::RegainAddresses));
        }
        self.lost = false;
        lock(&self.held).inner(Operation::RegainAddresses)?.regain()
    }

    #[cfg(unix)]
    unsafe fn dma_buf(&self, owner: DeviceId, offset: Bytes, length: Bytes) -> Result<OwnedFd> {
        let _call = self.plan.call(Operation::ExportDmaBuf)?;
        // SAFETY: as in `map`.
        unsafe { lock(&self.held).inner(Operation::ExportDmaBuf)?.dma_buf(owner, offset, length) }
    }
}
