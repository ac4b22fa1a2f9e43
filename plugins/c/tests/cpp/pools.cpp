// Pools: blocks, tags, streams, kinds of memory, files, and the memory resource of the standard library.

#include "support.hpp"

using namespace gpu_vmm::literals;

static void blocks(const gpu_vmm::backend &backend) {
    gpu_vmm::pool_options options;
    options.budget = 1_GiB;
    auto pool = VALUE(gpu_vmm::pool::create(backend, options));
    auto weights = VALUE(pool.tagged("weights"));
    auto block = VALUE(weights.allocate(3_MiB));
    demand(block && block.size() == 3_MiB && block.data<float>() != nullptr, "a block");
    VALUE(block.write("kept", 5_B, 1000_B));
    VALUE(block.record_use(nullptr));
    const auto info = VALUE(pool.find(block.address() + 1000));
    demand(info.address == block.address() && info.offset == 1000_B && info.capacity >= 3_MiB && info.tag == "weights", "the block is found");

    demand(VALUE(pool.suspend("weights", gpu_vmm::backing_store::host_kept())) > 0_B && VALUE(pool.is_suspended("weights")), "a suspended tag");
    char text[5] = "";
    FAILS(suspended, block.read(text, 5_B, 1000_B));
    FAILS(not_found, pool.suspend("weight", gpu_vmm::backing_store::host()));
    demand(VALUE(pool.host_memory()) > 0_B, "the contents are in host memory");
    demand(VALUE(pool.resume("weights")) > 0_B, "a resumed tag");
    VALUE(block.read(text, 5_B, 1000_B));
    demand(std::strcmp(text, "kept") == 0, "the contents are restored");
    // What is behind a block, and in front of it, is another one's.
    FAILS(out_of_range, block.read(text, 1_B, 3_MiB));
    FAILS(out_of_range, block.read(text, 5_B, 3_MiB - 4_B));
    FAILS(out_of_range, block.write(text, 1_B, 1_GiB * (std::uint64_t{1} << 63)));
    FAILS(out_of_range, block.write(text, 16_B, gpu_vmm::bytes(std::uint64_t(-8))));
    demand(VALUE(pool.trim_host()) > 0_B && VALUE(pool.host_memory()) == 0_B, "no host memory stays");

    // A block keeps its pool: it is freed after the pool's objects.
    auto lasting = VALUE(VALUE(gpu_vmm::pool::create(backend)).allocate(1_MiB));
    VALUE(lasting.write("x", 1_B));
    VALUE(lasting.close());
    demand(lasting.size() == 0_B, "an empty block has no bytes");
    // And the tag's object: the block returns to the pool, which knows it no more.
    const auto address = block.address();
    weights = {};
    block = {};
    FAILS(not_found, pool.find(address));
    VALUE(pool.forget_tag("weights"));

    auto raw = VALUE(pool.allocate(1_MiB, nullptr, 4_KiB));
    demand(raw.address() % 4096 == 0, "an aligned block");
    const auto released = raw.release();
    demand(!raw && VALUE(pool.find(released)).capacity >= 1_MiB, "a released block stays");
    raw = pool.adopt(released, 1_MiB);
    VALUE(raw.close());
    FAILS(not_found, pool.free(released));
    FAILS(invalid_argument, pool.allocate(0_B));
    FAILS(out_of_memory, pool.allocate(2_GiB));
    VALUE(pool.set_budget(512_MiB));
    FAILS(out_of_memory, pool.allocate(768_MiB));
    VALUE(pool.forget_stream(nullptr));
    demand(VALUE(pool.trim()) > 0_B, "free memory returns to the driver");

    const auto shared = pool.share();
    demand(shared.get() == pool.get(), "another object of the pool");
    demand(VALUE(pool.stats()).front() == '{' && VALUE(pool.snapshot()).front() == '{' && VALUE(pool.kinds()).front() == '[', "JSON");
    VALUE(pool.move_to_device(0));
    VALUE(pool.allow_access(0));
    FAILS(no_such_device, pool.allow_access(77));
    gpu_vmm::pool none;
    FAILS(invalid_argument, none.allocate(1_MiB));
}

static void kinds(const gpu_vmm::backend &backend) {
    auto pool = VALUE(gpu_vmm::pool::create(backend));
    gpu_vmm::memory_properties exportable;
    exportable.handle_types = gpu_vmm::handle_types::fd;
    auto shared = VALUE(pool.with_memory(exportable));
    auto block = VALUE(shared.allocate(1_MiB));
    VALUE(block.write("x", 1_B));
    demand(VALUE(pool.kinds()).find("stats") != std::string::npos, "two kinds");
}

static void files(const gpu_vmm::backend &backend) {
    const std::string path = temporary("pool");
    gpu_vmm::pool_options options;
    options.restorable = true;
    gpu_vmm::device_address address = 0;
    {
        auto pool = VALUE(gpu_vmm::pool::create(backend, options));
        auto tagged = VALUE(pool.tagged("saved"));
        auto block = VALUE(tagged.allocate(1_MiB));
        VALUE(block.write("saved", 6_B));
        address = block.address();
        VALUE(pool.save(path, {"saved"}, true));
        FAILS(not_found, pool.save(path, {"other"}));
    }
    auto restored = VALUE(gpu_vmm::pool::restore(backend, path, options));
    demand(restored.blocks.size() == 1 && restored.blocks[0].tag == "saved", "the block and its tag");
    demand(restored.blocks[0].block.address() == address && restored.blocks[0].block.size() == 1_MiB, "the same address and size");
    char text[6] = "";
    VALUE(restored.blocks[0].block.read(text, 6_B));
    demand(std::strcmp(text, "saved") == 0, "the same bytes");
    auto at = VALUE(restored.pool.tagged("saved"));
    restored.blocks.clear();
    auto again = VALUE(at.allocate_at(address, 1_MiB));
    demand(again.address() == address, "a block at an address");
    FAILS(address_taken, at.allocate_at(address, 1_MiB));
    std::remove(path.c_str());
    FAILS(file, gpu_vmm::pool::restore(backend, path));
}

// Containers of the standard library in memory that both the CPU and the device reach.
static void containers(const gpu_vmm::backend &backend) {
#if defined(__cpp_lib_memory_resource)
    gpu_vmm::pool pool = VALUE(gpu_vmm::pool::create(backend));
    if (std::strcmp(backend.name(), "host") != 0) {
        gpu_vmm::memory_properties host;
        host.location = gpu_vmm::location::host;
        // HIP gives the CPU access to a device's memory as well.
        if (std::strcmp(backend.name(), "cuda") == 0) FAILS(unsupported, gpu_vmm::memory_resource::create(pool));
#if GPU_VMM_EXCEPTIONS
        try {
            pool = pool.with_memory(host);
        } catch (const gpu_vmm::error &error) {
            std::printf("no host memory here: %s\n", error.what());
            return;
        }
#else
        auto with_host = pool.with_memory(host);
        if (!with_host) {
            std::printf("no host memory here: %s\n", with_host.error().what());
            return;
        }
        pool = std::move(with_host).value();
#endif
    }
    auto resource = VALUE(gpu_vmm::memory_resource::create(pool));
    {
        std::pmr::vector<int> numbers(&resource);
        for (int number = 0; number < 100000; ++number) numbers.push_back(number);
        demand(numbers[99999] == 99999, "a vector of the standard library");
        demand(VALUE(pool.find(reinterpret_cast<std::uintptr_t>(numbers.data()))).offset == 0_B, "its elements are a block of the pool");
        std::pmr::string text("a text that is too long for the string itself", &resource);
        demand(text.size() == 45, "a text");
        resource.deallocate(resource.allocate(0, 64), 0, 64);
        demand(resource.is_equal(resource) && !resource.is_equal(*std::pmr::new_delete_resource()), "a resource equals itself alone");
    }
#if GPU_VMM_EXCEPTIONS
    pool.set_budget(64_MiB);
    try {
        (void)resource.allocate(1 << 30);
        demand(false, "memory is short");
    } catch (const std::bad_alloc &error) {
        const auto *const reason = dynamic_cast<const gpu_vmm::bad_alloc *>(&error);
        demand(reason != nullptr && reason->reason().kind() == gpu_vmm::error_kind::out_of_memory, "std::bad_alloc with the reason");
    }
#endif
#else
    (void)backend;
    std::puts("SKIPPED: this standard library has no memory resources");
#endif
}

int main(int count, char **arguments) {
    const auto backend = backend_of(count, arguments);
    blocks(backend);
    kinds(backend);
    files(backend);
    containers(backend);
    std::puts("passed");
    return 0;
}
