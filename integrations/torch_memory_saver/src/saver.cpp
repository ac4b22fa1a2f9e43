#include "saver.h"

#include "runtime.h"

#include <set>
#include <vector>

namespace tms {

Saver &Saver::instance() {
    // Never destroyed: memory is freed until the process's last moment.
    static auto *saver = new Saver;
    return *saver;
}

std::string Saver::open() { return backend ? std::string() : failure(gpu_vmm_open(nullptr, &backend)); }

gpu_vmm_status Saver::create(Allocation &allocation) {
    gpu_vmm_region_options options = {};
    options.memory.device = static_cast<uint32_t>(allocation.device);
    options.size = allocation.size;
    gpu_vmm_status status = GPU_VMM_OK;
    // Memory that network cards can access, as the original's, and without that on devices that refuse it.
    for (const bool remote_dma : {true, false}) {
        options.memory.remote_dma = remote_dma;
        gpu_vmm_region_free(allocation.region);
        status = gpu_vmm_region_reserve(backend, &options, &allocation.region);
        status = status ? status : gpu_vmm_region_grow(allocation.region, allocation.size);
        if (status == GPU_VMM_OK || status == GPU_VMM_OUT_OF_MEMORY) {
            break;
        }
    }
    return status;
}

int Saver::allocate(void **address, uint64_t size, int device, std::string &error) {
    const ThreadSettings &settings = thread_settings();
    if (settings.cpu_backup && settings.disk_backup) {
        error = "both the CPU and the disk keep the contents; enable one of them";
        return INVALID_VALUE;
    }
    if (size == 0) {
        *address = nullptr;
        return SUCCESS;
    }
    const std::lock_guard<std::mutex> guard(lock);
    error = open();
    uint64_t free_bytes = UINT64_MAX;
    if (const uint64_t margin = process_settings().margin; error.empty() && margin) {
        error = failure(gpu_vmm_memory(backend, static_cast<uint32_t>(device), &free_bytes, nullptr));
        if (error.empty() && (size > free_bytes || free_bytes - size < margin)) {
            error = std::to_string(size) + " bytes would leave less than the margin of " + std::to_string(margin) +
                    " bytes; " + std::to_string(free_bytes) + " are free";
            return OUT_OF_MEMORY;
        }
    }
    if (!error.empty()) {
        return NOT_INITIALIZED;
    }
    auto made = std::make_unique<Allocation>();
    uint64_t start = 0;
    made->size = size;
    made->device = device;
    gpu_vmm_status status = create(*made);
    status = status ? status : gpu_vmm_region_address(made->region, &start);
    if (status) {
        error = failure(status);
        return status == GPU_VMM_OUT_OF_MEMORY ? OUT_OF_MEMORY : UNKNOWN_ERROR;
    }
    made->tag = settings.tag;
    made->kind = settings.cpu_backup ? settings.cpu_kind : settings.disk_backup ? Kind::DISK : Kind::NONE;
    *address = reinterpret_cast<void *>(start);
    allocations[static_cast<uint8_t *>(*address)] = std::move(made);
    return SUCCESS;
}

bool Saver::release(void *address) {
    std::unique_ptr<Allocation> gone;
    const std::lock_guard<std::mutex> guard(lock);
    const auto found = allocations.find(static_cast<uint8_t *>(address));
    if (found == allocations.end()) {
        return false;
    }
    gone = std::move(found->second);
    allocations.erase(found);
    return true;  // the region waits for the devices before its memory returns to the driver
}

std::string Saver::queue_of(int device, gpu_vmm_copy_queue *&queue) {
    auto &kept = queues[device];
    std::string text = kept ? std::string() : failure(gpu_vmm_copy_queue_new(backend, static_cast<uint32_t>(device), &kept));
    queue = kept;
    return text;
}

std::string Saver::wait_for(int device) {
    if (synchronize(device)) {
        return {};
    }
    // Without a runtime, the process has at most the work of a driver's default stream.
    gpu_vmm_event *event = nullptr;
    gpu_vmm_status status = gpu_vmm_event_new(backend, static_cast<uint32_t>(device), &event);
    status = status ? status : gpu_vmm_event_record(event, nullptr);
    status = status ? status : gpu_vmm_event_wait(event);
    const std::string text = failure(status);
    gpu_vmm_event_free(event);
    return text;
}

std::string Saver::finish() {
    std::string text;
    for (const auto &[device, queue] : queues) {
        const std::string one = failure(gpu_vmm_copy_queue_finish(queue));
        text = text.empty() ? one : text;
    }
    return text;
}

std::string Saver::save(Allocation &allocation) {
    gpu_vmm_copy_queue *queue = nullptr;
    std::string text = queue_of(allocation.device, queue);
    if (text.empty()) {
        if (!allocation.backup) {
            allocation.backup = std::make_unique<Backup>(allocation.kind, allocation.size);
        }
        text = allocation.backup->prepare(backend);
    }
    return text.empty() ? allocation.backup->save(allocation.region, queue) : text;
}

std::string Saver::restore(Allocation &allocation) {
    std::string text = failure(gpu_vmm_region_resume(allocation.region, nullptr));
    if (text.empty() && allocation.backup) {
        gpu_vmm_copy_queue *queue = nullptr;
        text = queue_of(allocation.device, queue);
        text = text.empty() ? allocation.backup->load(allocation.region, queue) : text;
        if (!text.empty()) {  // the suspend waits for copies that are queued
            gpu_vmm_region_suspend(allocation.region, nullptr, true, nullptr);
        }
    }
    return text;
}

std::string Saver::pause(const std::string &tag) {
    const std::lock_guard<std::mutex> guard(lock);
    std::vector<Allocation *> chosen;
    std::set<int> devices;
    for (const auto &[address, allocation] : allocations) {
        if (!allocation->paused && (tag.empty() || allocation->tag == tag)) {
            chosen.push_back(allocation.get());
            devices.insert(allocation->device);
        }
    }
    std::string text;
    for (const int device : devices) {
        text = text.empty() ? wait_for(device) : text;
    }
    std::vector<Allocation *> new_backups;
    for (Allocation *one : chosen) {
        if (text.empty() && one->kind != Kind::NONE) {
            if (!one->backup) {
                new_backups.push_back(one);
            }
            text = save(*one);
        }
    }
    const std::string copied = finish();
    text = text.empty() ? copied : text;
    std::vector<Allocation *> done;
    for (Allocation *one : chosen) {
        if (text.empty()) {
            text = failure(gpu_vmm_region_suspend(one->region, nullptr, true, nullptr));
            if (text.empty()) {
                one->paused = true;
                done.push_back(one);
            }
        }
    }
    if (text.empty()) {
        return text;
    }
    // Contents that no backup keeps were lost at the suspend, as the caller has chosen.
    for (Allocation *one : done) {
        one->paused = !restore(*one).empty();
    }
    if (!finish().empty()) {
        text += "; and the contents of the memory that was already paused could not be restored";
    }
    for (Allocation *one : new_backups) {
        if (!one->paused) {
            one->backup.reset();
        }
    }
    return text;
}

std::string Saver::resume(const std::string &tag) {
    const std::lock_guard<std::mutex> guard(lock);
    std::string text;
    std::vector<Allocation *> back;
    for (const auto &[address, allocation] : allocations) {
        if (text.empty() && allocation->paused && (tag.empty() || allocation->tag == tag)) {
            text = restore(*allocation);
            if (text.empty()) {
                back.push_back(allocation.get());
            }
        }
    }
    const std::string copied = finish();
    for (Allocation *one : back) {
        // If a copy has failed, it is unknown which one: all are paused again and keep their contents.
        if (!copied.empty() && one->backup) {
            gpu_vmm_region_suspend(one->region, nullptr, true, nullptr);
            continue;
        }
        one->paused = false;
        if (!process_settings().retain) {
            one->backup.reset();
        }
    }
    return text.empty() ? copied : text;
}

uint8_t *Saver::backup_of(const uint8_t *address, uint64_t size) {
    const std::lock_guard<std::mutex> guard(lock);
    auto next = allocations.upper_bound(const_cast<uint8_t *>(address));
    if (next == allocations.begin()) {
        return nullptr;
    }
    const auto &[start, allocation] = *--next;
    const auto offset = static_cast<uint64_t>(address - start);
    if (!allocation->backup || offset > allocation->size || size > allocation->size - offset) {
        return nullptr;
    }
    uint8_t *data = allocation->backup->data();
    return data ? data + offset : nullptr;
}

}  // namespace tms
