// A program without exceptions: every call returns its value or an error. Compile it with -fno-exceptions.

#include <gpu_vmm.hpp>

#include <cstdio>

using namespace gpu_vmm::literals;

static gpu_vmm::result<float> last_of(const gpu_vmm::backend &backend, std::size_t count) {
    auto vector = gpu_vmm::device_vector<float>::create(backend, 64_MiB);
    if (!vector) return vector.error();
    if (auto grown = vector->resize(count); !grown) return grown.error();
    return vector->at(count - 1);
}

int main() {
    const auto backend = gpu_vmm::backend::open();
    if (!backend) return std::printf("%s\n", backend.error().what()), 1;
    const auto last = last_of(*backend, 1'000'000);
    if (!last) return std::printf("%s\n", last.error().what()), 1;
    const auto beyond = last_of(*backend, 1'000'000'000'000'000);
    if (beyond) return 1;
    std::printf("%g, and then the error: %s\n", *last, beyond.error().what());
    return beyond.error().kind() == gpu_vmm::error_kind::out_of_address_space ? 0 : 1;
}
