//! Reservations that find no room, and the limit of a process's address space.

use super::{Bytes, Detail, DriverError, Error, Operation};

/// What helps if no limit is set.
const UNLIMITED: &str = "reserve less, or drop other reservations first";

/// Creates the error of a reservation that finds no room: [`Detail::OutOfAddresses`], with advice. If the process's address space is
/// limited, the advice names the limit.
#[must_use]
pub fn out_of_addresses(operation: Operation, requested: Bytes, source: DriverError) -> Error {
    let advice =
        limit().map_or_else(|| UNLIMITED.to_owned(), |limit| format!("{limit}; raise it, or reserve less"));
    Error::new(operation, Detail::OutOfAddresses { requested, advice, source })
}

/// Describes the limit of the process's address space, if there is one.
#[cfg(unix)]
pub(super) fn limit() -> Option<String> {
    let limit = Bytes(rustix::process::getrlimit(rustix::process::Resource::As).current?);
    let used = used().map(|used| format!(", of which {used} are in use")).unwrap_or_default();
    Some(format!("the limit of the process's address space (ulimit -v) is {limit}{used}"))
}

#[cfg(not(unix))]
fn limit() -> Option<String> {
    None
}

/// Returns the size of the process's address space.
#[cfg(unix)]
fn used() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(Bytes(pages.checked_mul(rustix::param::page_size() as u64)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ErrorKind;

    #[test]
    fn a_reservation_without_room_says_what_to_do() {
        let source = DriverError { call: "reserve", code: 2, name: "FULL".into(), description: "no".into() };
        let error = out_of_addresses(Operation::Reserve, Bytes::gib(64), source);
        assert_eq!(error.kind(), ErrorKind::OutOfAddressSpace);
        assert_eq!(error.driver_error().map(|source| source.code), Some(2));
        let text = error.to_string();
        assert!(text.contains("64 GiB") && text.contains("reserve less") && text.contains("FULL"), "{text}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_address_space_in_use_is_known() {
        assert!(used().is_some_and(|used| used > Bytes::mib(1)));
    }
}
