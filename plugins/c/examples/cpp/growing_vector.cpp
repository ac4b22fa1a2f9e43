// A vector in device memory that grows in place: pointers stay valid, and no element is copied.

#include <gpu_vmm.hpp>

#include <cstdio>

int main() {
    auto backend = gpu_vmm::backend::open();
    auto numbers = gpu_vmm::device_vector<float>::create(backend);
    numbers.append(std::vector<float>(1000, 1.5F));
    const float *const data = numbers.data();
    numbers.resize(1'000'000);
    const float last = numbers.at(999);
    std::printf("%zu numbers, %s: %g\n", numbers.size(), numbers.data() == data ? "in place" : "moved", last);
    return numbers.data() == data && last == 1.5F ? 0 : 1;
}
