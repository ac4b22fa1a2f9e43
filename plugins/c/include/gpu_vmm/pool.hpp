#pragma once

/// @file
/// Pools of a device's memory, and their blocks.

#include "backend.hpp"
#include "physical_memory.hpp"

GPU_VMM_BEGIN_NAMESPACE

/// The options of a pool.
struct pool_options {
    /// The device that the pool allocates from.
    device_number device = 0;
    /// The largest amount of physical memory that the pool may hold; zero for what GPU_VMM_BUDGET says, or no limit.
    bytes budget;
    /// The largest amount of free memory that the pool keeps; zero for all of it, keep_nothing() for none.
    bytes keep;
    /// The size in which the pool creates and maps memory, a power of two; zero for one that suits the device.
    bytes page;
    /// How far the memory held may exceed the largest amount ever needed, in percent; zero for the default.
    std::uint32_t slack = 0;
    /// Whether the pool overwrites memory with zeros when it passes from one tag to another.
    bool scrub = false;
    /// Whether the pool records where each block was allocated.
    bool debug = false;
    /// Whether other processes of the machine can map the memory, if the driver has such memory.
    bool shareable = false;
    /// Whether other processes can reserve the addresses as well, for pool::restore.
    bool restorable = false;

    /// For `keep`: the pool returns free memory to the driver at once.
    [[nodiscard]] static constexpr bytes keep_nothing() noexcept { return bytes(GPU_VMM_KEEP_NOTHING); }
};

/// Information on a block.
struct block_info {
    /// Its first address.
    device_address address;
    /// The bytes that it occupies: the requested size, rounded up.
    bytes capacity;
    /// The distance of the queried address from the first one.
    bytes offset;
    /// The stream that it was allocated for.
    gpu_vmm::stream stream;
    /// The device that its memory belongs to.
    device_number device;
    /// Its tag. A tag of more than 63 bytes is truncated.
    std::string tag;
};

class pool;

/// A block of a pool. It keeps the pool, and its end frees it in the order of the stream that it was allocated for: work that is queued on
/// that stream may still use it.
class block {
public:
    /// None.
    block() noexcept = default;
    /// Takes the other one's.
    block(block &&other) noexcept : pool_(std::move(other.pool_)), address_(std::exchange(other.address_, 0)), size_(std::exchange(other.size_, {})) {}
    /// Frees its own and takes the other one's.
    block &operator=(block &&other) noexcept {
        block taken(std::move(other));
        std::swap(pool_, taken.pool_);
        std::swap(address_, taken.address_);
        std::swap(size_, taken.size_);
        return *this;
    }
    ~block() {
        if (address_ != 0) (void)gpu_vmm_free(pool_.get(), address_);
    }

    /// Returns the first address.
    [[nodiscard]] device_address address() const noexcept { return address_; }
    /// Returns the first address as a pointer, which kernels use, and the CPU if it has access.
    template <class T = void>
    [[nodiscard]] T *data() const noexcept {
        return reinterpret_cast<T *>(static_cast<std::uintptr_t>(address_));
    }
    /// Returns the requested size.
    [[nodiscard]] bytes size() const noexcept { return size_; }
    /// Returns whether there is a block.
    explicit operator bool() const noexcept { return address_ != 0; }

    /// Records that work on another stream uses the block: after its end, its memory is reused once that stream has done the work that was
    /// queued by then.
    result<void> record_use(stream stream) {
        return detail::call("block::record_use", gpu_vmm_record_use, pool_.get(), address_, stream.get());
    }

    /// Copies bytes to the host and waits for the copy, not for work on streams.
    result<void> read(void *to, bytes size, bytes offset = {}) const {
        if (!has(offset, size)) return beyond("block::read");
        return detail::call("block::read", gpu_vmm_read, pool_.get(), address_ + offset.count(), to, size.count());
    }
    /// Copies bytes of the host and waits for the copy, not for work on streams.
    result<void> write(const void *from, bytes size, bytes offset = {}) {
        if (!has(offset, size)) return beyond("block::write");
        return detail::call("block::write", gpu_vmm_write, pool_.get(), address_ + offset.count(), from, size.count());
    }

    /// Frees the block, and reports why that failed: the end of the block does not.
    result<void> close() {
        const auto pool = std::move(pool_);
        size_ = {};
        return detail::call("block::close", gpu_vmm_free, pool.get(), std::exchange(address_, 0));
    }

    /// Gives up the block, which the caller must free: see pool::free and pool::adopt.
    [[nodiscard]] device_address release() noexcept {
        pool_.reset();
        size_ = {};
        return std::exchange(address_, 0);
    }

private:
    friend class pool;
    block(std::shared_ptr<gpu_vmm_pool> pool, device_address address, bytes size) noexcept
        : pool_(std::move(pool)), address_(address), size_(size) {}

    // The C library knows addresses, which may be those of another block.
    [[nodiscard]] bool has(bytes offset, bytes size) const noexcept { return offset <= size_ && size <= size_ - offset; }
    static result<void> beyond(const char *operation) {
        return detail::refuse<void>(operation, error_kind::out_of_range, "the bytes end behind the last one of the block");
    }

    std::shared_ptr<gpu_vmm_pool> pool_;
    device_address address_ = 0;
    bytes size_;
};

/// A piece of physical memory behind a block.
struct block_memory {
    /// The memory, which the pool keeps too.
    physical_memory memory;
    /// The offset in it of the address that was asked for.
    bytes offset;
};

struct restored_pool;

/// A pool of one device's memory that allocates under one tag. It ends with the last object and the last block of it; blocks that were released
/// are freed then. Several threads may use it at the same time.
class pool {
public:
    /// The type of the object in the C library.
    using c_type = gpu_vmm_pool;

    /// None.
    pool() noexcept = default;
    /// Owns a pool of the C library from now on.
    explicit pool(gpu_vmm_pool *object) : pool_(object, gpu_vmm_pool_free) {}
    /// Takes the other one's.
    pool(pool &&) noexcept = default;
    /// Takes the other one's.
    pool &operator=(pool &&) noexcept = default;

    /// Returns the pool, for functions of the C library.
    [[nodiscard]] gpu_vmm_pool *get() const noexcept { return pool_.get(); }
    /// Returns whether there is a pool.
    explicit operator bool() const noexcept { return pool_ != nullptr; }

    /// Creates a pool. It reserves and creates nothing before the first block.
    [[nodiscard]] static result<pool> create(const backend &backend, const pool_options &options = {}) {
        const gpu_vmm_pool_options c = to_c(options);
        return detail::get<pool>("pool::create", gpu_vmm_pool_new, backend.get(), &c);
    }

    /// Returns another object of the pool, with the same tag and the same kind of memory.
    [[nodiscard]] pool share() const noexcept {
        pool shared;
        shared.pool_ = pool_;
        return shared;
    }

    /// Returns the same pool, allocating under a tag. Blocks with one tag are suspended together.
    [[nodiscard]] result<pool> tagged(const std::string &tag) const {
        return detail::get<pool>("pool::tagged", gpu_vmm_pool_tagged, get(), detail::c_text(tag));
    }

    /// Returns the same pool, allocating another kind of memory. All kinds share the budget.
    [[nodiscard]] result<pool> with_memory(const memory_properties &properties) const {
        const gpu_vmm_properties c = detail::to_c(properties);
        return detail::get<pool>("pool::with_memory", gpu_vmm_pool_with_memory, get(), &c);
    }

    /// @name Blocks
    /// @{

    /// Allocates a block for a stream, which must exist until forget_stream or the end of the pool. `alignment` is a power of two, or zero for
    /// 256 bytes.
    [[nodiscard]] result<block> allocate(bytes size, stream stream = {}, bytes alignment = {}) const {
        device_address address = 0;
        const gpu_vmm_status status = gpu_vmm_alloc(get(), size.count(), alignment.count(), stream.get(), &address);
        return detail::finish("pool::allocate", status, block(pool_, address, size));
    }

    /// Allocates a block at an address, a multiple of 512.
    [[nodiscard]] result<block> allocate_at(device_address address, bytes size, stream stream = {}) const {
        const gpu_vmm_status status = gpu_vmm_alloc_at(get(), address, size.count(), stream.get());
        return detail::finish("pool::allocate_at", status, block(pool_, status == GPU_VMM_OK ? address : 0, size));
    }

    /// Owns a block from now on that was released.
    [[nodiscard]] block adopt(device_address address, bytes size) const noexcept { return block(pool_, address, size); }

    /// Frees a block that was released.
    result<void> free(device_address address) { return detail::call("pool::free", gpu_vmm_free, get(), address); }

    /// Finds the live block that contains an address. This is slow.
    [[nodiscard]] result<block_info> find(device_address address) const {
        gpu_vmm_block c{};
        const gpu_vmm_status status = gpu_vmm_find(get(), address, &c);
        return detail::finish("pool::find", status, block_info{c.base, bytes(c.capacity), bytes(c.offset), c.stream, c.device, c.tag});
    }

    /// Returns the memory behind an address in a live block. One piece ends where the next one begins: ask again behind it.
    [[nodiscard]] result<block_memory> memory_at(device_address address) const {
        gpu_vmm_physical *memory = nullptr;
        std::uint64_t offset = 0;
        const gpu_vmm_status status = gpu_vmm_pool_memory_at(get(), address, &memory, &offset);
        return detail::finish("pool::memory_at", status, block_memory{physical_memory(memory), bytes(offset)});
    }

    /// @}
    /// @name Suspending. The pool does not know who uses a block: nothing may use the blocks of a suspended tag.
    /// @{

    /// Returns the memory of all blocks with a tag to the driver after a wait for the devices, and keeps their addresses. Returns the number of
    /// bytes, zero if the tag was suspended already.
    result<bytes> suspend(const std::string &tag, const backing_store &store) {
        return detail::get<bytes>("pool::suspend", gpu_vmm_suspend, get(), detail::c_text(tag), store.c_str());
    }
    /// Maps memory for all blocks with a tag at the same addresses and restores their contents. Returns the number of bytes.
    result<bytes> resume(const std::string &tag) { return detail::get<bytes>("pool::resume", gpu_vmm_resume, get(), detail::c_text(tag)); }
    /// Returns whether a tag is suspended.
    [[nodiscard]] result<bool> is_suspended(const std::string &tag) const {
        return detail::get<bool>("pool::is_suspended", gpu_vmm_is_suspended, get(), detail::c_text(tag));
    }
    /// Forgets a tag: its name is free for another tag at once.
    result<void> forget_tag(const std::string &tag) {
        return detail::call("pool::forget_tag", gpu_vmm_pool_forget_tag, get(), detail::c_text(tag));
    }
    /// Returns the size of the host memory that the pool has taken for the contents of suspended tags.
    [[nodiscard]] result<bytes> host_memory() const { return detail::get<bytes>("pool::host_memory", gpu_vmm_host_memory, get()); }
    /// Frees the host memory that stays for the next suspension, and returns its size.
    result<bytes> trim_host() { return detail::get<bytes>("pool::trim_host", gpu_vmm_trim_host, get()); }

    /// @}
    /// @name A server that divides the memory between programs: see serve::set_pool_server
    /// @{

    /// Returns what the server has granted to the pool.
    [[nodiscard]] result<bytes> granted() const {
        std::uint64_t granted = 0;
        const gpu_vmm_status status = gpu_vmm_pool_granted(get(), &granted, nullptr);
        return detail::finish("pool::granted", status, bytes(granted));
    }
    /// Returns whether the server is there. A pool without it keeps its budget.
    [[nodiscard]] result<bool> is_connected() const {
        bool connected = false;
        const gpu_vmm_status status = gpu_vmm_pool_granted(get(), nullptr, &connected);
        return detail::finish("pool::is_connected", status, connected);
    }
    /// Reserves a part of the budget before it is used: waits until the server has granted `size` in all, and gives no part of it back until
    /// another call reserves less.
    result<void> reserve(bytes size, std::chrono::milliseconds wait) {
        return detail::call("pool::reserve", gpu_vmm_pool_reserve, get(), size.count(), detail::milliseconds(wait));
    }
    /// Lets the server suspend a tag when other programs need its memory. Nothing may use its blocks until #wake.
    result<void> let_sleep(const std::string &tag) {
        return detail::call("pool::let_sleep", gpu_vmm_pool_let_sleep, get(), detail::c_text(tag));
    }
    /// Makes a tag usable again that can sleep, with its contents. Returns the number of bytes that came back.
    result<bytes> wake(const std::string &tag) { return detail::get<bytes>("pool::wake", gpu_vmm_pool_wake, get(), detail::c_text(tag)); }

    /// @}
    /// @name Limits, devices and statistics
    /// @{

    /// Returns free memory to the driver until the pool keeps at most `keep` bytes of it, and returns the number of bytes.
    result<bytes> trim(bytes keep = {}) { return detail::get<bytes>("pool::trim", gpu_vmm_trim, get(), keep.count()); }
    /// Sets the largest amount of physical memory that the pool may hold.
    result<void> set_budget(bytes budget) { return detail::call("pool::set_budget", gpu_vmm_set_budget, get(), budget.count()); }
    /// Forgets a stream that the caller is about to destroy, without waiting.
    result<void> forget_stream(stream stream) { return detail::call("pool::forget_stream", gpu_vmm_forget_stream, get(), stream.get()); }
    /// Gives a device, or the #cpu, access to all memory of this object's kind, present and future.
    result<void> allow_access(device_number device, access level = access::read_write) {
        return detail::call("pool::allow_access", gpu_vmm_pool_allow_access, get(), device, static_cast<std::uint32_t>(level));
    }
    /// Moves the pool to another device: all blocks keep their addresses and their bytes. No work may use a block until the call returns.
    result<void> move_to_device(device_number device) {
        return detail::call("pool::move_to_device", gpu_vmm_pool_move_to_device, get(), device);
    }
    /// Returns the statistics as JSON.
    [[nodiscard]] result<std::string> stats() const { return detail::get_text("pool::stats", gpu_vmm_pool_stats, get()); }
    /// Returns a snapshot as JSON, which `gpu-vmm report` draws.
    [[nodiscard]] result<std::string> snapshot() const { return detail::get_text("pool::snapshot", gpu_vmm_pool_snapshot, get()); }
    /// Returns the kinds of memory as JSON, the pool's own first.
    [[nodiscard]] result<std::string> kinds() const { return detail::get_text("pool::kinds", gpu_vmm_pool_kinds, get()); }

    /// @}
    /// @name Files
    /// @{

    /// Writes the live blocks of tags, or of all tags if there are none, to a file after a wait for the devices. Nothing may write to the blocks
    /// meanwhile. Create the pool with the option `restorable`.
    result<void> save(const std::string &path, const std::vector<std::string> &tags = {}, bool compress = false) const {
        std::vector<const char *> c;
        for (const std::string &tag : tags) c.push_back(detail::c_text(tag));
        return detail::call("pool::save", gpu_vmm_pool_save, get(), detail::c_text(path), c.empty() ? nullptr : c.data(),
                            std::uint64_t{c.size()}, compress);
    }

    /// Creates the pool that save() has written to a file, with its blocks at the same addresses.
    [[nodiscard]] static result<restored_pool> restore(const backend &backend, const std::string &path, const pool_options &options = {});

    /// @}

private:
    static gpu_vmm_pool_options to_c(const pool_options &options) noexcept {
        gpu_vmm_pool_options c{};
        c.device = options.device;
        c.budget = options.budget.count();
        c.keep = options.keep.count();
        c.page = options.page.count();
        c.slack = options.slack;
        c.scrub = options.scrub;
        c.debug = options.debug;
        c.shareable = options.shareable;
        c.restorable = options.restorable;
        return c;
    }

    std::shared_ptr<gpu_vmm_pool> pool_;
};

/// A block of a restored pool, with its tag.
struct restored_block {
    /// The block.
    gpu_vmm::block block;
    /// The bytes that it occupies.
    bytes capacity;
    /// Its tag. A tag of more than 63 bytes is truncated.
    std::string tag;
};

/// A pool from a file.
struct restored_pool {
    /// The pool.
    gpu_vmm::pool pool;
    /// Its blocks in the order of their addresses.
    std::vector<restored_block> blocks;
};

inline result<restored_pool> pool::restore(const backend &backend, const std::string &path, const pool_options &options) {
    const gpu_vmm_pool_options c = to_c(options);
    std::uint64_t count = 0;
    restored_pool restored;
    gpu_vmm_status status = gpu_vmm_saved_pool_count(detail::c_text(path), &count);
    if (status == GPU_VMM_OK) {
        std::vector<gpu_vmm_restored_block> blocks(static_cast<std::size_t>(count));
        gpu_vmm_pool *made = nullptr;
        status = gpu_vmm_pool_restore(backend.get(), detail::c_text(path), &c, &made, blocks.empty() ? nullptr : blocks.data(), count);
        if (status == GPU_VMM_OK) {
            restored.pool = pool(made);
            for (const gpu_vmm_restored_block &each : blocks) {
                restored.blocks.push_back({restored.pool.adopt(each.address, bytes(each.size)), bytes(each.capacity), each.tag});
            }
        }
    }
    return detail::finish("pool::restore", status, std::move(restored));
}

GPU_VMM_END_NAMESPACE
