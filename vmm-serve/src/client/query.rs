//! Requests that need no driver.

use super::exchange::Exchange;
use crate::name;
use crate::protocol::{Reply, Request};
use crate::{ClientInfo, DeviceInfo, ProgramInfo, RegionInfo, ServerInfo};
use gpu_vmm_core::{Operation, Result};
use gpu_vmm_share::Allowed;
use std::path::Path;

#[allow(unused_imports)] // named in documentation
use crate::ServeError;

/// The most regions and clients that are received: more than any server has, so that the list ends.
const MAX_LISTED: usize = 1 << 17;

/// What a server holds, as this user may see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The server.
    pub server: ServerInfo,
    /// The regions, by name.
    pub regions: Vec<RegionInfo>,
    /// The clients with a lease or that wait for one, and the processes that have ended their connection without notice.
    pub clients: Vec<ClientInfo>,
    /// The pools that have a part of the budget.
    pub programs: Vec<ProgramInfo>,
    /// The devices.
    pub devices: Vec<DeviceInfo>,
}

/// Returns the regions that this user may read, their clients, and the server's state. Opens no driver.
///
/// # Errors
///
/// Errors of the connection.
pub fn status(path: impl AsRef<Path>, allowed: Allowed) -> Result<Status> {
    let mut exchange = Exchange::begin(Operation::ListRegions, path.as_ref(), allowed, None)?;
    exchange.send(&Request::List, &[])?;
    let (mut regions, mut clients, mut programs, mut devices) = (vec![], vec![], vec![], vec![]);
    while regions.len() + clients.len() + programs.len() + devices.len() < MAX_LISTED {
        match exchange.receive()?.0 {
            Reply::Region(region) if name::check(&region.name).is_ok() => regions.push(region),
            Reply::Client(client) if name::check(&client.region).is_ok() => clients.push(client),
            Reply::Program(program) if program.name.is_empty() || name::check(&program.name).is_ok() => {
                programs.push(program);
            }
            Reply::Device(device) => devices.push(device),
            Reply::Server(server) => return Ok(Status { server, regions, clients, programs, devices }),
            Reply::Region(_) | Reply::Client(_) | Reply::Program(_) => {
                return exchange.bad("a region or a program without a valid name".to_owned());
            }
            other => return exchange.out_of_turn(&other, "a part of a list"),
        }
    }
    exchange.bad(format!("a list of more than {MAX_LISTED} regions and clients"))
}

/// Removes a region from the server. Clients keep the memory that they have mapped. Its owner may do that, and root. Opens no
/// driver.
///
/// # Errors
///
/// [`ServeError::NotFound`], [`ServeError::Denied`], and errors of the connection.
pub fn drop_region(path: impl AsRef<Path>, allowed: Allowed, name: &str) -> Result<()> {
    let mut exchange = Exchange::begin(Operation::DropRegion, path.as_ref(), allowed, None)?;
    exchange.send(&Request::Drop { name: name.to_owned() }, &[])?;
    match exchange.receive()? {
        (Reply::Done, _) => Ok(()),
        (other, _) => exchange.out_of_turn(&other, "the end of the request"),
    }
}
