// A tensor as kvcached's: each page is mapped to one shared page of zeros, until memory of its own takes its place.
//
//     pages host|cuda|hip

#include "kvcached_gpu_vmm.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace vmm = kvcached::gpu_vmm;

#define CHECK(what)                                                    \
    do {                                                               \
        if (!(what)) {                                                 \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, gpu_vmm_last_error()); \
            exit(1);                                                   \
        }                                                              \
    } while (0)
#define RUN(call) vmm::check((call), #call, __FILE__, __LINE__)
#define FAILS(call, expected)                                  \
    do {                                                       \
        const vmm::status_t failed = (call);                   \
        CHECK(failed == (expected) && !vmm::is_success(failed) && strlen(vmm::error_string(failed)) > 0); \
    } while (0)

static size_t page;

static char *at(void *tensor, size_t number) { return static_cast<char *>(tensor) + number * page; }

// Returns the first byte behind an address, through gpu-vmm's region.
static unsigned char first_byte(void *address) {
    uint64_t offset = 0, rest = 0;
    const auto region = vmm::detail::Process::instance().reservations.find(address, offset, rest);
    unsigned char byte = 0;
    CHECK(region && gpu_vmm_region_read(region.get(), offset, &byte, 1) == GPU_VMM_OK);
    return byte;
}

static vmm::allocation_handle_t create(unsigned char first) {
    const auto properties = vmm::make_pinned_device_allocation_prop(0);
    vmm::allocation_handle_t made{};
    RUN(vmm::mem_create(&made, page, &properties));
    const std::vector<unsigned char> bytes(page, first);
    CHECK(gpu_vmm_physical_write(made, 0, bytes.data(), page) == GPU_VMM_OK);
    return made;
}

static void map(void *address, vmm::allocation_handle_t memory) {
    const auto access = vmm::make_device_rw_access_desc(0);
    RUN(vmm::mem_map(address, page, 0, memory));
    RUN(vmm::set_access(address, page, &access, 1));
}

static void pages_take_the_place_of_zeros(size_t count) {
    const auto zero = create(0);
    void *tensor = nullptr;
    RUN(vmm::address_reserve(&tensor, count * page, page));
    for (size_t number = 0; number < count; number++) {
        map(at(tensor, number), zero);
    }
    std::vector<vmm::allocation_handle_t> mine;
    for (size_t number = 0; number < count; number += 2) {
        RUN(vmm::mem_unmap(at(tensor, number), page));
        mine.push_back(create(static_cast<unsigned char>(number + 1)));
        map(at(tensor, number), mine.back());
    }
    for (size_t number = 0; number < count; number++) {
        CHECK(first_byte(at(tensor, number)) == (number % 2 ? 0 : number + 1));
    }
    RUN(vmm::device_synchronize());
    // Back to zeros, as when a page is freed.
    RUN(vmm::mem_unmap(tensor, page));
    map(tensor, zero);
    CHECK(first_byte(tensor) == 0);
    // Released memory stays as long as it is mapped.
    for (const auto handle : mine) {
        RUN(vmm::mem_release(handle));
    }
    CHECK(first_byte(at(tensor, 2)) == 3);
    RUN(vmm::mem_unmap(tensor, count * page));
    RUN(vmm::address_free(tensor, count * page));
    RUN(vmm::mem_release(zero));
}

static void wrong_calls_are_refused() {
    const auto memory = create(1);
    const auto properties = vmm::make_pinned_device_allocation_prop(0), missing = vmm::make_pinned_device_allocation_prop(99);
    const auto access = vmm::make_device_rw_access_desc(0), foreign = vmm::make_device_rw_access_desc(99);
    vmm::allocation_handle_t made{};
    void *tensor = nullptr, *none = nullptr;
    int local = 0;
    FAILS(vmm::mem_create(&made, page + 1, &properties), GPU_VMM_UNALIGNED);
    FAILS(vmm::mem_create(&made, page, &missing), GPU_VMM_NO_SUCH_DEVICE);
    CHECK(!made);
    FAILS(vmm::address_reserve(&none, 0, page), GPU_VMM_INVALID_ARGUMENT);
    FAILS(vmm::address_reserve(&none, page, 3), GPU_VMM_INVALID_ARGUMENT);
    CHECK(!none);
    RUN(vmm::address_reserve(&tensor, 4 * page, page));
    FAILS(vmm::mem_map(&local, page, 0, memory), GPU_VMM_NOT_FOUND);
    FAILS(vmm::mem_map(tensor, page, 0, nullptr), GPU_VMM_INVALID_ARGUMENT);
    FAILS(vmm::mem_map(tensor, 2 * page, 0, memory), GPU_VMM_INVALID_ARGUMENT);
    FAILS(vmm::mem_map(tensor, page, page, memory), GPU_VMM_INVALID_ARGUMENT);
    FAILS(vmm::mem_map(at(tensor, 4), page, 0, memory), GPU_VMM_NOT_FOUND);
    FAILS(vmm::mem_map(at(tensor, 0) + 1, page, 0, memory), GPU_VMM_UNALIGNED);
    FAILS(vmm::mem_unmap(tensor, page), GPU_VMM_NOT_MAPPED);
    FAILS(vmm::set_access(tensor, page, &access, 1), GPU_VMM_NOT_MAPPED);
    map(tensor, memory);
    FAILS(vmm::mem_map(tensor, page, 0, memory), GPU_VMM_ALREADY_MAPPED);
    FAILS(vmm::mem_unmap(tensor, 2 * page), GPU_VMM_NOT_MAPPED);
    FAILS(vmm::mem_unmap(at(tensor, 3), 2 * page), GPU_VMM_OUT_OF_RANGE);
    FAILS(vmm::set_access(tensor, page, &foreign, 1), GPU_VMM_NO_SUCH_DEVICE);
    FAILS(vmm::address_free(tensor, page), GPU_VMM_NOT_FOUND);
    RUN(vmm::mem_release(memory));
    RUN(vmm::address_free(tensor, 4 * page));  // unmaps what is mapped
    FAILS(vmm::address_free(tensor, 4 * page), GPU_VMM_NOT_FOUND);
    FAILS(vmm::set_device(99), GPU_VMM_NO_SUCH_DEVICE);
    FAILS(vmm::set_device(-1), GPU_VMM_NO_SUCH_DEVICE);
    bool thrown = false;
    try {
        RUN(vmm::set_device(99));
    } catch (const std::runtime_error &error) {
        thrown = strstr(error.what(), "there is no device 99") != nullptr;
    }
    CHECK(thrown && vmm::current_device() == 0);
}

static void threads_map_and_unmap() {
    void *tensor = nullptr;
    RUN(vmm::address_reserve(&tensor, 8 * page, page));
    std::vector<std::thread> threads;
    for (size_t number = 0; number < 4; number++) {
        threads.emplace_back([=] {
            for (int round = 0; round < 20; round++) {
                const auto memory = create(static_cast<unsigned char>(number));
                map(at(tensor, number), memory);
                CHECK(first_byte(at(tensor, number)) == number);
                RUN(vmm::mem_unmap(at(tensor, number), page));
                RUN(vmm::mem_release(memory));
            }
        });
    }
    for (auto &thread : threads) {
        thread.join();
    }
    RUN(vmm::address_free(tensor, 8 * page));
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    setenv("GPU_VMM_BACKEND", arguments[1], 1);
    RUN(vmm::initialize_runtime());
    CHECK(!strcmp(vmm::backend_name(), arguments[1]));
    RUN(vmm::set_device(0));
    int supported = 0, none = 1;
    RUN(vmm::get_vmm_support(&supported, 0));
    FAILS(vmm::get_vmm_support(&none, 99), GPU_VMM_NO_SUCH_DEVICE);
    CHECK(supported == 1 && none == 0);
    const auto properties = vmm::make_pinned_device_allocation_prop(0);
    RUN(vmm::get_allocation_granularity(&page, &properties));

    size_t before = 0, after = 0, total = 0;
    create(0);  // the first memory may cost the driver some of its own; this page is released with the process
    RUN(vmm::mem_get_info(&before, &total));
    CHECK(before > 0 && before <= total);
    pages_take_the_place_of_zeros(16);
    wrong_calls_are_refused();
    threads_map_and_unmap();
    RUN(vmm::mem_get_info(&after, &total));
    CHECK(!strcmp(arguments[1], "host") || before == after);  // other processes use host memory as well
    printf("pages were mapped on %s\n", arguments[1]);
    return 0;
}
