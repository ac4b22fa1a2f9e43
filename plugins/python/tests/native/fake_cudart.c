// A libcudart with two devices, of host memory, for PyTorch's libc10_cuda. run.py adds the functions that PyTorch needs
// and gpu-vmm's tests do not, which report an error.

#include <stddef.h>
#include <string.h>

typedef int Error;
enum { SUCCESS = 0, INVALID_VALUE = 1 };

static _Thread_local int device;

Error cudaGetDevice(int *out) { return *out = device, SUCCESS; }
Error cudaGetDeviceCount(int *out) { return *out = 2, SUCCESS; }
Error cudaSetDevice(int number) {
    if (number < 0 || number >= 2) {
        return INVALID_VALUE;
    }
    return device = number, SUCCESS;
}
Error cudaMemGetInfo(size_t *free, size_t *total) {
    *free = (size_t)1 << 30;
    *total = (size_t)4 << 30;
    return SUCCESS;
}
Error cudaMemcpy(void *to, const void *from, size_t size, int kind) { return (void)kind, memcpy(to, from, size), SUCCESS; }
Error cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    return (void)stream, cudaMemcpy(to, from, size, kind);
}
Error cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, void *stream) {
    return (void)to_device, (void)from_device, cudaMemcpyAsync(to, from, size, 3, stream);
}
Error cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return (void)peer, (void)flags, SUCCESS; }
Error cudaDeviceSynchronize(void) { return SUCCESS; }
Error cudaStreamSynchronize(void *stream) { return (void)stream, SUCCESS; }
Error cudaStreamIsCapturing(void *stream, int *out) { return (void)stream, *out = 0, SUCCESS; }
Error cudaGetLastError(void) { return SUCCESS; }
Error cudaPeekAtLastError(void) { return SUCCESS; }
Error cudaRuntimeGetVersion(int *out) { return *out = 12000, SUCCESS; }
Error cudaDriverGetVersion(int *out) { return *out = 13000, SUCCESS; }
Error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -1, SUCCESS; }
const char *cudaGetErrorString(Error error) { return error == SUCCESS ? "no error" : "an error of the fake runtime"; }
const char *cudaGetErrorName(Error error) { return error == SUCCESS ? "cudaSuccess" : "cudaErrorFake"; }
