//! The object at an address.
#![allow(unsafe_code)]

use super::object::Object;
use super::{Failed, Multicast, MulticastBackend};
use crate::driver::{Reservation, WaitFor};
use crate::region::{Placement, reserve, rounded};
use crate::types::{Access, Address, AddressRange, Bytes, Error, ErrorKind, Grant, Operation, Result};
use std::mem::forget;
use std::sync::Arc;

/// Addresses at which an object is mapped. Dropping it unmaps and gives them back.
#[derive(Debug)]
pub(super) struct Mapping<B: MulticastBackend> {
    object: Arc<Object<B>>,
    /// As long as it is mapped.
    reservation: Option<B::Reservation>,
    range: AddressRange,
}

impl<B: MulticastBackend> Mapping<B> {
    /// Maps the object, with access for the devices of this process.
    pub(super) fn new(operation: Operation, object: &Arc<Object<B>>, placement: Placement) -> Result<Self> {
        let Object { backend, granularity, size, .. } = object.as_ref();
        let minimum = granularity.minimum.max(backend.granularity());
        let alignment = match placement {
            Placement::Anywhere | Placement::Restorable => minimum.max(granularity.recommended),
            Placement::Prefer(_) | Placement::Exact(_) => minimum,
        };
        let addresses = rounded(operation, *size, backend.reservation_unit().max(minimum))?;
        let mut reservation = reserve(backend, operation, addresses, alignment.into(), minimum, placement)?;
        // SAFETY: the reservation is new and at least as large as the object, which is of this backend.
        unsafe { reservation.map(Bytes::ZERO, &object.handle) }?;
        let range = AddressRange { base: reservation.range().base, size: *size };
        let mut mapping = Self { object: Arc::clone(object), reservation: Some(reservation), range };
        let Err(error) = mapping.grant() else { return Ok(mapping) };
        // SAFETY: the address was told to no one.
        let Err(undo) = mapping.unmap(unsafe { WaitFor::nothing() }) else { return Err(error) };
        let failed = error.rollback_failed(undo);
        mapping.give_up(&failed);
        Err(failed)
    }

    /// The devices of this process may store; what others may, their own processes say.
    fn grant(&mut self) -> Result<()> {
        let grant = |device: &_| Grant { device: *device, access: Access::ReadWrite };
        let grants: Vec<_> = self.object.devices.iter().map(grant).collect();
        let Some(reservation) = &mut self.reservation else { return Ok(()) };
        // SAFETY: the object is mapped there whole, and its devices were checked, each once.
        unsafe { reservation.set_access(Bytes::ZERO, self.range.size, &grants) }
    }

    /// Waits, unmaps, and gives the addresses back. Where it fails, everything is as it was.
    fn unmap(&mut self, done: WaitFor<'_>) -> Result<()> {
        let Some(reservation) = &mut self.reservation else { return Ok(()) };
        done.wait(&self.object.backend, || self.object.devices.iter().copied())?;
        // SAFETY: this is the one mapping there is, whole; the devices of this process have been waited for, or the caller
        // has promised.
        unsafe { reservation.unmap(Bytes::ZERO, self.range.size) }?;
        self.reservation = None;
        Ok(())
    }

    /// Leaves the addresses and the object to the driver until the process ends: it is still mapped there.
    fn give_up(&mut self, cause: &Error) {
        self.object.give_up(cause);
        forget(self.reservation.take());
    }
}

impl<B: MulticastBackend> Drop for Mapping<B> {
    fn drop(&mut self) {
        match self.unmap(WaitFor::all_devices()) {
            // In a forked child all of it is the parent's.
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Forked => {}
            Err(error) => {
                self.give_up(&error);
                self.object.backend.drop_log().record(error);
            }
        }
    }
}

/// A multicast object at an address. CUDA: what kernels call a multicast (or "MC") pointer.
///
/// PTX's instructions `multimem.st`, `multimem.red` and `multimem.ld_reduce` reach the bound memory of every device of the
/// team by it. Any other access is undefined (PTX ISA, 9.7.9.14), plain loads and stores too, and copies and fills by the
/// driver are not documented: so there is no read or write here, and no [`Region`](crate::Region). Each device reads what
/// arrived in its own memory, at the address where that is mapped, after a fence. Where a device has bound nothing,
/// nothing may be stored.
///
/// Dropping it waits for the devices of this process, unmaps, unbinds and releases. For other processes it cannot wait: none
/// of them may still store then.
#[derive(Debug)]
pub struct MulticastRange<B: MulticastBackend> {
    // It is unmapped before anything is unbound: fields are dropped in this order.
    mapping: Mapping<B>,
    multicast: Multicast<B>,
}

impl<B: MulticastBackend> Multicast<B> {
    /// Maps the object, whole, for all devices of this process to read and write. It has an address of its own, apart from
    /// those at which the bound memory is mapped. CUDA: `cuMemAddressReserve`, `cuMemMap`, `cuMemSetAccess`.
    ///
    /// Wherever the driver likes, the address is a multiple of the
    /// [recommended granularity](super::MulticastGranularity::recommended); an address that is asked for has to be one of the
    /// minimum. In a team with devices elsewhere this may block until all of them have bound memory.
    ///
    /// # Errors
    ///
    /// [`Detail::NotBound`](crate::Detail::NotBound) where a device of this process has bound nothing, those of
    /// [`RegionBuilder::build`](crate::RegionBuilder::build), or what the driver answers. Then nothing is mapped, and the
    /// object comes back with what is bound.
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
        Self { mapping, multicast }
    }

    /// The first address, for kernels of the devices of this process.
    #[must_use]
    pub fn address(&self) -> Address {
        self.range().base
    }

    /// All addresses at which the object is.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.mapping.range
    }

    /// The object that is mapped, to look at.
    #[must_use]
    pub fn multicast(&self) -> &Multicast<B> {
        &self.multicast
    }

    /// Waits as `done` says and unmaps; the object comes back with what is bound. CUDA: `cuMemUnmap`, `cuMemAddressFree`.
    ///
    /// [`WaitFor::all_devices`] waits for the devices of this process.
    ///
    /// # Errors
    ///
    /// What waiting or unmapping answers; the range comes back then, mapped as before.
    pub fn unmap(mut self, done: WaitFor<'_>) -> Result<Multicast<B>, Failed<Self>> {
        match self.mapping.unmap(done) {
            Ok(()) => Ok(self.multicast),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    /// Waits, unmaps, unbinds and releases; what dropping does, with the errors.
    ///
    /// # Errors
    ///
    /// Those of [`unmap`](Self::unmap) and [`Multicast::close`]. What the driver does not let go of is left to it until the
    /// process ends.
    pub fn close(mut self, done: WaitFor<'_>) -> Result<()> {
        if let Err(error) = self.mapping.unmap(done) {
            self.mapping.give_up(&error);
            return Err(error);
        }
        self.multicast.close()
    }
}
