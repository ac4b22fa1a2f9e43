// The same with RMM.

#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

#include <cstdio>

int main() {
    rmm::mr::cuda_memory_resource cuda;
    rmm::mr::pool_memory_resource pool(cuda, 0, 1 << 30);
    rmm::mr::statistics_resource_adaptor counting(pool);
    rmm::cuda_stream first, second;
    cudaEvent_t ready;
    cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
    for (int step = 0; step < 10; ++step) {
        rmm::device_buffer block(64 << 20, first, counting);
        // produce<<<blocks, threads, 0, first>>>(block.data());
        cudaEventRecord(ready, first.value());
        cudaStreamWaitEvent(second.value(), ready, 0);
        // consume<<<blocks, threads, 0, second>>>(block.data());
        block.set_stream(second);
    }
    cudaEventDestroy(ready);
    std::printf("%ld\n", static_cast<long>(counting.get_bytes_counter().peak));
}
