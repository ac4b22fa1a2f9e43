// The same with Thrust: growth allocates anew, copies all elements and moves them.

#include <thrust/device_vector.h>

#include <cstdio>

int main() {
    thrust::device_vector<float> numbers;
    const std::vector<float> first(1000, 1.5F);
    numbers.insert(numbers.end(), first.begin(), first.end());
    const float *const data = thrust::raw_pointer_cast(numbers.data());
    numbers.resize(1'000'000);
    const float last = numbers[999];
    const bool is_in_place = thrust::raw_pointer_cast(numbers.data()) == data;
    std::printf("%zu numbers, %s: %g\n", numbers.size(), is_in_place ? "in place" : "moved", last);
    return last == 1.5F ? 0 : 1;
}
