//! Lists of regions and clients.

use super::Server;
use super::connection::Role;
use super::leave::info;
use super::region::Region;
use crate::protocol::{ClientInfo, LeaseKind, RegionInfo, Reply, ServerInfo};
use gpu_vmm_core::Backend;

impl<B: Backend> Server<B> {
    /// Sends a client what its user may see: regions that it may read, and their clients.
    pub(super) fn list(&mut self, id: u64) {
        let Some(asking) = self.connections.get(&id) else { return };
        let seen = self.regions.0.iter().filter(|(_, region)| region.is_seen_by(&asking.peer));
        let mut seen: Vec<RegionInfo> = seen.map(|(name, region)| self.region_info(name, region)).collect();
        for connection in self.connections.values() {
            // A lease of an earlier region of this name is not one of this region.
            let of = |name: &str, region: Option<u64>| {
                let place = seen.binary_search_by(|one| one.name.as_str().cmp(name)).ok()?;
                region.is_none_or(|id| self.regions.get(name, id).is_some()).then_some(place)
            };
            match &connection.role {
                Role::Waits(wait) => {
                    of(&wait.name, None).into_iter().for_each(|place| seen[place].waiting += 1);
                }
                Role::Leases(lease) if lease.kind == LeaseKind::Read => {
                    of(&lease.name, Some(lease.region))
                        .into_iter()
                        .for_each(|place| seen[place].readers += 1);
                }
                _ => {}
            }
        }
        let connected = self.connections.values().filter_map(|one| info(one, false));
        let clients = connected.chain(self.lingering.iter().map(|one| one.info.clone()));
        let is_seen = |client: &ClientInfo| {
            let own = asking.peer.user == Some(client.user) || asking.peer.is_root();
            own || seen.binary_search_by(|region| region.name.cmp(&client.region)).is_ok()
        };
        let clients: Vec<ClientInfo> = clients.filter(is_seen).collect();
        let server = self.info();
        let Some(asking) = self.connections.get_mut(&id) else { return };
        seen.into_iter().map(Reply::Region).for_each(|reply| asking.put(reply));
        clients.into_iter().map(Reply::Client).for_each(|reply| asking.put(reply));
        asking.put(Reply::Server(server));
    }

    /// Returns the state of the server.
    pub fn info(&self) -> ServerInfo {
        let held = self.books.held();
        ServerInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            vendor: self.backend.vendor().name().to_owned(),
            process: std::process::id(),
            held,
            old: held.saturating_sub(self.named()),
            budget: self.options.budget.map(|budget| budget.0),
            clients: self.connections.len() as u32,
        }
    }

    fn region_info(&self, name: &str, region: &Region<B>) -> RegionInfo {
        RegionInfo {
            name: name.to_owned(),
            address: region.address,
            size: region.size,
            handles: region.handles.len() as u32,
            device: super::devices::uuid(&self.backend, &region.properties),
            epoch: region.epoch,
            layout: region.layout.as_ref().map_or(0, |layout| layout.size),
            user: region.owner,
            group: region.group,
            mode: region.mode,
            readers: 0,
            has_writer: region.writer.is_some(),
            waiting: 0,
        }
    }
}
