//! New epochs.

use super::Server;
use super::region::Layout;
use crate::ServeError;
use crate::protocol::{LeaseKind, Reply};
use gpu_vmm_core::Backend;
use std::sync::Arc;

impl<B: Backend> Server<B> {
    /// Makes a writer's new memory the region's epoch. Nothing can fail between its parts, so that no reader sees one of them.
    pub(super) fn commit_epoch(&mut self, id: u64, layout: Option<Arc<Layout>>) -> Result<(), ServeError> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let Some(lease) = connection.lease_mut() else { return Ok(()) };
        let region = self.regions.get_mut(&lease.name, lease.region).ok_or_else(|| lease.dropped())?;
        if region.epoch == 0 {
            region.handles = lease.fresh.values().map(Arc::clone).collect();
            lease.fresh.clear();
        }
        for (index, handle) in std::mem::take(&mut lease.fresh) {
            region.handles[index as usize] = handle;
        }
        if layout.is_some() {
            region.layout = layout;
        }
        region.epoch += 1;
        lease.has_all(region);
        lease.layout.clone_from(&region.layout);
        lease.applied = region.epoch;
        // The writer has unmapped what it has renewed.
        lease.forget_unmapped();
        connection.put(Reply::Committed { epoch: region.epoch });
        Ok(())
    }

    /// Makes a write lease a read lease.
    pub(super) fn downgrade(&mut self, id: u64) -> Result<(), ServeError> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let Some(lease) = connection.lease_mut() else { return Ok(()) };
        lease.check_writer()?;
        let region = self.regions.get_mut(&lease.name, lease.region);
        let region = region.ok_or_else(|| lease.dropped())?;
        if region.epoch == 0 {
            return Err(ServeError::bad("the region is not committed yet"));
        }
        region.writer = None;
        lease.kind = LeaseKind::Read;
        // The client has mapped the epoch again.
        lease.fresh.clear();
        lease.forget_unmapped();
        connection.put(Reply::Downgraded);
        Ok(())
    }
}
