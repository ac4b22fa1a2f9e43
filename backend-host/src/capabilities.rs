//! The capabilities of a host device.

use crate::host::Host;
use crate::{memory_types, pages, share};
use gpu_vmm_core::{Capability, Device, Evidence, Feature, HandleTypes, Result};

/// Why there is no multicast, for capabilities and errors.
pub(crate) const NO_MULTICAST: &str = "no hardware writes one store to several places";

pub(crate) fn of(host: &Host, device: &Device) -> Result<Vec<Capability>> {
    let design = |feature, note: &str| Capability::yes(feature, Evidence::Design, note);
    let missing = |feature, reason: &str| Capability::no(feature, Evidence::Design, reason);
    if let Some(reason) = &device.no_virtual_memory {
        return Ok(vec![missing(Feature::VirtualMemory, reason)]);
    }
    Ok(vec![
        design(Feature::VirtualMemory, "memfd_create, mmap and mprotect"),
        match pages::hint_is_kept(device.granularity)? {
            true => Capability::yes(Feature::FixedAddress, Evidence::Trial, ""),
            false => Capability::no(
                Feature::FixedAddress,
                Evidence::Trial,
                "the kernel did not return a free address that was requested",
            ),
        },
        design(
            Feature::ReadOnlyAccess,
            "the MMU enforces the widest access of any device; copies check their own device's access",
        ),
        match (host.devices.len(), host.has_peers()) {
            (1, _) => missing(Feature::PeerAccess, "there is no other device"),
            (_, true) => design(Feature::PeerAccess, ""),
            (_, false) => missing(Feature::PeerAccess, "the backend was opened without peers"),
        },
        design(Feature::FileDescriptor, "a memfd of sealed size"),
        missing(Feature::Win32Handle, HandleTypes::WIN32.missing_here().unwrap_or_default()),
        missing(Feature::FabricHandle, share::NO_FABRIC),
        missing(Feature::Multicast, NO_MULTICAST),
        design(Feature::HostAccess, "the addresses are the process's own"),
        design(Feature::HostMemory, "all of a device's memory is the host's"),
        missing(Feature::HostNodeMemory, memory_types::NO_NODES),
        missing(Feature::Compression, "the kernel does not compress memory that is in use"),
        missing(
            Feature::RemoteDma,
            "no request is needed: a network card can be given any memory of the process",
        ),
        missing(Feature::DmaBuf, share::NO_DMA_BUF),
    ])
}
