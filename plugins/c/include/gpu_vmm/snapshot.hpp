#pragma once

/// @file
/// Regions in files.

#include "region.hpp"

GPU_VMM_BEGIN_NAMESPACE

/// A device of a file, and the device of this process that replaces it.
struct device_pair {
    /// The number in the process that wrote the file, or all().
    device_number from;
    /// The number in this process, or #cpu.
    device_number to;

    /// Stands for every device without an entry of its own.
    [[nodiscard]] static constexpr device_number all() noexcept { return GPU_VMM_DEVICE_ALL; }
};

/// The options of restoring regions.
struct restore_options {
    /// Whether a region lies elsewhere if its address is taken.
    bool relocate = false;
    /// Whether each device without an entry is the one with the same UUID here.
    bool by_uuid = false;
    /// The devices that replace devices of the file.
    std::vector<device_pair> devices;
};

namespace detail {

/// The options of the C library, which point into the devices.
struct c_restore_options {
    explicit c_restore_options(const restore_options &options) {
        for (const device_pair &pair : options.devices) devices.push_back({pair.from, pair.to});
        c.relocate = options.relocate;
        c.by_uuid = options.by_uuid;
        c.devices = devices.data();
        c.device_count = devices.size();
    }
    c_restore_options(const c_restore_options &) = delete;
    c_restore_options &operator=(const c_restore_options &) = delete;

    std::vector<gpu_vmm_device_pair> devices;
    gpu_vmm_restore_options c{};
};

} // namespace detail

/// Writes a region to a file after a wait for the devices: its address, mappings, access and contents. Nothing may write to it meanwhile.
inline result<void> snapshot(region_ref region, const std::string &path, bool compress = false) {
    return detail::call("snapshot", gpu_vmm_region_snapshot, region.get(), detail::c_text(path), compress);
}

/// Writes several regions of one backend to one file, at one point of time.
inline result<void> snapshot(const std::vector<region_ref> &regions, const std::string &path, bool compress = false) {
    std::vector<const gpu_vmm_region *> c;
    for (const region_ref &region : regions) c.push_back(region.get());
    return detail::call("snapshot", gpu_vmm_regions_snapshot, c.data(), std::uint64_t{c.size()}, detail::c_text(path), compress);
}

/// Returns the number of regions in a file.
[[nodiscard]] inline result<std::uint64_t> snapshot_count(const std::string &path) {
    return detail::get<std::uint64_t>("snapshot_count", gpu_vmm_snapshot_count, detail::c_text(path));
}

/// Recreates the region of a file with exactly one.
[[nodiscard]] inline result<region> restore(const backend &backend, const std::string &path, const restore_options &options = {}) {
    const detail::c_restore_options c(options);
    return detail::get<region>("restore", gpu_vmm_region_restore, backend.get(), detail::c_text(path), &c.c);
}

/// Recreates all regions of a file in the order in which they were written.
[[nodiscard]] inline result<std::vector<region>> restore_all(const backend &backend, const std::string &path,
                                                             const restore_options &options = {}) {
    const detail::c_restore_options c(options);
    std::uint64_t count = 0;
    gpu_vmm_status status = gpu_vmm_snapshot_count(detail::c_text(path), &count);
    std::vector<region> regions;
    if (status == GPU_VMM_OK) {
        std::vector<gpu_vmm_region *> restored(static_cast<std::size_t>(count));
        regions.reserve(restored.size());
        status = gpu_vmm_regions_restore(backend.get(), detail::c_text(path), &c.c, restored.data(), count);
        if (status == GPU_VMM_OK) {
            for (gpu_vmm_region *each : restored) regions.emplace_back(each);
        }
    }
    return detail::finish("restore_all", status, std::move(regions));
}

GPU_VMM_END_NAMESPACE
