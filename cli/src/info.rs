//! The `info` subcommand: what works on this machine, gathered once and printed for people or for programs.

mod text;

use crate::CliResult;
use crate::args::InfoArguments;
use crate::output::Output;
use gpu_vmm::{AnyBackend, Backend, Capability, ComputeMode, Device, OpenResult, Quirk};
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
    /// Which processes may create contexts on the device; none if the driver does not report it.
    pub(crate) compute_mode: Option<&'static str>,
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

pub(crate) fn run(options: &InfoArguments) -> CliResult {
    let found = match options.backend.vendor() {
        Some(vendor) => vec![OpenResult { vendor, backend: AnyBackend::open(vendor) }],
        None => AnyBackend::probe(),
    };
    let backends = found.into_iter().map(backend).collect();
    let info = Info { version: env!("CARGO_PKG_VERSION"), backends };
    let mut output = Output::default();
    if options.json { output.json(&info) } else { text::print(&info, &mut output) }
}

fn backend(found: OpenResult) -> BackendInfo {
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
        compute_mode: device.compute_mode.map(ComputeMode::name),
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

#[cfg(all(test, feature = "host"))]
mod tests {
    use super::*;
    use gpu_vmm::host::HostConfig;
    use gpu_vmm::{Bytes, DeviceId, PhysicalMemory, Properties, Vendor};

    #[test]
    fn report_has_backend_and_device_values() {
        let opened: AnyBackend = HostConfig::new().memory(Bytes::mib(16)).devices(2).open().unwrap().into();
        let taken = PhysicalMemory::create(&opened, Bytes::mib(6), Properties::on(DeviceId(1))).unwrap();
        let report = super::backend(OpenResult { vendor: Vendor::Host, backend: Ok(opened.clone()) });
        let (name, found, driver) = (report.backend, report.found, report.driver.unwrap());
        assert_eq!((name, found, report.error), ("host", true, None));
        let expected = opened.driver();
        assert_eq!(
            (driver.version, driver.version_number, driver.library),
            (expected.version, expected.version_number, expected.library)
        );
        for (ordinal, free) in [(0, 16), (1, 10)] {
            let found = &report.devices[ordinal as usize];
            assert_eq!((found.device, &*found.name), (ordinal, &*format!("host memory {ordinal}")));
            assert_eq!((found.total_bytes, found.free_bytes), (Bytes::mib(16).0, Some(Bytes::mib(free).0)));
            assert_eq!(found.granularity_bytes, Bytes::mib(2).0);
            assert!(found.unusable.is_none() && found.no_virtual_memory.is_none() && found.errors.is_empty());
            let expected = opened.capabilities(DeviceId(ordinal)).unwrap();
            assert!(expected.iter().any(|one| !one.available), "one of each kind");
            assert_eq!(found.capabilities.len(), expected.len());
            for (found, expected) in found.capabilities.iter().zip(expected) {
                assert_eq!((found.available, &found.note), (expected.available, &expected.note));
                assert_eq!(found.feature, expected.feature.to_string());
                assert_eq!(found.found_by, expected.found_by.to_string());
            }
        }
        drop(taken);
        let plain: AnyBackend = HostConfig::new().without_virtual_memory().open().unwrap().into();
        let report = super::backend(OpenResult { vendor: Vendor::Host, backend: Ok(plain) });
        assert!(report.devices[0].no_virtual_memory.is_some());
    }

    #[test]
    fn unqueried_device_has_both_errors() {
        let opened: AnyBackend = HostConfig::new().memory(Bytes::mib(16)).open().unwrap().into();
        let mut missing = opened.devices()[0].clone();
        missing.id = DeviceId(9);
        let report = super::device(&opened, &missing);
        assert_eq!((report.device, report.free_bytes, report.total_bytes), (9, None, Bytes::mib(16).0));
        let memory = opened.memory_info(DeviceId(9)).unwrap_err().to_string();
        let capabilities = opened.capabilities(DeviceId(9)).unwrap_err().to_string();
        assert!(memory.contains("device 9 does not exist"), "{memory}");
        assert_eq!(report.errors, [memory, capabilities]);
        assert!(report.capabilities.is_empty());
    }

    #[test]
    fn unopened_backend_has_only_its_reason() {
        let detail = gpu_vmm::Detail::Unsupported { reason: "not here".to_owned() };
        let error = gpu_vmm::Error::new(gpu_vmm::Operation::Open, detail);
        let report = super::backend(OpenResult { vendor: Vendor::Hip, backend: Err(error) });
        assert_eq!((report.backend, report.found, report.driver.is_none()), ("hip", false, true));
        assert_eq!(
            report.error.as_deref(),
            Some("not supported: not here"),
            "the operation is not part of it"
        );
        assert!(report.devices.is_empty() && report.quirks.is_empty());
    }

    #[test]
    fn a_quirk_keeps_each_of_its_texts() {
        let (effect, handling, evidence) = ("is odd", "is even", "was seen");
        let quirk = Quirk { id: "odd", from: 1, below: 2, effect, handling, evidence };
        let QuirkReport { id, effect, handling, evidence } = QuirkReport::from(&quirk);
        assert_eq!([id, effect, handling, evidence], ["odd", "is odd", "is even", "was seen"]);
    }
}
