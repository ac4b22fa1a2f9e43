// Returns the memory of a model to the driver for a while. Its pointers stay valid.

#include <gpu_vmm.hpp>

#include <cstdio>

using namespace gpu_vmm::literals;

int main() {
    auto backend = gpu_vmm::backend::open();
    auto pool = gpu_vmm::pool::create(backend);
    auto weights = pool.tagged("weights");
    std::vector<gpu_vmm::block> layers;
    for (int layer = 0; layer < 4; ++layer) layers.push_back(weights.allocate(16_MiB));
    layers[3].write("the last layer", 15_B);
    const gpu_vmm::bytes released = pool.suspend("weights", gpu_vmm::backing_store::pinned());
    std::printf("another program can use %llu bytes\n", static_cast<unsigned long long>(released.count()));
    pool.resume("weights");
    char text[15] = "";
    layers[3].read(text, 15_B);
    std::puts(text);
    return std::string(text) == "the last layer" ? 0 : 1;
}
