//! Lists of regions, clients and programs.

use super::Server;
use super::connection::Role;
use super::leave::{Left, info};
use super::peer::Peer;
use super::program::Program;
use super::region::Region;
use crate::name::MAX_NAME;
use crate::protocol::{
    ClientInfo, DeviceInfo, LeaseKind, ProgramInfo, RegionInfo, Reply, ServerInfo, WITH_PROGRAMS,
};
use gpu_vmm_core::{Backend, Device};
use std::time::{Duration, Instant};

/// The time in which programs report what they have, before a list goes without that.
pub(super) const TO_REPORT: Duration = Duration::from_millis(200);

impl<B: Backend> Server<B> {
    /// Asks programs for what they have now, before a client gets its list.
    pub(super) fn begin_list(&mut self, id: u64) {
        let now = Instant::now();
        for connection in self.connections.values_mut() {
            if connection.has_queue() {
                continue;
            }
            if let Role::Program(_) = connection.role {
                connection.put(Reply::Describe);
            }
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.role = Role::Lists { since: now };
        }
    }

    /// Sends the lists for which all programs have reported, or have not in time.
    pub(super) fn end_lists(&mut self) {
        let lists = self.connections.iter().filter_map(|(id, one)| match one.role {
            Role::Lists { since } => Some((*id, since)),
            _ => None,
        });
        let is_ready = |since: &Instant| {
            since.elapsed() >= TO_REPORT
                || self.programs().all(|(_, _, program)| {
                    program.is_late() || program.described.is_some_and(|at| at >= *since)
                })
        };
        let ready: Vec<u64> = lists.filter(|(_, since)| is_ready(since)).map(|(id, _)| id).collect();
        ready.into_iter().for_each(|id| self.list(id));
    }

    /// Sends a client what its user may see: regions that it may read, and their clients, and all programs.
    fn list(&mut self, id: u64) {
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
        let lingering = self.lingering.iter().filter_map(|one| match &one.left {
            Left::Lease { info, .. } => Some(info.clone()),
            Left::Program { .. } => None,
        });
        let clients = connected.chain(lingering);
        let is_seen = |client: &ClientInfo| {
            let own = asking.peer.user == Some(client.user) || asking.peer.is_root();
            own || seen.binary_search_by(|region| region.name.cmp(&client.region)).is_ok()
        };
        let clients: Vec<ClientInfo> = clients.filter(is_seen).collect();
        let (programs, devices) = match asking.version >= WITH_PROGRAMS {
            true => (self.program_infos(&asking.peer), self.device_infos()),
            false => (Vec::new(), Vec::new()),
        };
        let server = self.info();
        let Some(asking) = self.connections.get_mut(&id) else { return };
        asking.role = Role::Idle { since: Instant::now() };
        seen.into_iter().map(Reply::Region).for_each(|reply| asking.put(reply));
        clients.into_iter().map(Reply::Client).for_each(|reply| asking.put(reply));
        programs.into_iter().map(Reply::Program).for_each(|reply| asking.put(reply));
        devices.into_iter().map(Reply::Device).for_each(|reply| asking.put(reply));
        asking.put(Reply::Server(server));
    }

    fn program_infos(&self, asking: &Peer) -> Vec<ProgramInfo> {
        let connected = self.programs().map(|(id, one, program)| {
            let seen = self.sees(asking, one.peer.user_number());
            let mut info = info_of_program(program, (one.peer.process, one.peer.user_number()), seen);
            info.waits_for =
                if info.wants > 0 { self.why_waiting(id, program, asking) } else { String::new() };
            info
        });
        let left = self.lingering.iter().filter_map(|one| match &one.left {
            Left::Program { program, user, number } => {
                let info = info_of_program(program, (*number, *user), self.sees(asking, *user));
                Some(ProgramInfo { lingers: true, ..info })
            }
            Left::Lease { .. } => None,
        });
        connected.chain(left).collect()
    }

    /// Returns what the request of a program waits for.
    fn why_waiting(&self, id: u64, asks: &Program, asking: &Peer) -> String {
        let now = Instant::now();
        let waiting = self.waiting(asks.place).map(|(id, waits)| (waits.order(now), id));
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable();
        match waiting.iter().position(|(_, other)| *other == id).unwrap_or(0) {
            0 => {}
            1 => return "1 request before it".to_owned(),
            count => return format!("{count} requests before it"),
        }
        let is_asked = |program: &Program| program.asked.is_some_and(|asked| !asked.is_late);
        match self.programs().find(|(_, _, program)| program.place == asks.place && is_asked(program)) {
            Some((_, one, program)) => {
                let seen = self.sees(asking, one.peer.user_number());
                format!("an answer of {}", program.shown(one.peer.process, seen))
            }
            None => "memory that others use".to_owned(),
        }
    }

    fn device_infos(&self) -> Vec<DeviceInfo> {
        let devices = self.backend.devices().iter().filter(|device| device.unusable.is_none());
        let info = |device: &Device| {
            let book = self.books.at(device.id);
            Some(DeviceInfo {
                device: device.uuid?,
                name: device.name.chars().take(MAX_NAME).collect(),
                budget: self.budget(device.id),
                held: book.held(),
                granted: self.granted(&book, |_| true),
            })
        };
        devices.filter_map(info).collect()
    }

    /// Returns the state of the server.
    pub fn info(&self) -> ServerInfo {
        let held = self.books.held();
        let granted = self.grants().fold(0, |sum: u64, (_, grant)| sum.saturating_add(grant.left()));
        ServerInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            vendor: self.backend.vendor().name().to_owned(),
            process: std::process::id(),
            held,
            old: held.saturating_sub(self.named(None).saturating_add(granted)),
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

fn info_of_program(program: &Program, (process, user): (u32, u32), is_seen: bool) -> ProgramInfo {
    let name = if is_seen { program.name.clone() } else { String::new() };
    let Program { device, priority, report, .. } = *program;
    ProgramInfo {
        process,
        user,
        name,
        device,
        priority,
        granted: program.grant.left(),
        report,
        wants: program.wants.as_ref().map_or(0, |wanted| wanted.least),
        waited_ms: program.wants.as_ref().map_or(0, |wanted| wanted.waited_ms()),
        waits_for: String::new(),
        answers: !program.is_late(),
        lingers: false,
    }
}
