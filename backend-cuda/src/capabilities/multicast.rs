//! Whether a device can be in a multicast object, from its attribute alone.

use crate::device::attribute as ask;
use crate::driver::Opened;
use crate::ffi::{MulticastFunctions, attribute};
use gpu_vmm_core::{Capability, DeviceId, Evidence, Feature, Operation, Result};

impl Opened {
    pub(crate) fn multicast_functions(&self) -> Result<&'static MulticastFunctions, String> {
        self.driver.loaded.multicast.as_ref().map_err(|said| {
            format!("the driver lacks a multicast function; they came with CUDA 12.1: {said}")
        })
    }

    /// Checks that a device reports multicast support; otherwise returns the reason.
    pub(crate) fn says_multicast(&self, device: DeviceId) -> Result<(), String> {
        let state = self.state(Operation::QueryCapabilities, device).map_err(|error| error.to_string())?;
        match ask(self.functions(), state.raw, attribute::MULTICAST) {
            Ok(0) => {
                Err("CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED is 0: it needs GPUs that are joined by NVSwitch"
                    .into())
            }
            Ok(_) => Ok(()),
            Err(error) => Err(format!("asked for CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, {error}")),
        }
    }

    /// Returns the capability without trying it.
    pub(crate) fn multicast_capability(&self, device: DeviceId) -> Capability {
        const NEVER_TRIED: &str = "reported by the driver, never tried: an object takes resources of the whole host, and a fault \
                                   in one can put its GPUs out of service";
        let missing = |found_by, reason| Capability::no(Feature::Multicast, found_by, reason);
        match (self.multicast_functions(), self.says_multicast(device)) {
            (Err(reason), _) => missing(Evidence::Version, reason),
            (Ok(_), Err(reason)) => missing(Evidence::Attribute, reason),
            (Ok(_), Ok(())) => Capability::yes(Feature::Multicast, Evidence::Attribute, NEVER_TRIED),
        }
    }
}
