#pragma once

/// @file
/// Observers, which are called before and after the memory behind addresses changes.

#include "types.hpp"

#include <functional>

GPU_VMM_BEGIN_NAMESPACE

/// What happens to the memory behind addresses.
enum class backing_effect : std::uint32_t {
    /// The memory is unmapped, and nothing is mapped afterwards.
    removed = GPU_VMM_BACKING_REMOVED,
    /// Memory is mapped where none was.
    restored = GPU_VMM_BACKING_RESTORED,
    /// Other memory is mapped at the same addresses.
    replaced = GPU_VMM_BACKING_REPLACED,
    /// The memory is mapped at other addresses.
    moved = GPU_VMM_BACKING_MOVED,
};

/// How a change has ended.
enum class backing_outcome : std::uint32_t {
    /// The memory has changed as announced.
    changed = GPU_VMM_OUTCOME_CHANGED,
    /// The operation failed, and the memory is the same as before.
    unchanged = GPU_VMM_OUTCOME_UNCHANGED,
    /// The rollback failed too, and it is unknown which memory is mapped.
    poisoned = GPU_VMM_OUTCOME_POISONED,
};

/// A change of the memory behind addresses of a region.
struct backing_change {
    /// The name of the operation, such as "suspend". It is valid during the callback.
    const char *operation;
    /// What happens to the memory.
    backing_effect effect;
    /// The first address of the region before the change.
    device_address address;
    /// The first address of the region after backing_effect::moved, else zero.
    device_address new_address;
    /// The ranges of the region whose memory changes, in ascending order.
    std::vector<byte_range> parts;
};

/// Functions for code that has registered memory with a network card, opened it in another process, or captured its addresses in a graph.
/// They must not end the region. A call with the region that changes fails with error_kind::busy and does not wait.
struct observer {
    /// Called before anything changes. False, or an exception, refuses the change: the operation fails with error_kind::busy, and nothing has
    /// changed. May be empty.
    std::function<bool(const backing_change &)> before;
    /// Called once for each change that `before` did not refuse. It must not throw. May be empty.
    std::function<void(const backing_change &, backing_outcome)> after;
};

/// The number of an observer of a region.
enum class observer_id : std::uint64_t {};

namespace detail {

inline backing_change from_c(const gpu_vmm_backing_change &c) {
    backing_change change{c.operation, static_cast<backing_effect>(c.effect), c.address, c.new_address, {}};
    for (std::uint64_t at = 0; at < c.count; ++at) change.parts.push_back({bytes(c.parts[at].offset), bytes(c.parts[at].length)});
    return change;
}

inline gpu_vmm_status call_before(void *context, const gpu_vmm_backing_change *change) noexcept {
    const auto &before = static_cast<observer *>(context)->before;
    if (!before) return GPU_VMM_OK;
#if GPU_VMM_EXCEPTIONS
    try {
        return before(from_c(*change)) ? GPU_VMM_OK : GPU_VMM_BUSY;
    } catch (...) {
        return GPU_VMM_BUSY;
    }
#else
    return before(from_c(*change)) ? GPU_VMM_OK : GPU_VMM_BUSY;
#endif
}

inline void call_after(void *context, const gpu_vmm_backing_change *change, std::uint32_t outcome) noexcept {
    const auto &after = static_cast<observer *>(context)->after;
    if (after) after(from_c(*change), static_cast<backing_outcome>(outcome));
}

inline void free_observer(void *context) noexcept { delete static_cast<observer *>(context); }

/// Adds an observer by a function of the C library, which frees it when no callback will come any more.
template <class Add, class Finish>
auto add_observer(observer functions, Add add, Finish finish) {
    auto owned = std::make_unique<observer>(std::move(functions));
    gpu_vmm_observer c{};
    c.context = owned.get();
    c.before = call_before;
    c.after = call_after;
    c.released = free_observer;
    const gpu_vmm_status status = add(&c);
    // After an error `released` is not called.
    if (status == GPU_VMM_OK) (void)owned.release();
    // Before the functions end: what they own may fail a call, whose text would be this error's.
    return finish(status);
}

} // namespace detail

GPU_VMM_END_NAMESPACE
