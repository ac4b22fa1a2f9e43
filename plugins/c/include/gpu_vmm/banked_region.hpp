#pragma once

/// @file
/// One address with several banks of memory.

#include "region.hpp"

#include <optional>

GPU_VMM_BEGIN_NAMESPACE

/// The number of a bank of a banked region.
enum class bank_id : std::uint32_t {};

/// A fixed range of addresses and several banks of memory, of which one at a time is mapped there. The others keep their contents. Calls of
/// several threads take turns.
class banked_region : public detail::owner<gpu_vmm_banked, gpu_vmm_banked_free> {
public:
    using owner::owner;

    /// Reserves the addresses, without a bank. The `size` of the options must be the size of the largest bank.
    [[nodiscard]] static result<banked_region> create(const backend &backend, const region_options &options) {
        const gpu_vmm_region_options c = detail::to_c(options);
        return detail::get<banked_region>("banked_region::create", gpu_vmm_banked_new, backend.get(), &c);
    }

    /// Returns the first address, which never changes.
    [[nodiscard]] result<device_address> address() const {
        return detail::get<device_address>("banked_region::address", gpu_vmm_banked_address, get());
    }

    /// Adds a bank of new memory of at least a size. Nothing is mapped.
    result<bank_id> add(bytes size) { return detail::get<bank_id>("banked_region::add", gpu_vmm_banked_add, get(), size.count()); }

    /// Adds a bank of existing memory, one piece behind the other.
    result<bank_id> add(const std::vector<const physical_memory *> &memories) {
        std::vector<const gpu_vmm_physical *> c;
        for (const physical_memory *memory : memories) c.push_back(memory == nullptr ? nullptr : memory->get());
        return detail::get<bank_id>("banked_region::add", gpu_vmm_banked_add_physical, get(), c.data(), std::uint64_t{c.size()});
    }

    /// Maps a bank at the address after a wait for the devices.
    result<void> select(bank_id bank) {
        return detail::call("banked_region::select", gpu_vmm_banked_select, get(), static_cast<std::uint32_t>(bank));
    }

    /// Unmaps the selected bank after a wait for the devices.
    result<void> hide() { return detail::call("banked_region::hide", gpu_vmm_banked_hide, get()); }

    /// Removes a bank, which it hides first, and releases its memory.
    result<void> remove(bank_id bank) {
        return detail::call("banked_region::remove", gpu_vmm_banked_remove, get(), static_cast<std::uint32_t>(bank));
    }

    /// Returns the selected bank.
    [[nodiscard]] result<std::optional<bank_id>> selected() const {
        std::uint32_t bank = 0;
        const gpu_vmm_status status = gpu_vmm_banked_selected(get(), &bank);
        const auto selected = bank == GPU_VMM_NO_BANK ? std::nullopt : std::optional(static_cast<bank_id>(bank));
        return detail::finish("banked_region::selected", status, selected);
    }

    /// Copies bytes of the selected bank to the host.
    result<void> read(void *to, bytes size, bytes offset = {}) const {
        return detail::call("banked_region::read", gpu_vmm_banked_read, get(), offset.count(), to, size.count());
    }

    /// Copies bytes of the host to the selected bank.
    result<void> write(const void *from, bytes size, bytes offset = {}) {
        return detail::call("banked_region::write", gpu_vmm_banked_write, get(), offset.count(), from, size.count());
    }

    /// Adds an observer. It is removed with the banked region.
    result<void> add_observer(observer functions) {
        const auto add = [this](const gpu_vmm_observer *c) { return gpu_vmm_banked_on_backing_change(get(), c); };
        return detail::add_observer(std::move(functions), add,
                                    [](gpu_vmm_status status) { return detail::finish("banked_region::add_observer", status); });
    }
};

GPU_VMM_END_NAMESPACE
