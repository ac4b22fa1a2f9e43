#pragma once

/// @file
/// Events, which mark work on streams.

#include "backend.hpp"

GPU_VMM_BEGIN_NAMESPACE

/// An event of one device: a CUevent or a hipEvent_t. Calls of several threads take turns.
class event : public detail::owner<gpu_vmm_event, gpu_vmm_event_free> {
public:
    using owner::owner;

    /// Creates an event, which is done until it is recorded.
    [[nodiscard]] static result<event> create(const backend &backend, device_number device = 0) {
        return detail::get<event>("event::create", gpu_vmm_event_new, backend.get(), device);
    }

    /// Records the work that is queued on a stream now.
    result<void> record(stream stream) { return detail::call("event::record", gpu_vmm_event_record, get(), stream.get()); }

    /// Returns whether the recorded work is done.
    [[nodiscard]] result<bool> done() const { return detail::get<bool>("event::done", gpu_vmm_event_done, get()); }

    /// Waits until the recorded work is done.
    result<void> wait() const { return detail::call("event::wait", gpu_vmm_event_wait, get()); }

    /// Makes all work that is queued on a stream from now on wait for the recorded work. The CPU does not wait.
    result<void> hold(stream stream) const { return detail::call("event::hold", gpu_vmm_event_hold, get(), stream.get()); }
};

GPU_VMM_END_NAMESPACE
