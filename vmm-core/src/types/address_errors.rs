//! Errors of reservations that find no room.

use super::address_limit::limit;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ErrorKind;

    #[test]
    fn reservations_without_room_say_what_to_do() {
        let source = DriverError { call: "reserve", code: 2, name: "FULL".into(), description: "no".into() };
        let error = out_of_addresses(Operation::Reserve, Bytes::gib(64), source);
        assert_eq!(error.kind(), ErrorKind::OutOfAddressSpace);
        assert_eq!(error.driver_error().map(|source| source.code), Some(2));
        let text = error.to_string();
        assert!(text.contains("64 GiB") && text.contains("reserve less") && text.contains("FULL"), "{text}");
    }
}
