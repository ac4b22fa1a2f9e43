//! The kinds of memory: the host's is what a device has anyway, and of all others there is none.

use crate::share;
use gpu_vmm_core::{Detail, Error, HandleTypes, Location, Operation, Properties, Result};

/// Why a node of the host cannot be chosen.
pub(crate) const NO_NODES: &str = "the kernel chooses the node of each page when it is first touched";

/// Refuses memory that there is none of.
pub(crate) fn check(operation: Operation, properties: &Properties) -> Result<()> {
    check_place(operation, properties.location)?;
    let types = properties.handle_types;
    if types.contains(HandleTypes::FABRIC) {
        return Err(share::no_fabric(operation));
    }
    types.check_here(operation)
}

/// The same for where it is to be.
pub(crate) fn check_place(operation: Operation, location: Location) -> Result<()> {
    match location {
        Location::Device | Location::Host => Ok(()),
        Location::HostNode(_) => {
            Err(Error::new(operation, Detail::Unsupported { reason: NO_NODES.to_owned() }))
        }
    }
}

/// What memory that is asked for so comes out as.
pub(crate) const fn given(properties: &Properties) -> Properties {
    Properties { compressible: false, remote_dma: false, ..*properties }
}
