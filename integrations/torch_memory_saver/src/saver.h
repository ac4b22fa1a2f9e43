// The allocations that can be paused.

#pragma once

#include "backup.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace tms {

class Saver {
  public:
    static Saver &instance();

    // Allocates with the settings of this thread. Returns a status of the runtime; `error` receives the text.
    int allocate(void **address, uint64_t size, int device, std::string &error);
    // Frees an allocation. Returns whether the address is that of one.
    bool release(void *address);
    // Pauses all active allocations with a tag; an empty tag means all. If it fails, all are as before.
    std::string pause(const std::string &tag);
    // Resumes all paused allocations with a tag. If it fails, those that are not back are paused and keep their contents.
    std::string resume(const std::string &tag);
    // Returns the host's copy of a range of an allocation; null if there is none.
    uint8_t *backup_of(const uint8_t *address, uint64_t size);

  private:
    struct Allocation {
        gpu_vmm_region *region = nullptr;
        uint64_t size = 0;
        int device = 0;
        std::string tag;
        Kind kind = Kind::NONE;
        bool paused = false;
        std::unique_ptr<Backup> backup;

        ~Allocation() { gpu_vmm_region_free(region); }
    };

    std::string open();
    gpu_vmm_status create(Allocation &allocation);
    std::string queue_of(int device, gpu_vmm_copy_queue *&queue);
    std::string wait_for(int device);
    std::string finish();
    std::string save(Allocation &allocation);
    std::string restore(Allocation &allocation);

    std::mutex lock;
    gpu_vmm_backend *backend = nullptr;
    std::map<int, gpu_vmm_copy_queue *> queues;
    std::map<uint8_t *, std::unique_ptr<Allocation>> allocations;
};

}  // namespace tms
