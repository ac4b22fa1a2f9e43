// A library that allocates with the CUDA runtime, as PyTorch's do. tests/preload.c loads it outside of the global scope.

#include <stddef.h>

int cudaMalloc(void **address, size_t size);
int cudaFree(void *address);
extern int runtime_allocated, runtime_freed, runtime_waits;

int user_allocate(void **address, size_t size) { return cudaMalloc(address, size); }
int user_free(void *address) { return cudaFree(address); }
void user_counts(int *counts) { counts[0] = runtime_allocated, counts[1] = runtime_freed, counts[2] = runtime_waits; }
