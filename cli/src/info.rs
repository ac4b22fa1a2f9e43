//! The `info` subcommand: what works on this machine, gathered once and printed for people or for programs.

mod text;

use crate::Answer;
use crate::args::InfoArguments;
use crate::output::Output;
use gpu_vmm::{AnyBackend, Backend, Capability, Device, Found, Quirk};
use serde::Serialize;

/// The result of `gpu-vmm info`, as `--json` prints it.
#[derive(Serialize, Debug)]
pub(crate) struct Info {
    /// The version of gpu-vmm.
    pub(crate) version: &'static str,
    pub(crate) backends: Vec<BackendInfo>,
}

/// A backend that is built in.
#[derive(Serialize, Debug)]
pub(crate) struct BackendInfo {
    pub(crate) backend: &'static str,
    pub(crate) found: bool,
    /// Why it was not found, with every place that was tried.
    pub(crate) error: Option<String>,
    pub(crate) driver: Option<DriverReport>,
    pub(crate) devices: Vec<DeviceReport>,
    pub(crate) quirks: Vec<QuirkReport>,
}

#[derive(Serialize, Debug)]
pub(crate) struct DriverReport {
    pub(crate) version: String,
    pub(crate) version_number: u32,
    pub(crate) library: String,
}

#[derive(Serialize, Debug)]
pub(crate) struct DeviceReport {
    pub(crate) device: u32,
    pub(crate) name: String,
    /// Why the device cannot be used; none if it can.
    pub(crate) unusable: Option<String>,
    /// Why the device has no virtual memory management; none if it has.
    pub(crate) no_virtual_memory: Option<String>,
    pub(crate) total_bytes: u64,
    /// The memory that is free now; none if the driver does not report it.
    pub(crate) free_bytes: Option<u64>,
    pub(crate) granularity_bytes: u64,
    pub(crate) capabilities: Vec<CapabilityReport>,
    /// Errors of queries to the driver.
    pub(crate) errors: Vec<String>,
}

#[derive(Serialize, Debug)]
pub(crate) struct CapabilityReport {
    pub(crate) feature: String,
    pub(crate) available: bool,
    pub(crate) found_by: String,
    pub(crate) note: String,
}

#[derive(Serialize, Debug)]
pub(crate) struct QuirkReport {
    pub(crate) id: &'static str,
    pub(crate) effect: &'static str,
    pub(crate) handling: &'static str,
    pub(crate) evidence: &'static str,
}

pub(crate) fn run(asked: &InfoArguments) -> Answer {
    let found = match asked.backend.vendor() {
        Some(vendor) => vec![Found { vendor, backend: AnyBackend::open(vendor) }],
        None => AnyBackend::probe(),
    };
    let backends = found.into_iter().map(backend).collect();
    let info = Info { version: env!("CARGO_PKG_VERSION"), backends };
    let mut output = Output::default();
    if asked.json { output.json(&info) } else { text::print(&info, &mut output) }
}

fn backend(found: Found) -> BackendInfo {
    let name = found.vendor.name();
    match found.backend {
        Err(error) => BackendInfo {
            backend: name,
            found: false,
            error: Some(error.detail().to_string()),
            driver: None,
            devices: Vec::new(),
            quirks: Vec::new(),
        },
        Ok(backend) => {
            let driver = backend.driver();
            BackendInfo {
                backend: name,
                found: true,
                error: None,
                driver: Some(DriverReport {
                    version: driver.version,
                    version_number: driver.version_number,
                    library: driver.library,
                }),
                devices: backend.devices().iter().map(|one| device(&backend, one)).collect(),
                quirks: backend.quirks().iter().map(QuirkReport::from).collect(),
            }
        }
    }
}

fn device(backend: &AnyBackend, device: &Device) -> DeviceReport {
    let mut report = DeviceReport {
        device: device.id.0,
        name: device.name.clone(),
        unusable: device.unusable.clone(),
        no_virtual_memory: device.no_virtual_memory.clone(),
        total_bytes: device.total_memory.0,
        free_bytes: None,
        granularity_bytes: device.granularity.bytes().0,
        capabilities: Vec::new(),
        errors: Vec::new(),
    };
    match backend.memory_info(device.id) {
        Ok(memory) => {
            report.free_bytes = Some(memory.free.0);
            report.total_bytes = memory.total.0;
        }
        Err(error) => report.errors.push(error.to_string()),
    }
    match backend.capabilities(device.id) {
        Ok(capabilities) => {
            report.capabilities = capabilities.into_iter().map(CapabilityReport::from).collect()
        }
        Err(error) => report.errors.push(error.to_string()),
    }
    report
}

impl From<Capability> for CapabilityReport {
    fn from(capability: Capability) -> Self {
        Self {
            feature: capability.feature.to_string(),
            available: capability.available,
            found_by: capability.found_by.to_string(),
            note: capability.note,
        }
    }
}

impl From<&Quirk> for QuirkReport {
    fn from(quirk: &Quirk) -> Self {
        Self { id: quirk.id, effect: quirk.effect, handling: quirk.handling, evidence: quirk.evidence }
    }
}
