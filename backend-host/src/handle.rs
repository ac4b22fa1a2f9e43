//! Handles of physical memory.
#![allow(unsafe_code)] // implements traits that make promises

use crate::host::Host;
use crate::memory::Memory;
use crate::share;
use gpu_vmm_core::{
    Address, Bytes, Detail, Error, FabricHandle, Handle, HandleTypes, Operation, Properties, Result,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A handle of physical host memory: pages of a memfd.
///
/// Memory that is not [shareable](Properties::shareable) is a part of one file that all handles of the backend use; shareable
/// memory has a file, and so a descriptor, of its own. New memory reads as zero. Imported memory does not count against the
/// importer's device: it counts in the backend that created it, until the creator has dropped it, even if other processes still
/// hold it.
#[derive(Debug)]
pub struct HostHandle {
    pub(crate) memory: Arc<Memory>,
    pub(crate) properties: Properties,
}

impl HostHandle {
    /// Returns another handle of the memory that is mapped at an address.
    pub(crate) fn adopt(host: &Host, at: Address) -> Result<Self> {
        let operation = Operation::AdoptMemory;
        host.process.check(operation)?;
        let missing = |reason: &str| {
            Error::new(operation, Detail::NoMemoryAt { address: at, reason: reason.to_owned() })
        };
        let (memory, properties) = host.mappings.handle_at(at).map_err(missing)?;
        let memory = memory.downcast::<Memory>().map_err(|_| missing("it is not memory of this backend"))?;
        Ok(Self { memory, properties })
    }
}

// SAFETY: size and properties are those that the memory was created with.
unsafe impl Handle for HostHandle {
    fn size(&self) -> Bytes {
        self.memory.size()
    }

    fn properties(&self) -> Properties {
        self.properties
    }

    fn export(&self) -> Result<OwnedFd> {
        let operation = Operation::ExportMemory;
        self.memory.host().process.check(operation)?;
        if !self.properties.handle_types.contains(HandleTypes::FILE_DESCRIPTOR) {
            let reason = "the memory was not created as shareable".to_owned();
            return Err(Error::new(operation, Detail::Unsupported { reason }));
        }
        share::export(self.memory.pages().0, self.size())
    }

    fn export_fabric(&self) -> Result<FabricHandle> {
        Err(share::no_fabric(Operation::ExportMemory))
    }
}
