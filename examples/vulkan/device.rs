//! A Vulkan device and the few calls that the example makes. For brevity, an error leaves its objects to the end of the
//! process.

use ash::vk::{self, ExternalMemoryHandleTypeFlags as HandleType};
use std::error::Error;
use std::ffi::{CStr, c_void};
use std::fmt;

/// Why this machine cannot run the example.
#[derive(Debug)]
pub(crate) struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Missing {}

/// A device that can import memory, with a queue.
pub(crate) struct Device {
    pub(crate) name: String,
    instance: ash::Instance,
    device: ash::Device,
    /// Keeps the library loaded.
    _entry: ash::Entry,
}

impl Device {
    /// Opens the device with this UUID, or any without one, if it has the extension for imports: of host memory, or of descriptors.
    pub(crate) fn open(uuid: Option<[u8; 16]>, is_host: bool) -> Result<Self, Box<dyn Error>> {
        // SAFETY: loads the system's Vulkan loader, which has no other requirement.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| Missing(format!("no Vulkan: {error}")))?;
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
        let create = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the structs live until the call returns.
        let instance = unsafe { entry.create_instance(&create, None) }
            .map_err(|error| Missing(format!("no Vulkan driver: {error}")))?;
        let extension =
            if is_host { ash::ext::external_memory_host::NAME } else { ash::khr::external_memory_fd::NAME };
        // SAFETY: the instance is alive.
        let found = unsafe { instance.enumerate_physical_devices() }?.into_iter().find_map(|physical| {
            let mut ids = vk::PhysicalDeviceIDProperties::default();
            let mut about = vk::PhysicalDeviceProperties2::default().push_next(&mut ids);
            // SAFETY: as above; the device is one of the instance's.
            unsafe { instance.get_physical_device_properties2(physical, &mut about) };
            let name = about.properties.device_name_as_c_str().ok()?.to_string_lossy().into_owned();
            // SAFETY: as above.
            let extensions = unsafe { instance.enumerate_device_extension_properties(physical) }.ok()?;
            let has = |name: &CStr| extensions.iter().any(|one| one.extension_name_as_c_str() == Ok(name));
            (uuid.is_none_or(|uuid| uuid == ids.device_uuid) && has(extension)).then_some((physical, name))
        });
        let (physical, name) = found.ok_or_else(|| {
            Missing(format!(
                "no Vulkan device has the UUID of gpu-vmm's device and {}",
                extension.to_string_lossy()
            ))
        })?;
        let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
        let extensions = [extension.as_ptr()];
        let create =
            vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&extensions);
        // SAFETY: the physical device is one of the instance's, and has the extension.
        let device = unsafe { instance.create_device(physical, &create, None) }?;
        Ok(Self { name, instance, device, _entry: entry })
    }

    /// Returns the types of memory as which the driver can import host memory.
    pub(crate) fn types_of_address(&self, kind: HandleType, address: *mut c_void) -> Result<u32, vk::Result> {
        let calls = ash::ext::external_memory_host::Device::new(&self.instance, &self.device);
        let mut found = vk::MemoryHostPointerPropertiesEXT::default();
        // SAFETY: the address is of memory that this process has mapped.
        unsafe {
            (calls.fp().get_memory_host_pointer_properties_ext)(calls.device(), kind, address, &mut found)
                .result()?;
        }
        Ok(found.memory_type_bits)
    }

    /// Imports memory, copies its first quarter to the second one and fills the third one with nines. Waits for the device.
    pub(crate) fn copy_and_fill<T: vk::ExtendsMemoryAllocateInfo>(
        &self,
        kind: HandleType,
        types: u32,
        size: u64,
        import: &mut T,
    ) -> Result<(), Box<dyn Error>> {
        let device = &self.device;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(kind);
        let create = vk::BufferCreateInfo::default()
            .size(size)
            .usage(vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST)
            .push_next(&mut external);
        // SAFETY: each object belongs to the device; the buffer is as large as the memory; the work has ended before anything is
        // destroyed.
        unsafe {
            let buffer = device.create_buffer(&create, None)?;
            let types = types & device.get_buffer_memory_requirements(buffer).memory_type_bits;
            if types == 0 {
                return Err("no type of memory suits both the import and a buffer".into());
            }
            let allocate = vk::MemoryAllocateInfo::default()
                .allocation_size(size)
                .memory_type_index(types.trailing_zeros())
                .push_next(import);
            let memory = device.allocate_memory(&allocate, None)?;
            device.bind_buffer_memory(buffer, memory, 0)?;
            let pool = device.create_command_pool(&vk::CommandPoolCreateInfo::default(), None)?;
            let commands = device.allocate_command_buffers(
                &vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1),
            )?;
            let quarter = size / 4;
            let copy = vk::BufferCopy { src_offset: 0, dst_offset: quarter, size: quarter };
            device.begin_command_buffer(commands[0], &vk::CommandBufferBeginInfo::default())?;
            device.cmd_copy_buffer(commands[0], buffer, buffer, &[copy]);
            device.cmd_fill_buffer(commands[0], buffer, 2 * quarter, quarter, 0x0909_0909);
            device.end_command_buffer(commands[0])?;
            let submit = vk::SubmitInfo::default().command_buffers(&commands);
            device.queue_submit(device.get_device_queue(0, 0), &[submit], vk::Fence::null())?;
            device.device_wait_idle()?;
            device.destroy_command_pool(pool, None);
            device.destroy_buffer(buffer, None);
            device.free_memory(memory, None);
        }
        Ok(())
    }

    /// Closes the device.
    pub(crate) fn close(self) {
        // SAFETY: `copy_and_fill` has destroyed its objects unless it failed, and after an error the program does not get here.
        unsafe {
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}
