// Pools as resources of CCCL and of RMM: streams, adaptors, references, memory that is short.
//
// On the fake NVIDIA driver, on which CUDA's runtime does not start, RMM allocates and frees; its copies are left out.

#include "support.hpp"
#include <dlfcn.h>
#include <gpu_vmm_mr.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

using namespace gpu_vmm::literals;
using gpu_vmm::mr::pool_resource;

static_assert(cuda::mr::synchronous_resource<pool_resource> && cuda::mr::resource<pool_resource>);
static_assert(std::is_convertible_v<pool_resource &, rmm::device_async_resource_ref>);
static_assert(std::is_convertible_v<gpu_vmm::mr::host_pool_resource &, rmm::host_device_async_resource_ref>);
static_assert(!std::is_convertible_v<pool_resource &, rmm::host_async_resource_ref>);
static_assert(std::is_convertible_v<pool_resource, cuda::mr::any_resource<cuda::mr::device_accessible>>);
static_assert(std::is_nothrow_move_constructible_v<pool_resource> && std::is_copy_constructible_v<pool_resource>);

static bool owns(const pool_resource &resource, const void *address) {
    try {
        return resource.pool().find(reinterpret_cast<std::uintptr_t>(address)).offset == 0_B;
    } catch (const gpu_vmm::error &error) {
        demand(error.kind() == gpu_vmm::error_kind::not_found, "no block has the address");
        return false;
    }
}

static void calls(pool_resource resource, cuda::stream_ref stream, cuda::stream_ref other) {
    void *const address = resource.allocate(stream, 1000, 4096);
    demand(owns(resource, address) && reinterpret_cast<std::uintptr_t>(address) % 4096 == 0, "a block with an alignment");
    // On another stream than that of the allocation.
    resource.deallocate(other, address, 1000, 4096);
    demand(!owns(resource, address), "the block is free");
    void *const waited = resource.allocate_sync(1 << 20);
    demand(owns(resource, waited), "a block for every stream");
    resource.deallocate_sync(waited, 1 << 20);
    demand(resource.allocate(stream, 0) == nullptr && resource.allocate_sync(0) == nullptr, "zero bytes are null");
    resource.deallocate(stream, nullptr, 0);
    resource.deallocate_sync(nullptr, 0);
    const pool_resource copy = resource;
    demand(copy == resource && !(copy != resource), "copies are equal");
    demand(!owns(resource, address), "nothing is left");
}

static void copies(pool_resource resource, cuda::stream_ref stream) {
    if (cudaFree(nullptr) != cudaSuccess) {
        std::puts("SKIPPED: RMM's copies: CUDA's runtime does not start here");
        return;
    }
    std::vector<int> numbers(1000, 7), read(1000);
    rmm::device_uvector<int> vector(1000, stream, resource);
    demand(cudaMemcpyAsync(vector.data(), numbers.data(), 4000, cudaMemcpyHostToDevice, stream.get()) == cudaSuccess, "a copy");
    vector.resize(100000, stream);
    demand(cudaMemcpyAsync(read.data(), vector.data(), 4000, cudaMemcpyDeviceToHost, stream.get()) == cudaSuccess, "a copy");
    stream.sync();
    demand(numbers == read && owns(resource, vector.data()), "RMM copies the elements on growth");
}

static void adaptors(pool_resource resource, cuda::stream_ref stream) {
    rmm::device_async_resource_ref reference(resource);
    rmm::device_buffer buffer(1 << 20, stream, reference);
    demand(owns(resource, buffer.data()), "a buffer of RMM in the pool");
    rmm::mr::statistics_resource_adaptor counting(resource);
    rmm::mr::limiting_resource_adaptor limited(counting, 1 << 20);
    void *const inside = limited.allocate(stream, 1000, 256);
    demand(counting.get_bytes_counter().value >= 1000 && owns(resource, inside), "adaptors of RMM over the pool");
    bool refused = false;
    try {
        (void)limited.allocate(stream, 2 << 20, 256);
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    demand(refused, "the adaptor's limit");
    limited.deallocate(stream, inside, 1000, 256);
}

template <class F>
static F *driver(const char *name) {
    static void *const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    demand(library != nullptr, "libcuda.so.1 is loaded");
    auto *const found = reinterpret_cast<F *>(::dlsym(library, name));
    demand(found != nullptr, name);
    return found;
}

// A stream of the driver, which does not block the default stream.
static cuda::stream_ref new_stream() {
    cudaStream_t stream = nullptr;
    demand(driver<int(cudaStream_t *, unsigned)>("cuStreamCreate")(&stream, 1) == 0, "a stream is created");
    return stream;
}

int main(int count, char **arguments) {
    const auto backend = backend_of(count, arguments);
    demand(std::strcmp(backend.name(), "cuda") == 0, "CCCL and RMM are for CUDA");
    void *context = nullptr;
    demand(driver<int(void **, int)>("cuDevicePrimaryCtxRetain")(&context, 0) == 0, "the context is retained");
    demand(driver<int(void *)>("cuCtxSetCurrent")(context) == 0, "the context is current");
    const cuda::stream_ref stream = new_stream(), other = new_stream();
    gpu_vmm::pool_options options;
    options.budget = 256_MiB;
    pool_resource resource(backend, options);
    calls(resource, stream, other);
    adaptors(resource, stream);
    copies(resource, stream);

    const rmm::cuda_device_id device(0);
    rmm::mr::set_per_device_resource(device, resource);
    {
        const auto current = rmm::mr::get_per_device_resource_ref(device);
        rmm::device_buffer buffer(1 << 20, stream, current);
        demand(owns(resource, buffer.data()), "RMM's resource of the device is the pool");
        bool is_short = false;
        try {
            rmm::device_buffer large(1 << 30, stream, current);
        } catch (const std::bad_alloc &error) {
            const auto *const reason = dynamic_cast<const gpu_vmm::bad_alloc *>(&error);
            is_short = reason != nullptr && reason->reason().kind() == gpu_vmm::error_kind::out_of_memory;
        }
        demand(is_short, "std::bad_alloc, with the pool's reason");
    }
    rmm::mr::reset_per_device_resource(device);

    // A pool that the program has already, under a tag. The buffer keeps the pool.
    auto pool = gpu_vmm::pool::create(backend);
    auto tagged = std::make_unique<pool_resource>(backend, pool.tagged("frames"));
    rmm::device_buffer frames(1 << 20, stream, *tagged);
    tagged.reset();
    const auto address = reinterpret_cast<std::uintptr_t>(frames.data());
    char text[7] = "";
    demand(gpu_vmm_write(pool.get(), address, "frames", 7) == GPU_VMM_OK, "the memory lasts");
    demand(pool.suspend("frames", gpu_vmm::backing_store::host()) > 0_B && pool.is_suspended("frames"), "memory of RMM is suspended");
    demand(pool.resume("frames") > 0_B, "and resumed");
    demand(gpu_vmm_read(pool.get(), address, text, 7) == GPU_VMM_OK && std::strcmp(text, "frames") == 0, "with its contents at its address");
    std::puts("passed");
    return 0;
}
