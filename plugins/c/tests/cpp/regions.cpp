// Regions and what belongs to them: growth, contents, suspension, mappings, banks, queues, observers, files, vectors.

#include "support.hpp"
#include <numeric>

using namespace gpu_vmm::literals;
using gpu_vmm::bytes;

static bytes unit;

static std::uint8_t byte_at(gpu_vmm::region_ref region, bytes offset) {
    std::uint8_t byte = 0;
    VALUE(region.read(&byte, 1_B, offset));
    return byte;
}

static gpu_vmm::region filled(const gpu_vmm::backend &backend, std::uint8_t value) {
    auto region = VALUE(gpu_vmm::region::create(backend, 8 * unit));
    // Two mappings, which can be exchanged one by one.
    VALUE(region.grow(unit));
    VALUE(region.grow(2 * unit));
    VALUE(region.fill(0_B, 2 * unit, value));
    return region;
}

static void grow(const gpu_vmm::backend &backend) {
    auto region = VALUE(gpu_vmm::region::create(backend, 8 * unit));
    const auto address = VALUE(region.address());
    VALUE(region.grow(unit));
    VALUE(region.write("kept", 5_B));
    VALUE(region.grow(4 * unit));
    char text[5] = "";
    VALUE(region.read(text, 5_B));
    demand(std::strcmp(text, "kept") == 0 && VALUE(region.address()) == address, "growth keeps address and bytes");
    demand(VALUE(region.size()) >= 4 * unit && VALUE(region.reserved()) == 8 * unit, "the sizes");
    demand(VALUE(region.granularity()) <= unit && !VALUE(region.is_plain()), "the unit");
    VALUE(region.shrink(unit));
    demand(VALUE(region.size()) < 4 * unit, "a shrunk region");
    demand(VALUE(region.grow_or_move(2 * unit)) == address, "growth within the addresses does not move");
    VALUE(region.set_tag("weights"));
    demand(VALUE(region.tag()) == "weights", "the tag");
    demand(VALUE(gpu_vmm::at(address)).find("weights") != std::string::npos, "the process knows the region");
    FAILS(out_of_range, region.read(text, 1_B, 64 * unit));
    FAILS(out_of_address_space, region.grow(bytes(UINT64_MAX / 2)));
}

static void suspend(const gpu_vmm::backend &backend) {
    auto region = filled(backend, 7);
    demand(VALUE(region.suspend(gpu_vmm::backing_store::host())) == 2 * unit && VALUE(region.is_suspended()), "all memory is released");
    FAILS(suspended, region.fill(0_B, unit, 1));
    demand(VALUE(region.resume()) == 2 * unit && byte_at(region, unit) == 7, "the contents are restored");
    const auto shared = VALUE(region.suspend_shared(gpu_vmm::backing_store::file()));
    demand(shared.released == 2 * unit && shared.stayed == 0_B, "no other holder");
    VALUE(region.resume());
    demand(byte_at(region, 2 * unit - 1_B) == 7, "the contents come from the file");
    FAILS(invalid_argument, region.suspend(gpu_vmm::backing_store::file(std::string("a\0b", 3))));

    auto pages = VALUE(gpu_vmm::page_list::create(backend, unit, 4 * unit));
    auto paged = VALUE(gpu_vmm::region::create(backend, 8 * unit));
    VALUE(paged.grow(2 * unit, pages));
    demand(VALUE(pages.sizes()).held == 2 * unit && VALUE(pages.sizes()).budget == 4 * unit, "two pages are in use");
    VALUE(paged.suspend_shared(gpu_vmm::backing_store::host()));
    demand(VALUE(pages.sizes()).free == 2 * unit, "they return to the list");
    VALUE(paged.resume(pages));
    FAILS(out_of_memory, paged.grow(6 * unit, pages));
    const auto page = VALUE(pages.take());
    demand(VALUE(page.size()) == unit, "a page of the list");
    VALUE(pages.set_budget(3 * unit));
}

static void map(const gpu_vmm::backend &backend) {
    auto memory = VALUE(gpu_vmm::physical_memory::create(backend, unit));
    gpu_vmm::region_options options;
    options.size = 8 * unit;
    auto region = VALUE(gpu_vmm::region::create(backend, options));
    VALUE(region.map(0_B, memory));
    FAILS(already_mapped, region.map(0_B, memory));
    FAILS(access_denied, region.write("x", 1_B));
    VALUE(region.set_access(0_B, unit, 0, gpu_vmm::access::read_write));
    demand(VALUE(region.access(0_B, 0)) == gpu_vmm::access::read_write, "the access that was set");
    VALUE(region.write("mapped", 7_B, 8_B));
    char text[7] = "";
    VALUE(memory.read(text, 7_B, 8_B));
    demand(std::strcmp(text, "mapped") == 0, "the memory has what was written through its mapping");
    const auto mapping = VALUE(region.mapping(0_B));
    demand(mapping.length == unit && mapping.device == 0 && !mapping.is_poisoned, "the mapping");
    const auto same = VALUE(region.physical(0_B));
    const auto other = VALUE(memory.retain());
    demand(VALUE(memory.is_same(same)) && VALUE(memory.is_same(other)), "objects of one memory");
    demand(VALUE(memory.holders()) == 4 && VALUE(region.holders(0_B)) == 4, "three objects and a mapping");
    demand(VALUE(memory.properties()).location == gpu_vmm::location::device, "plain memory");
    VALUE(memory.write("direct", 7_B));
    auto copy = VALUE(gpu_vmm::physical_memory::create(backend, unit));
    VALUE(copy.copy_from(memory, 7_B));
    VALUE(copy.read(text, 7_B));
    demand(std::strcmp(text, "direct") == 0, "a copy between two memories");
    VALUE(region.unmap(0_B, unit));
    FAILS(not_mapped, region.mapping(0_B));
    FAILS(unaligned, region.unmap(1_B, unit));
    FAILS(unsupported, memory.export_fd());
    FAILS(unsupported, memory.export_fabric());

    gpu_vmm::memory_properties exportable;
    exportable.handle_types = gpu_vmm::handle_types::fd;
    auto exported = VALUE(gpu_vmm::physical_memory::create(backend, unit, exportable));
    VALUE(exported.write("by descriptor", 14_B));
    const auto fd = VALUE(exported.export_fd());
    const auto imported = VALUE(gpu_vmm::physical_memory::import_fd(backend, fd.get(), unit, exportable));
    char by[14] = "";
    VALUE(imported.read(by, 14_B));
    demand(std::strcmp(by, "by descriptor") == 0, "memory passes by descriptor");
    const auto offer = VALUE(exported.offer(backend));
    demand(VALUE(offer.data()).size > 0, "an offer has bytes");
    FAILS(peer, gpu_vmm::physical_memory::from_offer(backend, "none", 4));
    FAILS(peer, gpu_vmm::region::from_offer(backend, "none", 4));
}

static void exchange_memory(const gpu_vmm::backend &backend) {
    auto first = filled(backend, 1), second = filled(backend, 2);
    VALUE(first.swap(0_B, second, unit, unit));
    demand(byte_at(first, 0_B) == 2 && byte_at(second, unit) == 1, "two ranges are exchanged");
    VALUE(first.swap_all(second));
    demand(byte_at(first, 0_B) == 2 && byte_at(second, unit) == 1, "and all memory");
    VALUE(first.copy_from(second, 16_B, unit, 0_B));
    auto fork = VALUE(gpu_vmm::region::create(backend, 8 * unit));
    VALUE(second.fork(unit, fork));
    demand(byte_at(fork, 0_B) == byte_at(second, 0_B), "a fork has the same memory");
    FAILS(access_denied, fork.fill(0_B, 1_B, 9));
    demand(VALUE(fork.make_private(0_B, unit)) == unit, "one page is copied");
    VALUE(fork.fill(0_B, 1_B, 9));
    // No list would mean memory outside of every budget.
    FAILS(invalid_argument, fork.make_private(0_B, unit, gpu_vmm::page_list()));
    VALUE(first.move_to_device(0));

    gpu_vmm::region_options options;
    options.size = 2 * unit;
    auto banked = VALUE(gpu_vmm::banked_region::create(backend, options));
    const auto low = VALUE(banked.add(unit));
    const auto memory = VALUE(gpu_vmm::physical_memory::create(backend, unit));
    const auto high = VALUE(banked.add({&memory}));
    demand(!VALUE(banked.selected()) && VALUE(banked.address()) != 0, "no bank is mapped");
    VALUE(banked.select(low));
    VALUE(banked.write("low", 4_B));
    VALUE(banked.select(high));
    VALUE(banked.write("high", 5_B));
    VALUE(banked.select(low));
    char text[4] = "";
    VALUE(banked.read(text, 4_B));
    demand(std::strcmp(text, "low") == 0 && VALUE(banked.selected()) == low, "each bank keeps its contents");
    VALUE(banked.add_observer({}));
    VALUE(banked.hide());
    VALUE(banked.remove(high));
    FAILS(not_found, banked.select(high));
}

static void observe(const gpu_vmm::backend &backend) {
    auto region = filled(backend, 3);
    int calls = 0;
    bool refuses = true;
    gpu_vmm::observer observer;
    observer.before = [&](const gpu_vmm::backing_change &change) {
        demand(change.effect == gpu_vmm::backing_effect::removed && change.parts.size() == 1 && change.parts[0].length == 2 * unit, "the change");
        return !refuses;
    };
    observer.after = [&](const gpu_vmm::backing_change &, gpu_vmm::backing_outcome outcome) {
        demand(outcome == gpu_vmm::backing_outcome::changed, "the outcome");
        ++calls;
    };
    const auto id = VALUE(region.add_observer(std::move(observer)));
    FAILS(busy, region.suspend(gpu_vmm::backing_store::discard()));
    refuses = false;
    VALUE(region.suspend(gpu_vmm::backing_store::discard()));
    demand(calls == 1, "the observer was called once");
    VALUE(region.remove_observer(id));
    VALUE(region.resume());
    FAILS(not_found, region.remove_observer(id));
    // The functions of an observer end with it.
    const auto counted = std::make_shared<int>(0);
    gpu_vmm::observer counting;
    counting.before = [counted](const gpu_vmm::backing_change &) { return true; };
    VALUE(region.add_observer(counting));
    counting = {};
    demand(counted.use_count() == 2, "the region has the observer");
    region = {};
    demand(counted.use_count() == 1, "and frees it");
#if GPU_VMM_EXCEPTIONS
    // What the functions own may fail a call when it ends. The error is that of the call that was refused.
    struct failing {
        ~failing() { (void)gpu_vmm_free(nullptr, 1); }
    };
    gpu_vmm::observer ending;
    ending.before = [owned = std::make_shared<failing>()](const gpu_vmm::backing_change &) { return owned != nullptr; };
    try {
        VALUE(gpu_vmm::region_ref().add_observer(std::move(ending)));
        demand(false, "there is no region");
    } catch (const gpu_vmm::error &error) {
        demand(std::strstr(error.what(), "region") != nullptr, error.what());
    }
    auto other = filled(backend, 4);
    gpu_vmm::observer throwing;
    throwing.before = [](const gpu_vmm::backing_change &) -> bool { throw std::runtime_error("no"); };
    VALUE(other.add_observer(throwing));
    FAILS(busy, other.suspend(gpu_vmm::backing_store::discard()));
#endif
}

static void copy(const gpu_vmm::backend &backend) {
    auto region = filled(backend, 5);
    auto queue = VALUE(gpu_vmm::copy_queue::create(backend));
    auto pinned = VALUE(gpu_vmm::pinned_memory::create(backend, unit));
    auto event = VALUE(gpu_vmm::event::create(backend));
    std::memset(VALUE(pinned.data()), 6, unit.count());
    demand(VALUE(event.done()), "an event that was not recorded is done");
    VALUE(event.record({}));
    VALUE(event.wait());
    VALUE(event.hold({}));
    VALUE(queue.hold(event));
    VALUE(queue.write(region, 0_B, pinned, 0_B, unit));
    VALUE(queue.read(region, unit, pinned, 0_B, 16_B));
    VALUE(queue.record(event));
    VALUE(queue.finish());
    demand(byte_at(region, 0_B) == 6 && *static_cast<std::uint8_t *>(VALUE(pinned.data())) == 5, "copies in both directions");
    FAILS(out_of_range, queue.write(region, 64 * unit, pinned, 0_B, 1_B));
}

static void save(const gpu_vmm::backend &backend) {
    const std::string one = temporary("one"), several = temporary("several");
    {
        auto first = filled(backend, 8), second = filled(backend, 9);
        VALUE(gpu_vmm::snapshot(first, one, true));
        VALUE(gpu_vmm::snapshot({first, second}, several));
    }
    gpu_vmm::restore_options options;
    options.relocate = true;
    options.devices = {{gpu_vmm::device_pair::all(), 0}};
    auto single = VALUE(gpu_vmm::restore(backend, one, options));
    demand(byte_at(single, unit) == 8, "the region of a file");
    auto restored = VALUE(gpu_vmm::restore_all(backend, several, options));
    demand(restored.size() == 2 && byte_at(restored[1], unit) == 9, "all regions of a file");
    demand(VALUE(gpu_vmm::snapshot_count(several)) == 2, "the number of regions");
    std::remove(one.c_str());
    std::remove(several.c_str());
    FAILS(file, gpu_vmm::restore(backend, one));
}

static void vector(const gpu_vmm::backend &backend) {
    auto vector = VALUE(gpu_vmm::device_vector<float>::create(backend, 8 * unit));
    std::vector<float> numbers(1000);
    std::iota(numbers.begin(), numbers.end(), 0.0F);
    VALUE(vector.append(numbers));
    const float *const data = vector.data();
    VALUE(vector.resize(300000));
    VALUE(vector.push_back(-1));
    demand(vector.data() == data && vector.size() == 300001 && vector.capacity() >= vector.size(), "the vector has grown in place");
    demand(VALUE(vector.at(999)) == 999 && VALUE(vector.at(1000)) == 0 && VALUE(vector.at(300000)) == -1, "old, new and last elements");
    VALUE(vector.write(1000, numbers.data(), 2));
    float read[2] = {};
    VALUE(vector.read(1000, read, 2));
    demand(read[1] == 1 && VALUE(vector.to_host()).size() == 300001, "copies to and from the host");
    // Elements that were removed and come back are zero.
    VALUE(vector.resize(10));
    VALUE(vector.resize(1000));
    demand(VALUE(vector.at(9)) == 9 && VALUE(vector.at(10)) == 0, "new elements are zero");
    VALUE(vector.region().suspend(gpu_vmm::backing_store::host()));
    demand(vector.capacity() == 0, "a suspended vector has no memory");
    FAILS(suspended, vector.at(0));
    VALUE(vector.region().resume());
    demand(VALUE(vector.at(9)) == 9, "the elements are restored");
    VALUE(vector.reserve(2000000));
    demand(VALUE(vector.shrink_to_fit()) > 0_B && VALUE(vector.at(9)) == 9, "memory behind the last element is released");
    FAILS(out_of_range, vector.at(1000));
    FAILS(out_of_range, vector.read(999, read, 2));
    demand(!vector.empty() && vector.max_size() == 8 * unit / bytes::of<float>(), "the most elements");
    FAILS(out_of_address_space, vector.resize(SIZE_MAX));
    FAILS(out_of_address_space, vector.append(numbers.data(), SIZE_MAX));
    demand(vector.size() == 1000, "the size is as before");

    // A DLPack tensor of the elements keeps the memory.
    auto tensor = VALUE(vector.region().tensor({2, 32, 1, {10, 100}, {}}));
    demand(tensor.get() != nullptr, "a tensor");
    FAILS(busy, vector.region().suspend(gpu_vmm::backing_store::host()));
    FAILS(invalid_argument, vector.region().tensor({2, 32, 1, {10, 100}, {1}}));
    FAILS(invalid_argument, vector.region().tensor({2, 32, 1, std::vector<std::int64_t>(200, 1), {}}));
    vector.clear();
    vector = {};
    tensor = {};
    FAILS(invalid_argument, vector.push_back(1));
    demand(vector.data() == nullptr && vector.max_size() == 0, "an empty vector without a device");
}

// On the fake NVIDIA driver alone: on hardware an object takes resources of the whole machine.
static void multicast(const gpu_vmm::backend &backend) {
    const bool is_fake = VALUE(backend.info()).find("fake CUDA (no NVIDIA GPU)") != std::string::npos;
    if (!is_fake) {
        if (std::strcmp(backend.name(), "cuda") != 0) {
            FAILS(unsupported, gpu_vmm::multicast::create(backend, {{0}, unit, 0, gpu_vmm::handle_types::none}));
        }
        return;
    }
    auto object = VALUE(gpu_vmm::multicast::create(backend, {{0}, 1_B, 0, gpu_vmm::handle_types::none}));
    const auto sizes = VALUE(object.sizes());
    demand(sizes.size == sizes.granularity && sizes.recommended >= sizes.granularity, "the size is rounded up");
    FAILS(unsupported, object.export_fd());
    FAILS(not_mapped, object.map());
    const auto memory = VALUE(gpu_vmm::physical_memory::create(backend, sizes.size));
    VALUE(object.bind(0_B, memory, 0_B, sizes.size));
    demand(VALUE(object.map()) != 0, "an address");
    VALUE(object.unmap());
    VALUE(object.unbind(0, 0_B));

    // One device of each of two processes, as one process plays both.
    auto exported = VALUE(gpu_vmm::multicast::create(backend, {{0}, 1_B, 1, gpu_vmm::handle_types::fd}));
    const auto fd = VALUE(exported.export_fd());
    demand(fd.get() >= 0, "a descriptor");
    FAILS(driver, gpu_vmm::multicast::import_fd(backend, 0, {{1}, sizes.size, 1, gpu_vmm::handle_types::fd}));
}

int main(int count, char **arguments) {
    const auto backend = backend_of(count, arguments);
    unit = VALUE(backend.reservation_unit());
    grow(backend);
    suspend(backend);
    map(backend);
    exchange_memory(backend);
    observe(backend);
    copy(backend);
    save(backend);
    vector(backend);
    multicast(backend);
    std::puts("passed");
    return 0;
}
