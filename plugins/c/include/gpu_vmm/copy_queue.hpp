#pragma once

/// @file
/// Copies between a region and page-locked memory that run while the CPU goes on.

#include "event.hpp"
#include "region.hpp"

GPU_VMM_BEGIN_NAMESPACE

/// Page-locked host memory, which devices copy to and from at full speed. No lock protects its bytes.
class pinned_memory : public detail::owner<gpu_vmm_pinned, gpu_vmm_pinned_free> {
public:
    using owner::owner;

    /// Allocates page-locked memory, which takes longer than a copy.
    [[nodiscard]] static result<pinned_memory> create(const backend &backend, bytes size) {
        return detail::get<pinned_memory>("pinned_memory::create", gpu_vmm_pinned_new, backend.get(), size.count());
    }

    /// Returns the address, for the CPU.
    [[nodiscard]] result<void *> data() const { return detail::get<void *>("pinned_memory::data", gpu_vmm_pinned_data, get()); }
};

/// A queue of copies between one device and page-locked memory. It has no order with other streams except by events. Calls of several threads
/// take turns.
class copy_queue : public detail::owner<gpu_vmm_copy_queue, gpu_vmm_copy_queue_free> {
public:
    using owner::owner;

    /// Creates a queue for copies of one device.
    [[nodiscard]] static result<copy_queue> create(const backend &backend, device_number device = 0) {
        return detail::get<copy_queue>("copy_queue::create", gpu_vmm_copy_queue_new, backend.get(), device);
    }

    /// Queues a copy to a region. Until finish(), nothing may write to either range.
    result<void> write(region_ref to, bytes offset, const pinned_memory &from, bytes from_offset, bytes size) {
        return detail::call("copy_queue::write", gpu_vmm_copy_queue_write, get(), to.get(), offset.count(), from.get(), from_offset.count(),
                            size.count());
    }

    /// Queues a copy of a region. The bytes are there after finish().
    result<void> read(region_ref from, bytes offset, const pinned_memory &to, bytes to_offset, bytes size) {
        return detail::call("copy_queue::read", gpu_vmm_copy_queue_read, get(), from.get(), offset.count(), to.get(), to_offset.count(),
                            size.count());
    }

    /// Makes all copies that are queued from now on wait for the work that an event has recorded.
    result<void> hold(const event &event) { return detail::call("copy_queue::hold", gpu_vmm_copy_queue_hold, get(), event.get()); }

    /// Records the copies that are queued now in an event of the queue's device.
    result<void> record(event &event) { return detail::call("copy_queue::record", gpu_vmm_copy_queue_record, get(), event.get()); }

    /// Waits until all queued copies are done, and reports one that failed. The end of the queue waits as well, and reports nothing.
    result<void> finish() { return detail::call("copy_queue::finish", gpu_vmm_copy_queue_finish, get()); }
};

GPU_VMM_END_NAMESPACE
