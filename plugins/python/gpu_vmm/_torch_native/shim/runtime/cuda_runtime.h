// Stands in for CUDA's header of this name, whose other half needs nvcc's own headers. PyTorch's headers need this part alone.
#pragma once
#include <cuda_runtime_api.h>
