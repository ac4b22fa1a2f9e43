// What new allocations get: the settings of each thread, and those of the process.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace tms {

// Where contents go while memory is paused.
enum class Kind { NONE, PINNED, MMAP, DISK };

// A thread's settings. Their first values come from the environment.
struct ThreadSettings {
    std::string tag = "default";
    bool interesting;
    bool cpu_backup;
    bool disk_backup;
    Kind cpu_kind;

    ThreadSettings();
};

ThreadSettings &thread_settings();

// The process's settings.
struct ProcessSettings {
    std::atomic<uint64_t> margin{0};
    std::atomic<bool> retain;
    // Whether tms_pause and tms_resume return an error; else they end the process, since the Python package ignores their status.
    std::atomic<bool> return_errors{false};

    ProcessSettings();
    std::string directory();
    void set_directory(const char *directory);

  private:
    std::mutex lock;
    std::string folder;
};

ProcessSettings &process_settings();

// Finds a kind by the name of a CPU backend. Returns whether there is one.
bool find_kind(const char *name, Kind &kind);

// Writes an error to standard error: what the call does, and why it failed.
void say(const char *what, const std::string &text);

}  // namespace tms
