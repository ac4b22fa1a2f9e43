// The same with RMM: the layers are copied by hand, and come back at other addresses.

#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>

#include <cstdio>
#include <string>
#include <vector>

int main() {
    rmm::mr::cuda_memory_resource resource;
    rmm::cuda_stream stream;
    std::vector<rmm::device_buffer> layers;
    for (int layer = 0; layer < 4; ++layer) layers.emplace_back(16 << 20, stream, resource);
    cudaMemcpyAsync(layers[3].data(), "the last layer", 15, cudaMemcpyHostToDevice, stream.value());
    std::vector<void *> saved;
    std::size_t released = 0;
    for (const rmm::device_buffer &layer : layers) {
        cudaMallocHost(&saved.emplace_back(), layer.size());
        cudaMemcpyAsync(saved.back(), layer.data(), layer.size(), cudaMemcpyDeviceToHost, stream.value());
        released += layer.size();
    }
    stream.synchronize();
    layers.clear();
    std::printf("another program can use %zu bytes\n", released);
    for (void *layer : saved) layers.emplace_back(layer, 16 << 20, stream, resource);
    char text[15] = "";
    cudaMemcpyAsync(text, layers[3].data(), 15, cudaMemcpyDeviceToHost, stream.value());
    stream.synchronize();
    for (void *layer : saved) cudaFreeHost(layer);
    std::puts(text);
    return std::string(text) == "the last layer" ? 0 : 1;
}
