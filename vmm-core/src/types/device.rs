//! Which device, and what is known of it.

use crate::types::{Bytes, Detail, Error, Granularity, Operation, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A device's ordinal in its backend: 0 to one below the number of devices that the backend sees.
///
/// It is what CUDA and HIP number after `CUDA_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES` have been applied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// How many devices of one backend the records of access have room for.
    pub const LIMIT: u32 = 127;

    /// The CPU, as somebody who can be given access to a mapping. It is no device: nothing else takes it.
    pub const HOST: Self = Self(Self::LIMIT);

    /// True for [`DeviceId::HOST`].
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

/// A device's number in the world, which is the same in every process, whatever ordinal it has there.
///
/// CUDA: `cuDeviceGetUuid_v2`, HIP: `hipDeviceGetUuid`. A MIG instance has its own.
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

/// A device as its backend found it when it was opened.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its ordinal.
    pub id: DeviceId,
    /// The name that the driver gives it.
    pub name: String,
    /// By what another process knows it again; `None` where the driver does not tell.
    pub uuid: Option<DeviceUuid>,
    /// All of its memory.
    pub total_memory: Bytes,
    /// The unit in which this device's memory is created and mapped.
    pub granularity: Granularity,
    /// Why this device cannot be used for virtual memory management; `None` where it can.
    pub unusable: Option<String>,
}

/// A device's memory at one moment, as the driver counts it: `cuMemGetInfo`, `hipMemGetInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What is free now, of all processes.
    pub free: Bytes,
    /// All there is.
    pub total: Bytes,
}

/// Which maker's driver is behind a backend.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Vendor {
    /// NVIDIA's CUDA driver.
    Cuda,
    /// AMD's HIP runtime.
    Hip,
    /// No GPU: memory of the host.
    Host,
}

impl Vendor {
    /// `cuda`, `hip` or `host`: the name that the command and its reports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Host => "host",
        }
    }
}

impl FromStr for Vendor {
    type Err = Error;

    /// Reads a [name](Vendor::name), in any case: `cuda`, `hip` or `host`.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for any other text.
    fn from_str(name: &str) -> Result<Self> {
        let all = [Self::Cuda, Self::Hip, Self::Host];
        all.into_iter().find(|vendor| vendor.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
            let reason = format!("there is no backend {name:?}; write cuda, hip or host");
            Error::new(Operation::Open, Detail::Unsupported { reason })
        })
    }
}

impl TryFrom<&str> for Vendor {
    type Error = Error;

    /// As [`str::parse`].
    fn try_from(name: &str) -> Result<Self> {
        name.parse()
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The driver behind a backend.
#[derive(Clone, Debug)]
pub struct DriverInfo {
    /// The driver's version as people write it, such as `13.0` or `7.2.4`.
    pub version: String,
    /// The same as the number that the driver answers (`cuDriverGetVersion`, `hipRuntimeGetVersion`).
    pub version_number: u32,
    /// The library that was loaded, by the name under which it was found.
    pub library: String,
}

#[cfg(test)]
mod tests {
    use super::*;

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
