// The contents of paused memory on the host or in a file.

#pragma once

#include "gpu_vmm.h"
#include "settings.h"

#include <cstdint>
#include <string>

namespace tms {

// Room for the contents of one allocation. The functions return an error's text, or an empty one.
class Backup {
  public:
    Backup(Kind kind, uint64_t size) : kind(kind), size(size) {}
    Backup(const Backup &) = delete;
    Backup &operator=(const Backup &) = delete;
    ~Backup();

    // Gets the room, if this was not done yet.
    std::string prepare(const gpu_vmm_backend *backend);
    // Copies the contents of a region to the room; for page-locked memory, when the queue is finished.
    std::string save(const gpu_vmm_region *region, const gpu_vmm_copy_queue *queue);
    // Copies the room to a region, as `save` in the other direction.
    std::string load(const gpu_vmm_region *region, const gpu_vmm_copy_queue *queue);
    // Returns the address of the contents; null for a file.
    uint8_t *data() const;

  private:
    std::string map_file(void *&at) const;

    const Kind kind;
    const uint64_t size;
    gpu_vmm_pinned *pinned = nullptr;
    void *mapped = nullptr;
    int file = -1;
    std::string path;
};

// Returns the text of this thread's last error of gpu-vmm for a status; empty for GPU_VMM_OK.
std::string failure(gpu_vmm_status status);

}  // namespace tms
