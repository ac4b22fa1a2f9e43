// gpu-vmm for C: pools and growing regions of GPU virtual memory, on NVIDIA's driver, AMD's HIP runtime or host memory.
//
// Every function that can fail returns a status: GPU_VMM_OK or the code of an error. gpu_vmm_last_error returns the error's text.
// All sizes are bytes, and all addresses are device addresses. Several threads may use one object at the same time.
//
// Results: every function with a status first sets its out-parameters to zero or NULL. After an error they hold that. The bytes
// that gpu_vmm_read and gpu_vmm_region_read have copied to `to` by then are undefined.
//
// Options: a struct of zeros, `gpu_vmm_pool_options options = {0};`, is the default.
//
// Memory in use: functions that take a region's memory away (gpu_vmm_region_shrink, gpu_vmm_region_suspend) fail with
// GPU_VMM_BUSY while a DLPack tensor of the region exists, unless `force` is true. gpu_vmm_region_grow never moves memory, and
// after gpu_vmm_region_free the memory stays as long as its tensors. A pool does not know who uses a block: the caller must stop
// using it before gpu_vmm_free, gpu_vmm_suspend and the last gpu_vmm_pool_free.

#ifndef GPU_VMM_H
#define GPU_VMM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// For `keep` of gpu_vmm_pool_options: the pool returns free memory to the driver at once. (One byte is less than any page.)
#define GPU_VMM_KEEP_NOTHING 1

// The block is allocated.
#define GPU_VMM_TORCH_LIVE 0

// The block was freed and is kept for its private pool.
#define GPU_VMM_TORCH_FREE 1

// The block was freed and waits for work on a stream.
#define GPU_VMM_TORCH_PENDING 2

// An open driver. Pools and regions that were created from it stay valid when it is closed.
typedef struct gpu_vmm_backend gpu_vmm_backend;

// A checkpoint of a private pool: its identifier, and its live blocks by address.
typedef struct gpu_vmm_torch_checkpoint_state gpu_vmm_torch_checkpoint_state;

// Memory of another process that is mapped here.
typedef struct gpu_vmm_torch_imported gpu_vmm_torch_imported;

// A pool of one device's memory that allocates under one tag.
typedef struct gpu_vmm_pool gpu_vmm_pool;

// A contiguous range of device addresses whose memory grows in place.
typedef struct gpu_vmm_region gpu_vmm_region;

// The result of a call: GPU_VMM_OK or the code of an error.
typedef int32_t gpu_vmm_status;

// The options of a pool. All zeros, as after `= {0}`, is the default: a pool of device 0 without limits that keeps its memory.
typedef struct {
  // The device that the pool allocates from.
  uint32_t device;
  // The largest amount of physical memory that the pool may hold, in bytes; 0 for no limit.
  uint64_t budget;
  // The largest amount of free memory that the pool keeps, in bytes; 0 for all of it, GPU_VMM_KEEP_NOTHING for none.
  uint64_t keep;
  // The size in which the pool creates and maps physical memory, in bytes, a power of two. 0 for 2 MiB or the driver's
  // granularity, whichever is larger, and for 16 MiB in PyTorch's pools. Larger pages take fewer driver calls, but leave more
  // memory unused around blocks.
  uint64_t page;
  // How far the memory held may exceed the largest amount ever needed at one time, in percent. Up to that the pool creates new
  // memory; beyond it, the pool maps free memory from elsewhere, which is slow if sizes change all the time. 0 for 1 %, or 7 %
  // once the pool serves several streams, and 7 % in PyTorch's pools.
  uint32_t slack;
  // Whether the pool overwrites memory with zeros when it passes from one tag to another.
  bool scrub;
  // Whether the pool records where each block was allocated.
  bool debug;
  // Whether the pool creates memory that other processes of the machine can map, if the driver has such memory.
  bool shareable;
  // Must be zero. Later versions place their settings here, so the size of the struct does not change. A setting that this
  // version does not know is an error.
  uint64_t reserved[4];
} gpu_vmm_pool_options;

// Information on a block.
typedef struct {
  // Its first address.
  uint64_t base;
  // The bytes that it occupies: the requested size, rounded up.
  uint64_t capacity;
  // The distance of the queried address from `base`, in bytes.
  uint64_t offset;
  // The stream that it was allocated for.
  void *stream;
  // The device that its memory belongs to.
  uint32_t device;
  // Its tag, terminated by a zero; a tag of more than 63 bytes is truncated.
  char tag[64];
} gpu_vmm_block;

// The amounts of one device's memory. All sizes are bytes.
typedef struct {
  // All physical memory.
  uint64_t held;
  // The most physical memory since gpu_vmm_torch_reset_peak.
  uint64_t peak_held;
  // The physical memory that contains blocks of up to 1 MiB.
  uint64_t held_small;
  // The number and the size of freed blocks that wait for work on a stream: those of up to 1 MiB, and the larger ones.
  uint64_t pending_blocks[2];
  uint64_t pending_bytes[2];
  // The number of pages of physical memory that were ever created, and returned to the driver.
  uint64_t created;
  uint64_t released;
  // The size of a page.
  uint64_t page;
} gpu_vmm_torch_usage;

// A run of physical memory that is mapped at consecutive addresses.
typedef struct {
  // The first address; zero if the memory is mapped nowhere.
  uint64_t address;
  // The size.
  uint64_t size;
  // Whether blocks lie in the run.
  bool used;
  // Whether the blocks are of up to 1 MiB each.
  bool small;
} gpu_vmm_torch_run;

// A function that receives runs one by one, with the context of its caller; null for none.
typedef void (*gpu_vmm_torch_visit_run)(void*, const gpu_vmm_torch_run*);

// PyTorch's identifier of memory that several captures may share: `c10::cuda::MempoolId_t`, a `std::pair` of two numbers.
typedef struct {
  // The number of an identifier that PyTorch created itself.
  uint64_t first;
  // The number of an identifier that the user created.
  uint64_t second;
} gpu_vmm_torch_mempool_id;

// A block as the allocator class of gpu_vmm.torch sees it.
typedef struct {
  // Its first address.
  uint64_t address;
  // The requested size.
  uint64_t size;
  // The bytes that it occupies: the requested size, rounded up.
  uint64_t capacity;
  // The stream that it was allocated for.
  void *stream;
  // Its private pool; zeros if it has none.
  gpu_vmm_torch_mempool_id pool;
  // The number of its device.
  int32_t device;
  // GPU_VMM_TORCH_LIVE, GPU_VMM_TORCH_FREE or GPU_VMM_TORCH_PENDING.
  uint32_t state;
  // Whether work on other streams uses it.
  bool used_elsewhere;
} gpu_vmm_torch_block;

// A function that receives blocks one by one, with the context of its caller; null for none.
typedef void (*gpu_vmm_torch_visit)(void*, const gpu_vmm_torch_block*);

// The call succeeded.
#define GPU_VMM_OK 0

// An argument is invalid: null, a size of zero, an alignment that is no power of two, a malformed tensor.
#define GPU_VMM_INVALID_ARGUMENT 1

// The device is out of memory or the pool's budget is exhausted; the text of a pool's error has the pool's statistics.
#define GPU_VMM_OUT_OF_MEMORY 2

// The process has too little free address space.
#define GPU_VMM_OUT_OF_ADDRESSES 3

// No driver library was found, or the driver is too old or does not support the call; the text names what was looked for.
#define GPU_VMM_UNAVAILABLE 4

// No live block has the address, or no block has the tag. Freeing a block twice reports this.
#define GPU_VMM_NOT_FOUND 5

// The memory is suspended.
#define GPU_VMM_SUSPENDED 6

// A file for contents cannot be created, written or read; the text has its path and the system's error.
#define GPU_VMM_FILE 7

// The memory is in use: a region cannot shrink or be suspended while a tensor of it exists.
#define GPU_VMM_BUSY 9

// The process is a forked child, in which no driver works.
#define GPU_VMM_FORKED 10

// The device is lost to this process.
#define GPU_VMM_DEVICE_LOST 11

// Any other error of the driver; the text has its code and name.
#define GPU_VMM_DRIVER 12

// A defect of gpu-vmm: the library panicked, and the panic was caught.
#define GPU_VMM_INTERNAL 13

// A size, offset or address that is not a multiple of the granularity.
#define GPU_VMM_UNALIGNED 14

// A range that ends outside of the region or block.
#define GPU_VMM_OUT_OF_RANGE 15

// Memory is mapped there already.
#define GPU_VMM_ALREADY_MAPPED 16

// No memory is mapped there.
#define GPU_VMM_NOT_MAPPED 17

// The requested addresses are in use or cannot be reserved.
#define GPU_VMM_ADDRESS_TAKEN 18

// No device has this number, or the machine has no device.
#define GPU_VMM_NO_SUCH_DEVICE 19

// The device cannot reach the memory of the other one.
#define GPU_VMM_PEER_UNREACHABLE 20

// A device or a process lacks the access rights that the call needs.
#define GPU_VMM_ACCESS_DENIED 21

// An operation failed and its rollback failed as well; that memory can no longer be used.
#define GPU_VMM_POISONED 22

// The peer process exited, refused, timed out or sent invalid data.
#define GPU_VMM_PEER 23

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a backend: "cuda", "hip" or "host" (host memory, for machines without a GPU).
//
// With null, opens the backend that the environment variable GPU_VMM_BACKEND names. If that is not set, opens the backend whose
// library the process has already loaded, as PyTorch for ROCm loads HIP's, or else the best one. Close it with gpu_vmm_close.
//
// # Safety
//
// `name` is null or a string. `backend` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_open(const char *name,
                            gpu_vmm_backend **backend);

// Closes a backend. Its pools and regions stay valid. Null does nothing.
//
// # Safety
//
// `backend` is null or comes from gpu_vmm_open, and was not closed yet.
void gpu_vmm_close(gpu_vmm_backend *backend);

// Returns the backend's name: "cuda", "hip" or "host"; "" for null. The string is static.
//
// # Safety
//
// `backend` is null or an open backend.
const char *gpu_vmm_backend_name(const gpu_vmm_backend *backend);

// Returns the number of devices in `count`, including devices that cannot be used.
//
// # Safety
//
// `backend` is null or an open backend. `count` is null or points to a writable number.
gpu_vmm_status gpu_vmm_backend_devices(const gpu_vmm_backend *backend, uint32_t *count);

// Describes the driver, its devices and its known deviations as JSON. The command `gpu-vmm info --json` reports more. Free the
// text with gpu_vmm_string_free.
//
// # Safety
//
// `backend` is null or an open backend. `json` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_backend_info(const gpu_vmm_backend *backend,
                                    char **json);

// Returns the free and the total memory of a device. CUDA: cuMemGetInfo; HIP: hipMemGetInfo. Each of the two may be null.
//
// # Safety
//
// `backend` is null or an open backend. `free_bytes` and `total_bytes` are null or point to a writable number each.
gpu_vmm_status gpu_vmm_memory(const gpu_vmm_backend *backend,
                              uint32_t device,
                              uint64_t *free_bytes,
                              uint64_t *total_bytes);

// Sets the addresses of Python's PyCapsule_IsValid, PyCapsule_GetPointer and Py_IsFinalizing for gpu_vmm_python_capsule_dropped.
// The last may be null. If one of the first two is null, or after the first successful call, it does nothing.
//
// # Safety
//
// Each is null or the address of that function.
void gpu_vmm_python_capsules(const void *is_valid,
                             const void *get_pointer,
                             const void *is_finalizing);

// Destroys a capsule with a DLPack tensor: calls the tensor's deleter if no consumer has taken the tensor.
//
// # Safety
//
// `capsule` is a PyObject * of a capsule with a tensor from gpu_vmm_region_dlpack. The caller holds Python's global interpreter
// lock, as Python does when it calls a destructor.
void gpu_vmm_python_capsule_dropped(void *capsule);

// Creates a pool of a device's memory. The pool reserves and creates nothing before the first block. A null `options` is the
// default: device 0, without limits. Free the pool with gpu_vmm_pool_free.
//
// # Safety
//
// `backend` is null or an open backend. `options` is null or points to initialized options. `pool` is null or points to a
// writable pointer.
gpu_vmm_status gpu_vmm_pool_new(const gpu_vmm_backend *backend,
                                const gpu_vmm_pool_options *options,
                                gpu_vmm_pool **pool);

// Returns the same pool, allocating under a tag. Blocks with one tag are suspended together. Free the result with
// gpu_vmm_pool_free.
//
// # Safety
//
// `pool` is null or a pool. `tag` is null or a string. `tagged` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_pool_tagged(const gpu_vmm_pool *pool, const char *tag, gpu_vmm_pool **tagged);

// Frees a pool. When the last object of a pool is freed, gpu_vmm_pool_tagged's included, all of its remaining blocks are freed as
// well. Null does nothing.
//
// # Safety
//
// `pool` is null or comes from this library, and was not freed yet.
void gpu_vmm_pool_free(gpu_vmm_pool *pool);

// Allocates `size` bytes for a stream. Memory that was freed on this stream serves the stream's next request at once. It serves
// other streams once the device has finished with it.
//
// `alignment` is a power of two, or 0 for 256. `stream` is a CUstream or a hipStream_t, null for the default stream. The stream
// must exist until gpu_vmm_forget_stream or the end of the pool.
//
// # Safety
//
// `pool` is null or a pool. `stream` is null or a live stream of the pool's vendor. `address` is null or points to a writable
// number.
gpu_vmm_status gpu_vmm_alloc(const gpu_vmm_pool *pool,
                             uint64_t size,
                             uint64_t alignment,
                             void *stream,
                             uint64_t *address);

// Frees a block in the order of the stream that it was allocated for: work that is already queued on that stream may still use
// the block.
//
// # Safety
//
// `pool` is null or a pool.
gpu_vmm_status gpu_vmm_free(const gpu_vmm_pool *pool,
                            uint64_t address);

// Records that work on another stream uses a block. After gpu_vmm_free, the pool reuses the block's memory only once that stream
// has finished the work that was queued on it by then. PyTorch: record_stream.
//
// # Safety
//
// `pool` is null or a pool. `stream` is null or a live stream of the pool's vendor.
gpu_vmm_status gpu_vmm_record_use(const gpu_vmm_pool *pool,
                                  uint64_t address,
                                  void *stream);

// Finds the live block that contains an address. This is slow, since it searches the cache of every thread.
//
// # Safety
//
// `pool` is null or a pool. `block` is null or points to a writable gpu_vmm_block.
gpu_vmm_status gpu_vmm_find(const gpu_vmm_pool *pool, uint64_t address, gpu_vmm_block *block);

// Copies bytes of a block to the host and waits for the copy. It does not wait for work on streams.
//
// `address` is any address in a live block. The range may reach to the end of the block's capacity, which gpu_vmm_find reports.
// Beyond that, the call returns GPU_VMM_OUT_OF_RANGE.
//
// # Safety
//
// `pool` is null or a pool. `to` is null or points to `size` writable bytes. No other thread frees or suspends the block during
// the call.
gpu_vmm_status gpu_vmm_read(const gpu_vmm_pool *pool,
                            uint64_t address,
                            void *to,
                            uint64_t size);

// Copies bytes of the host to a block and waits for the copy. It does not wait for work on streams. The limits of the range are
// those of gpu_vmm_read.
//
// # Safety
//
// `pool` is null or a pool. `from` is null or points to `size` bytes. No other thread frees or suspends the block during the
// call.
gpu_vmm_status gpu_vmm_write(const gpu_vmm_pool *pool,
                             uint64_t address,
                             const void *from,
                             uint64_t size);

// Returns free memory to the driver until the pool keeps at most `keep` bytes of it. `given_back` receives the number of bytes
// that were returned; it may be null.
//
// # Safety
//
// `pool` is null or a pool. `given_back` is null or points to a writable number.
gpu_vmm_status gpu_vmm_trim(const gpu_vmm_pool *pool,
                            uint64_t keep,
                            uint64_t *given_back);

// Forgets a stream that the caller is about to destroy, without waiting. The stream's memory serves other streams once its
// queued work is done. Returns GPU_VMM_BUSY while the stream captures a graph.
//
// # Safety
//
// `pool` is null or a pool. `stream` is null or a live stream of the pool's vendor.
gpu_vmm_status gpu_vmm_forget_stream(const gpu_vmm_pool *pool,
                                     void *stream);

// Returns the pool's statistics as JSON: live, cached, pending, kept, held, mapped, reserved, peak_live, peak_held, and more.
// Free the text with gpu_vmm_string_free.
//
// # Safety
//
// `pool` is null or a pool. `json` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_pool_stats(const gpu_vmm_pool *pool,
                                  char **json);

// Returns a snapshot of the pool as JSON, which `gpu-vmm report FILE.json --html OUT` draws. Free the text with
// gpu_vmm_string_free.
//
// # Safety
//
// As for gpu_vmm_pool_stats.
gpu_vmm_status gpu_vmm_pool_snapshot(const gpu_vmm_pool *pool, char **json);

// Creates a region: reserves device addresses, without memory. `reserve` is the size that the region can grow to, in bytes; 0 for
// the size of the device's memory. Free the region with gpu_vmm_region_free.
//
// # Safety
//
// `backend` is null or an open backend. `region` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_region_new(const gpu_vmm_backend *backend,
                                  uint32_t device,
                                  uint64_t reserve,
                                  gpu_vmm_region **region);

// Frees a region. Its memory stays as long as a tensor of it exists. Null does nothing.
//
// # Safety
//
// `region` is null or comes from gpu_vmm_region_new, and was not freed yet.
void gpu_vmm_region_free(gpu_vmm_region *region);

// Grows a region in place to at least `size` bytes. Pointers into it stay valid, and no byte is copied.
//
// # Safety
//
// `region` is null or a region.
gpu_vmm_status gpu_vmm_region_grow(const gpu_vmm_region *region, uint64_t size);

// Shrinks a region from its end to `size` bytes and waits for the devices first. The region releases whole memory handles, so it
// may stay larger than `size`. Returns GPU_VMM_BUSY while a tensor of the region exists, unless `force` is true. With `force`,
// nothing may use the elements of a tensor beyond the new end.
//
// # Safety
//
// `region` is null or a region.
gpu_vmm_status gpu_vmm_region_shrink(const gpu_vmm_region *region,
                                     uint64_t size,
                                     bool force);

// Returns the region's first address, which never changes.
//
// # Safety
//
// `region` is null or a region. `address` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_address(const gpu_vmm_region *region, uint64_t *address);

// Returns the number of bytes that have memory; 0 while the region is suspended.
//
// # Safety
//
// `region` is null or a region. `size` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_size(const gpu_vmm_region *region, uint64_t *size);

// Copies `size` bytes at `offset` to the host and waits for the copy. It does not wait for work on streams. `to` must not
// overlap the region.
//
// # Safety
//
// `region` is null or a region. `to` is null or points to `size` writable bytes.
gpu_vmm_status gpu_vmm_region_read(const gpu_vmm_region *region,
                                   uint64_t offset,
                                   void *to,
                                   uint64_t size);

// Copies `size` bytes of the host to `offset` and waits for the copy. It does not wait for work on streams. `from` must not
// overlap the region.
//
// # Safety
//
// `region` is null or a region. `from` is null or points to `size` bytes.
gpu_vmm_status gpu_vmm_region_write(const gpu_vmm_region *region,
                                    uint64_t offset,
                                    const void *from,
                                    uint64_t size);

// Suspends a region: waits for the devices, returns the region's memory to the driver and keeps its addresses. `keep` is as for
// gpu_vmm_suspend. `bytes` receives the number of bytes that were returned; it may be null. Returns GPU_VMM_BUSY while a tensor
// of the region exists, unless `force` is true. With `force`, nothing may use the tensors before gpu_vmm_region_resume.
//
// # Safety
//
// `region` is null or a region. `keep` is null or a string. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_suspend(const gpu_vmm_region *region,
                                      const char *keep,
                                      bool force,
                                      uint64_t *bytes);

// Resumes a region: maps memory at the same addresses and restores the contents. `bytes` receives the number of bytes that were
// mapped; it may be null.
//
// # Safety
//
// `region` is null or a region. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_resume(const gpu_vmm_region *region,
                                     uint64_t *bytes);

// Returns whether a tag is suspended. While it is, allocations under the tag fail, and nothing may use its blocks.
//
// # Safety
//
// `pool` is null or a pool. `tag` is null or a string. `suspended` is null or points to a writable bool.
gpu_vmm_status gpu_vmm_is_suspended(const gpu_vmm_pool *pool, const char *tag, bool *suspended);

// Suspends a tag: waits for the devices, returns the memory of all blocks with the tag to the driver and keeps their addresses.
// Until gpu_vmm_resume, allocations under the tag fail, and nothing may use its blocks. The blocks can be freed.
//
// `keep` selects where the contents go: null discards them; "host" is ordinary memory; "pinned" is page-locked memory, which is
// slow to create the first time and fast from then on; "file" is an unnamed file in the directory for temporary files;
// "file:FOLDER" is one in that directory. `bytes` receives the number of bytes that were returned, 0 if the tag was suspended
// already; it may be null.
//
// # Safety
//
// `pool` is null or a pool. `tag` and `keep` are null or strings. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_suspend(const gpu_vmm_pool *pool,
                               const char *tag,
                               const char *keep,
                               uint64_t *bytes);

// Resumes a tag: maps memory at the same addresses for all blocks with the tag and restores their contents. `bytes` receives the
// number of bytes that were mapped, 0 if the tag was not suspended; it may be null. If there is too little memory, the blocks
// that are not back yet stay suspended, and their contents are kept.
//
// # Safety
//
// `pool` is null or a pool. `tag` is null or a string. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_resume(const gpu_vmm_pool *pool,
                              const char *tag,
                              uint64_t *bytes);

// Returns the text of this thread's last error: the operation, the numbers, what would have been right, and the driver's own
// code and name. Empty if no call of this thread has failed. The pointer is valid until this thread's next call that fails.
const char *gpu_vmm_last_error(void);

// Returns the library's version, such as "0.1.0". The string is static.
const char *gpu_vmm_version(void);

// Exports a part of a region, from `offset` bytes on, as a DLPack tensor. The memory stays as long as the tensor exists, also
// after the region grows or is freed.
//
// `code`, `bits` and `lanes` are those of DLDataType. `shape` and `strides`, in elements, have `ndim` numbers each, at most 32.
// Null strides mean row-major order. `tensor` receives a `DLManagedTensorVersioned *` if `versioned` is true, else a
// `DLManagedTensor *`, which cannot express `read_only`.
//
// # Safety
//
// `region` is null or a region. `shape` and `strides` are null or point to `ndim` numbers each. `tensor` is null or points to a
// writable pointer.
gpu_vmm_status gpu_vmm_region_dlpack(const gpu_vmm_region *region,
                                     uint64_t offset,
                                     uint8_t code,
                                     uint8_t bits,
                                     uint16_t lanes,
                                     int32_t ndim,
                                     const int64_t *shape,
                                     const int64_t *strides,
                                     bool read_only,
                                     bool versioned,
                                     void **tensor);

// Calls the deleter of a tensor that no other library has taken. Null does nothing.
//
// # Safety
//
// `tensor` is null or comes from gpu_vmm_region_dlpack with the same `versioned`, and its deleter was not called yet.
void gpu_vmm_dlpack_delete(void *tensor, bool versioned);

// Returns a device as DLPack names it: its type (1 for host memory, 2 for CUDA, 10 for ROCm) and its number. Each of the two
// may be null.
//
// # Safety
//
// `backend` is null or an open backend. `device_type` and `device_id` are null or point to a writable number each.
gpu_vmm_status gpu_vmm_dlpack_device(const gpu_vmm_backend *backend,
                                     uint32_t device,
                                     int32_t *device_type,
                                     int32_t *device_id);

// Frees a string that a function of this library returned. Null does nothing.
//
// # Safety
//
// `text` is null or comes from a function of this library, and was not freed yet.
void gpu_vmm_string_free(char *text);

// Returns the amounts of a device's memory, without searching; zeros if nothing was allocated there.
//
// # Safety
//
// `usage` is null or points to a writable gpu_vmm_torch_usage.
gpu_vmm_status gpu_vmm_torch_measure(int number, gpu_vmm_torch_usage *usage);

// Sets the peak of a device's held memory to what is held now.
gpu_vmm_status gpu_vmm_torch_reset_peak(int number);

// Sets the largest amount of physical memory that PyTorch's pool of a device may hold, in bytes; at most the budget of
// gpu_vmm_torch_configure. Memory beyond it stays, and no more is created.
gpu_vmm_status gpu_vmm_torch_set_limit(int number, uint64_t bytes);

// Gives the device `peer` access to all memory of PyTorch's pool of another device, present and future.
gpu_vmm_status gpu_vmm_torch_allow_access(int number, int peer);

// Returns all free memory of every device to the driver, that of destroyed graphs included.
gpu_vmm_status gpu_vmm_torch_collect(void);

// Calls `run` for all memory of a device, each part once, by address, and then `block` for its live blocks, the free blocks of
// private pools, and freed blocks that wait for a stream. Other threads may allocate and free meanwhile.
//
// # Safety
//
// The functions accept `context`.
gpu_vmm_status gpu_vmm_torch_walk(int number,
                                  gpu_vmm_torch_visit_run run,
                                  gpu_vmm_torch_visit block,
                                  void *context);

// Allocates `size` bytes in the order of a stream: from a private pool, or, if `pool` is null, under this thread's tag. `block`
// receives the new block.
//
// # Safety
//
// `stream` is null or a live stream of the device's vendor. `pool` is null or points to an identifier. `block` is null or points
// to a writable block.
gpu_vmm_status gpu_vmm_torch_allocate(int number,
                                      uint64_t size,
                                      void *stream,
                                      const gpu_vmm_torch_mempool_id *pool,
                                      gpu_vmm_torch_block *block);

// Allocates as gpu_vmm_torch_allocate without a private pool does, after everything that frees memory: blocks whose graphs are
// destroyed, and then the free blocks of private pools that gpu_vmm_torch_pool_use_on_oom has named.
//
// # Safety
//
// As for gpu_vmm_torch_allocate.
gpu_vmm_status gpu_vmm_torch_allocate_at_last(int number,
                                              uint64_t size,
                                              void *stream,
                                              gpu_vmm_torch_block *block);

// Frees the block with this first address, in the order of its stream and after the work on other streams that
// gpu_vmm_torch_record_use has noted. `block` receives what it was; it may be null.
//
// # Safety
//
// `block` is null or points to a writable block.
gpu_vmm_status gpu_vmm_torch_deallocate(uint64_t address, gpu_vmm_torch_block *block);

// Notes that work on another stream uses a block. After it is freed, its memory is reused once that stream has done the work that
// was queued on it at the free.
//
// # Safety
//
// `stream` is null or a live stream of the vendor of the block's device.
gpu_vmm_status gpu_vmm_torch_record_use(uint64_t address,
                                        void *stream);

// Finds the live block that contains an address. Addresses other than a block's first are slow to find.
//
// # Safety
//
// `block` is null or points to a writable block.
gpu_vmm_status gpu_vmm_torch_find(uint64_t address, gpu_vmm_torch_block *block);

// Creates a private pool, or adds a user to it: a graph, a `torch.cuda.MemPool`, or code that allocates from one.
gpu_vmm_status gpu_vmm_torch_pool_acquire(int number, gpu_vmm_torch_mempool_id id);

// Removes a user of a private pool. With the last one, the pool's free blocks return to the general pool; those that graphs may
// use do so in gpu_vmm_torch_collect or when memory is short.
gpu_vmm_status gpu_vmm_torch_pool_release(int number,
                                          gpu_vmm_torch_mempool_id id);

// Notes that the caller diverts requests to a private pool from now on. Until the end the library waits for no device.
gpu_vmm_status gpu_vmm_torch_pool_begin(int number, gpu_vmm_torch_mempool_id id);

// Notes that the caller no longer diverts requests to a private pool. If it captured a graph, the capture has ended.
gpu_vmm_status gpu_vmm_torch_pool_end(int number, gpu_vmm_torch_mempool_id id);

// Returns the number of a private pool's users; 0 if there is no such pool.
//
// # Safety
//
// `uses` is null or points to a writable number.
gpu_vmm_status gpu_vmm_torch_pool_uses(int number, gpu_vmm_torch_mempool_id id, uint64_t *uses);

// Sets whether the free blocks of a private pool may serve other requests when memory is short.
gpu_vmm_status gpu_vmm_torch_pool_use_on_oom(int number, gpu_vmm_torch_mempool_id id, bool use_on_oom);

// Records which blocks of a private pool are live, and calls `visit` for each of them, by address. Free the
// checkpoint with gpu_vmm_torch_checkpoint_free.
//
// # Safety
//
// `checkpoint` is null or points to a writable pointer. `visit` is null or a function that accepts `context`.
gpu_vmm_status gpu_vmm_torch_checkpoint(int number,
                                        gpu_vmm_torch_mempool_id id,
                                        gpu_vmm_torch_visit visit,
                                        void *context,
                                        gpu_vmm_torch_checkpoint_state **checkpoint);

// Restores a checkpoint of a private pool: exactly its blocks are live then. Calls `freed` for each block that was live before,
// and then `allocated` for each block of the checkpoint; a block that is in both is passed to both. Free blocks of the pool stay
// in it, so that the caller may restore any checkpoint that is not older than the pool. Returns GPU_VMM_NOT_FOUND if a block of
// the checkpoint is gone; nothing has changed then.
//
// # Safety
//
// `checkpoint` is null or a checkpoint. The functions accept `context`.
gpu_vmm_status gpu_vmm_torch_restore(int number,
                                     const gpu_vmm_torch_checkpoint_state *checkpoint,
                                     gpu_vmm_torch_visit freed,
                                     gpu_vmm_torch_visit allocated,
                                     void *context);

// Frees a checkpoint. Null does nothing. The pool does not change.
//
// # Safety
//
// `checkpoint` is null or comes from gpu_vmm_torch_checkpoint, and was not freed yet.
void gpu_vmm_torch_checkpoint_free(gpu_vmm_torch_checkpoint_state *checkpoint);

// Makes a live block of PyTorch importable. `handle` receives text for gpu_vmm_torch_import in another process of the same user, and
// `offset` the distance of the block from the beginning of the memory that the import maps. The same block has one handle. Its memory
// must not be freed before the other process has imported it. Free the text with gpu_vmm_string_free.
//
// # Safety
//
// `handle` is null or points to a writable pointer, and `offset` to a writable number.
gpu_vmm_status gpu_vmm_torch_export(uint64_t address,
                                    char **handle,
                                    uint64_t *offset);

// Maps the memory that a handle of another process describes. `address` receives its first address. Free the result with
// gpu_vmm_torch_imported_free when no work uses it any more.
//
// # Safety
//
// `handle` is null or a string. `imported` is null or points to a writable pointer, and `address` to a writable number.
gpu_vmm_status gpu_vmm_torch_import(const char *handle,
                                    gpu_vmm_torch_imported **imported,
                                    uint64_t *address);

// Unmaps memory of gpu_vmm_torch_import, after a wait for the devices. Null does nothing.
//
// # Safety
//
// `imported` is null or comes from gpu_vmm_torch_import, and was not freed yet.
void gpu_vmm_torch_imported_free(gpu_vmm_torch_imported *imported);

// Allocates memory for a tensor in the order of a stream. If memory is short, throws a C++ exception (std::runtime_error) with
// the pool's statistics, which Python gets as a RuntimeError. Returns null for a size of 0.
//
// # Safety
//
// `stream` is null or a live stream of the device's vendor.
void *gpu_vmm_torch_alloc(ptrdiff_t size,
                          int number,
                          void *stream);

// Frees a block of gpu_vmm_torch_alloc in the order of the stream that it was allocated for. Null does nothing.
void gpu_vmm_torch_free(void *block, ptrdiff_t _size, int number, void *_stream);

// Records that work on another stream uses a block. For set_record_stream_fn.
//
// # Safety
//
// `stream` is null or a live stream of the vendor of the block's device.
void gpu_vmm_torch_record_stream(void *block, void *stream);

// Returns all free memory to the driver. For set_reset_fn, whose function torch.cuda.empty_cache() calls.
void gpu_vmm_torch_empty_cache(void);

// Begins a capture: until its end, memory that is allocated on capturing streams belongs to its graph alone. For
// set_begin_allocate_to_pool. `_filter`, PyTorch's predicate that selects streams, is not called: the driver reports which
// streams capture.
void gpu_vmm_torch_begin_allocate_to_pool(int number,
                                          gpu_vmm_torch_mempool_id id,
                                          const void *_filter);

// Ends a capture. For set_end_allocate_to_pool_fn.
void gpu_vmm_torch_end_allocate_to_pool(int number, gpu_vmm_torch_mempool_id id);

// Releases the memory of a capture whose graph was destroyed. For set_release_pool.
void gpu_vmm_torch_release_pool(int number, gpu_vmm_torch_mempool_id id);

// Configures the backend and the options of PyTorch's pools. A null `backend` selects as gpu_vmm_open does. `options.device` is
// ignored, since each device has its own pool. Returns GPU_VMM_BUSY after the first allocation.
//
// # Safety
//
// `backend` is null or a string. `options` is null or points to initialized options.
gpu_vmm_status gpu_vmm_torch_configure(const char *backend,
                                       const gpu_vmm_pool_options *options);

// Sets the tag that this thread's following allocations get; null for "torch".
//
// # Safety
//
// `tag` is null or a string.
gpu_vmm_status gpu_vmm_torch_set_tag(const char *tag);

// Returns PyTorch's pool of a device, for its statistics and to suspend and resume its tags. Free it with gpu_vmm_pool_free,
// which does not affect the memory.
//
// # Safety
//
// `pool` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_torch_pool(int device_number,
                                  gpu_vmm_pool **pool);

// Returns a pair of functions for the CUDAPluggableAllocator of a torch.cuda.MemPool, whose memory gets this tag. There can be 64
// such tags. Unlike gpu_vmm_torch_alloc, the returned function returns null if memory is short.
//
// # Safety
//
// `tag` is null or a string. `alloc_function` and `free_function` are null or point to a writable pointer each.
gpu_vmm_status gpu_vmm_torch_functions(const char *tag,
                                       void **alloc_function,
                                       void **free_function);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GPU_VMM_H */
