#include "backup.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

namespace tms {
namespace {

std::string system_failure(const std::string &what) { return what + ": " + strerror(errno); }

// The files of disk backups, which are deleted at the process's exit. Never destroyed: threads pause and resume until the last moment.
struct Files {
    const pid_t process = getpid();
    std::mutex lock;
    std::set<std::string> paths;

    static Files &instance() {
        static auto *files = [] {
            atexit([] { instance().delete_all(); });
            return new Files;
        }();
        return *files;
    }

    void add(const std::string &path) {
        const std::lock_guard<std::mutex> guard(lock);
        paths.insert(path);
    }

    void remove(const std::string &path) {
        const std::lock_guard<std::mutex> guard(lock);
        paths.erase(path);
    }

    void delete_all() {
        if (process != getpid()) {
            return;  // a forked child: the files are its parent's
        }
        const std::lock_guard<std::mutex> guard(lock);
        for (const std::string &path : paths) {
            unlink(path.c_str());
        }
        paths.clear();
    }
};

// Makes a file of `size` bytes in a directory that is created if it is missing. It has a name, as the original's: programs count the files
// of the directory to see what the pause has written.
std::string make_file(const std::string &directory, uint64_t size, int &file, std::string &path) {
    std::error_code failed;
    std::filesystem::create_directories(directory, failed);
    if (failed) {
        return "create the directory " + directory + ": " + failed.message();
    }
    // Absolute: the process may have another current directory when the file is deleted.
    std::string name = std::filesystem::absolute(directory, failed).string() + "/tms-XXXXXX";
    if (failed) {
        return "find the directory " + directory + ": " + failed.message();
    }
    const int made = mkostemp(name.data(), O_CLOEXEC);
    if (made < 0) {
        return system_failure("create a file in " + directory);
    }
    Files::instance().add(name);  // before its space is reserved, which takes long on some file systems
    // Reserves the disk's space now: a write through a mapping to a full disk would end the process.
    if (const int error = posix_fallocate(made, 0, static_cast<off_t>(size))) {
        close(made);
        unlink(name.c_str());
        Files::instance().remove(name);
        errno = error;
        return system_failure(std::to_string(size) + " bytes of a file in " + directory);
    }
    file = made;
    path = std::move(name);
    return {};
}

}  // namespace

std::string failure(gpu_vmm_status status) { return status == GPU_VMM_OK ? std::string() : gpu_vmm_last_error(); }

Backup::~Backup() {
    gpu_vmm_pinned_free(pinned);
    if (mapped) {
        munmap(mapped, size);
    }
    if (file >= 0) {
        close(file);
        if (process == getpid()) {  // else a forked child's copy: the file is its parent's
            unlink(path.c_str());
            Files::instance().remove(path);
        }
    }
}

std::string Backup::prepare(const gpu_vmm_backend *backend) {
    if (kind == Kind::PINNED && !pinned) {
        return failure(gpu_vmm_pinned_new(backend, size, &pinned));
    }
    if (kind == Kind::MMAP && !mapped) {
        void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) {
            return system_failure(std::to_string(size) + " bytes of host memory");
        }
        // Fewer page faults; without effect where the kernel does not have it.
        madvise(at, size, MADV_HUGEPAGE);
        mapped = at;
    }
    if (kind == Kind::DISK && file < 0) {
        return make_file(process_settings().directory(), size, file, path);
    }
    return {};
}

std::string Backup::map_file(void *&at) const {
    at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return at == MAP_FAILED ? system_failure("map " + std::to_string(size) + " bytes of a disk backup") : std::string();
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
