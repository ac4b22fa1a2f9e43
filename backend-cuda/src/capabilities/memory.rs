//! Capabilities of memory types other than plain device memory.
#![allow(unsafe_code)]

use super::Probe;
use crate::ffi::attribute;
use gpu_vmm_core::{
    Access, Bytes, Capability, DeviceId, Evidence, Feature, Grant, Handle, Location, Properties, Reservation,
    Result,
};

impl Probe<'_> {
    pub(super) fn compression(&self) -> Result<Capability> {
        let feature = Feature::Compression;
        let memory = Properties::on(self.device).compressible();
        if let Some(no) = self.excluded(feature, &memory, attribute::GENERIC_COMPRESSION)? {
            return Ok(no);
        }
        match self.create(&memory) {
            Ok(handle) if !handle.properties().compressible => {
                let note = "asked for compressible memory, the driver created memory that is not";
                Ok(Capability::no(feature, Evidence::Trial, note))
            }
            created => Capability::tried(feature, created.map(|_| "")),
        }
    }

    pub(super) fn remote_dma(&self) -> Result<Capability> {
        let feature = Feature::RemoteDma;
        let memory = Properties::on(self.device).remote_dma();
        if let Some(no) = self.excluded(feature, &memory, attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM)? {
            return Ok(no);
        }
        Capability::tried(feature, self.create(&memory).map(|_| ""))
    }

    pub(super) fn host_memory(&self) -> Result<Capability> {
        let number = attribute::HOST_VIRTUAL_MEMORY_MANAGEMENT;
        self.on_the_host(Feature::HostMemory, number, Location::Host)
    }

    /// Tries memory of the NUMA node that is closest to the device.
    pub(super) fn host_node_memory(&self) -> Result<Capability> {
        // On a system without NUMA the attribute is -1, and 0 is the node to use.
        let node = self.attribute(attribute::HOST_NUMA_ID)?.ok().and_then(|node| u32::try_from(node).ok());
        let number = attribute::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT;
        self.on_the_host(Feature::HostNodeMemory, number, Location::HostNode(node.unwrap_or(0)))
    }

    /// Tries host memory. Drivers that have such memory but not the attribute are tried too: the attributes came later.
    fn on_the_host(&self, feature: Feature, number: u32, location: Location) -> Result<Capability> {
        let memory = Properties::on(self.device).located(location);
        if let Some(no) = self.excluded(feature, &memory, number)? {
            return Ok(no);
        }
        let both = |device| Grant { device, access: Access::ReadWrite };
        let mapped = self.mapped(&memory, &[both(self.device)], |reservation, size| {
            // SAFETY: one granule is mapped there, of memory that the host can be granted access to.
            Ok(unsafe { reservation.set_access(Bytes::ZERO, size, &[both(DeviceId::HOST)]) })
        });
        let note = match mapped {
            Ok(Ok(())) => Ok(format!("{location}, for the device and the host")),
            Ok(Err(error)) => {
                let refused = Capability::tried(feature, Err::<&str, _>(error))?.note;
                Ok(format!("{location}, for the device; the host was given no access: {refused}"))
            }
            Err(error) => Err(error),
        };
        Capability::tried(feature, note)
    }
}
