// Replays a trace through the C++ interface of PyTorch's caching allocator. compare.py builds and loads this.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

namespace allocator = c10::cuda::CUDACachingAllocator;
using Clock = std::chrono::steady_clock;

namespace {

// As written by compare.py.
struct Event {
  int64_t stream;  // -1: the block is freed
  int64_t block;
  int64_t bytes;
};

int64_t since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

void play(const Event* events, int64_t count, const std::vector<cudaStream_t>& streams, std::vector<void*>& blocks) {
  for (int64_t at = 0; at < count; ++at) {
    const Event& event = events[at];
    void*& block = blocks[event.block];
    if (event.stream < 0) {
      allocator::raw_delete(block);
      block = nullptr;
    } else {
      block = allocator::raw_alloc_with_stream(event.bytes, streams[event.stream]);
    }
  }
}

// Does the same, and measures each call.
void play_timed(const Event* events, int64_t count, const std::vector<cudaStream_t>& streams,
                std::vector<void*>& blocks, int64_t* nanos) {
  for (int64_t at = 0; at < count; ++at) {
    const Event& event = events[at];
    void*& block = blocks[event.block];
    const auto start = Clock::now();
    if (event.stream < 0) {
      allocator::raw_delete(block);
    } else {
      block = allocator::raw_alloc_with_stream(event.bytes, streams[event.stream]);
    }
    nanos[at] = since(start);
    if (event.stream < 0) {
      block = nullptr;
    }
  }
}

// Frees the remaining blocks, untimed, so that the next round begins without live blocks.
void end(std::vector<void*>& blocks) {
  for (void*& block : blocks) {
    if (block != nullptr) {
      allocator::raw_delete(block);
      block = nullptr;
    }
  }
}

}  // namespace

// Returns the cost of reading the clock, which each measured time includes.
extern "C" int64_t cost_of_asking() {
  std::vector<int64_t> costs(10001);
  for (int64_t& cost : costs) {
    cost = since(Clock::now());
  }
  std::nth_element(costs.begin(), costs.begin() + 5000, costs.end());
  return costs[5000];
}

// Runs one round. `nanos` has space for each event, or is null. Returns the nanoseconds of the round, or -1 if it failed.
extern "C" int64_t replay_round(const Event* events, int64_t count, int64_t blocks_count, int64_t streams_count,
                                int64_t* nanos) {
  try {
    // Stream 0 is the default one.
    static std::vector<cudaStream_t> streams{c10::cuda::getDefaultCUDAStream().stream()};
    while (static_cast<int64_t>(streams.size()) < streams_count) {
      streams.push_back(c10::cuda::getStreamFromPool().stream());
    }
    std::vector<void*> blocks(blocks_count, nullptr);
    const auto start = Clock::now();
    if (nanos == nullptr) {
      play(events, count, streams, blocks);
    } else {
      play_timed(events, count, streams, blocks, nanos);
    }
    const int64_t took = since(start);
    end(blocks);
    return took;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return -1;
  }
}
