//! Memory of gpu-vmm in Vulkan: gpu-vmm creates it and writes bytes, Vulkan imports it, copies those bytes and adds others, and gpu-vmm
//! reads the result.
//!
//! On a GPU, Vulkan imports the descriptor of the memory (`VK_KHR_external_memory_fd`), on the device with the same UUID. Host memory
//! is imported by its address (`VK_EXT_external_memory_host`): a Vulkan driver for the CPU takes opaque descriptors of its own alone.
//! The test runs on Mesa's lavapipe if that is installed. It never ran on a GPU.
//!
//! ```text
//! cargo run --example vulkan
//! ```
#![allow(unsafe_code)] // Vulkan's functions are unsafe

mod device;

use ash::vk::{self, ExternalMemoryHandleTypeFlags as HandleType};
use device::{Device, Missing};
use gpu_vmm::{
    Access, AnyBackend, Backend, Bytes, DeviceId, Location, PhysicalMemory, Properties, Region, Vendor,
};
use std::error::Error;
use std::os::fd::IntoRawFd;

fn main() -> Result<(), Box<dyn Error>> {
    let backend = AnyBackend::open_best()?;
    match exchange(&backend) {
        Err(error) if error.is::<Missing>() => println!("SKIPPED: {error}"),
        done => println!("Vulkan's {} has copied memory of the {} backend", done?, backend.vendor()),
    }
    Ok(())
}

/// Writes with gpu-vmm, copies and fills with Vulkan, and compares what gpu-vmm reads. Returns the name of the Vulkan device.
fn exchange(backend: &AnyBackend) -> Result<String, Box<dyn Error>> {
    let is_host = backend.vendor() == Vendor::Host;
    let properties = match is_host {
        true => Properties::on(DeviceId(0)).located(Location::Host),
        false => Properties::on(DeviceId(0)).shareable(),
    };
    let memory = PhysicalMemory::create(backend, Bytes::mib(2), properties)?;
    let size = memory.size();
    let mut region = Region::builder(backend).memory(properties).reserve(size).build()?;
    region.map(Bytes(0), &memory)?;
    region.set_access(Bytes(0), size, DeviceId(0), Access::ReadWrite)?;
    let quarter = size.0 / 4;
    region.fill(Bytes(0), size, 0)?;
    region.fill(Bytes(0), Bytes(quarter), 7)?;

    let device = Device::open(backend.devices()[0].uuid.filter(|_| !is_host).map(|uuid| uuid.0), is_host)?;
    if is_host {
        region.set_access(Bytes(0), size, DeviceId::HOST, Access::ReadWrite)?;
        let kind = HandleType::HOST_ALLOCATION_EXT;
        let mut import = vk::ImportMemoryHostPointerInfoEXT::default()
            .handle_type(kind)
            .host_pointer(region.address().as_ptr());
        let types = device.types_of_address(kind, region.address().as_ptr())?;
        device.copy_and_fill(kind, types, size.0, &mut import)?;
    } else {
        let kind = HandleType::OPAQUE_FD;
        // Vulkan owns the descriptor once the import succeeds.
        let descriptor = memory.export()?.into_raw_fd();
        let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(kind).fd(descriptor);
        device.copy_and_fill(kind, u32::MAX, size.0, &mut import)?;
    }

    // Vulkan has waited for its device, so that the bytes are there.
    let mut found = vec![0; size.0 as usize];
    region.read(Bytes(0), &mut found)?;
    for (part, expected) in found.chunks(quarter as usize).zip([7, 7, 9, 0]) {
        assert!(part.iter().all(|byte| *byte == expected), "a quarter is not {expected}");
    }
    let name = device.name.clone();
    device.close();
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vulkan_copies_host_memory() {
        let backend = AnyBackend::open(Vendor::Host).unwrap();
        match exchange(&backend) {
            Err(error) if error.is::<Missing>() => eprintln!("SKIPPED: {error}"),
            done => assert!(!done.unwrap().is_empty()),
        }
    }
}
