#pragma once

/// @file
/// Physical memory without an address, lists of pages, and offers of memory to other processes.

#include "backend.hpp"
#include "descriptor.hpp"

GPU_VMM_BEGIN_NAMESPACE

/// How other processes take the memory of an offer.
enum class offer_method : std::uint32_t {
    /// Processes of this machine take descriptors from this process. Linux only.
    process = GPU_VMM_OFFER_BY_PROCESS,
    /// Processes on all machines of the fabric import fabric handles.
    fabric = GPU_VMM_OFFER_BY_FABRIC,
};

/// A region or physical memory that other processes can import, as bytes. Keep it until all of them have imported it.
class offer : public detail::owner<gpu_vmm_offer, gpu_vmm_offer_free> {
public:
    using owner::owner;

    /// The bytes of an offer, which are valid as long as it.
    struct contents {
        /// The first byte.
        const void *data;
        /// The number of bytes.
        std::size_t size;
    };

    /// Returns the bytes, to be sent to other processes by any means. Treat the bytes of an offer by fabric as a secret.
    [[nodiscard]] result<contents> data() const {
        const void *data = nullptr;
        std::uint64_t size = 0;
        const gpu_vmm_status status = gpu_vmm_offer_bytes(get(), &data, &size);
        return detail::finish("offer::data", status, contents{data, static_cast<std::size_t>(size)});
    }
};

/// A fabric handle, whose bytes any network can carry.
using fabric_handle = gpu_vmm_fabric_handle;

/// Physical memory of one device. Several objects can share one memory: the device gets it back when all have ended and no region maps it.
class physical_memory : public detail::owner<gpu_vmm_physical, gpu_vmm_physical_release> {
public:
    using owner::owner;

    /// Creates memory of at least a size, rounded up to the granularity.
    [[nodiscard]] static result<physical_memory> create(const backend &backend, bytes size, const memory_properties &properties = {}) {
        const gpu_vmm_properties c = detail::to_c(properties);
        return detail::get<physical_memory>("physical_memory::create", gpu_vmm_physical_create, backend.get(), &c, size.count());
    }

    /// Takes a reference to memory that other code of this process has mapped at an address, which no thread may unmap meanwhile.
    [[nodiscard]] static result<physical_memory> adopt(const backend &backend, device_address address) {
        return detail::get<physical_memory>("physical_memory::adopt", gpu_vmm_physical_adopt, backend.get(), address);
    }

    /// Returns another object for the same memory.
    [[nodiscard]] result<physical_memory> retain() const {
        return detail::get<physical_memory>("physical_memory::retain", gpu_vmm_physical_retain, get());
    }

    /// Returns the size, a multiple of the granularity.
    [[nodiscard]] result<bytes> size() const { return detail::get<bytes>("physical_memory::size", gpu_vmm_physical_size, get()); }

    /// Returns the properties that the memory has.
    [[nodiscard]] result<memory_properties> properties() const {
        gpu_vmm_properties c{};
        const gpu_vmm_status status = gpu_vmm_physical_properties(get(), &c);
        return detail::finish("physical_memory::properties", status, detail::from_c(c));
    }

    /// Returns whether two objects share one memory.
    [[nodiscard]] result<bool> is_same(const physical_memory &other) const {
        return detail::get<bool>("physical_memory::is_same", gpu_vmm_physical_same, get(), other.get());
    }

    /// Returns the number of holders: objects, this one included, and mappings.
    [[nodiscard]] result<std::uint64_t> holders() const {
        return detail::get<std::uint64_t>("physical_memory::holders", gpu_vmm_physical_holders, get());
    }

    /// Copies bytes to the host, whether or not the memory is mapped, and waits for the copy.
    result<void> read(void *to, bytes size, bytes offset = {}) const {
        return detail::call("physical_memory::read", gpu_vmm_physical_read, get(), offset.count(), to, size.count());
    }

    /// Copies bytes of the host to the memory, whether or not it is mapped, and waits for the copy.
    result<void> write(const void *from, bytes size, bytes offset = {}) {
        return detail::call("physical_memory::write", gpu_vmm_physical_write, get(), offset.count(), from, size.count());
    }

    /// Copies bytes of other memory to this memory and waits for the copy. Two ranges of one memory must not overlap.
    result<void> copy_from(const physical_memory &from, bytes size, bytes offset = {}, bytes from_offset = {}) {
        return detail::call("physical_memory::copy_from", gpu_vmm_physical_copy, get(), offset.count(), from.get(), from_offset.count(),
                            size.count());
    }

    /// Exports the memory as a file descriptor, which can be sent over a Unix socket. It must have been created with handle_types::fd.
    [[nodiscard]] result<descriptor> export_fd() const {
        std::int32_t fd = -1;
        const gpu_vmm_status status = gpu_vmm_physical_export_fd(get(), &fd);
        return detail::finish("physical_memory::export_fd", status, descriptor(fd));
    }

    /// Imports memory from a file descriptor, which stays the caller's. Size and properties must be the exported memory's.
    [[nodiscard]] static result<physical_memory> import_fd(const backend &backend, int fd, bytes size, const memory_properties &properties = {}) {
        const gpu_vmm_properties c = detail::to_c(properties);
        return detail::get<physical_memory>("physical_memory::import_fd", gpu_vmm_physical_import_fd, backend.get(), &c, size.count(), fd);
    }

    /// Exports the memory as a fabric handle. It must have been created with handle_types::fabric.
    [[nodiscard]] result<fabric_handle> export_fabric() const {
        return detail::get<fabric_handle>("physical_memory::export_fabric", gpu_vmm_physical_export_fabric, get());
    }

    /// Imports memory from a fabric handle. Size and properties must be the exported memory's.
    [[nodiscard]] static result<physical_memory> import_fabric(const backend &backend, const fabric_handle &handle, bytes size,
                                                               const memory_properties &properties = {}) {
        const gpu_vmm_properties c = detail::to_c(properties);
        return detail::get<physical_memory>("physical_memory::import_fabric", gpu_vmm_physical_import_fabric, backend.get(), &c, size.count(),
                                            &handle);
    }

    /// Offers the memory to other processes. It must have been created for that.
    [[nodiscard]] result<gpu_vmm::offer> offer(const backend &backend, offer_method method = offer_method::process) const {
        return detail::get<gpu_vmm::offer>("physical_memory::offer", gpu_vmm_physical_offer, backend.get(), get(),
                                           static_cast<std::uint32_t>(method));
    }

    /// Imports the memory of an offer, from senders that the caller trusts.
    [[nodiscard]] static result<physical_memory> from_offer(const backend &backend, const void *data, std::size_t size) {
        return detail::get<physical_memory>("physical_memory::from_offer", gpu_vmm_physical_import, backend.get(), data, std::uint64_t{size});
    }
};

/// The sizes of a list of pages.
struct page_list_sizes {
    /// The size of a page.
    bytes page;
    /// The size of all pages, free and in use.
    bytes held;
    /// The size of the free pages.
    bytes free;
    /// The most that all pages may take.
    bytes budget;
};

/// A list of free pages: physical memory in pieces of one size, under one budget. A page returns to the list when nothing maps or names it
/// any more. Several threads may use it at the same time.
class page_list : public detail::owner<gpu_vmm_page_list, gpu_vmm_page_list_free> {
public:
    using owner::owner;

    /// Creates an empty list of pages of at least `page` bytes, rounded up to the granularity.
    [[nodiscard]] static result<page_list> create(const backend &backend, bytes page, bytes budget, const memory_properties &properties = {}) {
        const gpu_vmm_properties c = detail::to_c(properties);
        return detail::get<page_list>("page_list::create", gpu_vmm_page_list_new, backend.get(), &c, page.count(), budget.count());
    }

    /// Returns the sizes of a page, of all pages, of the free pages and of the budget.
    [[nodiscard]] result<page_list_sizes> sizes() const {
        std::uint64_t page = 0, held = 0, free = 0, budget = 0;
        const gpu_vmm_status status = gpu_vmm_page_list_sizes(get(), &page, &held, &free, &budget);
        return detail::finish("page_list::sizes", status, page_list_sizes{bytes(page), bytes(held), bytes(free), bytes(budget)});
    }

    /// Changes the budget. Free pages beyond it return to the device now, and pages in use when they are no longer used.
    result<void> set_budget(bytes budget) { return detail::call("page_list::set_budget", gpu_vmm_page_list_set_budget, get(), budget.count()); }

    /// Takes one page out of the list, a free one or a new one. It keeps the bytes of its last owner.
    [[nodiscard]] result<physical_memory> take() { return detail::get<physical_memory>("page_list::take", gpu_vmm_page_list_take, get()); }
};

GPU_VMM_END_NAMESPACE
