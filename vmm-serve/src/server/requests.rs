//! What clients request.

use super::Server;
use super::books::Promise;
use super::connection::{Lease, Role};
use super::descriptors;
use super::devices;
use super::region::{Layout, Region, Waiting, not_found};
use crate::name;
use crate::protocol::{Create, LeaseKind, MAX_WAIT_MS, Reply, Request, VERSIONS};
use crate::sealed;
use crate::{ServeError, layout};
use gpu_vmm_core::extend::ADDRESS_SPACE;
use gpu_vmm_core::{Backend, Bytes, HandleTypes, Operation, Properties};
use gpu_vmm_share::extend::keep;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most files of a client that are no layouts. They are kept until its connection ends.
const MAX_FILES: usize = 4;

/// The limit of the sizes of all layouts.
const MAX_LAYOUTS: Bytes = Bytes::gib(1);

impl<B: Backend> Server<B> {
    /// Handles one message. A message that is wrong is refused; one at the wrong time ends the connection.
    pub(super) fn handle(&mut self, id: u64, request: Request, descriptors: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let expected = usize::from(matches!(request, Request::Commit { layout: true }));
        if descriptors.len() != expected {
            keep(&mut connection.channel, descriptors);
            return self.end(id);
        }
        let mut file = descriptors.into_iter().next();
        let outcome = match (&mut connection.role, request) {
            (Role::New { .. }, Request::Hello { lowest, highest }) => self.welcome(id, lowest, highest),
            (Role::Idle { .. }, Request::Open { name, kind, wait_ms }) => self.open(id, name, kind, wait_ms),
            (Role::Idle { .. }, Request::Create(create)) => self.create(id, create),
            (Role::Idle { .. }, Request::List) => {
                self.begin_list(id);
                Ok(())
            }
            (Role::Idle { .. }, Request::Drop { name }) => self.drop_region(id, &name),
            (Role::Idle { .. }, Request::TakeOver) => self.hand_over(id),
            (Role::Leases(_), Request::Renew { first, count }) => self.renew(id, first, count),
            (Role::Leases(_), Request::Commit { .. }) => self.commit(id, &mut file),
            (Role::Leases(_), Request::Downgrade) => self.downgrade(id),
            (Role::Leases(lease), Request::Applied { epoch }) => {
                lease.has_applied(epoch);
                Ok(())
            }
            (Role::Leases(_), Request::Release) => {
                self.release(id);
                Ok(())
            }
            (Role::Idle { .. }, Request::Join(join)) => self.join(id, join),
            (Role::Program(_), Request::Reserve { number, least, most, wait_ms, asks }) => {
                self.reserve(id, number, (least, most), (wait_ms, asks));
                Ok(())
            }
            (Role::Program(_), Request::Give { ask, bytes }) => {
                self.give(id, ask, bytes);
                Ok(())
            }
            (Role::Program(_), Request::Report(report)) => {
                self.report(id, report);
                Ok(())
            }
            (Role::Program(_), Request::Release) => {
                self.leave(id);
                Ok(())
            }
            // A client that gives up its wait ends its connection.
            _ => {
                keep(&mut connection.channel, file.into_iter().collect());
                return self.end(id);
            }
        };
        if let Some(file) = file
            && let Some(connection) = self.connections.get_mut(&id)
            && keep(&mut connection.channel, vec![file]) > MAX_FILES
        {
            return self.end(id);
        }
        if let (Err(error), Some(connection)) = (outcome, self.connections.get_mut(&id)) {
            connection.refuse(error);
        }
    }

    fn welcome(&mut self, id: u64, lowest: u16, highest: u16) -> Result<(), ServeError> {
        let vendor = self.backend.vendor().name().to_owned();
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let (server_lowest, server_highest) = VERSIONS;
        let version = highest.min(server_highest);
        if version < lowest.max(server_lowest) {
            let (client_lowest, client_highest) = (lowest, highest);
            connection.refuse(ServeError::Version {
                client_lowest,
                client_highest,
                server_lowest,
                server_highest,
            });
            connection.end_when_sent();
            return Ok(());
        }
        connection.role = Role::Idle { since: Instant::now() };
        connection.version = version;
        connection.put(Reply::Welcome { version, vendor });
        Ok(())
    }

    fn open(&mut self, id: u64, name: String, kind: LeaseKind, wait_ms: u64) -> Result<(), ServeError> {
        name::check(&name).map_err(ServeError::bad)?;
        let wait_ms = wait_ms.min(MAX_WAIT_MS);
        let wait = Waiting { name, kind, wait_ms, until: Instant::now() + Duration::from_millis(wait_ms) };
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        self.regions.open(&wait, &connection.peer)?;
        // Granted in the order of arrival, or refused at the end of this step.
        connection.role = Role::Waits(wait);
        Ok(())
    }

    fn create(&mut self, id: u64, create: Create) -> Result<(), ServeError> {
        let Create { name, size, address, device, kind, handle, mode, group } = create;
        name::check(&name).map_err(ServeError::bad)?;
        let mode = mode.checked().ok_or_else(|| {
            ServeError::bad(format!("the mode {:o} has other bits than read and write", mode.bits()))
        })?;
        let Some(connection) = self.connections.get(&id) else { return Ok(()) };
        let peer = &connection.peer;
        let Some(owner) = peer.user else {
            return Err(ServeError::bad(
                "a user without an ID in the server's namespace cannot own a region",
            ));
        };
        let group = group.unwrap_or(peer.group);
        if !peer.is_in(group) && !peer.is_root() {
            return Err(ServeError::bad(format!("user {owner} is not in group {group}")));
        }
        if self.regions.0.contains_key(&name) {
            return Err(ServeError::Exists { name });
        }
        if self.regions.0.len() >= self.options.regions {
            return Err(ServeError::Limit { what: "regions".to_owned(), limit: self.options.regions as u64 });
        }
        let properties = self.properties(device, kind)?;
        let granularity = self.backend.granularity_of(Operation::CreateMemory, &properties);
        let granularity = granularity.map_err(|error| ServeError::bad(error.to_string()))?;
        if size == 0 || !granularity.divides(Bytes(size)) {
            let size = Bytes(size);
            return Err(ServeError::bad(format!(
                "the size {size} is not a nonzero multiple of {granularity}"
            )));
        }
        if !granularity.divides(Bytes(address))
            || address.checked_add(size).is_none_or(|end| end > ADDRESS_SPACE.0)
        {
            return Err(ServeError::bad(format!(
                "the address {address:#x} is not a multiple of {granularity} with room for {} behind it",
                Bytes(size)
            )));
        }
        if self.regions.0.values().any(|region| region.overlaps(address, size)) {
            return Err(ServeError::AddressTaken { address, end: address + size });
        }
        let job = self.job_of_new_region(Bytes(size), Bytes(handle), properties, (granularity, owner))?;
        let region = Region {
            id: self.number(),
            owner,
            group,
            mode,
            address,
            size,
            properties,
            epoch: 0,
            handles: Vec::new(),
            layout: None,
            writer: Some(id),
        };
        let lease = Lease { job: Some(job), ..Lease::new(&name, &region, LeaseKind::Write) };
        self.regions.0.insert(name, region);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.role = Role::Leases(Box::new(lease));
        }
        Ok(())
    }

    fn properties(
        &self,
        device: gpu_vmm_core::DeviceUuid,
        kind: gpu_vmm_share::manifest::MemoryKind,
    ) -> Result<Properties, ServeError> {
        let properties = devices::properties(&self.backend, device, kind).map_err(ServeError::bad)?;
        // Other handle types would let the memory leave the machine, or the server.
        Ok(Properties { handle_types: HandleTypes::FILE_DESCRIPTOR, ..properties })
    }

    fn renew(&mut self, id: u64, first: u32, count: u32) -> Result<(), ServeError> {
        let Some(lease) = self.connections.get(&id).and_then(|one| one.lease()) else { return Ok(()) };
        lease.check_writer()?;
        let region = self.regions.get(&lease.name, lease.region).ok_or_else(|| lease.dropped())?;
        let end = first.checked_add(count).map(|end| end as usize);
        let (Some(end), false) = (end.filter(|end| *end <= region.handles.len()), count == 0) else {
            let there = region.handles.len();
            return Err(ServeError::bad(format!(
                "the region has {there} handles; {count} from {first} on are none of them"
            )));
        };
        let region_memory = (region.properties, region.owner);
        let sizes = (first..).zip(region.sizes().skip(first as usize));
        let plan = sizes.take(count as usize).collect();
        // The client has given up the new memory of an earlier request for the same handles, which has failed there.
        if let Some(lease) = self.connections.get_mut(&id).and_then(|one| one.lease_mut()) {
            lease.fresh.retain(|index, _| !(first as usize..end).contains(&(*index as usize)));
            lease.forget_unmapped();
        }
        let job = self.job_of_renewal(region_memory, plan)?;
        if let Some(lease) = self.connections.get_mut(&id).and_then(|one| one.lease_mut()) {
            lease.job = Some(job);
        }
        Ok(())
    }

    /// Commits. Takes the layout's file if it is one.
    fn commit(&mut self, id: u64, file: &mut Option<OwnedFd>) -> Result<(), ServeError> {
        let Some(lease) = self.connections.get(&id).and_then(|one| one.lease()) else { return Ok(()) };
        lease.check_writer()?;
        let size = file.as_ref().map(|file| sealed::size(file.as_fd(), layout::MAX_BYTES));
        let size = size.transpose().map_err(ServeError::bad)?;
        file.as_ref().map_or(Ok(()), |file| descriptors::check(file.as_fd(), self.options.clients))?;
        let layout = match (size, file.take()) {
            (Some(size), Some(file)) => {
                if self.layouts.held() + size > MAX_LAYOUTS.0 {
                    let (what, limit) = ("bytes of layouts".to_owned(), MAX_LAYOUTS.0);
                    return Err(ServeError::Limit { what, limit });
                }
                let counted = Promise::of(&self.layouts, size).take(Bytes(size));
                Some(Arc::new(Layout { id: self.number(), file, size, counted }))
            }
            _ => None,
        };
        self.commit_epoch(id, layout)
    }

    fn drop_region(&mut self, id: u64, name: &str) -> Result<(), ServeError> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let region = self.regions.0.get(name).ok_or_else(|| not_found(name))?;
        region.check_drop(name, &connection.peer)?;
        let writer = region.writer;
        self.regions.0.remove(name);
        connection.put(Reply::Done);
        // Programs need not give memory for it.
        let lease = writer.and_then(|writer| self.connections.get_mut(&writer)?.lease_mut());
        if let (Some(writer), Some(job)) =
            (writer, lease.and_then(|lease| lease.job.take_if(|job| job.lacks.is_some())))
        {
            self.job_failed(writer, &job, ServeError::Dropped { name: name.to_owned() });
        }
        Ok(())
    }
}

impl<B: Backend> Lease<B> {
    /// A lease of which nothing has been sent.
    pub(super) fn new(name: &str, region: &Region<B>, kind: LeaseKind) -> Self {
        Self {
            name: name.to_owned(),
            region: region.id,
            kind,
            sent: 0,
            sent_handles: Vec::new(),
            layout: None,
            applied: 0,
            holds: Vec::new(),
            fresh: std::collections::BTreeMap::new(),
            job: None,
            is_dropped: false,
        }
    }

    /// Fails for a read lease, and while the server creates memory for an earlier request.
    pub(super) fn check_writer(&self) -> Result<(), ServeError> {
        if self.kind == LeaseKind::Read {
            return Err(ServeError::ReadLease { name: self.name.clone() });
        }
        match &self.job {
            Some(_) => Err(ServeError::bad("an earlier request for memory is not answered yet")),
            None => Ok(()),
        }
    }

    pub(super) fn dropped(&self) -> ServeError {
        ServeError::Dropped { name: self.name.clone() }
    }

    fn has_applied(&mut self, epoch: u64) {
        if epoch == self.sent {
            self.applied = epoch;
            self.forget_unmapped();
        }
    }
}
