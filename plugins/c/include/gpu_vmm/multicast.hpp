#pragma once

/// @file
/// Multicast objects. EXPERIMENTAL, and never run on hardware.

#include "physical_memory.hpp"

GPU_VMM_BEGIN_NAMESPACE

/// The settings of a multicast object.
struct team_options {
    /// The devices of this process, at least one.
    std::vector<device_number> devices;
    /// The size of the memory that each device can bind, rounded up.
    bytes size;
    /// The number of devices that other processes add.
    std::uint32_t elsewhere = 0;
    /// The handles by which it can be exported; descriptors if devices are elsewhere and it is none.
    gpu_vmm::handle_types handle_types = gpu_vmm::handle_types::none;
};

/// The sizes of a multicast object.
struct multicast_sizes {
    /// The size that each device can bind.
    bytes size;
    /// The unit of offsets and lengths.
    bytes granularity;
    /// The unit that the driver recommends.
    bytes recommended;
};

/// One address for the memory of several devices, which kernels reach by the multimem instructions of PTX. Calls of several threads take turns.
class multicast : public detail::owner<gpu_vmm_multicast, gpu_vmm_multicast_free> {
public:
    using owner::owner;

    /// Creates an object and adds the devices of this process.
    [[nodiscard]] static result<multicast> create(const backend &backend, const team_options &options) {
        const gpu_vmm_team_options c = to_c(options);
        return detail::get<multicast>("multicast::create", gpu_vmm_multicast_create, backend.get(), &c);
    }

    /// Imports an object of another process by a descriptor, which stays the caller's, and adds the devices of this process.
    [[nodiscard]] static result<multicast> import_fd(const backend &backend, int fd, const team_options &options) {
        const gpu_vmm_team_options c = to_c(options);
        return detail::get<multicast>("multicast::import_fd", gpu_vmm_multicast_import_fd, backend.get(), &c, fd);
    }

    /// Exports the object before memory is bound to it.
    [[nodiscard]] result<descriptor> export_fd() const {
        std::int32_t fd = -1;
        const gpu_vmm_status status = gpu_vmm_multicast_export_fd(get(), &fd);
        return detail::finish("multicast::export_fd", status, descriptor(fd));
    }

    /// Returns the size that each device can bind, and the units.
    [[nodiscard]] result<multicast_sizes> sizes() const {
        std::uint64_t size = 0, granularity = 0, recommended = 0;
        const gpu_vmm_status status = gpu_vmm_multicast_sizes(get(), &size, &granularity, &recommended);
        return detail::finish("multicast::sizes", status, multicast_sizes{bytes(size), bytes(granularity), bytes(recommended)});
    }

    /// Binds `length` bytes of memory, from `memory_offset` on, at `offset`. The binding keeps the memory.
    result<void> bind(bytes offset, const physical_memory &memory, bytes memory_offset, bytes length) {
        return detail::call("multicast::bind", gpu_vmm_multicast_bind, get(), offset.count(), memory.get(), memory_offset.count(),
                            length.count());
    }

    /// Removes the binding of a device's memory that begins at an offset.
    result<void> unbind(device_number device, bytes offset) {
        return detail::call("multicast::unbind", gpu_vmm_multicast_unbind, get(), device, offset.count());
    }

    /// Maps the object for all devices of this process and returns its address, for multimem instructions alone.
    [[nodiscard]] result<device_address> map() { return detail::get<device_address>("multicast::map", gpu_vmm_multicast_map, get()); }

    /// Waits for the devices of this process and unmaps the object. Its bindings stay. The end of the object unmaps it as well, and reports
    /// nothing.
    result<void> unmap() { return detail::call("multicast::unmap", gpu_vmm_multicast_unmap, get()); }

private:
    static gpu_vmm_team_options to_c(const team_options &options) noexcept {
        gpu_vmm_team_options c{};
        c.devices = options.devices.data();
        c.device_count = options.devices.size();
        c.size = options.size.count();
        c.elsewhere = options.elsewhere;
        c.handle_types = static_cast<std::uint32_t>(options.handle_types);
        return c;
    }
};

GPU_VMM_END_NAMESPACE
