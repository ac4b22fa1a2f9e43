//! Leases that become free, and epochs that readers are told of.

use super::Server;
use super::books::Indexed;
use super::connection::{Connection, Lease, Role, Source};
use super::region::Region;
use crate::protocol::{LeaseKind, Reply};
use gpu_vmm_core::Backend;
use std::sync::Arc;
use std::time::Instant;

impl<B: Backend> Server<B> {
    /// Grants the leases that are free, in the order in which clients have come.
    pub(super) fn grant(&mut self) {
        for (id, connection) in &mut self.connections {
            let Role::Waits(wait) = &connection.role else { continue };
            let wait = wait.clone();
            let opened = self.regions.open(&wait, &connection.peer);
            let region = match opened {
                Err(error) => {
                    connection.refuse(error);
                    connection.role = Role::Idle { since: Instant::now() };
                    continue;
                }
                Ok(None) => continue,
                Ok(Some(region)) => region,
            };
            connection.begin(&wait.name, region, wait.kind);
            if wait.kind == LeaseKind::Write
                && let Some(region) = self.regions.0.get_mut(&wait.name)
            {
                region.writer = Some(*id);
            }
        }
    }

    /// Sends readers the newest epoch of their region, or its end. A reader gets the next epoch when it has mapped the last one, so
    /// that it keeps the memory of two epochs at most.
    pub(super) fn offer_epochs(&mut self) {
        for connection in self.connections.values_mut() {
            if connection.has_queue() {
                continue;
            }
            let Role::Leases(lease) = &mut connection.role else { continue };
            match self.regions.get(&lease.name, lease.region) {
                None if !lease.is_dropped && lease.job.is_none() => {
                    lease.is_dropped = true;
                    connection.put(Reply::Dropped);
                }
                Some(region) if lease.kind == LeaseKind::Read && lease.is_behind(region) => {
                    connection.send_epoch(region);
                }
                _ => {}
            }
        }
    }
}

impl<B: Backend> Lease<B> {
    fn is_behind(&self, region: &Region<B>) -> bool {
        self.applied == self.sent && self.sent < region.epoch
    }

    /// Records that the region's epoch is sent, and returns what is new in it.
    fn take_epoch(&mut self, region: &Region<B>) -> (Indexed<B>, Vec<Source<B>>) {
        let known = |index: usize, id| self.sent_handles.get(index) == Some(&id);
        let new = region.handles.iter().enumerate().filter(|(index, handle)| !known(*index, handle.id));
        let new: Vec<_> = new.map(|(index, handle)| (index as u32, Arc::clone(handle))).collect();
        self.holds.extend(new.iter().map(|(_, handle)| Arc::clone(handle)));
        let is_known = match (&self.layout, &region.layout) {
            (Some(ours), Some(theirs)) => ours.id == theirs.id,
            (_, None) => true,
            (None, Some(_)) => false,
        };
        self.layout.clone_from(&region.layout);
        let layout = region.layout.as_ref().filter(|_| !is_known);
        self.has_all(region);
        (new, layout.map(|layout| Source::Layout(Arc::clone(layout))).into_iter().collect())
    }

    /// Records that the client has been sent the region's epoch.
    pub(super) fn has_all(&mut self, region: &Region<B>) {
        self.sent = region.epoch;
        self.sent_handles = region.handles.iter().map(|handle| handle.id).collect();
    }
}

impl<B: Backend> Connection<B> {
    /// Begins a lease, and sends all of the region's epoch.
    fn begin(&mut self, name: &str, region: &Region<B>, kind: LeaseKind) {
        let mut lease = Lease::new(name, region, kind);
        let (new, sources) = lease.take_epoch(region);
        let (address, size, epoch) = (region.address, region.size, region.epoch);
        let (handles, layout) = (new.len() as u32, !sources.is_empty());
        self.role = Role::Leases(Box::new(lease));
        self.put_with(Reply::Granted { kind, address, size, handles, epoch, layout }, sources);
        self.put_handles(&new);
    }

    fn send_epoch(&mut self, region: &Region<B>) {
        let Some(lease) = self.lease_mut() else { return };
        let (new, sources) = lease.take_epoch(region);
        let reply =
            Reply::Epoch { epoch: region.epoch, changed: new.len() as u32, layout: !sources.is_empty() };
        self.put_with(reply, sources);
        self.put_handles(&new);
    }
}
