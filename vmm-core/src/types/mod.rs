//! Values and errors, and what all layers above ask of the operating system. No driver is known here.

mod access;
mod address;
mod bank;
mod bytes;
mod capability;
mod device;
#[cfg(unix)]
mod errno;
mod error;
mod fabric;
mod granularity;
#[cfg(windows)]
pub mod handles;
mod instance;
mod lock;
mod memory_kind;
mod offset_range;
mod operation;
mod process;
mod properties;
mod quirk;
#[cfg(unix)]
pub mod system;

pub use access::{Access, AccessMap, Grant};
pub use address::{Address, AddressRange};
pub use bank::BankId;
pub use bytes::{Bytes, ParseBytesError};
pub use capability::{Capability, Evidence, Feature};
pub use device::{Device, DeviceId, DeviceUuid, DriverInfo, MemoryInfo, Vendor};
pub use error::{Detail, DriverError, Error, ErrorKind, ExtensionError, LoadAttempt, Result};
pub use fabric::FabricHandle;
pub use granularity::{Alignment, Granularity};
pub use instance::InstanceId;
pub use lock::Lock;
pub use memory_kind::MemoryKind;
pub use offset_range::OffsetRange;
pub use operation::Operation;
pub use process::Process;
pub use properties::{HandleTypes, Location, Properties};
pub use quirk::Quirk;
