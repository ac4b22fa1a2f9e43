// Two processes use one region. The parent grows it, and the child follows.

#include <gpu_vmm.hpp>

#include <cstdio>
#include <sys/wait.h>
#include <unistd.h>

using namespace gpu_vmm::literals;
using namespace std::chrono_literals;

static void follow(const std::string &path) {
    auto backend = gpu_vmm::backend::open();
    auto region = gpu_vmm::followed_region::create(backend, path, 1_GiB, 30s);
    while (region.next(30s) == gpu_vmm::region_event::changed) {
        region.apply();
        region.write("child", 6_B, region.range().size - 6_B);
    }
    region.close();
}

int main() {
    const std::string path = "/tmp/gpu-vmm-two-" + std::to_string(getpid());
    auto listener = gpu_vmm::listener::create(path);
    const pid_t child = fork();
    if (child == 0) follow(path), _exit(0);
    // A forked child cannot use its parent's driver: each opens its own.
    auto backend = gpu_vmm::backend::open();
    gpu_vmm::region_options options;
    options.size = 1_GiB;
    options.memory.handle_types = gpu_vmm::handle_types::fd;
    auto region = gpu_vmm::region::create(backend, options);
    region.grow(64_MiB);
    auto exporter = listener.share(region, 30s);
    region.grow(128_MiB);
    exporter.publish(region);
    exporter.wait_applied(30s);
    exporter.request_release();
    exporter.wait_released(30s);
    char text[6] = "";
    region.read(text, 6_B, region.size() - 6_B);
    waitpid(child, nullptr, 0);
    std::printf("the %s wrote the last of %llu bytes\n", text, static_cast<unsigned long long>(region.size().count()));
    return std::string(text) == "child" ? 0 : 1;
}
