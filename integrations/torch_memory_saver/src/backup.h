// The contents of paused memory on the host or in a file.

#pragma once

#include "gpu_vmm.h"
#include "settings.h"

#include <unistd.h>

#include <cstdint>
#include <string>

namespace tms {

// Memory or a file for the contents of one allocation. The functions return an error's text, or an empty one.
class Backup {
  public:
    Backup(Kind kind, uint64_t size) : kind(kind), size(size) {}
    Backup(const Backup &) = delete;
    Backup &operator=(const Backup &) = delete;
    ~Backup();

    // Gets the memory or the file, if this was not done yet.
    std::string prepare(const gpu_vmm_backend *backend);
    // Copies the contents of a region; for page-locked memory, the copy is done when the queue is finished.
    std::string save(const gpu_vmm_region *region, const gpu_vmm_copy_queue *queue);
    // Copies the contents back to a region, as `save` in the other direction.
    std::string load(const gpu_vmm_region *region, const gpu_vmm_copy_queue *queue);
    // Returns the address of the contents; null for a file.
    uint8_t *data() const;

  private:
    std::string map_file(void *&at) const;

    const Kind kind;
    const uint64_t size;
    const pid_t process = getpid();
    gpu_vmm_pinned *pinned = nullptr;
    void *mapped = nullptr;
    int file = -1;
    std::string path;  // of the file, which is deleted with the backup
};

// Returns the text of this thread's last error of gpu-vmm for a status; empty for GPU_VMM_OK.
std::string failure(gpu_vmm_status status);

}  // namespace tms
