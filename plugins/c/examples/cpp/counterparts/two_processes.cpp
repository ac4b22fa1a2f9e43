// The same with CUDA's runtime. Memory of cudaMalloc does not grow: the parent allocates anew, copies, and shares a second handle.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

static const size_t half = 64 << 20, whole = 128 << 20;

static void follow(int from, int to) {
    cudaIpcMemHandle_t handle;
    void *memory = nullptr;
    for (size_t size : {half, whole}) {
        if (read(from, &handle, sizeof handle) != sizeof handle) _exit(1);
        cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
        cudaMemcpy(static_cast<char *>(memory) + size - 6, "child", 6, cudaMemcpyHostToDevice);
        cudaIpcCloseMemHandle(memory);
        if (write(to, "x", 1) != 1) _exit(1);
    }
}

static void share(void *memory, int to, int from) {
    cudaIpcMemHandle_t handle;
    char done;
    cudaIpcGetMemHandle(&handle, memory);
    if (write(to, &handle, sizeof handle) != sizeof handle || read(from, &done, 1) != 1) _exit(1);
}

int main() {
    int down[2], up[2];
    if (pipe(down) != 0 || pipe(up) != 0) return 1;
    const pid_t child = fork();
    if (child == 0) follow(down[0], up[1]), _exit(0);
    void *memory = nullptr, *larger = nullptr;
    cudaMalloc(&memory, half);
    share(memory, down[1], up[0]);
    cudaMalloc(&larger, whole);
    cudaMemcpy(larger, memory, half, cudaMemcpyDeviceToDevice);
    cudaFree(memory);
    share(larger, down[1], up[0]);
    char text[6] = "";
    cudaMemcpy(text, static_cast<char *>(larger) + whole - 6, 6, cudaMemcpyDeviceToHost);
    waitpid(child, nullptr, 0);
    std::printf("the %s wrote the last of %zu bytes\n", text, whole);
    cudaFree(larger);
    return std::string(text) == "child" ? 0 : 1;
}
