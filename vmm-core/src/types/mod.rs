//! Values and errors, and what all layers above ask of the operating system. No driver is known here.

mod access;
mod address;
mod bank;
mod bytes;
mod capability;
mod device;
mod error;
mod fabric;
mod granularity;
mod instance;
mod lock;
mod memory_kind;
mod process;
mod properties;
mod quirk;
#[cfg(unix)]
pub mod system;

pub use access::{Access, AccessMap, Grant};
pub use address::{Address, AddressRange};
pub use bank::SetId;
pub use bytes::{Bytes, ParseBytesError};
pub use capability::{Capability, Feature, FoundBy};
pub use device::{Device, DeviceId, DeviceUuid, DriverInfo, MemoryInfo, Vendor};
pub use error::{DriverError, Error, Result, Tried};
pub use fabric::FabricHandle;
pub use granularity::{Alignment, Granularity};
pub use instance::InstanceId;
pub use lock::Lock;
pub use memory_kind::MemoryKind;
pub use process::Process;
pub use properties::{HandleTypes, Location, Properties};
pub use quirk::Quirk;
