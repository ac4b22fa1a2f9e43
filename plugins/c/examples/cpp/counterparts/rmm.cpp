// The same with a pool of RMM.

#include <rmm/device_uvector.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <cstdio>

int main() {
    rmm::mr::cuda_memory_resource cuda;
    rmm::mr::pool_memory_resource resource(cuda, 0);
    rmm::mr::set_per_device_resource(rmm::cuda_device_id(0), resource);
    const cuda::stream_ref stream(cudaStream_t{});
    rmm::device_uvector<float> numbers(1'000'000, stream, rmm::mr::get_per_device_resource_ref(rmm::cuda_device_id(0)));
    std::printf("%zu numbers: %zu bytes\n", numbers.size(), resource.pool_size());
}
