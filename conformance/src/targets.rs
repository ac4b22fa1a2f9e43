//! The backends as targets of the suite.

use crate::{Suite, Target};
use gpu_vmm::{AnyBackend, Vendor};
use gpu_vmm_testkit::short;
use std::sync::{Arc, OnceLock};

#[cfg(feature = "host")]
use gpu_vmm::{Bytes, host::HostConfig};

/// A GPU's driver, opened once per process.
#[derive(Debug)]
struct Gpu {
    vendor: Vendor,
    opened: OnceLock<Result<AnyBackend, String>>,
}

impl Target<AnyBackend> for Gpu {
    fn name(&self) -> &str {
        self.vendor.name()
    }

    fn open(&self) -> Result<AnyBackend, String> {
        let open = || AnyBackend::open(self.vendor).map_err(|error| short(&error));
        self.opened.get_or_init(open).clone()
    }

    fn is_fresh(&self) -> bool {
        false
    }

    fn is_complete(&self) -> bool {
        true
    }

    fn foreign(&self) -> Option<AnyBackend> {
        #[cfg(feature = "host")]
        return simulated(&HostConfig::new()).ok();
        #[cfg(not(feature = "host"))]
        None
    }

    fn settle(&self, _backend: &AnyBackend) -> gpu_vmm::Result<()> {
        #[cfg(feature = "hip")]
        if let AnyBackend::Hip(hip) = _backend {
            return hip.release_kept_addresses().map(drop);
        }
        Ok(())
    }
}

/// Opens simulated host memory with two devices, with a granularity small enough for fast cases.
#[cfg(feature = "host")]
fn simulated(config: &HostConfig) -> Result<AnyBackend, String> {
    let config = config.clone().devices(2).memory(Bytes::gib(1)).granularity(Bytes::kib(64));
    config.open().map(AnyBackend::from).map_err(|error| error.to_string())
}

/// Host memory. Each case opens one with devices of its own.
#[cfg(feature = "host")]
#[derive(Debug)]
struct Host {
    name: &'static str,
    config: HostConfig,
}

#[cfg(feature = "host")]
impl Target<AnyBackend> for Host {
    fn name(&self) -> &str {
        self.name
    }

    fn open(&self) -> Result<AnyBackend, String> {
        simulated(&self.config)
    }

    fn is_fresh(&self) -> bool {
        true
    }

    fn is_complete(&self) -> bool {
        true
    }

    fn foreign(&self) -> Option<AnyBackend> {
        self.open().ok()
    }
}

impl Suite<AnyBackend> {
    /// Starts the suite on [`targets()`].
    ///
    /// It is not generic, so that its cases are compiled once, in this crate, and not in each program that starts it.
    ///
    /// # Safety
    ///
    /// As for [`Suite::start`].
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    #[allow(unsafe_code)]
    pub unsafe fn start_built_in() -> std::io::Result<Self> {
        // SAFETY: the caller guarantees it.
        unsafe { Self::start(targets()) }
    }
}

/// Returns all built-in targets. The host backend is there three times: for both ways of unmapping that drivers have: once with one
/// granularity, and once with a larger granularity for host memory; and once without virtual memory management.
#[must_use]
pub fn targets() -> Vec<Arc<dyn Target<AnyBackend>>> {
    let mut targets: Vec<Arc<dyn Target<AnyBackend>>> = Vec::new();
    for vendor in AnyBackend::BUILT_IN.iter().filter(|vendor| **vendor != Vendor::Host) {
        targets.push(Arc::new(Gpu { vendor: *vendor, opened: OnceLock::new() }));
    }
    #[cfg(feature = "host")]
    for (name, config) in [
        ("host", HostConfig::new()),
        ("host-singly", HostConfig::new().unmapping_singly().host_granularity(Bytes::mib(4))),
        ("host-plain", HostConfig::new().without_virtual_memory()),
    ] {
        targets.push(Arc::new(Host { name, config }));
    }
    targets
}
