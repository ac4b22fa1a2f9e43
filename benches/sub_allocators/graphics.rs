//! `gpu-allocator`, which games and renderers use: best fit within blocks of 256 MiB.
//!
//! Only its Vulkan interface gives access to its sub-allocator. It asks Vulkan for the memory types, and for blocks of
//! memory. The functions here return a device-local type, and numbers for blocks, so that no driver is needed or timed. It
//! never touches such memory.

#![allow(unsafe_code)]

use ash::vk::{self, Handle};
use gpu_allocator::vulkan::{self, AllocationCreateDesc, AllocationScheme, AllocatorCreateDesc};
use gpu_allocator::{AllocationError, AllocationSizes, AllocatorDebugSettings, MemoryLocation};
use gpu_vmm::Bytes;
use gpu_vmm_bench::{Allocator, StepResult, Stop};
use std::cell::RefCell;
use std::ffi::{CStr, c_void};

pub(crate) struct Graphics(RefCell<vulkan::Allocator>);

unsafe extern "system" fn memory_properties(
    _: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceMemoryProperties,
) {
    let mut answer = vk::PhysicalDeviceMemoryProperties {
        memory_type_count: 1,
        memory_heap_count: 1,
        ..Default::default()
    };
    answer.memory_types[0].property_flags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    answer.memory_heaps[0].size = Bytes::gib(64).0;
    // SAFETY: the caller's pointer is valid for the result.
    unsafe { properties.write(answer) };
}

/// Reports that buffers and images may be neighbours.
unsafe extern "system" fn device_properties(
    _: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceProperties,
) {
    let limits = vk::PhysicalDeviceLimits { buffer_image_granularity: 1, ..Default::default() };
    // SAFETY: the caller's pointer is valid for the result.
    unsafe { properties.write(vk::PhysicalDeviceProperties { limits, ..Default::default() }) };
}

unsafe extern "system" fn allocate_memory(
    _: vk::Device,
    _: *const vk::MemoryAllocateInfo<'_>,
    _: *const vk::AllocationCallbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    // SAFETY: the caller's pointer is valid for one number.
    unsafe { memory.write(vk::DeviceMemory::from_raw(1)) };
    vk::Result::SUCCESS
}

unsafe extern "system" fn free_memory(
    _: vk::Device,
    _: vk::DeviceMemory,
    _: *const vk::AllocationCallbacks<'_>,
) {
}

/// Missing functions are never called: `ash` ends the process on such a call.
fn load(name: &CStr) -> *const c_void {
    match name.to_bytes() {
        b"vkGetPhysicalDeviceMemoryProperties" => {
            memory_properties as vk::PFN_vkGetPhysicalDeviceMemoryProperties as *const c_void
        }
        b"vkGetPhysicalDeviceProperties" => {
            device_properties as vk::PFN_vkGetPhysicalDeviceProperties as *const c_void
        }
        b"vkAllocateMemory" => allocate_memory as vk::PFN_vkAllocateMemory as *const c_void,
        b"vkFreeMemory" => free_memory as vk::PFN_vkFreeMemory as *const c_void,
        _ => std::ptr::null(),
    }
}

fn failed(error: AllocationError) -> Stop {
    Stop::Failed(format!("gpu-allocator: {error}"))
}

impl Graphics {
    /// The size of its blocks.
    pub(crate) const LARGEST: Bytes = Bytes::mib(256);

    pub(crate) fn new() -> StepResult<Self> {
        // SAFETY: the functions have the types of their names, and ignore the instance and the device.
        let (instance, device) = unsafe {
            (
                ash::Instance::load_with(load, vk::Instance::from_raw(1)),
                ash::Device::load_with(load, vk::Device::from_raw(1)),
            )
        };
        let blocks = Self::LARGEST.0;
        let allocator = vulkan::Allocator::new(&AllocatorCreateDesc {
            instance,
            device,
            physical_device: vk::PhysicalDevice::from_raw(1),
            debug_settings: AllocatorDebugSettings::default(),
            buffer_device_address: false,
            allocation_sizes: AllocationSizes::new(blocks, blocks),
        })
        .map_err(failed)?;
        Ok(Self(RefCell::new(allocator)))
    }
}

impl Allocator for Graphics {
    type Block = vulkan::Allocation;

    fn name(&self) -> String {
        "gpu-allocator".to_owned()
    }

    fn alloc(&self, size: Bytes) -> StepResult<vulkan::Allocation> {
        let requirements = vk::MemoryRequirements { size: size.0, alignment: 256, memory_type_bits: 1 };
        let what = AllocationCreateDesc {
            name: "",
            requirements,
            location: MemoryLocation::GpuOnly,
            linear: true,
            allocation_scheme: AllocationScheme::GpuAllocatorManaged,
        };
        self.0.borrow_mut().allocate(&what).map_err(failed)
    }

    fn free(&self, block: vulkan::Allocation) -> StepResult {
        self.0.borrow_mut().free(block).map_err(failed)
    }
}
