#pragma once

/// @file
/// Clients of a server that keeps memory when programs end. Linux only.

#include "region.hpp"

#include <chrono>
#include <optional>

GPU_VMM_BEGIN_NAMESPACE
namespace serve {

/// The kind of a lease.
enum class lease_kind : std::uint32_t {
    /// The lease maps the memory read-only. Any number of clients can have one.
    read = GPU_VMM_LEASE_READ,
    /// The lease can replace contents. One client can have it.
    write = GPU_VMM_LEASE_WRITE,
};

/// An event of the server for a lease.
enum class lease_event : std::uint32_t {
    /// No event has arrived in time.
    none = GPU_VMM_LEASE_EVENT_NONE,
    /// A writer has committed an epoch, which lease::apply maps.
    new_epoch = GPU_VMM_LEASE_EVENT_NEW_EPOCH,
    /// The region was dropped from the server. The lease keeps its memory.
    dropped = GPU_VMM_LEASE_EVENT_DROPPED,
    /// The server has ended. The lease keeps its memory.
    server_gone = GPU_VMM_LEASE_EVENT_SERVER_GONE,
};

/// The options of a new region of a server.
struct create_options {
    /// The device and the kind of the memory.
    memory_properties memory;
    /// The users that may read and replace the region, as the permission bits of a file; zero for 0600.
    std::uint32_t mode = 0;
    /// The group of the region, if it is not the group of this process.
    std::optional<std::uint32_t> group;
    /// The address, which must be free in this process and on the server; zero for a random one.
    device_address address = 0;
    /// The size of a memory handle, rounded up; zero for the default.
    bytes handle;
};

/// A named part of a region: a tensor.
struct part {
    /// The name.
    std::string name;
    /// The offset of the first element in the region.
    bytes offset;
    /// The type and the places of the elements.
    tensor_layout elements;
};

/// The named parts of a region, and a program's own notes about the contents. Calls of several threads take turns.
class layout : public detail::owner<gpu_vmm_layout, gpu_vmm_layout_free> {
public:
    using owner::owner;

    /// The numbers of parts and notes.
    struct counts {
        /// The number of parts.
        std::uint64_t parts;
        /// The number of notes.
        std::uint64_t notes;
    };

    /// A key and its text.
    struct note {
        /// The key.
        std::string key;
        /// The text.
        std::string text;
    };

    /// Creates an empty layout.
    [[nodiscard]] static result<layout> create() { return detail::get<layout>("layout::create", gpu_vmm_layout_new); }

    /// Adds a part, or replaces the part of that name.
    result<void> set_part(const part &part) {
        const tensor_layout &elements = part.elements;
        if (!elements.strides.empty() && elements.strides.size() != elements.shape.size()) {
            return detail::refuse<void>("layout::set_part", error_kind::invalid_argument,
                                        "set a part: the strides are not as many as the dimensions; leave them empty for row-major order");
        }
        gpu_vmm_part c{};
        c.name = detail::c_text(part.name);
        c.offset = part.offset.count();
        c.code = elements.code;
        c.bits = elements.bits;
        c.lanes = elements.lanes;
        // More dimensions than DLPack allows are refused, however many.
        c.ndim = static_cast<std::int32_t>(elements.shape.size() < 100 ? elements.shape.size() : 100);
        c.shape = elements.shape.data();
        c.strides = elements.strides.empty() ? nullptr : elements.strides.data();
        return detail::call("layout::set_part", gpu_vmm_layout_set_part, get(), &c);
    }

    /// Adds a note, or replaces the note of that key.
    result<void> set_note(const std::string &key, const std::string &text) {
        return detail::call("layout::set_note", gpu_vmm_layout_set_note, get(), detail::c_text(key), detail::c_text(text));
    }

    /// Returns the numbers of parts and notes.
    [[nodiscard]] result<counts> sizes() const {
        counts numbers{};
        const gpu_vmm_status status = gpu_vmm_layout_sizes(get(), &numbers.parts, &numbers.notes);
        return detail::finish("layout::sizes", status, numbers);
    }

    /// Returns a part by its index.
    [[nodiscard]] result<serve::part> part_at(std::uint64_t index) const {
        gpu_vmm_part c{};
        const gpu_vmm_status status = gpu_vmm_layout_part(get(), index, &c);
        return detail::finish("layout::part_at", status, from_c(c));
    }

    /// Returns a part by its name.
    [[nodiscard]] result<serve::part> find_part(const std::string &name) const {
        gpu_vmm_part c{};
        const gpu_vmm_status status = gpu_vmm_layout_find_part(get(), detail::c_text(name), &c);
        return detail::finish("layout::find_part", status, from_c(c));
    }

    /// Returns a note by its index.
    [[nodiscard]] result<note> note_at(std::uint64_t index) const {
        const char *key = nullptr, *text = nullptr;
        const gpu_vmm_status status = gpu_vmm_layout_note(get(), index, &key, &text);
        return detail::finish("layout::note_at", status, note{string(key), string(text)});
    }

    /// Returns a note by its key.
    [[nodiscard]] result<std::string> find_note(const std::string &key) const {
        const char *text = nullptr;
        const gpu_vmm_status status = gpu_vmm_layout_find_note(get(), detail::c_text(key), &text);
        return detail::finish("layout::find_note", status, string(text));
    }

private:
    static std::string string(const char *text) { return text == nullptr ? "" : text; }

    static serve::part from_c(const gpu_vmm_part &c) {
        serve::part part{string(c.name), bytes(c.offset), {c.code, c.bits, c.lanes, {}, {}}};
        if (c.shape != nullptr) part.elements.shape.assign(c.shape, c.shape + c.ndim);
        if (c.strides != nullptr) part.elements.strides.assign(c.strides, c.strides + c.ndim);
        return part;
    }
};

/// A region of a server that is mapped in this process at the region's address. The end of the lease unmaps it; memory that was not committed
/// is lost. Calls of several threads take turns.
class lease : public detail::owner<gpu_vmm_lease, gpu_vmm_lease_free> {
public:
    using owner::owner;

    /// The state of a lease.
    struct lease_state {
        /// The kind.
        lease_kind kind;
        /// The epoch that is mapped, zero for a region that was never committed.
        std::uint64_t epoch;
    };

    /// Returns the region, which belongs to the lease and is valid as long as it. Do not map, unmap, swap or suspend its memory.
    [[nodiscard]] result<region_ref> region() const { return detail::get<region_ref>("lease::region", gpu_vmm_lease_region, get()); }

    /// Returns the kind and the epoch that is mapped.
    [[nodiscard]] result<lease_state> state() const {
        std::uint32_t kind = 0;
        std::uint64_t epoch = 0;
        const gpu_vmm_status status = gpu_vmm_lease_state(get(), &kind, &epoch);
        return detail::finish("lease::state", status, lease_state{static_cast<lease_kind>(kind), epoch});
    }

    /// Returns a copy of the layout of the epoch that is mapped. Another process has written it: region_ref::tensor checks each part.
    [[nodiscard]] result<serve::layout> layout() const { return detail::get<serve::layout>("lease::layout", gpu_vmm_lease_layout, get()); }

    /// Returns the descriptor of the connection, for poll: it is readable when next() has something to receive. It belongs to the lease.
    [[nodiscard]] result<int> fd() const { return detail::get<int>("lease::fd", gpu_vmm_lease_fd, get()); }

    /// Waits for an event of the server.
    result<lease_event> next(std::chrono::milliseconds timeout) {
        return detail::get<lease_event>("lease::next", gpu_vmm_lease_next, get(), detail::milliseconds(timeout));
    }

    /// Maps the epoch that was received, at the same addresses, and returns the epoch that is mapped.
    result<std::uint64_t> apply() { return detail::get<std::uint64_t>("lease::apply", gpu_vmm_lease_apply, get()); }

    /// Replaces the memory of a range by new memory that this lease may write, with the same contents if `copy` is true. Returns the range of
    /// whole handles that was replaced.
    result<byte_range> renew(bytes offset, bytes length, bool copy) {
        gpu_vmm_range c{};
        const gpu_vmm_status status = gpu_vmm_lease_renew(get(), offset.count(), length.count(), copy, &c);
        return detail::finish("lease::renew", status, byte_range{bytes(c.offset), bytes(c.length)});
    }

    /// Makes the new memory the next epoch and returns its number. The layout stays.
    result<std::uint64_t> commit() { return detail::get<std::uint64_t>("lease::commit", gpu_vmm_lease_commit, get(), nullptr); }

    /// Makes the new memory the next epoch, with a layout, and returns its number.
    result<std::uint64_t> commit(const serve::layout &layout) {
        if (!layout) return detail::refuse<std::uint64_t>("lease::commit", error_kind::invalid_argument, "the layout is empty");
        return detail::get<std::uint64_t>("lease::commit", gpu_vmm_lease_commit, get(), layout.get());
    }

    /// Writes the region to a safetensors file and returns its size.
    result<bytes> save(const std::string &path) const {
        return detail::get<bytes>("lease::save", gpu_vmm_lease_save, get(), detail::c_text(path));
    }

    /// Makes a write lease a read lease. New memory that was not committed is lost.
    result<void> downgrade() { return detail::call("lease::downgrade", gpu_vmm_lease_downgrade, get()); }

    /// Unmaps the memory after a wait for the devices and ends the lease. After an error the lease goes on.
    result<void> close() { return detail::call("lease::close", gpu_vmm_lease_close, get()); }
};

/// A connection to a server. Its leases go on when it ends. Several threads may use it at the same time.
class client : public detail::owner<gpu_vmm_client, gpu_vmm_client_free> {
public:
    using owner::owner;

    /// Connects to the server at the path of its socket. `user` is the effective user of the server if it is another one.
    [[nodiscard]] static result<client> connect(const backend &backend, const std::string &path, std::optional<std::uint32_t> user = {}) {
        const char *const c_path = detail::c_text(path);
        if (user) return detail::get<client>("client::connect", gpu_vmm_connect_user, backend.get(), c_path, *user);
        return detail::get<client>("client::connect", gpu_vmm_connect, backend.get(), c_path);
    }

    /// Returns the state of the server, its regions and its clients as JSON.
    [[nodiscard]] result<std::string> status() const { return detail::get_text("client::status", gpu_vmm_client_status, get()); }

    /// Creates a region of at least a size. Other clients see it after the first commit.
    [[nodiscard]] result<lease> create(const std::string &name, bytes size, const create_options &options = {}) {
        const gpu_vmm_create_options c = to_c(options);
        return detail::get<lease>("client::create", gpu_vmm_client_create, get(), detail::c_text(name), size.count(), &c);
    }

    /// Creates a region with the contents of a safetensors file, and commits it. Without a name it has the name in the file.
    [[nodiscard]] result<lease> load(const std::string &path, const std::optional<std::string> &name = {}, const create_options &options = {}) {
        const gpu_vmm_create_options c = to_c(options);
        // A name with a zero byte is no name, and not the name in the file.
        const char *c_name = nullptr;
        if (name && (c_name = detail::c_text(*name)) == nullptr) c_name = "";
        return detail::get<lease>("client::load", gpu_vmm_client_load, get(), detail::c_text(path), c_name, &c);
    }

    /// Opens a region: waits until it is committed and, to write, until no other client writes, and maps its last epoch read-only.
    [[nodiscard]] result<lease> open(const std::string &name, lease_kind kind, std::chrono::milliseconds timeout) {
        return detail::get<lease>("client::open", gpu_vmm_client_open, get(), detail::c_text(name), static_cast<std::uint32_t>(kind),
                                  detail::milliseconds(timeout));
    }

    /// Removes a region from the server. Clients keep the memory that they have mapped.
    result<void> drop(const std::string &name) { return detail::call("client::drop", gpu_vmm_client_drop, get(), detail::c_text(name)); }

private:
    static gpu_vmm_create_options to_c(const create_options &options) noexcept {
        gpu_vmm_create_options c{};
        c.memory = detail::to_c(options.memory);
        c.mode = options.mode;
        c.group = options.group.value_or(0);
        c.has_group = options.group.has_value();
        c.address = options.address;
        c.handle = options.handle.count();
        return c;
    }
};

/// How the pools of a program take part in a server's budget.
struct program_options {
    /// The program's name in lists and errors; empty for the name of its executable file.
    std::string name;
    /// Programs of a lower priority are asked first for memory: -128 to 127. Those above 0 are for the server's own user and for root.
    int priority = 0;
    /// How long a request waits for memory that other programs have; zero for 10 seconds.
    std::chrono::milliseconds wait{0};
    /// The effective user of the server if it is another one.
    std::optional<std::uint32_t> user;
};

/// Lets the server at the path of its socket divide the memory of its devices between the pools of this program that are created from now on
/// and those of other programs. A pool connects when it is created.
inline result<void> set_pool_server(const std::string &path, const program_options &options = {}) {
    // Null has a meaning for both.
    if (detail::c_text(path) == nullptr || detail::c_text(options.name) == nullptr) {
        return detail::refuse<void>("serve::set_pool_server", error_kind::invalid_argument, "the path or the name has a zero byte");
    }
    gpu_vmm_program_options c{};
    c.name = options.name.empty() ? nullptr : detail::c_text(options.name);
    c.priority = options.priority;
    c.user = options.user.value_or(0);
    c.has_user = options.user.has_value();
    c.wait_ms = detail::milliseconds(options.wait);
    return detail::call("serve::set_pool_server", gpu_vmm_set_pool_server, detail::c_text(path), &c);
}

/// Lets pools that are created from now on have no server, whatever the environment variable GPU_VMM_POOL_SERVER says.
inline result<void> set_no_pool_server() { return detail::call("serve::set_no_pool_server", gpu_vmm_set_pool_server, nullptr, nullptr); }

} // namespace serve
GPU_VMM_END_NAMESPACE
