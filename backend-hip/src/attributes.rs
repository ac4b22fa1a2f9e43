//! What HIP says of memory by attributes of a device.
//!
//! Each answer is a capability. Its note is the reason of the error for a request of such memory, too.

use crate::device::attribute;
use crate::driver::Driver;
use crate::error::is_invalid_value;
use crate::ffi::hipDeviceAttribute_t;
use gpu_vmm_core::{Capability, Detail, DeviceId, Error, Evidence, Feature, Operation, Properties, Result};

/// An attribute of HIP's, where yes is anything but 0.
pub(crate) struct Question {
    attribute: hipDeviceAttribute_t,
    name: &'static str,
    /// The first version that knows it.
    since: &'static str,
}

pub(crate) const LARGE_BAR: Question = Question {
    attribute: hipDeviceAttribute_t::hipDeviceAttributeIsLargeBar,
    name: "hipDeviceAttributeIsLargeBar",
    since: "5.4 or before",
};

// The headers from which this crate's bindings are made do not have these two.
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

/// What memory that is asked for so comes out as: HIP takes flags that it ignores.
pub(crate) fn given(driver: &Driver, properties: &Properties) -> Properties {
    let remote_dma = properties.remote_dma && remote_dma(driver, properties.device).available;
    Properties { compressible: false, remote_dma, ..*properties }
}

/// Whether memory of a device can be reached by a network card, as far as HIP tells.
pub(crate) fn remote_dma(driver: &Driver, device: DeviceId) -> Capability {
    const BY_DMA_BUF: &str =
        "what a network card takes is a dma-buf of the memory, whether this was asked for or not";
    match says(driver, device, &REMOTE_DMA) {
        Ok(()) => Capability::yes(Feature::RemoteDma, Evidence::Attribute, BY_DMA_BUF),
        Err(reason) => {
            Capability::no(Feature::RemoteDma, Evidence::Attribute, format!("{reason}; {BY_DMA_BUF}"))
        }
    }
}

/// Why there are no fabric handles.
pub(crate) fn fabric(driver: &Driver, device: DeviceId) -> Capability {
    const NOT_USED: &str =
        "HIP says that it has them; they are not used here, as there was no machine to try them on";
    let reason = says(driver, device, &FABRIC).err().unwrap_or_else(|| NOT_USED.to_owned());
    Capability::no(Feature::FabricHandle, Evidence::Attribute, reason)
}

/// Returns the error for a request of a fabric handle.
pub(crate) fn no_fabric(driver: &Driver, operation: Operation, device: DeviceId) -> Error {
    Error::new(operation, Detail::Unsupported { reason: fabric(driver, device).note })
}

/// Whether the answer to a question about a device is yes; if not, what the answer was.
pub(crate) fn says(driver: &Driver, device: DeviceId, question: &Question) -> Result<(), String> {
    let Question { attribute: number, name, since } = question;
    match attribute(driver, Operation::QueryCapabilities, device, *number) {
        Ok(0) => Err(format!("{name} ({}) is 0", number.0)),
        Ok(_) => Ok(()),
        Err(error) if is_invalid_value(&error) => {
            let version = driver.info().version;
            Err(format!("HIP {version} does not know {name} ({}), which came with {since}", number.0))
        }
        Err(error) => Err(error.to_string()),
    }
}
