#pragma once

/// @file
/// Pools as memory resources of the standard library.

#include "pool.hpp"

#if __has_include(<memory_resource>)
#include <memory_resource>
#endif

#if defined(__cpp_lib_memory_resource)

GPU_VMM_BEGIN_NAMESPACE

/// A `std::pmr::memory_resource` over a pool whose memory the CPU can access: a pool on host memory, or of memory with location::host. It
/// allocates on the default stream. Memory that a device has used must be deallocated after the device's work.
///
/// If memory is short, it throws gpu_vmm::bad_alloc; without exceptions it ends the program, because the standard's interface cannot report it.
class memory_resource final : public std::pmr::memory_resource {
public:
    /// Allocates from a pool, to which it gives the CPU access.
    [[nodiscard]] static result<memory_resource> create(const pool &pool) {
        const gpu_vmm_status status = gpu_vmm_pool_allow_access(pool.get(), cpu, GPU_VMM_ACCESS_READ_WRITE);
        return detail::finish("memory_resource::create", status, memory_resource(pool.share()));
    }

    /// Moves the resource, which no container may refer to.
    memory_resource(memory_resource &&) noexcept = default;
    /// Moves the resource. No container may refer to either.
    memory_resource &operator=(memory_resource &&) noexcept = default;

private:
    explicit memory_resource(gpu_vmm::pool pool) noexcept : pool_(std::move(pool)) {}

    void *do_allocate(std::size_t size, std::size_t alignment) override {
        device_address address = 0;
        // The standard's interface has blocks of zero bytes.
        const gpu_vmm_status status = gpu_vmm_alloc(pool_.get(), size == 0 ? 1 : size, alignment, nullptr, &address);
        if (status != GPU_VMM_OK) {
#if GPU_VMM_EXCEPTIONS
            throw bad_alloc(error(status, "memory_resource::allocate"));
#else
            detail::abort_with("memory_resource::allocate", gpu_vmm_last_error());
#endif
        }
        return reinterpret_cast<void *>(static_cast<std::uintptr_t>(address));
    }

    void do_deallocate(void *address, std::size_t, std::size_t) noexcept override {
        (void)gpu_vmm_free(pool_.get(), static_cast<device_address>(reinterpret_cast<std::uintptr_t>(address)));
    }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

    gpu_vmm::pool pool_;
};

GPU_VMM_END_NAMESPACE

#endif
