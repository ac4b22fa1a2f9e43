//! Value types, errors, and the operating system's services that all layers above use. Nothing here calls a vendor's driver.

mod access;
mod address;
mod address_errors;
mod address_limit;
mod address_user;
mod bank;
mod bytes;
mod call_failed;
mod capability;
mod compute_mode;
mod device;
#[cfg(unix)]
mod errno;
mod error;
mod exit;
mod fabric;
mod granularity;
#[cfg(windows)]
pub mod handles;
mod instance;
mod lock;
mod memory_kind;
mod no_device;
mod no_waits;
mod numa;
mod offset_range;
mod operation;
mod process;
mod properties;
mod quirk;
#[cfg(unix)]
pub mod system;
mod vendor_name;

pub use access::{Access, AccessMap, Grant};
pub use address::{Address, AddressRange};
pub use address_errors::out_of_addresses;
pub use address_user::user_of_addresses;
pub use bank::BankId;
pub use bytes::{Bytes, ParseBytesError};
pub use call_failed::call_failed;
pub use capability::{Capability, Evidence, Feature};
pub use compute_mode::ComputeMode;
pub use device::{Device, DeviceId, DeviceUuid, DriverInfo, MemoryInfo, Vendor};
pub use error::{Detail, DriverError, Error, ErrorKind, ExtensionError, LoadAttempt, Result};
pub use exit::{DriverProcess, is_exiting};
pub use fabric::FabricHandle;
pub use granularity::{Alignment, Granularity};
pub use instance::InstanceId;
pub use lock::Lock;
pub use memory_kind::MemoryKind;
pub use no_device::no_device;
pub use no_waits::NoWaits;
#[cfg(feature = "testkit")]
pub use no_waits::{check_may_map, check_may_wait};
pub use numa::missing_numa_node;
pub use offset_range::OffsetRange;
pub use operation::Operation;
pub use process::Process;
pub use properties::{HandleTypes, Location, Properties};
pub use quirk::Quirk;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Display;

    const GRANULARITY: Granularity = match Granularity::new(Bytes::kib(64)) {
        Some(granularity) => granularity,
        None => unreachable!(),
    };

    #[test]
    fn names_and_numbers_are_padded() {
        let texts: [(&dyn Display, &str); 14] = [
            (&Operation::Map, "map"),
            (&ErrorKind::Forked, "forked"),
            (&Access::Read, "read"),
            (&Address(16), "0x10"),
            (&Bytes::mib(2), "2 MiB"),
            (&GRANULARITY, "64 KiB"),
            (&BankId(7), "bank 7"),
            (&Vendor::Hip, "hip"),
            (&HandleTypes::empty(), "none"),
            (&HandleTypes::all(), "file descriptor and Win32 handle and fabric handle"),
            (&Location::Device, "device memory"),
            (&Location::Host, "host memory"),
            (&Location::HostNode(3), "host memory of node 3"),
            (&Evidence::Trial, "tried"),
        ];
        for (value, text) in texts {
            assert_eq!(format!("{value:>60}|{value:<60}|"), format!("{text:>60}|{text:<60}|"));
        }
    }

    /// Failed assertions show it.
    #[test]
    fn debug_text_is_display_text() {
        let range = AddressRange { base: Address(0x1000), size: Bytes::kib(8) };
        assert_eq!(format!("{:?} {:?} {GRANULARITY:?}", Bytes::mib(2), Address(16)), "2 MiB 0x10 64 KiB");
        assert_eq!(format!("{range:?}"), "0x1000..0x3000 (8 KiB)");
        assert_eq!(format!("{:?} {:?}", DeviceId(3), DeviceId::HOST), "device 3 the host");
        let source =
            DriverError { call: "call", code: 7, name: "NAME".into(), description: "described".into() };
        assert_eq!(format!("{source:?}"), "call answered NAME (7): described");
    }
}
