#include "settings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tms {
namespace {

bool is_set(const char *variable) {
    const char *value = getenv(variable);
    if (!value) {
        return false;
    }
    for (const char *on : {"1", "true", "TRUE", "yes", "YES"}) {
        if (!strcmp(value, on)) {
            return true;
        }
    }
    for (const char *off : {"0", "false", "FALSE", "no", "NO"}) {
        if (!strcmp(value, off)) {
            return false;
        }
    }
    say("read the environment", std::string(variable) + "=" + value + " counts as 0; use 1, true, yes, 0, false or no");
    return false;
}

// The first values of each thread's settings, which are read once so that a wrong value is reported once.
struct Initial {
    const bool enable = is_set("TMS_INIT_ENABLE");
    const bool cpu_backup = is_set("TMS_INIT_ENABLE_CPU_BACKUP");
    const bool disk_backup = is_set("TMS_INIT_ENABLE_DISK_BACKUP");
    Kind cpu_kind = Kind::PINNED;

    Initial() {
        const char *name = getenv("TMS_INIT_CPU_BACKUP_BACKEND");
        if (name && !find_kind(name, cpu_kind)) {
            say("read the environment", std::string("TMS_INIT_CPU_BACKUP_BACKEND=") + name + " counts as pinned; use pinned or mmap");
        }
    }
};

const Initial &initial() {
    static const Initial values;
    return values;
}

}  // namespace

void say(const char *what, const std::string &text) { fprintf(stderr, "torch_memory_saver (gpu-vmm): %s: %s\n", what, text.c_str()); }

bool find_kind(const char *name, Kind &kind) {
    const bool pinned = name && !strcmp(name, "pinned"), mmap = name && !strcmp(name, "mmap");
    if (pinned || mmap) {
        kind = pinned ? Kind::PINNED : Kind::MMAP;
    }
    return pinned || mmap;
}

ThreadSettings::ThreadSettings()
    : interesting(initial().enable), cpu_backup(initial().cpu_backup), disk_backup(initial().disk_backup), cpu_kind(initial().cpu_kind) {}

ThreadSettings &thread_settings() {
    static thread_local ThreadSettings settings;
    return settings;
}

ProcessSettings::ProcessSettings() : retain(is_set("TMS_RETAIN_CPU_BACKUP")) {
    const char *named = getenv("TMS_DISK_BACKUP_DIR"), *temporary = getenv("TMPDIR");
    folder = named ? named : temporary ? temporary : "/tmp";
}

std::string ProcessSettings::directory() {
    const std::lock_guard<std::mutex> guard(lock);
    return folder;
}

void ProcessSettings::set_directory(const char *directory) {
    const std::lock_guard<std::mutex> guard(lock);
    folder = directory;
}

ProcessSettings &process_settings() {
    // Never destroyed: memory is freed until the process's last moment.
    static auto *settings = new ProcessSettings;
    return *settings;
}

}  // namespace tms
