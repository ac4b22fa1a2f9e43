//! A region of the server in this process.

use super::exchange::Exchange;
use crate::ServeError;
use crate::layout::Layout;
use crate::protocol::{LeaseKind, Reply, Request};
use crate::sizes;
use gpu_vmm_core::extend::{MappedMemory, user_of_addresses};
use gpu_vmm_core::{
    Access, AccessMap, Address, AddressRange, Backend, Bytes, Detail, Error, Operation, PhysicalMemory,
    Placement, Properties, Region, Result, WaitFor,
};
use gpu_vmm_share::PeerError;
use gpu_vmm_share::extend::Wait;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// What has happened to the region of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseEvent {
    /// A writer has committed this epoch. [`Lease::apply`] maps it.
    NewEpoch(u64),
    /// The region was dropped from the server. The lease keeps the memory that it has.
    Dropped,
    /// The server has ended. The lease keeps the memory that it has.
    ServerGone,
}

/// A region of the server, mapped in this process at the region's address.
///
/// A **read lease** has the memory mapped read-only. [`next`](Self::next) receives new epochs, and [`apply`](Self::apply) maps them.
/// It goes on with the epoch that it has until then, for as long as it wants.
///
/// A **write lease** gets new memory with [`renew`](Self::renew), fills it, and [commits](Self::commit) it.
/// [`downgrade`](Self::downgrade) makes it a read lease.
///
/// Dropping a lease unmaps the memory and ends it, and so does the end of the process. Memory that was not committed is lost then.
///
/// # Thread safety
///
/// As for a [`Region`]: threads that share a lease and change it have it in a lock.
#[derive(Debug)]
pub struct Lease<B: Backend> {
    // Everything that holds memory is dropped before the exchange, which then reports it.
    pub(super) region: Region<B>,
    pub(super) name: String,
    pub(super) kind: LeaseKind,
    /// The memory of the epoch that is mapped, in order.
    pub(super) handles: Vec<PhysicalMemory<B>>,
    /// A writer's new memory, by index. It is mapped in the place of the epoch's.
    pub(super) fresh: BTreeMap<u32, PhysicalMemory<B>>,
    /// Memory that the server has given to the writer, and that could not be mapped here.
    pub(super) unmapped: BTreeSet<u32>,
    pub(super) epoch: u64,
    pub(super) layout: Layout,
    /// An epoch that was received and is not mapped.
    next: Option<NextEpoch<B>>,
    pub(super) is_dropped: bool,
    pub(super) exchange: Exchange,
}

#[derive(Debug)]
struct NextEpoch<B: Backend> {
    epoch: u64,
    changed: Vec<(u32, PhysicalMemory<B>)>,
    layout: Option<Layout>,
}

impl<B: Backend> Lease<B> {
    /// Maps a region that the server has granted.
    pub(super) fn open(
        backend: &B,
        name: &str,
        mut exchange: Exchange,
        granted: Reply,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self> {
        let Reply::Granted { kind, address, size, handles, epoch, .. } = granted else {
            return exchange.out_of_turn(&granted, "a lease");
        };
        let layout = exchange.layout(descriptors)?.unwrap_or_default();
        let memory = receive_all(&mut exchange, backend, handles, size)?;
        let Some(first) = memory.first() else { return exchange.bad("a region without memory".to_owned()) };
        let region = builder(backend, name, first.properties(), Bytes(size))
            .access(first.device(), Access::Read)
            .at(Placement::Exact(Address(address)))
            .build();
        let region = region.map_err(|error| in_use(exchange.operation, error, name, Bytes(size)))?;
        let mut lease = Self::new(region, name, kind, exchange);
        (lease.epoch, lease.layout, lease.handles) = (epoch, layout, memory);
        lease.arrange(lease.exchange.operation, WaitFor::all_devices())?;
        lease.report();
        Ok(lease)
    }

    /// Reports that the epoch is mapped. A server that is gone is noticed by the next wait.
    fn report(&mut self) {
        let _ = self.exchange.send(&Request::Applied { epoch: self.epoch }, &[]);
    }

    pub(super) fn new(region: Region<B>, name: &str, kind: LeaseKind, exchange: Exchange) -> Self {
        Self {
            region,
            name: name.to_owned(),
            kind,
            handles: Vec::new(),
            fresh: BTreeMap::new(),
            unmapped: BTreeSet::new(),
            epoch: 0,
            layout: Layout::default(),
            next: None,
            is_dropped: false,
            exchange,
        }
    }

    /// Returns the name of the region.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kind of the lease.
    #[must_use]
    pub const fn kind(&self) -> LeaseKind {
        self.kind
    }

    /// Returns the epoch that is mapped; 0 for a region that was never committed.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the layout of the epoch that is mapped.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the region.
    #[must_use]
    pub const fn region(&self) -> &Region<B> {
        &self.region
    }

    /// Returns the region, to write to the memory of a write lease, or to set access. The lease decides what is mapped where.
    #[must_use]
    pub const fn region_mut(&mut self) -> &mut Region<B> {
        &mut self.region
    }

    /// Waits up to `wait` for the next event, and returns `None` if none arrives. With [`Duration::ZERO`] it returns at once, with an
    /// event if one has arrived. After the end of the server it always returns [`LeaseEvent::ServerGone`].
    ///
    /// The server sends a further epoch when the last one was [applied](Self::apply), and skips those between.
    ///
    /// # Errors
    ///
    /// [`PeerError::BadMessage`] and [`Detail::Mismatch`] for invalid data, and the driver's error for memory that cannot be
    /// imported. The lease then keeps the memory that it has, and hears no more from the server.
    pub fn next(&mut self, wait: Duration) -> Result<Option<LeaseEvent>> {
        if !self.exchange.is_lease() || self.exchange.is_lost() {
            return Ok(Some(LeaseEvent::ServerGone));
        }
        self.exchange.operation = Operation::Receive;
        let wait = Wait::new(Operation::Receive, "message of the server", wait);
        let event = match self.exchange.take(&wait) {
            Err(error) if matches!(error.extension(), Some(PeerError::TimedOut { .. })) => return Ok(None),
            Err(error) => Err(error),
            Ok((reply, descriptors)) => self.handle(&reply, descriptors),
        };
        match event {
            Ok(event) => Ok(Some(event)),
            Err(error) if matches!(error.extension(), Some(PeerError::Gone { .. })) => {
                self.exchange.end_lease();
                Ok(Some(LeaseEvent::ServerGone))
            }
            Err(error) => {
                // The end of the lease is reported all the same: otherwise its memory counts until the process ends.
                self.exchange.lose();
                Err(error)
            }
        }
    }

    fn handle(&mut self, reply: &Reply, descriptors: Vec<OwnedFd>) -> Result<LeaseEvent> {
        match *reply {
            Reply::Epoch { epoch, changed, .. } if self.kind == LeaseKind::Read && epoch > self.epoch => {
                let layout = self.exchange.layout(descriptors)?;
                let Self { exchange, handles, region, .. } = self;
                let fits = |index: u32, size| {
                    handles.get(index as usize).is_some_and(|memory| memory.size().0 == size)
                };
                let changed = exchange.receive_handles(region.backend(), changed, fits)?;
                self.next = Some(NextEpoch { epoch, changed, layout });
                Ok(LeaseEvent::NewEpoch(epoch))
            }
            Reply::Dropped => {
                self.is_dropped = true;
                Ok(LeaseEvent::Dropped)
            }
            _ => self.exchange.out_of_turn(reply, "a new epoch"),
        }
    }

    /// Returns true if the region was dropped from the server, as far as this lease has received it.
    #[must_use]
    pub const fn is_dropped(&self) -> bool {
        self.is_dropped
    }

    /// Returns true if an epoch was received that is not mapped yet.
    #[must_use]
    pub const fn is_behind(&self) -> bool {
        self.next.is_some()
    }

    /// Maps the epoch that was received, in one transaction, at the addresses that the region has. Waits as `done` says before it
    /// unmaps the old memory. Returns the epoch that is mapped.
    ///
    /// # Errors
    ///
    /// Errors of the wait and of the driver. The region is as before, and the caller can try again.
    pub fn apply(&mut self, done: WaitFor<'_>) -> Result<u64> {
        let operation = Operation::ApplyChange;
        let Some(next) = &self.next else { return Ok(self.epoch) };
        let mut new = self.handles.clone();
        for (index, memory) in &next.changed {
            new[*index as usize] = memory.clone();
        }
        let old = std::mem::replace(&mut self.handles, new);
        if let Err(error) = self.arrange(operation, done) {
            self.handles = old;
            return Err(error);
        }
        if let Some(next) = self.next.take() {
            self.epoch = next.epoch;
            if let Some(layout) = next.layout {
                self.layout = layout;
            }
        }
        self.report();
        Ok(self.epoch)
    }

    /// Maps the epoch's memory, and the writer's new memory in its place.
    pub(super) fn arrange(&mut self, operation: Operation, done: WaitFor<'_>) -> Result<()> {
        let Self { region, handles, fresh, .. } = self;
        let mut wanted = Vec::with_capacity(handles.len());
        let mut offset = Bytes::ZERO;
        for (index, committed) in handles.iter().enumerate() {
            let new = fresh.get(&(index as u32));
            let access = if new.is_some() { Access::ReadWrite } else { Access::Read };
            let memory = new.unwrap_or(committed).clone();
            let access = AccessMap::default().with(memory.device(), access);
            let size = memory.size();
            wanted.push(MappedMemory { offset, memory, access });
            offset += size;
        }
        region.apply_layout(operation, &wanted, done)
    }

    /// Returns the indexes of the handles that a range touches, as a first one and a number.
    pub(super) fn touching(&self, offset: Bytes, length: Bytes) -> Option<(u32, u32)> {
        sizes::touching(self.handles.iter().map(PhysicalMemory::size), offset, length)
    }

    /// Unmaps the memory and ends the lease. Waits as `done` says before that. When it returns, the server has freed the memory that no
    /// region and no other client has.
    ///
    /// # Errors
    ///
    /// Those of [`Region::close`]. It is no error if the server is gone.
    pub fn close(self, done: WaitFor<'_>) -> Result<()> {
        let Self { region, handles, fresh, next, mut exchange, .. } = self;
        // If it fails, the memory is still here, and the end of the connection says no more than that the lease has ended.
        region.close(done).inspect_err(|_| exchange.end_lease())?;
        drop((handles, fresh, next));
        if exchange.is_lease() {
            exchange.operation = Operation::ReleaseImport;
            exchange.end_lease();
            if exchange.send(&Request::Release, &[]).is_ok() {
                exchange.wait_for_end();
            }
        }
        Ok(())
    }
}

impl<B: Backend> AsFd for Lease<B> {
    /// Returns the socket, to wait on with poll: readable when [`Lease::next`] has something to receive.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.exchange.channel.as_fd()
    }
}

impl<B: Backend> AsRawFd for Lease<B> {
    /// Returns the socket, as [`AsFd`] does.
    fn as_raw_fd(&self) -> RawFd {
        self.exchange.channel.as_raw_fd()
    }
}

/// Returns the error of addresses that are in use, with what uses them.
pub(super) fn in_use(operation: Operation, error: Error, name: &str, size: Bytes) -> Error {
    let Detail::AddressTaken { wanted, .. } = *error.detail() else { return error };
    let user = user_of_addresses(AddressRange { base: wanted, size });
    let (name, end) = (name.to_owned(), wanted.0.saturating_add(size.0));
    Error::of_extension(operation, ServeError::AddressInUse { name, address: wanted.0, end, user })
}

/// Receives all handles of a region.
pub(super) fn receive_all<B: Backend>(
    exchange: &mut Exchange,
    backend: &B,
    count: u32,
    size: u64,
) -> Result<Vec<PhysicalMemory<B>>> {
    if count == 0 || count as usize > sizes::MAX_HANDLES {
        return exchange.bad(format!("a region of {count} handles"));
    }
    // Together they must have the region's size.
    let handles = exchange.receive_handles(backend, count, |index, _| index < count)?;
    let sum = handles.iter().try_fold(0_u64, |sum, (_, memory)| sum.checked_add(memory.size().0));
    if sum != Some(size) {
        return exchange.bad(format!("a region of {size:#x} bytes whose handles have {sum:?}"));
    }
    Ok(handles.into_iter().map(|(_, memory)| memory).collect())
}

/// Returns the builder of a region that each process can have at the same address.
pub(super) fn builder<'a, B: Backend>(
    backend: &'a B,
    name: &str,
    properties: Properties,
    size: Bytes,
) -> gpu_vmm_core::RegionBuilder<'a, B> {
    Region::builder(backend).memory(properties).portable().reserve(size).tag(name)
}
