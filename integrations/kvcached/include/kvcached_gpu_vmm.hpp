// The functions of kvcached's csrc/inc/gpu_vmm.hpp over gpu-vmm's C library, for both vendors and for host memory, chosen at run time.
//
// Every call is checked by gpu-vmm before it reaches a driver. A status that is not GPU_VMM_OK has a text, which error_string returns.

#pragma once

#include "gpu_vmm.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

namespace kvcached {
namespace gpu_vmm {

using status_t = gpu_vmm_status;
// Memory that mem_create has made; null by default.
using allocation_handle_t = gpu_vmm_physical *;
using allocation_prop_t = gpu_vmm_properties;

// The access of one device.
struct access_desc_t {
    uint32_t device;
    uint32_t level;
};

namespace detail {

// The regions whose addresses address_reserve has returned.
class Reservations {
  public:
    using Region = std::shared_ptr<gpu_vmm_region>;

    void add(uintptr_t start, size_t size, gpu_vmm_region *region) {
        Region owned(region, gpu_vmm_region_free);
        const std::lock_guard<std::mutex> guard(lock);
        regions[start] = Entry{size, std::move(owned)};
    }

    // Returns the region that contains an address, the offset in it, and the bytes that were reserved from there on; null if none does.
    Region find(const void *address, uint64_t &offset, uint64_t &rest) {
        const auto at = reinterpret_cast<uintptr_t>(address);
        const std::lock_guard<std::mutex> guard(lock);
        auto next = regions.upper_bound(at);
        if (next == regions.begin() || at - std::prev(next)->first >= std::prev(next)->second.size) {
            return nullptr;
        }
        --next;
        offset = at - next->first;
        rest = next->second.size - offset;
        return next->second.region;
    }

    // Removes the region that begins at an address and has this size. Returns whether there was one.
    bool remove(const void *address, size_t size) {
        Region gone;  // freed after the lock is released
        const std::lock_guard<std::mutex> guard(lock);
        const auto found = regions.find(reinterpret_cast<uintptr_t>(address));
        if (found == regions.end() || found->second.size != size) {
            return false;
        }
        gone = std::move(found->second.region);
        regions.erase(found);
        return true;
    }

  private:
    struct Entry {
        size_t size = 0;
        Region region;
    };

    std::mutex lock;
    std::map<uintptr_t, Entry> regions;
};

// The opened backend and the reservations. They are never destroyed: kvcached frees memory until the process's last moment.
struct Process {
    gpu_vmm_backend *backend = nullptr;
    status_t opened = GPU_VMM_OK;
    std::string error;
    Reservations reservations;

    static Process &instance() {
        static auto *process = new Process;
        return *process;
    }

    // Opens the backend that GPU_VMM_BACKEND names, else the one whose library the process has loaded, else the best one.
    Process() : opened(gpu_vmm_open(nullptr, &backend)) {
        if (opened) {
            error = gpu_vmm_last_error();
        }
    }
};

// The text of this thread's last error that this header has found itself; empty after an error of the library.
inline std::string &own_error() {
    static thread_local std::string text;
    return text;
}

inline int &device_of_thread() {
    static thread_local int device = 0;
    return device;
}

inline status_t refuse(status_t status, const std::string &text) {
    own_error() = text;
    return status;
}

// Runs a call with the backend. A backend that could not be opened is an error of each call.
template <typename Call>
status_t run(Call call) {
    own_error().clear();
    Process &process = Process::instance();
    return process.opened ? refuse(process.opened, process.error) : call(process.backend);
}

// Runs a call with the region that contains a range, and the range's offset in it.
template <typename Call>
status_t with_region(const char *operation, const void *address, size_t size, Call call) {
    return run([&](gpu_vmm_backend *) {
        uint64_t offset = 0, rest = 0;
        const auto region = Process::instance().reservations.find(address, offset, rest);
        if (!region) {
            return refuse(GPU_VMM_NOT_FOUND, std::string(operation) + ": no reservation contains the address");
        }
        if (size > rest) {
            return refuse(GPU_VMM_OUT_OF_RANGE, std::string(operation) + ": " + std::to_string(size) + " bytes; the reservation ends after " +
                                                    std::to_string(rest));
        }
        return call(region.get(), offset);
    });
}

}  // namespace detail

inline const char *backend_name() { return gpu_vmm_backend_name(detail::Process::instance().backend); }

// Returns the text of this thread's last error.
inline const char *error_string(status_t status) {
    if (status == GPU_VMM_OK) {
        return "no error";
    }
    return detail::own_error().empty() ? gpu_vmm_last_error() : detail::own_error().c_str();
}

inline bool is_success(status_t status) { return status == GPU_VMM_OK; }

// Throws a std::runtime_error for an error. kvcached's own function ends the process.
inline void check(status_t status, const char *call, const char *file, unsigned line) {
    if (!is_success(status)) {
        throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + call + ": " + error_string(status));
    }
}

// Whether a failed mem_release must end the process: mem_release cannot fail.
constexpr bool release_failure_is_fatal() { return false; }

inline status_t initialize_runtime() {
    return detail::run([](gpu_vmm_backend *) { return GPU_VMM_OK; });
}

// Sets this thread's device for the calls that name none.
inline status_t set_device(int device) {
    return detail::run([&](gpu_vmm_backend *backend) -> status_t {
        uint32_t count = 0;
        if (const status_t status = gpu_vmm_backend_devices(backend, &count)) {
            return status;
        }
        if (device < 0 || static_cast<uint32_t>(device) >= count) {
            return detail::refuse(GPU_VMM_NO_SUCH_DEVICE, "set_device: there is no device " + std::to_string(device) + "; there are " +
                                                              std::to_string(count));
        }
        detail::device_of_thread() = device;
        return GPU_VMM_OK;
    });
}

inline int current_device() { return detail::device_of_thread(); }

inline status_t mem_get_info(size_t *free_bytes, size_t *total_bytes) {
    uint64_t free = 0, total = 0;
    const status_t status = detail::run([&](gpu_vmm_backend *backend) {
        return gpu_vmm_memory(backend, static_cast<uint32_t>(current_device()), &free, &total);
    });
    *free_bytes = free;
    *total_bytes = total;
    return status;
}

// Waits for the work of the current device's default stream. mem_unmap and address_free themselves wait for all work.
inline status_t device_synchronize() {
    return detail::run([](gpu_vmm_backend *backend) {
        gpu_vmm_event *event = nullptr;
        status_t status = gpu_vmm_event_new(backend, static_cast<uint32_t>(current_device()), &event);
        status = status ? status : gpu_vmm_event_record(event, nullptr);
        status = status ? status : gpu_vmm_event_wait(event);
        gpu_vmm_event_free(event);
        return status;
    });
}

inline allocation_prop_t make_pinned_device_allocation_prop(int device) {
    allocation_prop_t properties{};
    properties.device = static_cast<uint32_t>(device);
    return properties;
}

inline access_desc_t make_device_rw_access_desc(int device) {
    return access_desc_t{static_cast<uint32_t>(device), GPU_VMM_ACCESS_READ_WRITE};
}

inline status_t get_allocation_granularity(size_t *granularity, const allocation_prop_t *properties) {
    uint64_t found = 0;
    const status_t status = detail::run([&](gpu_vmm_backend *backend) { return gpu_vmm_granularity(backend, properties, &found); });
    *granularity = found;
    return status;
}

// Returns whether the device has virtual memory management, as a number. A device without it is no error.
inline status_t get_vmm_support(int *supported, int device) {
    *supported = 0;
    size_t granularity = 0;
    const auto properties = make_pinned_device_allocation_prop(device);
    const status_t status = get_allocation_granularity(&granularity, &properties);
    *supported = status == GPU_VMM_OK && granularity > 0;
    return status == GPU_VMM_UNSUPPORTED ? GPU_VMM_OK : status;
}

// Creates memory. `size` must be a multiple of the granularity.
inline status_t mem_create(allocation_handle_t *handle, size_t size, const allocation_prop_t *properties) {
    *handle = nullptr;
    return detail::run([&](gpu_vmm_backend *backend) -> status_t {
        uint64_t granularity = 0;
        if (const status_t status = gpu_vmm_granularity(backend, properties, &granularity)) {
            return status;
        }
        if (size % granularity) {
            return detail::refuse(GPU_VMM_UNALIGNED, "mem_create: " + std::to_string(size) + " bytes are no multiple of the granularity (" +
                                                         std::to_string(granularity) + ")");
        }
        return gpu_vmm_physical_create(backend, properties, size, handle);
    });
}

// Releases memory, whose mappings stay valid.
inline status_t mem_release(allocation_handle_t handle) {
    gpu_vmm_physical_release(handle);
    return GPU_VMM_OK;
}

// Reserves addresses for memory of the current device: at `preferred` if they are free there, else anywhere.
inline status_t address_reserve(void **address, size_t size, size_t alignment, void *preferred = nullptr) {
    *address = nullptr;
    return detail::run([&](gpu_vmm_backend *backend) -> status_t {
        gpu_vmm_region_options options{};
        options.memory.device = static_cast<uint32_t>(current_device());
        options.size = size;
        options.alignment = alignment;
        options.address = reinterpret_cast<uintptr_t>(preferred);
        options.placement = preferred ? GPU_VMM_PLACE_PREFER : GPU_VMM_PLACE_ANYWHERE;
        gpu_vmm_region *region = nullptr;
        uint64_t start = 0;
        status_t status = size ? gpu_vmm_region_reserve(backend, &options, &region)
                               : detail::refuse(GPU_VMM_INVALID_ARGUMENT, "address_reserve: the size is 0");
        status = status ? status : gpu_vmm_region_address(region, &start);
        if (status) {
            gpu_vmm_region_free(region);
            return status;
        }
        detail::Process::instance().reservations.add(start, size, region);
        *address = reinterpret_cast<void *>(start);
        return GPU_VMM_OK;
    });
}

// Frees addresses of address_reserve, and unmaps what is still mapped there after waiting for the devices.
inline status_t address_free(void *address, size_t size) {
    return detail::run([&](gpu_vmm_backend *) {
        if (detail::Process::instance().reservations.remove(address, size)) {
            return static_cast<status_t>(GPU_VMM_OK);
        }
        return detail::refuse(GPU_VMM_NOT_FOUND, "address_free: no reservation of " + std::to_string(size) + " bytes begins there");
    });
}

// Maps memory as a whole: `size` must be its size, and `offset` 0. The last argument of newer versions of kvcached has no effect.
inline status_t mem_map(void *address, size_t size, size_t offset, allocation_handle_t handle, bool = true) {
    return detail::with_region("mem_map", address, size, [&](gpu_vmm_region *region, uint64_t at) -> status_t {
        uint64_t whole = 0;
        if (const status_t status = gpu_vmm_physical_size(handle, &whole)) {
            return status;
        }
        if (offset || size != whole) {
            return detail::refuse(GPU_VMM_INVALID_ARGUMENT, "mem_map: " + std::to_string(size) + " bytes from " + std::to_string(offset) +
                                                                " on; memory is mapped as a whole, here " + std::to_string(whole) +
                                                                " bytes from 0 on");
        }
        return gpu_vmm_region_map(region, at, handle);
    });
}

// Unmaps whole mappings without a hole, after waiting for the devices.
inline status_t mem_unmap(void *address, size_t size) {
    return detail::with_region("mem_unmap", address, size, [&](gpu_vmm_region *region, uint64_t at) {
        return gpu_vmm_region_unmap(region, at, size, false);
    });
}

// Sets the access of devices to whole mappings. If it fails, the devices before the failing one have the new access.
inline status_t set_access(void *address, size_t size, const access_desc_t *descriptions, size_t count) {
    return detail::with_region("set_access", address, size, [&](gpu_vmm_region *region, uint64_t at) -> status_t {
        for (size_t one = 0; one < count; one++) {
            const access_desc_t &of = descriptions[one];
            if (const status_t status = gpu_vmm_region_set_access(region, at, size, of.device, of.level)) {
                return status;
            }
        }
        return GPU_VMM_OK;
    });
}

}  // namespace gpu_vmm
}  // namespace kvcached
