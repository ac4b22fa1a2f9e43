//! The environment of a run.

use super::machine::{self, Machine, System};
use crate::counts::Counts;
use crate::fake_driver::FakeDriver;
use gpu_vmm_core::{Backend, Device, DeviceId, DriverInfo, Vendor};
use gpu_vmm_testkit::TestKit;
use gpu_vmm_testkit::raw::{Library, loaded};
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::fmt;
use std::time::SystemTime;

/// The environment of a run. It contains no name of a user or a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The version of gpu-vmm.
    pub gpu_vmm: String,
    /// When the run began, as in `2026-11-21T14:39:47Z`.
    pub time: String,
    /// The target: `cuda`, `hip`, `host`.
    pub target: String,
    /// The layer below the driver.
    pub ran_on: RanOn,
    /// The loaded driver.
    pub driver: Driver,
    /// The ordinal of the chosen device.
    pub device: u32,
    /// All devices that the driver sees.
    pub devices: Vec<DeviceFound>,
    /// The unit of memory and mappings.
    pub granularity_bytes: u64,
    /// The unit of addresses.
    pub reservation_unit_bytes: u64,
    /// The part that wrote and checked the patterns in memory.
    pub pattern_by: String,
    /// The quirks that gpu-vmm lists for this version of the driver.
    pub quirks: Vec<String>,
    /// The computer.
    pub machine: Machine,
    /// The operating system.
    pub system: System,
    /// The text that the names of cases had to contain, if not all cases ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

/// The layer below a driver. It says whether a report describes hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RanOn {
    /// Real devices.
    Hardware,
    /// The vendor's own driver on a simulated layer below it.
    SimulatedDevices,
    /// A fake driver.
    FakeDriver,
    /// Host memory, without a GPU.
    HostMemory,
}

impl RanOn {
    fn of(vendor: Vendor, library: &str) -> Self {
        match vendor {
            Vendor::Host => Self::HostMemory,
            Vendor::Hip if has(library, c"fake_hip_counts") => Self::FakeDriver,
            Vendor::Cuda if FakeDriver::now().is_some() => Self::FakeDriver,
            Vendor::Hip if Counts::now().is_some() => Self::SimulatedDevices,
            _ => Self::Hardware,
        }
    }
}

impl RanOn {
    /// Returns a short form for tables.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::SimulatedDevices => "SIMULATED, no GPU",
            Self::FakeDriver => "FAKE DRIVER, no GPU",
            Self::HostMemory => "host memory, no GPU",
        }
    }
}

impl fmt::Display for RanOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())?;
        match self {
            Self::Hardware | Self::HostMemory => Ok(()),
            Self::SimulatedDevices => f.write_str(": the vendor's own driver over a simulated HSA runtime"),
            Self::FakeDriver => f.write_str(": a library of gpu-vmm's tests in place of the vendor's driver"),
        }
    }
}

/// Returns true if a loaded library has a function of this name.
fn has(library: &str, function: &std::ffi::CStr) -> bool {
    #[allow(unsafe_code)] // looks up a symbol
    let found = |library: &Library| {
        // SAFETY: the address is not used.
        unsafe { library.get::<*const c_void>(function.to_bytes()) }.is_ok()
    };
    loaded(library).is_some_and(|library| found(&library))
}

/// The loaded driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// The version, as people write it.
    pub version: String,
    /// The version number that the driver returns.
    pub version_number: u32,
    /// The name under which the library was found.
    pub library: String,
    /// The version of the vendor's kernel module, if the run was on hardware and the system reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_module: Option<String>,
}

/// A device that the driver sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFound {
    /// The ordinal.
    pub device: u32,
    /// The driver's name for the device.
    pub name: String,
    /// The total memory.
    pub memory_bytes: u64,
    /// The granularity of the memory.
    pub granularity_bytes: u64,
    /// Why the device cannot be used; `None` if it can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
    /// Why the device has no virtual memory management; `None` if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_virtual_memory: Option<String>,
}

impl Environment {
    /// Describes a backend, the target name under which it was opened, and one of its devices.
    #[must_use]
    pub fn of<B: TestKit>(target: &str, backend: &B, device: DeviceId) -> Self {
        let driver = backend.driver();
        let ran_on = RanOn::of(backend.vendor(), &driver.library);
        let on_hardware = ran_on == RanOn::Hardware;
        let kernel_module = on_hardware.then(|| machine::kernel_module(backend.vendor())).flatten();
        Self {
            gpu_vmm: env!("CARGO_PKG_VERSION").to_owned(),
            time: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            target: target.to_owned(),
            ran_on,
            driver: Driver::new(driver, kernel_module),
            device: device.0,
            devices: Backend::devices(backend).iter().map(DeviceFound::from).collect(),
            granularity_bytes: backend.granularity().bytes().0,
            reservation_unit_bytes: backend.reservation_unit().bytes().0,
            pattern_by: backend.pattern_by().to_owned(),
            quirks: backend.quirks().iter().map(|quirk| quirk.id.to_owned()).collect(),
            machine: Machine::this(),
            system: System::this(),
            filter: None,
        }
    }

    /// Returns the chosen device.
    #[must_use]
    pub fn chosen(&self) -> Option<&DeviceFound> {
        self.devices.iter().find(|found| found.device == self.device)
    }
}

impl Driver {
    fn new(
        DriverInfo { version, version_number, library }: DriverInfo,
        kernel_module: Option<String>,
    ) -> Self {
        Self { version, version_number, library, kernel_module }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (number {}), {}", self.version, self.version_number, self.library)?;
        self.kernel_module.iter().try_for_each(|version| write!(f, ", kernel module {version}"))
    }
}

impl From<&Device> for DeviceFound {
    fn from(device: &Device) -> Self {
        Self {
            device: device.id.0,
            name: device.name.clone(),
            memory_bytes: device.total_memory.0,
            granularity_bytes: device.granularity.bytes().0,
            unusable: device.unusable.clone(),
            no_virtual_memory: device.no_virtual_memory.clone(),
        }
    }
}
