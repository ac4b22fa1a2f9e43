// Opening backends in a child that was forked after the program itself has initialized the driver, without gpu-vmm.
//
// The first argument is the backend. The exit status is 0 if every check holds.

#include "support.h"
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

// Initializes the vendor's driver as a program without gpu-vmm does.
static void initialize(const char *name) {
    static const char *const cuda[] = {"libcuda.so.1", NULL};
    static const char *const hip[] = {"libamdhip64.so.7", "libamdhip64.so.6", NULL};
    const int is_cuda = strcmp(name, "cuda") == 0;
    void *library = NULL;
    for (const char *const *file = is_cuda ? cuda : hip; library == NULL && *file != NULL; ++file) {
        library = dlopen(*file, RTLD_NOW);
    }
    demand(library != NULL, "the driver's library is loaded");
    union {
        void *address;
        int (*call)(unsigned);
    } init;
    init.address = dlsym(library, is_cuda ? "cuInit" : "hipInit");
    demand(init.address != NULL && init.call(0) == 0, "the driver is initialized");
}

// Runs a check in a forked child, which must end.
static void in_child(const char *name, void (*check)(const char *)) {
    const pid_t child = fork();
    demand(child >= 0, "a child is started");
    if (child == 0) {
        alarm(60);
        check(name);
        _exit(0);
    }
    int status = 0;
    demand(waitpid(child, &status, 0) == child, "the child is waited for");
    demand(status == 0, "the checks in the child hold");
}

// The driver works in no forked child.
static void is_refused(const char *name) {
    gpu_vmm_backend *backend = NULL;
    RETURNS(GPU_VMM_FORKED, gpu_vmm_open(name, &backend));
    RETURNS(GPU_VMM_FORKED, gpu_vmm_open(NULL, &backend));
    // Host memory by name is another matter.
    CHECK(gpu_vmm_open("host", &backend));
    gpu_vmm_close(backend);
}

// HIP does not say that it was initialized in another process. Its GPU is not replaced by host memory even so.
static void is_not_host(const char *name) {
    (void)name;
    gpu_vmm_backend *backend = NULL;
    if (gpu_vmm_open(NULL, &backend) == GPU_VMM_OK) {
        demand(strcmp(gpu_vmm_backend_name(backend), "host") != 0, "the best backend is not host memory");
    }
}

static void is_host(const char *name) {
    gpu_vmm_backend *backend = NULL;
    CHECK(gpu_vmm_open(NULL, &backend));
    demand(strcmp(gpu_vmm_backend_name(backend), name) == 0, "without a GPU the best backend is host memory");
    gpu_vmm_close(backend);
}

int main(int count, char **arguments) {
    demand(count > 1, "the first argument is the backend");
    const char *name = arguments[1];
    unsetenv("GPU_VMM_BACKEND");
    if (strcmp(name, "host") != 0) {
        initialize(name);
        in_child(name, strcmp(name, "cuda") == 0 ? is_refused : is_not_host);
    }
    // The same after gpu-vmm has opened it.
    gpu_vmm_backend *backend = backend_of(count, arguments);
    in_child(name, strcmp(name, "host") == 0 ? is_host : is_refused);
    gpu_vmm_close(backend);
    return 0;
}
