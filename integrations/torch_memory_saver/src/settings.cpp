#include "settings.h"

#include <cstdlib>
#include <cstring>

namespace tms {
namespace {

bool is_set(const char *variable) {
    const char *value = getenv(variable);
    return value && (!strcmp(value, "1") || !strcmp(value, "true") || !strcmp(value, "yes"));
}

}  // namespace

bool find_kind(const char *name, Kind &kind) {
    const bool pinned = name && !strcmp(name, "pinned"), mmap = name && !strcmp(name, "mmap");
    if (pinned || mmap) {
        kind = pinned ? Kind::PINNED : Kind::MMAP;
    }
    return pinned || mmap;
}

ThreadSettings::ThreadSettings()
    : interesting(is_set("TMS_INIT_ENABLE")), cpu_backup(is_set("TMS_INIT_ENABLE_CPU_BACKUP")),
      disk_backup(is_set("TMS_INIT_ENABLE_DISK_BACKUP")), cpu_kind(Kind::PINNED) {
    find_kind(getenv("TMS_INIT_CPU_BACKUP_BACKEND"), cpu_kind);
}

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
