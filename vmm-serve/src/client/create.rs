//! New regions.

use super::exchange::Exchange;
use super::lease::{builder, in_use, receive_all};
use super::{Client, Lease};
use crate::protocol::{Create, LeaseKind, Reply, Request};
use crate::{Mode, ServeError};
use gpu_vmm_core::{
    Address, Backend, Bytes, Detail, DeviceId, Error, HandleTypes, Operation, Placement, Properties, Region,
    Result, WaitFor,
};

/// The number of addresses that are tried: another region of the server may have the one that is free in this process.
const TRIES: u32 = 8;

/// Options for a new region.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CreateOptions {
    /// The device and the kind of the memory; device memory of device 0 by default. The server exports it as descriptors, whichever
    /// handle types are given.
    pub memory: Properties,
    /// The users that may read and replace the region.
    pub mode: Mode,
    /// The region's group; by default the group of this process.
    pub group: Option<u32>,
    /// The address of the region, which must be free in this process and on the server; a random one by default.
    pub address: Option<Address>,
    /// The size of a handle, by default 256 MiB or less. [`Lease::renew`] replaces whole handles.
    pub handle: Bytes,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            memory: Properties::on(DeviceId(0)),
            mode: Mode::default(),
            group: None,
            address: None,
            handle: Bytes::ZERO,
        }
    }
}

impl<B: Backend> Client<B> {
    /// Creates a region of at least `size` bytes, by default at a random address that is free in this process and on the server. Returns its
    /// write lease, with all of the memory mapped for reading and writing. Other clients see the region after the first
    /// [commit](Lease::commit); a lease that ends before that leaves nothing.
    ///
    /// If the server's budget has no room, the server asks programs for memory that they do not need, and this waits for their answers.
    ///
    /// # Errors
    ///
    /// [`ServeError::Exists`]; [`ServeError::OverBudget`], or [`ServeError::NoRoom`] if programs were asked in vain;
    /// [`ServeError::OverLimit`], [`ServeError::NoMemory`], [`ServeError::Limit`];
    /// [`Detail::NoSuchDevice`]; [`Detail::Unsupported`] if the device has no UUID; errors of the connection and of the driver.
    pub fn create(&self, name: &str, size: Bytes, options: &CreateOptions) -> Result<Lease<B>> {
        let operation = Operation::CreateRegion;
        let properties = Properties { handle_types: HandleTypes::FILE_DESCRIPTOR, ..options.memory };
        let device = self.backend.device(operation, properties.device)?;
        let reason = || format!("the driver reports no UUID for {}", properties.device);
        let uuid =
            device.uuid.ok_or_else(|| Error::new(operation, Detail::Unsupported { reason: reason() }))?;
        if size.is_zero() {
            return Err(Error::new(operation, Detail::ZeroSize));
        }
        let mut tries = 0;
        loop {
            let place = options.address.map_or(Placement::Restorable, Placement::Exact);
            let region = builder(&self.backend, name, properties, size).at(place).build();
            let region = region.map_err(|error| in_use(operation, error, name, size))?;
            let unit = region.granularity();
            let whole = |bytes: Bytes| unit.round_up(bytes);
            let too_large =
                || Error::new(operation, Detail::ExceedsAddressSpace { size, limit: region.reserved() });
            let size = whole(size).ok_or_else(too_large)?;
            let request = Create {
                name: name.to_owned(),
                size: size.0,
                address: region.address().0,
                device: uuid,
                kind: properties.into(),
                handle: whole(options.handle).ok_or_else(too_large)?.0,
                mode: options.mode,
                group: options.group,
            };
            let mut exchange = self.exchange(operation)?;
            exchange.send(&Request::Create(request), &[])?;
            tries += 1;
            match exchange.receive_memory() {
                Ok((Reply::Granted { kind: LeaseKind::Write, handles, .. }, _)) => {
                    return self.fill(name, region, exchange, handles, size);
                }
                Ok((other, _)) => return exchange.out_of_turn(&other, "a lease"),
                Err(error)
                    if tries < TRIES
                        && options.address.is_none()
                        && matches!(error.extension(), Some(ServeError::AddressTaken { .. })) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Maps the memory of a region that the server has created.
    fn fill(
        &self,
        name: &str,
        region: Region<B>,
        mut exchange: Exchange,
        handles: u32,
        size: Bytes,
    ) -> Result<Lease<B>> {
        let operation = exchange.operation;
        let memory = receive_all(&mut exchange, &self.backend, handles, size.0)?;
        let mut lease = Lease::new(region, name, LeaseKind::Write, exchange);
        lease.fresh =
            memory.iter().enumerate().map(|(index, memory)| (index as u32, memory.clone())).collect();
        lease.handles = memory;
        lease.arrange(operation, WaitFor::all_devices())?;
        Ok(lease)
    }
}
