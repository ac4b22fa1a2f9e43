// A CUDA runtime for the test of LD_PRELOAD: memory of the host, and counters.

#include <stdlib.h>

int runtime_allocated, runtime_freed, runtime_waits;

int cudaMalloc(void **address, size_t size) { return *address = malloc(size), runtime_allocated++, *address ? 0 : 2; }
int cudaFree(void *address) { return free(address), runtime_freed++, 0; }
int cudaGetDevice(int *device) { return *device = 0, 0; }
int cudaSetDevice(int device) { return device != 0; }
int cudaDeviceSynchronize(void) { return runtime_waits++, 0; }
