//! A multicast object that is mapped.
#![allow(unsafe_code)]

use super::object::Object;
use super::{Failed, Multicast, MulticastBackend};
use crate::driver::{Release, Reservation, WaitFor};
use crate::region::{Placement, reserve, rounded};
use crate::types::{
    Access, Address, AddressRange, Bytes, Detail, Error, ErrorKind, Grant, Operation, Result,
};
use std::mem::{ManuallyDrop, forget};
use std::sync::Arc;

/// The addresses at which an object is mapped. It must be unmapped or given up before it is dropped.
#[derive(Debug)]
pub(super) struct Mapping<B: MulticastBackend> {
    object: Arc<Object<B>>,
    /// `Some` while the object is mapped.
    reservation: Option<B::Reservation>,
    range: AddressRange,
}

impl<B: MulticastBackend> Mapping<B> {
    /// Maps the object, with access for the devices of this process.
    pub(super) fn new(operation: Operation, object: &Arc<Object<B>>, placement: Placement) -> Result<Self> {
        let Object { backend, granularity, size, .. } = object.as_ref();
        let minimum = granularity.minimum.max(backend.granularity());
        let alignment = match placement {
            Placement::Anywhere | Placement::Restorable | Placement::Below(_) => {
                minimum.max(granularity.recommended)
            }
            Placement::Prefer(_) | Placement::Exact(_) => minimum,
        };
        let addresses = rounded(operation, *size, backend.reservation_unit().max(minimum))?;
        let mut reservation = reserve(backend, operation, addresses, alignment.into(), minimum, placement)?;
        // SAFETY: the reservation is new and at least as large as the object, which is of this backend.
        unsafe { reservation.map(Bytes::ZERO, &object.handle) }?;
        let range = AddressRange { base: reservation.range().base, size: *size };
        let mut mapping = Self { object: Arc::clone(object), reservation: Some(reservation), range };
        let Err(error) = mapping.grant() else { return Ok(mapping) };
        // SAFETY: no caller has seen the address.
        let Err(undo) = mapping.unmap(unsafe { WaitFor::nothing() }) else { return Err(error) };
        let failed = error.rollback_failed(undo);
        mapping.give_up(&failed);
        Err(failed)
    }

    /// Gives the devices of this process access. Other processes do so for their devices.
    fn grant(&mut self) -> Result<()> {
        let grant = |device: &_| Grant { device: *device, access: Access::ReadWrite };
        let grants: Vec<_> = self.object.devices.iter().map(grant).collect();
        let Some(reservation) = &mut self.reservation else { return Ok(()) };
        // SAFETY: the whole object is mapped there. Its devices were checked, and each occurs once.
        unsafe { reservation.set_access(Bytes::ZERO, self.range.size, &grants) }
    }

    /// Waits, unmaps, and frees the addresses. If it fails, everything is as before.
    fn unmap(&mut self, done: WaitFor<'_>) -> Result<()> {
        let Some(reservation) = &mut self.reservation else { return Ok(()) };
        done.wait(&self.object.backend, || self.object.devices.iter().copied())?;
        // SAFETY: this is the whole of the only mapping. The devices of this process have finished, or the caller promises it.
        unsafe { reservation.unmap(Bytes::ZERO, self.range.size) }?;
        self.reservation = None;
        Ok(())
    }

    /// Keeps the addresses and the object until the process ends, because the object is still mapped there.
    fn give_up(&mut self, cause: &Error) {
        self.object.give_up(cause);
        forget(self.reservation.take());
    }
}

/// A mapped object with its bindings. It is unmapped before anything is unbound: fields are dropped in this order.
#[derive(Debug)]
struct Parts<B: MulticastBackend> {
    mapping: Mapping<B>,
    multicast: Multicast<B>,
}

impl<B: MulticastBackend> Parts<B> {
    /// Ends a mapping that could not be unmapped: the backend keeps it until the devices can be waited for, or else it stays until
    /// the process ends.
    fn not_unmapped(mut self, error: &Error) {
        if matches!(error.detail(), Detail::Capturing { .. }) {
            let object = Arc::clone(&self.mapping.object);
            object.backend.deferred().keep(object.devices.iter().copied().collect(), Box::new(self));
        } else if error.kind() != ErrorKind::Forked {
            self.mapping.give_up(error);
        }
    }
}

impl<B: MulticastBackend> Release for Parts<B> {
    fn size(&self) -> Bytes {
        self.mapping.range.size
    }

    /// Unmaps the object. It is unbound and released when this is dropped.
    fn release(&mut self) -> Result<()> {
        // SAFETY: the caller has waited for the devices.
        let unmapped = self.mapping.unmap(unsafe { WaitFor::nothing() });
        if let Err(error) = &unmapped {
            self.mapping.give_up(error);
        }
        unmapped
    }
}

/// A multicast object that is mapped. In CUDA, kernels access it by a multicast (or "MC") pointer.
///
/// PTX's instructions `multimem.st`, `multimem.red` and `multimem.ld_reduce` access the bound memory of every device of the team
/// through its address. Any other access is undefined (PTX ISA, 9.7.9.14), plain loads and stores included, and the driver does not
/// document copies and fills. So this type has no read or write, and no [`Region`](crate::Region). Each device reads the values
/// that arrive in its own memory, at the address where that memory is mapped, after a fence. Do not store to a part in which a
/// device has no binding.
///
/// Dropping it waits for the devices of this process, unmaps, unbinds and releases. It cannot wait for other processes, which must
/// have stopped storing. If a device cannot be waited for because a stream is being captured, the backend keeps the object mapped until
/// the device can be waited for: see [`Deferred`](crate::extend::Deferred).
#[derive(Debug)]
pub struct MulticastRange<B: MulticastBackend> {
    /// Taken once, when the range ends.
    parts: ManuallyDrop<Parts<B>>,
}

impl<B: MulticastBackend> Multicast<B> {
    /// Maps the whole object with read and write access for all devices of this process. Its address differs from those at which
    /// the bound memory is mapped. CUDA: `cuMemAddressReserve`, `cuMemMap`, `cuMemSetAccess`.
    ///
    /// An address that the driver chooses is a multiple of the [recommended granularity](super::MulticastGranularity::recommended).
    /// An address that the caller chooses must be a multiple of the minimum. If other processes have devices in the team, the
    /// driver may block until all of them have bound memory.
    ///
    /// # Errors
    ///
    /// [`Detail::NotBound`] if a device of this process has no binding, the errors of
    /// [`RegionBuilder::build`](crate::RegionBuilder::build), or the driver's error. Nothing is mapped then, and the error returns
    /// the object with its bindings.
    pub fn map(self, placement: Placement) -> Result<MulticastRange<B>, Failed<Self>> {
        match self.place(placement) {
            Ok(mapping) => Ok(MulticastRange::new(mapping, self)),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    fn place(&self, placement: Placement) -> Result<Mapping<B>> {
        let operation = Operation::MapMulticast;
        self.object.check_in_use(operation)?;
        self.object.devices.iter().try_for_each(|device| self.bindings.check_any(operation, *device))?;
        Mapping::new(operation, &self.object, placement)
    }
}

impl<B: MulticastBackend> MulticastRange<B> {
    pub(super) const fn new(mapping: Mapping<B>, multicast: Multicast<B>) -> Self {
        Self { parts: ManuallyDrop::new(Parts { mapping, multicast }) }
    }

    fn into_parts(self) -> Parts<B> {
        let mut range = ManuallyDrop::new(self);
        // SAFETY: the range is neither used nor dropped any more.
        unsafe { ManuallyDrop::take(&mut range.parts) }
    }

    /// Returns the first address, for kernels of the devices of this process.
    #[must_use]
    pub fn address(&self) -> Address {
        self.range().base
    }

    /// Returns the addresses at which the object is mapped.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.parts.mapping.range
    }

    /// Returns the mapped object.
    #[must_use]
    pub fn multicast(&self) -> &Multicast<B> {
        &self.parts.multicast
    }

    /// Waits as `done` says, unmaps, and returns the object with its bindings. CUDA: `cuMemUnmap`, `cuMemAddressFree`.
    ///
    /// [`WaitFor::all_devices`] waits for the devices of this process.
    ///
    /// # Errors
    ///
    /// The error of the wait or of the driver. It returns the range, mapped as before.
    pub fn unmap(mut self, done: WaitFor<'_>) -> Result<Multicast<B>, Failed<Self>> {
        match self.parts.mapping.unmap(done) {
            Ok(()) => Ok(self.into_parts().multicast),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    /// Waits, unmaps, unbinds and releases, as dropping does, and returns the error.
    ///
    /// # Errors
    ///
    /// Those of [`unmap`](Self::unmap) and [`Multicast::close`]. Objects that the driver does not release stay until the process
    /// ends. After [`Detail::Capturing`] the backend [keeps](crate::extend::Deferred) the object until it can be released.
    pub fn close(mut self, done: WaitFor<'_>) -> Result<()> {
        let unmapped = self.parts.mapping.unmap(done);
        let parts = self.into_parts();
        match unmapped {
            Ok(()) => parts.multicast.close(),
            Err(error) => {
                parts.not_unmapped(&error);
                Err(error)
            }
        }
    }
}

impl<B: MulticastBackend> Drop for MulticastRange<B> {
    fn drop(&mut self) {
        // SAFETY: the range is not used any more.
        let mut parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        let Err(error) = parts.mapping.unmap(WaitFor::all_devices()) else { return };
        let object = Arc::clone(&parts.mapping.object);
        parts.not_unmapped(&error);
        if object.is_given_up() {
            object.backend.drop_log().record(error);
        }
    }
}
