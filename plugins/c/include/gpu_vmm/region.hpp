#pragma once

/// @file
/// Regions: contiguous ranges of device addresses whose memory grows in place.

#include "observer.hpp"
#include "physical_memory.hpp"

GPU_VMM_BEGIN_NAMESPACE

/// Where the addresses of a region are.
enum class placement : std::uint32_t {
    /// Any address that the driver chooses.
    anywhere = GPU_VMM_PLACE_ANYWHERE,
    /// `address` if it is free, else any address.
    prefer = GPU_VMM_PLACE_PREFER,
    /// `address`, or error_kind::address_taken.
    exact = GPU_VMM_PLACE_EXACT,
    /// A random address that other processes can reserve as well. Set `size`.
    restorable = GPU_VMM_PLACE_RESTORABLE,
    /// Any addresses that are all below `address`.
    below = GPU_VMM_PLACE_BELOW,
};

/// The options of a region.
struct region_options {
    /// The number of bytes of addresses, rounded up; zero for the size of the device's memory.
    bytes size;
    /// The memory with which the region grows.
    memory_properties memory;
    /// Where the addresses are.
    gpu_vmm::placement placement = gpu_vmm::placement::anywhere;
    /// The address for placement::prefer and placement::exact, and the limit for placement::below; else zero.
    device_address address = 0;
    /// The alignment of the address beyond the granularity, a power of two; zero for none.
    bytes alignment;
    /// The number of bytes of addresses that growth first tries to add behind a full reservation; zero for as many as the region has.
    bytes extend_by;
    /// The number of bytes of addresses to keep free on either side.
    bytes guard;
    /// Whether another driver can restore the region at its address.
    bool portable = false;
    /// Whether the unit of offsets and lengths is the granularity that the driver recommends.
    bool recommended_granularity = false;
};

namespace detail {
inline gpu_vmm_region_options to_c(const region_options &options) noexcept {
    gpu_vmm_region_options c{};
    c.memory = to_c(options.memory);
    c.size = options.size.count();
    c.placement = static_cast<std::uint32_t>(options.placement);
    c.portable = options.portable;
    c.recommended_granularity = options.recommended_granularity;
    c.address = options.address;
    c.alignment = options.alignment.count();
    c.extend_by = options.extend_by.count();
    c.guard = options.guard.count();
    return c;
}
} // namespace detail

/// One mapping of a region.
struct mapping {
    /// The offset at which it begins.
    bytes offset;
    /// Its length, the size of the memory.
    bytes length;
    /// The device that owns the memory.
    device_number device;
    /// Whether it cannot be used, because an operation on it failed and so did the rollback.
    bool is_poisoned;
};

/// A dma-buf of a part of a region.
struct dma_buf {
    /// The descriptor.
    descriptor fd;
    /// The offset in the region at which the memory begins.
    bytes offset;
    /// The size of the memory.
    bytes length;
};

/// The number of bytes that a suspension has released, and the number that other holders keep.
struct suspended_memory {
    /// The released memory.
    bytes released;
    /// The memory with other holders.
    bytes stayed;
};

/// The elements of a DLPack tensor: DLDataType, a shape, and strides in elements, which are row-major if empty.
struct tensor_layout {
    /// DLDataType's `code`: 0 for signed integers, 1 for unsigned ones, 2 for floating point.
    std::uint8_t code = 2;
    /// DLDataType's `bits`.
    std::uint8_t bits = 32;
    /// DLDataType's `lanes`.
    std::uint16_t lanes = 1;
    /// The number of elements in each dimension.
    std::vector<std::int64_t> shape;
    /// The distance in elements between neighbours in each dimension. Empty, or as long as `shape`.
    std::vector<std::int64_t> strides;
};

/// A DLPack tensor that no library has taken yet. Its memory stays as long as the tensor.
class tensor {
public:
    /// None.
    tensor() noexcept = default;
    /// Owns a tensor of gpu_vmm_region_dlpack with the same `versioned`.
    tensor(void *managed, bool versioned) noexcept : managed_(managed), versioned_(versioned) {}
    /// Takes the other one's.
    tensor(tensor &&other) noexcept : managed_(other.release()), versioned_(other.versioned_) {}
    /// Deletes its own and takes the other one's.
    tensor &operator=(tensor &&other) noexcept {
        tensor taken(std::move(other));
        std::swap(managed_, taken.managed_);
        std::swap(versioned_, taken.versioned_);
        return *this;
    }
    ~tensor() { gpu_vmm_dlpack_delete(managed_, versioned_); }

    /// Returns the DLManagedTensorVersioned *, or the DLManagedTensor * of an unversioned tensor.
    [[nodiscard]] void *get() const noexcept { return managed_; }
    /// Gives the tensor to a library, which must call its deleter.
    [[nodiscard]] void *release() noexcept { return std::exchange(managed_, nullptr); }

private:
    void *managed_ = nullptr;
    bool versioned_ = true;
};

class region;

/// A reference to a region that another object owns, with all operations of a region. It must not be used after its owner has ended.
class region_ref {
public:
    /// A reference to no region.
    region_ref() noexcept = default;
    /// A reference to a region of the C library.
    explicit region_ref(gpu_vmm_region *object) noexcept : region_(object) {}
    /// The region of a temporary object would end before its reference.
    region_ref(region &&) = delete;
    region_ref &operator=(region &&) = delete;

    /// Returns the region, for functions of the C library.
    [[nodiscard]] gpu_vmm_region *get() const noexcept { return region_; }
    /// Returns whether there is a region.
    explicit operator bool() const noexcept { return region_ != nullptr; }

    /// @name Addresses and sizes
    /// @{

    /// Returns the first address, which never changes, except if the region is plain.
    [[nodiscard]] result<device_address> address() const {
        return detail::get<device_address>("region::address", gpu_vmm_region_address, region_);
    }
    /// Returns whether the region is one plain allocation, because its device has no virtual memory management. It then has another address
    /// after it grows or shrinks.
    [[nodiscard]] result<bool> is_plain() const { return detail::get<bool>("region::is_plain", gpu_vmm_region_is_plain, region_); }
    /// Returns the number of bytes that have memory; zero while the region is suspended.
    [[nodiscard]] result<bytes> size() const { return detail::get<bytes>("region::size", gpu_vmm_region_size, region_); }
    /// Returns the number of bytes of addresses, mapped or not.
    [[nodiscard]] result<bytes> reserved() const { return detail::get<bytes>("region::reserved", gpu_vmm_region_reserved, region_); }
    /// Returns the unit of every offset and length.
    [[nodiscard]] result<bytes> granularity() const { return detail::get<bytes>("region::granularity", gpu_vmm_region_granularity, region_); }
    /// Returns the name that set_tag has given, or an empty text.
    [[nodiscard]] result<std::string> tag() const { return detail::get_text("region::tag", gpu_vmm_region_tag, region_); }
    /// Names the region for the program's own use. Files of the region have the name.
    result<void> set_tag(const std::string &tag) { return detail::call("region::set_tag", gpu_vmm_region_set_tag, region_, detail::c_text(tag)); }

    /// @}
    /// @name Growing and shrinking
    /// @{

    /// Grows in place to at least a size. Pointers stay valid, and no byte is copied.
    result<void> grow(bytes size) { return detail::call("region::grow", gpu_vmm_region_grow, region_, size.count()); }
    /// Grows with pages of a list, which keep the bytes of their last owner.
    result<void> grow(bytes size, const page_list &pages) {
        return detail::call("region::grow", gpu_vmm_region_grow_with, region_, size.count(), pages.get());
    }
    /// Grows, at another address if the addresses behind it are taken, and returns the address.
    [[nodiscard]] result<device_address> grow_or_move(bytes size) {
        return detail::get<device_address>("region::grow_or_move", gpu_vmm_region_grow_or_move, region_, size.count());
    }
    /// Shrinks from the end after a wait for the devices, and returns the number of bytes that were removed. Whole handles are released. With
    /// `force`, tensors may exist; nothing may use their elements beyond the new end.
    result<bytes> shrink(bytes size, bool force = false) {
        return detail::get<bytes>("region::shrink", gpu_vmm_region_shrink, region_, size.count(), force);
    }

    /// @}
    /// @name Contents. The calls wait for their copies, and not for work on streams.
    /// @{

    /// Copies bytes to the host.
    result<void> read(void *to, bytes size, bytes offset = {}) const {
        return detail::call("region::read", gpu_vmm_region_read, region_, offset.count(), to, size.count());
    }
    /// Copies bytes of the host.
    result<void> write(const void *from, bytes size, bytes offset = {}) {
        return detail::call("region::write", gpu_vmm_region_write, region_, offset.count(), from, size.count());
    }
    /// Sets every byte of a range.
    result<void> fill(bytes offset, bytes length, std::uint8_t value) {
        return detail::call("region::fill", gpu_vmm_region_fill, region_, offset.count(), length.count(), value);
    }
    /// Copies a range of another region.
    result<void> copy_from(region_ref from, bytes length, bytes offset = {}, bytes from_offset = {}) {
        return detail::call("region::copy_from", gpu_vmm_region_copy, region_, offset.count(), from.get(), from_offset.count(), length.count());
    }
    /// Exports a part, from `offset` on, as a DLPack tensor. An unversioned tensor cannot express `read_only`.
    [[nodiscard]] result<gpu_vmm::tensor> tensor(const tensor_layout &layout, bytes offset = {}, bool read_only = false,
                                                 bool versioned = true) const {
        if (!layout.strides.empty() && layout.strides.size() != layout.shape.size()) {
            return detail::refuse<gpu_vmm::tensor>("region::tensor", error_kind::invalid_argument,
                                                   "tensor: the strides are not as many as the dimensions; leave them empty for row-major order");
        }
        // More dimensions than DLPack allows are refused, however many.
        const auto dimensions = static_cast<std::int32_t>(layout.shape.size() < 100 ? layout.shape.size() : 100);
        const std::int64_t *strides = layout.strides.empty() ? nullptr : layout.strides.data();
        void *managed = nullptr;
        const gpu_vmm_status status = gpu_vmm_region_dlpack(region_, offset.count(), layout.code, layout.bits, layout.lanes, dimensions,
                                                            layout.shape.data(), strides, read_only, versioned, &managed);
        return detail::finish("region::tensor", status, gpu_vmm::tensor(managed, versioned));
    }

    /// @}
    /// @name Suspending
    /// @{

    /// Returns the memory to the driver after a wait for the devices, keeps the addresses and, unless it discards them, the contents.
    /// Returns the number of bytes, zero if the region was suspended already. With `force`, tensors may exist; nothing may use them before
    /// the resume.
    result<bytes> suspend(const backing_store &store, bool force = false) {
        return detail::get<bytes>("region::suspend", gpu_vmm_region_suspend, region_, store.c_str(), force);
    }
    /// Suspends a region whose memory others may hold: see gpu_vmm_region_suspend_shared.
    result<suspended_memory> suspend_shared(const backing_store &store, bool force = false) {
        std::uint64_t released = 0, stayed = 0;
        const gpu_vmm_status status = gpu_vmm_region_suspend_shared(region_, store.c_str(), force, &released, &stayed);
        return detail::finish("region::suspend_shared", status, suspended_memory{bytes(released), bytes(stayed)});
    }
    /// Maps memory at the same addresses and restores the contents. Returns the number of bytes, zero if the region was not suspended.
    result<bytes> resume() { return detail::get<bytes>("region::resume", gpu_vmm_region_resume, region_); }
    /// Resumes with pages of a list.
    result<bytes> resume(const page_list &pages) {
        return detail::get<bytes>("region::resume", gpu_vmm_region_resume_with, region_, pages.get());
    }
    /// Returns whether the region is suspended. Calls that need its memory then fail with error_kind::suspended.
    [[nodiscard]] result<bool> is_suspended() const {
        return detail::get<bool>("region::is_suspended", gpu_vmm_region_is_suspended, region_);
    }

    /// @}
    /// @name Mappings and access
    /// @{

    /// Maps physical memory as a whole. No device has access yet.
    result<void> map(bytes offset, const physical_memory &memory) {
        return detail::call("region::map", gpu_vmm_region_map, region_, offset.count(), memory.get());
    }
    /// Unmaps whole mappings after a wait for the devices. With `force`, tensors may exist; nothing may use their elements in the range.
    result<void> unmap(bytes offset, bytes length, bool force = false) {
        return detail::call("region::unmap", gpu_vmm_region_unmap, region_, offset.count(), length.count(), force);
    }
    /// Sets the access of a device, or of the #cpu, to whole mappings.
    result<void> set_access(bytes offset, bytes length, device_number device, access level) {
        return detail::call("region::set_access", gpu_vmm_region_set_access, region_, offset.count(), length.count(), device,
                            static_cast<std::uint32_t>(level));
    }
    /// Returns the access of a device, or of the #cpu, at an offset.
    [[nodiscard]] result<gpu_vmm::access> access(bytes offset, device_number device) const {
        return detail::get<gpu_vmm::access>("region::access", gpu_vmm_region_access, region_, offset.count(), device);
    }
    /// Returns the mapping that contains an offset.
    [[nodiscard]] result<gpu_vmm::mapping> mapping(bytes offset) const {
        gpu_vmm_mapping c{};
        const gpu_vmm_status status = gpu_vmm_region_mapping(region_, offset.count(), &c);
        return detail::finish("region::mapping", status, gpu_vmm::mapping{bytes(c.offset), bytes(c.length), c.device, c.poisoned});
    }
    /// Returns the memory that is mapped at an offset.
    [[nodiscard]] result<physical_memory> physical(bytes offset) const {
        return detail::get<physical_memory>("region::physical", gpu_vmm_region_physical, region_, offset.count());
    }
    /// Exports the first `at_most` dma-bufs of a range of whole mappings. If they end before the range does, call again from there.
    [[nodiscard]] result<std::vector<dma_buf>> dma_bufs(bytes offset, bytes length, std::size_t at_most = 64) const {
        std::vector<gpu_vmm_dma_buf> c(at_most);
        std::vector<dma_buf> parts;
        parts.reserve(at_most);
        std::uint64_t count = 0;
        const gpu_vmm_status status = gpu_vmm_region_dma_bufs(region_, offset.count(), length.count(), c.data(), at_most, &count);
        for (std::size_t at = 0; at < count; ++at) parts.push_back({descriptor(c[at].fd), bytes(c[at].offset), bytes(c[at].length)});
        return detail::finish("region::dma_bufs", status, std::move(parts));
    }

    /// @}
    /// @name The same address
    /// @{

    /// Exchanges the memory of two ranges of whole mappings after a wait for the devices. No byte is copied. With `force`, tensors may exist;
    /// they then have the other contents.
    result<void> swap(bytes offset, region_ref other, bytes other_offset, bytes length, bool force = false) {
        return detail::call("region::swap", gpu_vmm_region_swap, region_, offset.count(), other.get(), other_offset.count(), length.count(), force);
    }
    /// Exchanges all memory of two regions, which must be mapped at the same offsets.
    result<void> swap_all(region_ref other, bool force = false) {
        return detail::call("region::swap_all", gpu_vmm_region_swap_all, region_, other.get(), force);
    }
    /// Moves the contents to memory of another device, at the same addresses.
    result<void> move_to_device(device_number device) {
        return detail::call("region::move_to_device", gpu_vmm_region_move_to_device, region_, device);
    }
    /// Maps the memory of the first `length` bytes in another region as well. Both may only read it until make_private.
    result<void> fork(bytes length, region_ref into) { return detail::call("region::fork", gpu_vmm_region_fork, region_, length.count(), into.get()); }
    /// Gives a range memory of its own, with the same contents, and returns the size of the copies.
    result<bytes> make_private(bytes offset, bytes length) {
        return detail::get<bytes>("region::make_private", gpu_vmm_region_make_private, region_, offset.count(), length.count(), nullptr);
    }
    /// Gives a range pages of a list, with the same contents, and returns the size of the copies.
    result<bytes> make_private(bytes offset, bytes length, const page_list &pages) {
        if (!pages) return detail::refuse<bytes>("region::make_private", error_kind::invalid_argument, "the list of pages is empty");
        return detail::get<bytes>("region::make_private", gpu_vmm_region_make_private, region_, offset.count(), length.count(), pages.get());
    }
    /// Returns the number of holders of the memory at an offset: objects, and mappings, this one included.
    [[nodiscard]] result<std::uint64_t> holders(bytes offset) const {
        return detail::get<std::uint64_t>("region::holders", gpu_vmm_region_holders, region_, offset.count());
    }
    /// Adds an observer, which is called before and after each change of the memory behind the addresses.
    result<observer_id> add_observer(observer functions) {
        std::uint64_t id = 0;
        const auto add = [&](const gpu_vmm_observer *c) { return gpu_vmm_region_on_backing_change(region_, c, &id); };
        return detail::add_observer(std::move(functions), add, [&](gpu_vmm_status status) {
            return detail::finish("region::add_observer", status, static_cast<observer_id>(id));
        });
    }
    /// Removes an observer.
    result<void> remove_observer(observer_id id) {
        return detail::call("region::remove_observer", gpu_vmm_region_remove_observer, region_, static_cast<std::uint64_t>(id));
    }

    /// @}

    /// Offers the region as it is now to other processes. Its memory must have been created for that, and can then not be suspended or moved.
    [[nodiscard]] result<gpu_vmm::offer> offer(offer_method method = offer_method::process) const {
        return detail::get<gpu_vmm::offer>("region::offer", gpu_vmm_region_offer, region_, static_cast<std::uint32_t>(method));
    }

protected:
    /// The region.
    gpu_vmm_region *region_ = nullptr;
};

/// A contiguous range of device addresses whose memory grows in place. The region ends with this object; its memory stays as long as a tensor
/// of it exists. Calls of several threads take turns.
class region : public region_ref {
public:
    /// None.
    region() noexcept = default;
    /// Owns a region of the C library from now on.
    explicit region(gpu_vmm_region *object) noexcept : region_ref(object) {}
    /// Takes the other one's.
    region(region &&other) noexcept : region_ref(other.release()) {}
    /// Frees its own and takes the other one's.
    region &operator=(region &&other) noexcept {
        region taken(std::move(other));
        std::swap(region_, taken.region_);
        return *this;
    }
    ~region() { gpu_vmm_region_free(region_); }

    /// Gives up the region, which the caller must free.
    [[nodiscard]] gpu_vmm_region *release() noexcept { return std::exchange(region_, nullptr); }

    /// Reserves addresses for a region that can grow to `reserve` bytes, zero for the size of the device's memory.
    [[nodiscard]] static result<region> create(const backend &backend, bytes reserve = {}, device_number device = 0) {
        return detail::get<region>("region::create", gpu_vmm_region_new, backend.get(), device, reserve.count());
    }

    /// Reserves addresses with options.
    [[nodiscard]] static result<region> create(const backend &backend, const region_options &options) {
        const gpu_vmm_region_options c = detail::to_c(options);
        return detail::get<region>("region::create", gpu_vmm_region_reserve, backend.get(), &c);
    }

    /// Imports the region of an offer, from senders that the caller trusts.
    [[nodiscard]] static result<region> from_offer(const backend &backend, const void *data, std::size_t size) {
        return detail::get<region>("region::from_offer", gpu_vmm_region_import, backend.get(), data, std::uint64_t{size});
    }
};

GPU_VMM_END_NAMESPACE
