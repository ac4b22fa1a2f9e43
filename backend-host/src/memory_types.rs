//! Memory types: device memory and host memory are the same here, and there are no others.

use crate::share;
use gpu_vmm_core::{Detail, Error, HandleTypes, Location, Operation, Properties, Result};

/// Why memory cannot be placed on a NUMA node.
pub(crate) const NO_NODES: &str = "the kernel chooses the node of each page when it is first touched";

/// Refuses memory types that the backend does not have.
pub(crate) fn check(operation: Operation, properties: &Properties) -> Result<()> {
    check_place(operation, properties.location)?;
    let types = properties.handle_types;
    if types.contains(HandleTypes::FABRIC) {
        return Err(share::no_fabric(operation));
    }
    types.check_here(operation)
}

/// Refuses locations that the backend does not have.
pub(crate) fn check_place(operation: Operation, location: Location) -> Result<()> {
    match location {
        Location::Device | Location::Host => Ok(()),
        Location::HostNode(_) => {
            Err(Error::new(operation, Detail::Unsupported { reason: NO_NODES.to_owned() }))
        }
    }
}

/// Returns the properties that created memory has, for the requested ones.
pub(crate) const fn given(properties: &Properties) -> Properties {
    Properties { compressible: false, remote_dma: false, ..*properties }
}
