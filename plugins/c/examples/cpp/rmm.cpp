// RMM, and thereby libcudf and others, allocate from a pool of gpu-vmm.

#include <gpu_vmm_mr.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/per_device_resource.hpp>

#include <cstdio>

int main() {
    auto backend = gpu_vmm::backend::open("cuda");
    gpu_vmm::mr::pool_resource resource(backend);
    rmm::mr::set_per_device_resource(rmm::cuda_device_id(0), resource);
    const cuda::stream_ref stream(cudaStream_t{});
    rmm::device_uvector<float> numbers(1'000'000, stream, rmm::mr::get_per_device_resource_ref(rmm::cuda_device_id(0)));
    std::printf("%zu numbers: %s\n", numbers.size(), resource.pool().stats().c_str());
}
