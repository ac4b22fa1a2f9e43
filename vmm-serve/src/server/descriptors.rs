//! Open files: each handle and each layout is one, and each client is some.

use crate::ServeError;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The number of descriptors of a client: its socket, its process, and a file that it sends.
const OF_A_CLIENT: u64 = 3;

/// Fails if a new descriptor is among the last ones of this process, which are left for clients: otherwise regions could take all of them,
/// and no client could connect to drop one. The kernel gives the lowest number that is free.
pub(super) fn check(new: BorrowedFd<'_>, clients: usize) -> Result<(), ServeError> {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(()) };
    let left = (clients as u64).saturating_mul(OF_A_CLIENT).min(limit / 4);
    let limit = limit - left;
    match u64::from(new.as_raw_fd().unsigned_abs()) < limit {
        true => Ok(()),
        false => Err(ServeError::Limit { what: "open files beside those for clients".to_owned(), limit }),
    }
}
