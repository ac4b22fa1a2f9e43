#pragma once

/// @file
/// Pools of gpu-vmm as resources of NVIDIA's CCCL (`cuda::mr`), and thereby of RMM. It needs CCCL 3.2 or later, CUDA's headers and
/// exceptions, and links neither CUDA's runtime nor RMM.

#include "gpu_vmm/event.hpp"
#include "gpu_vmm/pool.hpp"

#include <cassert>
#include <cuda/memory_resource>

#if CCCL_VERSION < 3002000
#error "gpu_vmm_mr.hpp needs CCCL 3.2 or later"
#endif
#if !GPU_VMM_EXCEPTIONS
#error "gpu_vmm_mr.hpp needs exceptions, by which resources of CCCL report that memory is short"
#endif

GPU_VMM_BEGIN_NAMESPACE
namespace mr {

/// A resource over a pool, which satisfies `cuda::mr::resource`. It is copyable, and copies share the pool and compare equal. Several threads
/// may use it at the same time. Use pool_resource or host_pool_resource.
///
/// allocate() is for work on the stream, and so is deallocate(): the memory is free once the work has ended that is queued on the stream of
/// the allocation and on the stream of the deallocation. Both streams must exist until gpu_vmm::pool::forget_stream or the end of the pool.
///
/// If memory is short, allocations throw gpu_vmm::bad_alloc, a `std::bad_alloc`.
template <class... Properties>
class basic_pool_resource {
public:
    /// The properties by which `cuda::mr::any_resource` and others erase the type.
    using default_queries = cuda::mr::properties_list<Properties...>;

    /// A resource over a pool, of memory as the pool allocates it.
    explicit basic_pool_resource(const backend &backend, const pool &pool) : shared_(std::make_shared<state>(backend, pool)) {}

    /// A resource over a new pool.
    explicit basic_pool_resource(const backend &backend, const pool_options &options = {})
        : basic_pool_resource(backend, pool::create(backend, options)) {}

    /// Returns the pool, for its statistics, and to suspend and resume it.
    [[nodiscard]] gpu_vmm::pool &pool() const noexcept { return shared_->pool; }

    /// Allocates memory for work on a stream. Zero bytes are null.
    [[nodiscard]] void *allocate(cuda::stream_ref stream, std::size_t size, std::size_t alignment = cuda::mr::default_cuda_malloc_alignment) {
        return take("mr::allocate", stream.get(), size, alignment);
    }

    /// Frees memory in the order of a stream.
    void deallocate(cuda::stream_ref stream, void *address, std::size_t, std::size_t = cuda::mr::default_cuda_malloc_alignment) noexcept {
        if (address == nullptr) return;
        // The stream may be another one than that of the allocation.
        end(gpu_vmm_record_use(shared_->pool.get(), number(address), stream.get()));
        end(gpu_vmm_free(shared_->pool.get(), number(address)));
    }

    /// Allocates memory that every stream and, if it has access, the CPU may use at once. Zero bytes are null.
    [[nodiscard]] void *allocate_sync(std::size_t size, std::size_t alignment = cuda::mr::default_cuda_malloc_alignment) {
        void *const address = take("mr::allocate_sync", nullptr, size, alignment);
        if (address != nullptr) {
            // Memory that was freed on the default stream may still be in use there.
            gpu_vmm_status status = gpu_vmm_event_record(shared_->event.get(), nullptr);
            if (status == GPU_VMM_OK) status = gpu_vmm_event_wait(shared_->event.get());
            if (status != GPU_VMM_OK) {
                error failure(status, "mr::allocate_sync");
                end(gpu_vmm_free(shared_->pool.get(), number(address)));
                throw failure;
            }
        }
        return address;
    }

    /// Frees memory that no work uses any more.
    void deallocate_sync(void *address, std::size_t, std::size_t = cuda::mr::default_cuda_malloc_alignment) noexcept {
        if (address != nullptr) end(gpu_vmm_free(shared_->pool.get(), number(address)));
    }

    /// Whether memory of one can be deallocated by the other.
    friend bool operator==(const basic_pool_resource &a, const basic_pool_resource &b) noexcept {
        return a.shared_->pool.get() == b.shared_->pool.get();
    }
    friend bool operator!=(const basic_pool_resource &a, const basic_pool_resource &b) noexcept { return !(a == b); }

    /// Says to CCCL what can access the memory.
    template <class Property, std::enable_if_t<(std::is_same_v<Property, Properties> || ...), int> = 0>
    friend constexpr void get_property(const basic_pool_resource &, Property) noexcept {}

private:
    struct state {
        state(const backend &backend, const gpu_vmm::pool &from) : pool(from.share()), event(gpu_vmm::event::create(backend)) {}
        gpu_vmm::pool pool;
        gpu_vmm::event event;
    };

    static device_address number(void *address) noexcept { return reinterpret_cast<std::uintptr_t>(address); }

    // An address that no block has is a defect of the program. Nothing can receive other errors, such as the exit of the process.
    static void end([[maybe_unused]] gpu_vmm_status status) noexcept { assert(status != GPU_VMM_NOT_FOUND); }

    void *take(const char *operation, void *stream, std::size_t size, std::size_t alignment) {
        device_address address = 0;
        if (size == 0) return nullptr;
        const gpu_vmm_status status = gpu_vmm_alloc(shared_->pool.get(), size, alignment, stream, &address);
        if (status == GPU_VMM_OUT_OF_MEMORY || status == GPU_VMM_OUT_OF_ADDRESS_SPACE) throw bad_alloc(error(status, operation));
        if (status != GPU_VMM_OK) throw error(status, operation);
        return reinterpret_cast<void *>(static_cast<std::uintptr_t>(address));
    }

    std::shared_ptr<state> shared_;
};

/// A resource of memory that devices can access.
using pool_resource = basic_pool_resource<cuda::mr::device_accessible>;

/// A resource of memory that devices and the CPU can access: a pool of memory with location::host, or of the host backend.
using host_pool_resource = basic_pool_resource<cuda::mr::device_accessible, cuda::mr::host_accessible>;

static_assert(cuda::mr::resource_with<pool_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::resource_with<host_pool_resource, cuda::mr::device_accessible, cuda::mr::host_accessible>);
static_assert(!cuda::mr::synchronous_resource_with<pool_resource, cuda::mr::host_accessible>);

} // namespace mr
GPU_VMM_END_NAMESPACE
