#include "backup.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace tms {
namespace {

std::string system_failure(const std::string &what) { return what + ": " + strerror(errno); }

}  // namespace

std::string failure(gpu_vmm_status status) { return status == GPU_VMM_OK ? std::string() : gpu_vmm_last_error(); }

Backup::~Backup() {
    gpu_vmm_pinned_free(pinned);
    if (mapped) {
        munmap(mapped, size);
    }
    if (file >= 0) {
        close(file);
        unlink(path.c_str());
    }
}

std::string Backup::prepare(const gpu_vmm_backend *backend) {
    if (kind == Kind::PINNED && !pinned) {
        return failure(gpu_vmm_pinned_new(backend, size, &pinned));
    }
    if (kind == Kind::MMAP && !mapped) {
        void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) {
            return system_failure("pause: " + std::to_string(size) + " bytes of host memory");
        }
        // Fewer page faults; without effect where the kernel does not have it.
        madvise(at, size, MADV_HUGEPAGE);
        mapped = at;
    }
    if (kind == Kind::DISK && file < 0) {
        static std::atomic<unsigned> number{0};
        path = process_settings().directory() + "/tms-" + std::to_string(getpid()) + "-" + std::to_string(number++) + ".backup";
        const int made = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (made < 0) {
            return system_failure("pause: create " + path);
        }
        // Reserves the disk's space now: a write through a mapping to a full disk would end the process.
        const int error = posix_fallocate(made, 0, static_cast<off_t>(size));
        if (error) {
            errno = error;
            const std::string text = system_failure("pause: " + std::to_string(size) + " bytes in " + path);
            close(made);
            unlink(path.c_str());
            return text;
        }
        file = made;
    }
    return {};
}

std::string Backup::map_file(void *&at) const {
    at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return at == MAP_FAILED ? system_failure("map " + path) : std::string();
}

std::string Backup::save(const gpu_vmm_region *region, const gpu_vmm_copy_queue *queue) {
    if (kind == Kind::PINNED) {
        return failure(gpu_vmm_copy_queue_read(queue, region, 0, pinned, 0, size));
    }
    if (kind == Kind::MMAP) {
        return failure(gpu_vmm_region_read(region, 0, mapped, size));
    }
    void *at;
    std::string text = map_file(at);
    if (text.empty()) {
        text = failure(gpu_vmm_region_read(region, 0, at, size));
        munmap(at, size);
    }
    return text;
}

std::string Backup::load(const gpu_vmm_region *region, const gpu_vmm_copy_queue *queue) {
    if (kind == Kind::PINNED) {
        return failure(gpu_vmm_copy_queue_write(queue, region, 0, pinned, 0, size));
    }
    if (kind == Kind::MMAP) {
        return failure(gpu_vmm_region_write(region, 0, mapped, size));
    }
    void *at;
    std::string text = map_file(at);
    if (text.empty()) {
        text = failure(gpu_vmm_region_write(region, 0, at, size));
        munmap(at, size);
    }
    return text;
}

uint8_t *Backup::data() const {
    void *at = mapped;
    if (pinned && gpu_vmm_pinned_data(pinned, &at) != GPU_VMM_OK) {
        return nullptr;
    }
    return static_cast<uint8_t *>(at);
}

}  // namespace tms
