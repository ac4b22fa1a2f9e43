// A program of a user of the installed headers for C++: a vector on host memory.

#include <cstdio>
#include <gpu_vmm.hpp>

int main() {
    auto backend = gpu_vmm::backend::open("host");
    auto numbers = gpu_vmm::device_vector<int>::create(backend);
    numbers.append({1, 2, 3});
    numbers.resize(1000);
    std::printf("gpu_vmm %s for C++: %d of %zu numbers\n", gpu_vmm::library_version(), numbers.at(2), numbers.size());
    return numbers.at(2) == 3 && numbers.at(3) == 0 ? 0 : 1;
}
