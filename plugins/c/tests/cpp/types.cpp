// Types of gpu_vmm.hpp: sizes, streams, stores, owners, errors.

#include "support.hpp"

using namespace gpu_vmm::literals;

// The types of the vendors' streams, as their headers name them.
using cudaStream_t = CUstream_st *;
using hipStream_t = ihipStream_t *;

// Streams of other libraries.
struct converting {
    cudaStream_t handle;
    operator cudaStream_t() const { return handle; }
};
struct holding {
    cudaStream_t handle;
    cudaStream_t get() const { return handle; }
};

static_assert(std::is_constructible_v<gpu_vmm::stream, cudaStream_t> && std::is_constructible_v<gpu_vmm::stream, hipStream_t>);
static_assert(!std::is_constructible_v<gpu_vmm::stream, int> && !std::is_constructible_v<gpu_vmm::stream, std::string>);
static_assert(!std::is_convertible_v<int, gpu_vmm::bytes>, "a plain number is no size");
static_assert(std::is_move_constructible_v<gpu_vmm::region> && !std::is_copy_constructible_v<gpu_vmm::region>);
static_assert(!std::is_constructible_v<gpu_vmm::region_ref, gpu_vmm::region &&>, "no reference to a region that ends at once");

template <class... Owners>
constexpr bool are_owners = ((std::is_nothrow_move_constructible_v<Owners> && std::is_nothrow_move_assignable_v<Owners>
                              && std::is_nothrow_destructible_v<Owners> && std::is_nothrow_default_constructible_v<Owners>
                              && !std::is_copy_constructible_v<Owners> && !std::is_copy_assignable_v<Owners>) && ...);
static_assert(are_owners<gpu_vmm::backend, gpu_vmm::banked_region, gpu_vmm::block, gpu_vmm::capture, gpu_vmm::copy_queue, gpu_vmm::descriptor,
                         gpu_vmm::device_vector<float>, gpu_vmm::event, gpu_vmm::exporter, gpu_vmm::followed_region, gpu_vmm::listener,
                         gpu_vmm::multicast, gpu_vmm::offer, gpu_vmm::page_list, gpu_vmm::physical_memory, gpu_vmm::pinned_memory, gpu_vmm::pool,
                         gpu_vmm::region, gpu_vmm::serve::client, gpu_vmm::serve::layout, gpu_vmm::serve::lease, gpu_vmm::tensor>);

static_assert(64_MiB == gpu_vmm::bytes(64 << 20) && 1_GiB / 1_MiB == 1024 && gpu_vmm::bytes::of<double>(4) == 32_B);
static_assert(1_KiB - 2_KiB == 0_B, "a difference is at least zero");
static_assert(gpu_vmm::bytes(UINT64_MAX) + 1_B == gpu_vmm::bytes(UINT64_MAX), "a sum saturates");
static_assert(gpu_vmm::bytes(UINT64_MAX / 2) * 3 == gpu_vmm::bytes(UINT64_MAX), "a product saturates");

int main(int count, char **arguments) {
    int target = 0;
    void *const any = &target;
    const auto cuda = static_cast<cudaStream_t>(any);
    demand(gpu_vmm::stream(cuda).get() == any && gpu_vmm::stream(static_cast<hipStream_t>(any)).get() == any, "streams of both vendors");
    demand(gpu_vmm::stream(converting{cuda}).get() == any && gpu_vmm::stream(holding{cuda}).get() == any, "streams of other libraries");
    demand(gpu_vmm::stream(any).get() == any && gpu_vmm::stream(nullptr).get() == nullptr, "handles, and the default stream");

    demand(gpu_vmm::backing_store::discard().c_str() == nullptr, "no store");
    demand(std::string(gpu_vmm::backing_store::files({"a", "b"}).c_str()).find("files:a") == 0, "a store of several folders");
    const std::string cut("folder\0other", 12);
    demand(std::string(gpu_vmm::backing_store::file(cut).c_str()).empty(), "a folder with a zero byte names no store");

    gpu_vmm::backend backend = backend_of(count, arguments);
    demand(count < 2 || std::strcmp(backend.name(), arguments[1]) == 0, "a backend has the name by which it was opened");
    demand(VALUE(backend.devices()) > 0 && VALUE(backend.memory()).total > 0_B, "there is a device with memory");
    demand(VALUE(backend.info()).front() == '{' && VALUE(backend.capabilities()).front() == '[', "descriptions are JSON");
    demand(VALUE(backend.can_access(0, 0)), "a device reaches its own memory");
    demand(VALUE(backend.recommended_granularity()).count() % VALUE(backend.granularity()).count() == 0, "a multiple of the granularity");
    const auto supported = VALUE(backend.first_supported({gpu_vmm::memory_properties{}}));
    demand(supported.index == 0 && supported.refused == "[]", "plain memory is supported");
    demand(VALUE(backend.dlpack()).id == 0, "device 0 has the number 0");
    demand(std::strlen(gpu_vmm::library_version()) >= 5, "the library has a version");
    FAILS(no_such_device, backend.memory(1000));
    FAILS(invalid_argument, gpu_vmm::backend::open("no such backend"));
    FAILS(not_found, gpu_vmm::at(1));

    // An owner that was moved from is empty, and its calls are invalid arguments.
    gpu_vmm::backend moved = std::move(backend);
    demand(moved && !backend, "a move leaves an empty owner"); // NOLINT(bugprone-use-after-move)
    FAILS(invalid_argument, backend.devices());
    // So is a text with a zero byte, and not a shorter text.
    auto region = VALUE(gpu_vmm::region::create(moved, 64_MiB));
    FAILS(invalid_argument, region.set_tag(cut));
    // A moved owner frees its own object first.
    region = VALUE(gpu_vmm::region::create(moved, 32_MiB));
    demand(VALUE(region.reserved()) >= 32_MiB, "the other region");
    gpu_vmm_region *const released = region.release();
    gpu_vmm::region again(released);
    demand(VALUE(again.size()) == 0_B && !region, "an owner gives up its object");

    auto capture = VALUE(moved.begin_capture());
    VALUE(capture.close());
    demand(!capture, "a capture that has ended");
    VALUE(capture.close());
    demand(VALUE(moved.collect()) == 0_B, "nothing was kept");
    std::puts("passed");
    return 0;
}
