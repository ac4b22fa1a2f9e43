//! Devices, their memory, vendors and drivers.

use crate::types::{Bytes, ComputeMode, Granularity};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A device's ordinal in its backend, from 0 to the number of visible devices minus one.
///
/// CUDA and HIP assign ordinals after they have applied `CUDA_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// The largest number of devices of one backend that an [`AccessMap`](crate::AccessMap) can record.
    pub const LIMIT: u32 = 127;

    /// The host CPU, for access to mappings. It is not a device: only calls about access and the export of tensors accept it.
    pub const HOST: Self = Self(Self::LIMIT);

    /// Returns true for [`DeviceId::HOST`].
    #[must_use]
    pub const fn is_host(self) -> bool {
        self.0 == Self::HOST.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_host() { f.write_str("the host") } else { write!(f, "device {}", self.0) }
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A device's universally unique identifier, which is the same in every process, whatever the device's ordinal is there.
///
/// CUDA: `cuDeviceGetUuid_v2`, HIP: `hipDeviceGetUuid`. Each MIG instance has its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            let dash = if matches!(place, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The description of a device, as of the time when its backend was opened.
#[derive(Clone, Debug)]
pub struct Device {
    /// The device's ordinal.
    pub id: DeviceId,
    /// The name that the driver reports.
    pub name: String,
    /// The identifier by which another process recognizes the device; `None` if the driver reports none.
    pub uuid: Option<DeviceUuid>,
    /// The total amount of its memory.
    pub total_memory: Bytes,
    /// The granularity in which this device's memory is created and mapped.
    pub granularity: Granularity,
    /// The reason why this device cannot be used; `None` if it can.
    pub unusable: Option<String>,
    /// The reason why this device has no virtual memory management, as some profiles of virtual GPUs; `None` if it has. Regions
    /// and pools of such a device consist of plain allocations ([`Region::is_plain`](crate::Region::is_plain)).
    pub no_virtual_memory: Option<String>,
    /// Which processes may create contexts on it; `None` if the driver does not report it, as for host memory.
    pub compute_mode: Option<ComputeMode>,
}

/// A device's free and total memory at one moment. CUDA: `cuMemGetInfo`, HIP: `hipMemGetInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// The memory that no process uses.
    pub free: Bytes,
    /// The total memory of the device.
    pub total: Bytes,
}

/// The vendor of a backend's driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Vendor {
    /// NVIDIA's CUDA driver.
    Cuda,
    /// AMD's HIP runtime.
    Hip,
    /// No GPU: host memory.
    Host,
}

impl Vendor {
    /// Returns `cuda`, `hip` or `host`, the name that the command-line tool and its reports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The version and library of a backend's driver.
#[derive(Clone, Debug)]
pub struct DriverInfo {
    /// The driver's version in the usual notation, such as `13.0` or `7.2.4`. If AMD's release has another number, it follows:
    /// `7.15.26333 (ROCm 10.0)`.
    pub version: String,
    /// The version number that the driver returns (`cuDriverGetVersion`, `hipRuntimeGetVersion`).
    pub version_number: u32,
    /// The name under which the loaded library was found.
    pub library: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_the_last_device() {
        let last = DeviceId(DeviceId::LIMIT - 1);
        assert_eq!([last, DeviceId::HOST, DeviceId(128)].map(DeviceId::is_host), [false, true, false]);
        assert_eq!([last, DeviceId::HOST].map(|device| device.to_string()), ["device 126", "the host"]);
    }

    #[test]
    fn identifier_is_printed_in_groups() {
        let uuid = DeviceUuid(std::array::from_fn(|place| place as u8));
        let text = "00010203-0405-0607-0809-0a0b0c0d0e0f";
        assert_eq!((format!("{uuid}"), format!("{uuid:?}")), (text.to_owned(), text.to_owned()));
    }

    #[test]
    fn vendors_are_read_by_name() {
        for vendor in [Vendor::Cuda, Vendor::Hip, Vendor::Host] {
            assert_eq!(vendor.name().parse::<Vendor>().unwrap(), vendor);
            assert_eq!(Vendor::try_from(vendor.name().to_uppercase().as_str()).unwrap(), vendor);
        }
        let error = "metal".parse::<Vendor>().unwrap_err();
        assert!(
            error.to_string().contains("there is no backend \"metal\"; write cuda, hip or host"),
            "{error}"
        );
    }
}
