// The simulated kernels besides those of backend-hip/src/kernels.hip. They also work on a real GPU. Each processes all
// of its data with any grid. Indices, counts and strides are 64 bits wide and count words of 8 bytes.

typedef unsigned long long word;

static __device__ word first_index()
{
    return (word)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ word threads()
{
    return (word)gridDim.x * blockDim.x;
}

// Writes one value to all words.
extern "C" __global__ void gpu_vmm_fill(word *words, word count, word value)
{
    for (word index = first_index(); index < count; index += threads())
        words[index] = value;
}

// Adds to *sum each word times the odd number 2 * index + 1: exchanged words change the sum.
extern "C" __global__ void gpu_vmm_checksum(const word *words, word count, word *sum)
{
    word mine = 0;
    for (word index = first_index(); index < count; index += threads())
        mine += words[index] * (2 * index + 1);
    atomicAdd(sum, mine);
}

// Copies word i * from_stride of `from` to word i * to_stride of `to`, for each i below count.
extern "C" __global__ void gpu_vmm_copy_strided(word *to, word to_stride, const word *from, word from_stride, word count)
{
    for (word index = first_index(); index < count; index += threads())
        to[index * to_stride] = from[index * from_stride];
}

// Writes one word.
extern "C" __global__ void gpu_vmm_write_at(word *at, word value)
{
    if (first_index() == 0)
        *at = value;
}
