// The kernels of gpu-vmm's test kit: write a pattern, check it, and walk along a list.
//
// Word number i under a seed is m ^ (m >> 32) with m = (seed + i) * 0x9E3779B97F4A7C15, in wrapping 64 bit arithmetic,
// like `pattern_word` in vmm-core. All counts and indices have 64 bits. Thread t of n takes the words t, t + n, t + 2n
// and so on, so that neighbouring threads access neighbouring words.

typedef unsigned long long word;

static __device__ word pattern_word(word seed, word index)
{
    const word mixed = (seed + index) * 0x9E3779B97F4A7C15ull;
    return mixed ^ (mixed >> 32);
}

static __device__ word first_index()
{
    return (word)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ word threads()
{
    return (word)gridDim.x * blockDim.x;
}

extern "C" __global__ void gpu_vmm_write_pattern(word *words, word count, word seed)
{
    for (word index = first_index(); index < count; index += threads())
        words[index] = pattern_word(seed, index);
}

// Adds the number of checked words to counted[0], and the number of words that differ from the pattern to counted[1].
extern "C" __global__ void gpu_vmm_count_wrong(const word *words, word count, word seed, word *counted)
{
    word mine = 0;
    word wrong = 0;
    for (word index = first_index(); index < count; index += threads()) {
        mine += 1;
        wrong += words[index] != pattern_word(seed, index);
    }
    if (mine != 0)
        atomicAdd(&counted[0], mine);
    // If nothing is wrong, no thread needs this counter.
    if (wrong != 0)
        atomicAdd(&counted[1], wrong);
}

// Follows a list whose nodes hold the address of the next node, 0 in the last, and a value. Writes the number of nodes,
// at most `most`, to walked[0] and the sum of their values to walked[1]. One thread does the work, whatever the grid.
extern "C" __global__ void gpu_vmm_walk_list(const word *node, word most, word *walked)
{
    if (first_index() != 0)
        return;
    word nodes = 0;
    word sum = 0;
    for (; node != 0 && nodes < most; node = (const word *)node[0]) {
        sum += node[1];
        nodes += 1;
    }
    walked[0] = nodes;
    walked[1] = sum;
}
