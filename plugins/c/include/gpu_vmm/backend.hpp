#pragma once

/// @file
/// An open driver, its devices, and announced captures.

#include "types.hpp"

GPU_VMM_BEGIN_NAMESPACE

namespace detail {
inline void end_capture(gpu_vmm_capture *object) noexcept { (void)gpu_vmm_capture_end(object); }
} // namespace detail

/// The announcement of a capture of a stream into a graph. It lasts until close(), or as long as this object.
class capture : public detail::owner<gpu_vmm_capture, detail::end_capture> {
public:
    using owner::owner;

    /// Ends the announcement, once the capture has ended. Does nothing if it is over.
    result<void> close() { return detail::call("capture::close", gpu_vmm_capture_end, release()); }
};

/// The free and the total memory of a device.
struct device_memory {
    /// The free memory.
    bytes free;
    /// All memory.
    bytes total;
};

/// A device as DLPack names it.
struct dlpack_device {
    /// 1 for host memory, 2 for CUDA, 10 for ROCm.
    std::int32_t type;
    /// The number.
    std::int32_t id;
};

/// The first kind of memory that a device supports.
struct supported_memory {
    /// Its index among the preferred kinds.
    std::size_t index;
    /// A JSON array with the reason for each kind before it.
    std::string refused;
};

/// An open driver. What was created from it stays valid when it is closed. Several threads may use it at the same time.
class backend : public detail::owner<gpu_vmm_backend, gpu_vmm_close> {
public:
    using owner::owner;

    /// Opens "cuda", "hip" or "host". With null it opens what GPU_VMM_BACKEND names, or the backend whose library the process has loaded, or
    /// the best one.
    [[nodiscard]] static result<backend> open(const char *name = nullptr) {
        return detail::get<backend>("backend::open", gpu_vmm_open, name);
    }

    /// Returns "cuda", "hip" or "host".
    [[nodiscard]] const char *name() const noexcept { return gpu_vmm_backend_name(get()); }

    /// Returns the number of devices, including devices that cannot be used.
    [[nodiscard]] result<device_number> devices() const {
        return detail::get<device_number>("backend::devices", gpu_vmm_backend_devices, get());
    }

    /// Describes the driver, its devices and its known deviations as JSON.
    [[nodiscard]] result<std::string> info() const { return detail::get_text("backend::info", gpu_vmm_backend_info, get()); }

    /// Describes the capabilities of a device as a JSON array.
    [[nodiscard]] result<std::string> capabilities(device_number device = 0) const {
        return detail::get_text("backend::capabilities", gpu_vmm_capabilities, get(), device);
    }

    /// Returns the free and the total memory of a device.
    [[nodiscard]] result<device_memory> memory(device_number device = 0) const {
        std::uint64_t free = 0, total = 0;
        const gpu_vmm_status status = gpu_vmm_memory(get(), device, &free, &total);
        return detail::finish("backend::memory", status, device_memory{bytes(free), bytes(total)});
    }

    /// Returns the unit of the size of physical memory with these properties.
    [[nodiscard]] result<bytes> granularity(const memory_properties &properties = {}) const {
        const gpu_vmm_properties c = detail::to_c(properties);
        return detail::get<bytes>("backend::granularity", gpu_vmm_granularity, get(), &c);
    }

    /// Returns the granularity that the driver recommends, a multiple of granularity().
    [[nodiscard]] result<bytes> recommended_granularity(const memory_properties &properties = {}) const {
        const gpu_vmm_properties c = detail::to_c(properties);
        return detail::get<bytes>("backend::recommended_granularity", gpu_vmm_recommended_granularity, get(), &c);
    }

    /// Returns the unit of address ranges, of which the sizes of regions are multiples.
    [[nodiscard]] result<bytes> reservation_unit() const {
        return detail::get<bytes>("backend::reservation_unit", gpu_vmm_reservation_unit, get());
    }

    /// Returns whether a device can access memory of the device `owning`.
    [[nodiscard]] result<bool> can_access(device_number device, device_number owning) const {
        return detail::get<bool>("backend::can_access", gpu_vmm_can_access, get(), device, owning);
    }

    /// Returns the first of several kinds of memory that the device supports, by trial.
    [[nodiscard]] result<supported_memory> first_supported(const std::vector<memory_properties> &preferred) const {
        std::vector<gpu_vmm_properties> c;
        for (const memory_properties &properties : preferred) c.push_back(detail::to_c(properties));
        std::uint64_t index = 0;
        char *refused = nullptr;
        const gpu_vmm_status status = gpu_vmm_first_supported(get(), c.data(), c.size(), &index, &refused);
        return detail::finish("backend::first_supported", status,
                              supported_memory{static_cast<std::size_t>(index), detail::take_text(refused)});
    }

    /// Returns a device as DLPack names it.
    [[nodiscard]] result<dlpack_device> dlpack(device_number device = 0) const {
        dlpack_device named{};
        const gpu_vmm_status status = gpu_vmm_dlpack_device(get(), device, &named.type, &named.id);
        return detail::finish("backend::dlpack", status, named);
    }

    /// Announces a capture of a stream into a graph that is about to begin. Until its end, calls that need to wait for a device fail with
    /// error_kind::busy, and freed memory is kept, still mapped.
    [[nodiscard]] result<capture> begin_capture() const {
        return detail::get<capture>("backend::begin_capture", gpu_vmm_capture_begin, get());
    }

    /// Frees the memory that was kept because of a capture, after a wait for its devices, and returns its size.
    result<bytes> collect() const { return detail::get<bytes>("backend::collect", gpu_vmm_collect, get()); }
};

/// Describes what this process has at an address as JSON: the region or the pool, the mapping, its access and the block.
[[nodiscard]] inline result<std::string> at(device_address address) { return detail::get_text("at", gpu_vmm_at, address); }

GPU_VMM_END_NAMESPACE
