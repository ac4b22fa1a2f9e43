#pragma once

/// @file
/// A region that two processes use: the exporter changes it, and the other process follows. Linux only.

#include "region.hpp"

#include <optional>

GPU_VMM_BEGIN_NAMESPACE

/// The identifier of an effective user of the system.
using user_id = std::uint32_t;

/// How an exchange has ended.
enum class release_outcome : std::uint32_t {
    /// The other process has released the memory.
    released = GPU_VMM_RELEASED,
    /// The other process keeps the memory.
    kept = GPU_VMM_RELEASE_KEPT,
    /// The other process has died or closed its end.
    gone = GPU_VMM_RELEASE_GONE,
};

/// An event for the process that follows a region.
enum class region_event : std::uint32_t {
    /// No event has arrived in time.
    none = GPU_VMM_EVENT_NONE,
    /// The exporter has published a change.
    changed = GPU_VMM_EVENT_CHANGED,
    /// The exporter asks this process to release the memory.
    release_requested = GPU_VMM_EVENT_RELEASE_REQUESTED,
    /// The exporter has ended the exchange or has died. The memory stays mapped.
    gone = GPU_VMM_EVENT_GONE,
};

/// The exporter's end of an exchange. Its end ends the exchange, and the other process keeps the memory. Calls of several threads take turns.
class exporter : public detail::owner<gpu_vmm_exporter, gpu_vmm_exporter_free> {
public:
    using owner::owner;

    /// Sends the changes of the region since the last call, and returns whether there were any.
    result<bool> publish(region_ref region) {
        return detail::get<bool>("exporter::publish", gpu_vmm_exporter_publish, get(), region.get());
    }

    /// Waits until the other process has applied everything that was sent.
    result<void> wait_applied(std::chrono::milliseconds timeout) {
        return detail::call("exporter::wait_applied", gpu_vmm_exporter_wait_applied, get(), detail::milliseconds(timeout));
    }

    /// Asks the other process to release the memory.
    result<void> request_release() { return detail::call("exporter::request_release", gpu_vmm_exporter_request_release, get()); }

    /// Waits until the exchange has ended.
    result<release_outcome> wait_released(std::chrono::milliseconds timeout) {
        return detail::get<release_outcome>("exporter::wait_released", gpu_vmm_exporter_wait_released, get(), detail::milliseconds(timeout));
    }
};

/// A path at which other processes of this machine can connect. Its end removes the path, and exchanges that have begun go on.
class listener : public detail::owner<gpu_vmm_listener, gpu_vmm_listener_free> {
public:
    using owner::owner;

    /// Listens at a path, which must not exist, except for a stale socket if `replace_stale` is true.
    [[nodiscard]] static result<listener> create(const std::string &path, bool replace_stale = false) {
        const auto function = replace_stale ? gpu_vmm_listener_replace_stale : gpu_vmm_listener_new;
        return detail::get<listener>("listener::create", function, detail::c_text(path));
    }

    /// Waits until a process follows, and sends it a region, whose memory must have been created with handle_types::fd. The memory can then
    /// not be suspended or moved. `user` is the effective user of the other process if it is another one.
    [[nodiscard]] result<exporter> share(region_ref region, std::chrono::milliseconds timeout, std::optional<user_id> user = {}) {
        const std::uint64_t limit = detail::milliseconds(timeout);
        if (user) return detail::get<exporter>("listener::share", gpu_vmm_export_to_user, get(), region.get(), *user, limit);
        return detail::get<exporter>("listener::share", gpu_vmm_export, get(), region.get(), limit);
    }
};

/// The addresses of a followed region.
struct followed_range {
    /// The first address, which only apply() changes.
    device_address address;
    /// The end of the mapped memory.
    bytes size;
};

/// A region of another process that is mapped here and follows that region's changes. Its end releases the memory. Calls of several threads
/// take turns.
class followed_region : public detail::owner<gpu_vmm_followed, gpu_vmm_followed_free> {
public:
    using owner::owner;

    /// Connects to a listener and imports its region. `reserve` is the size that it can grow to in place, zero for its size now. `user` is the
    /// effective user of the other process if it is another one.
    [[nodiscard]] static result<followed_region> create(const backend &backend, const std::string &path, bytes reserve,
                                                        std::chrono::milliseconds timeout, std::optional<user_id> user = {}) {
        const char *const operation = "followed_region::create";
        const std::uint64_t limit = detail::milliseconds(timeout);
        const char *const c_path = detail::c_text(path);
        if (user) return detail::get<followed_region>(operation, gpu_vmm_follow_user, backend.get(), c_path, *user, reserve.count(), limit);
        return detail::get<followed_region>(operation, gpu_vmm_follow, backend.get(), c_path, reserve.count(), limit);
    }

    /// Waits for an event of the exporter.
    result<region_event> next(std::chrono::milliseconds timeout) {
        return detail::get<region_event>("followed_region::next", gpu_vmm_followed_next, get(), detail::milliseconds(timeout));
    }

    /// Applies all changes that were received. With `may_move`, the region moves if it cannot grow in place.
    result<void> apply(bool may_move = false) { return detail::call("followed_region::apply", gpu_vmm_followed_apply, get(), may_move); }

    /// Returns the first address and the end of the mapped memory.
    [[nodiscard]] result<followed_range> range() const {
        device_address address = 0;
        std::uint64_t size = 0;
        const gpu_vmm_status status = gpu_vmm_followed_range(get(), &address, &size);
        return detail::finish("followed_region::range", status, followed_range{address, bytes(size)});
    }

    /// Copies bytes to the host.
    result<void> read(void *to, bytes size, bytes offset = {}) const {
        return detail::call("followed_region::read", gpu_vmm_followed_read, get(), offset.count(), to, size.count());
    }

    /// Copies bytes of the host.
    result<void> write(const void *from, bytes size, bytes offset = {}) {
        return detail::call("followed_region::write", gpu_vmm_followed_write, get(), offset.count(), from, size.count());
    }

    /// Releases the memory after a wait for the devices, and reports that to the exporter. Later calls are invalid arguments.
    result<void> close() { return detail::call("followed_region::close", gpu_vmm_followed_release, get()); }
};

GPU_VMM_END_NAMESPACE
