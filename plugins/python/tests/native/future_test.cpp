// A PyTorch whose allocator has two functions that gpu_vmm.torch's class does not know: they are PyTorch's own allocator's, and the rest is
// gpu-vmm's. run.py adds the functions to PyTorch's header.
//
// Arguments: the file of libgpu_vmm_c, the file of the compiled class. The exit status is 0 if every check holds.

#include <gpu_vmm.h>

#include "checks.h"
#include "other_allocator.h"

#include <dlfcn.h>

#include <cstring>

// PyTorch's own allocator, of that version.
class Native final : public OtherAllocator {
  public:
    int devices = 0;
    int calls = 0;

    void init(int count) override { devices = count; }
    bool initialized() override { return devices > 0; }
    void futureCall(c10::DeviceIndex device, std::unique_ptr<int> value, const std::function<void(int)> &call) override {
        calls += 1;
        call(device + *value);
    }
    std::pair<size_t, std::string> futureValue(const void *address, size_t size) const override {
        return {reinterpret_cast<size_t>(address) + size, "of PyTorch's own"};
    }
};

int main(int count, char **arguments) {
    demand(count == 3, "two files are named");
    static Native own;
    native::allocator.store(&own);
    void *library = dlopen(arguments[1], RTLD_NOW);
    demand(library != nullptr, arguments[1]);
    const auto configure = reinterpret_cast<decltype(&gpu_vmm_torch_configure)>(dlsym(library, "gpu_vmm_torch_configure"));
    demand(configure("host", nullptr) == GPU_VMM_OK, "the host backend");
    void *built = dlopen(arguments[2], RTLD_NOW);
    demand(built != nullptr, arguments[2]);
    const auto install = reinterpret_cast<int (*)(const char *, char *, size_t)>(dlsym(built, "gpu_vmm_torch_install"));
    char reason[256];
    demand(install(arguments[1], reason, sizeof reason) == 0, reason);
    now = "functions of a future PyTorch";
    native::init(2);
    demand(own.devices == 2, "PyTorch's own allocator is initialized");
    int seen = 0;
    installed().futureCall(3, std::make_unique<int>(4), [&](int value) { seen = value; });
    demand(seen == 7 && own.calls == 1, "a call without a result");
    const auto value = installed().futureValue(reinterpret_cast<void *>(64), 1);
    demand(value.first == 65 && value.second == "of PyTorch's own", "a result");
    demand(installed().name() == "gpu-vmm", "the rest is gpu-vmm's");
    const auto block = tensor(3000);
    std::memset(block.get(), 1, 3000);
    demand(own.live == 0 && all(native::getDeviceStats(0)) == 3072, "so is the memory");
    std::puts("every check holds");
    return 0;
}
