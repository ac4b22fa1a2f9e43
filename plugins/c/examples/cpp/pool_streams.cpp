// A pool with two streams: a block is used on both, and is free once both have done their work.

#include "streams.hpp"
#include <gpu_vmm.hpp>

#include <cstdio>

using namespace gpu_vmm::literals;

int main() {
    auto backend = gpu_vmm::backend::open();
    gpu_vmm::pool_options options;
    options.budget = 1_GiB;
    example_stream first(backend), second(backend); // they outlive the pool
    auto pool = gpu_vmm::pool::create(backend, options);
    auto ready = gpu_vmm::event::create(backend);
    for (int step = 0; step < 10; ++step) {
        auto block = pool.allocate(64_MiB, first);
        // produce<<<blocks, threads, 0, first>>>(block.data<float>());
        ready.record(first);
        ready.hold(second);
        // consume<<<blocks, threads, 0, second>>>(block.data<float>());
        block.record_use(second);
    }
    std::puts(pool.stats().c_str());
}
