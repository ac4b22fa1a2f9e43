//! What a device's attributes say about its memory.
//!
//! Each answer is a capability. Its note is also the reason in the error for a request of such memory.

use crate::device::attribute;
use crate::driver::Driver;
use crate::error::is_invalid_value;
use crate::ffi::hipDeviceAttribute_t;
use gpu_vmm_core::{Capability, DeviceId, Evidence, Feature, Operation, Properties, Result};

/// A HIP device attribute; any value but 0 means yes.
pub(crate) struct Question {
    attribute: hipDeviceAttribute_t,
    name: &'static str,
    /// The first version that knows the attribute.
    since: &'static str,
}

pub(crate) const LARGE_BAR: Question = Question {
    attribute: hipDeviceAttribute_t::hipDeviceAttributeIsLargeBar,
    name: "hipDeviceAttributeIsLargeBar",
    since: "5.4 or before",
};

// The headers of the bindings lack these two.
const REMOTE_DMA: Question = Question {
    attribute: hipDeviceAttribute_t(94),
    name: "hipDeviceAttributeGPUDirectRDMAWithHipVMMSupported",
    since: "7.14",
};
const FABRIC: Question = Question {
    attribute: hipDeviceAttribute_t(95),
    name: "hipDeviceAttributeHandleTypeFabricSupported",
    since: "7.14",
};

/// Returns the properties that memory of the requested properties really has: HIP accepts flags that it ignores.
pub(crate) fn given(driver: &Driver, properties: &Properties) -> Properties {
    let remote_dma = properties.remote_dma && remote_dma(driver, properties.device).available;
    Properties { compressible: false, remote_dma, ..*properties }
}

/// Whether network cards can access a device's memory, as far as HIP reports it.
pub(crate) fn remote_dma(driver: &Driver, device: DeviceId) -> Capability {
    const BY_DMA_BUF: &str =
        "network cards use a dma-buf of the memory, which works with and without this property";
    match says(driver, device, &REMOTE_DMA) {
        Ok(()) => Capability::yes(Feature::RemoteDma, Evidence::Attribute, BY_DMA_BUF),
        Err(reason) => {
            Capability::no(Feature::RemoteDma, Evidence::Attribute, format!("{reason}; {BY_DMA_BUF}"))
        }
    }
}

/// Returns `Ok` if HIP reports fabric handles, which must still be tried; otherwise the error explains why not.
pub(crate) fn fabric(driver: &Driver, device: DeviceId) -> Result<(), String> {
    says(driver, device, &FABRIC)
}

/// Returns `Ok` if the attribute is set; otherwise the error explains why not.
pub(crate) fn says(driver: &Driver, device: DeviceId, question: &Question) -> Result<(), String> {
    let Question { attribute: number, name, since } = question;
    match attribute(driver, Operation::QueryCapabilities, device, *number) {
        Ok(0) => Err(format!("{name} ({}) is 0", number.0)),
        Ok(_) => Ok(()),
        Err(error) if is_invalid_value(&error) => {
            let version = driver.info().version;
            Err(format!("HIP {version} does not know {name} ({}), which was added in {since}", number.0))
        }
        Err(error) => Err(error.to_string()),
    }
}
