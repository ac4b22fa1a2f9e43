// gpu-vmm for C: a pool on a GPU's virtual memory, for NVIDIA, AMD and host memory alike.
//
// Every function that can fail gives a status, GPU_VMM_OK where all went well; gpu_vmm_last_error says the rest in words.
// All sizes are bytes, all addresses are the device's. Objects may be used by several threads at once.
//
// Results: every function with a status sets what its out-parameters point to to zero or NULL first. After an error they hold
// that, never what lay there before. What gpu_vmm_read and gpu_vmm_region_read have copied to `to` by then is not defined.
//
// Options: a struct of zeros, `gpu_vmm_pool_options options = {0};`, is the default.
//
// Memory that others use: functions that take a region's memory away (gpu_vmm_region_shrink, gpu_vmm_region_suspend) fail with
// GPU_VMM_BUSY while a DLPack tensor of it exists, unless `force` is true. gpu_vmm_region_grow never moves memory, and
// gpu_vmm_region_free leaves it to the tensors. A block of a pool is an address, whose users the library does not know: before
// gpu_vmm_free, gpu_vmm_suspend and gpu_vmm_pool_free the caller must stop using the block.

#ifndef GPU_VMM_H
#define GPU_VMM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// For `keep` of gpu_vmm_pool_options: free memory returns to the driver at once. One byte is less than any page.
#define GPU_VMM_KEEP_NOTHING 1

// An opened driver. Pools and regions that were made of it stay when it is closed.
typedef struct gpu_vmm_backend gpu_vmm_backend;

// A pool of a device's memory, allocating under one tag.
typedef struct gpu_vmm_pool gpu_vmm_pool;

// An address range of a device that grows in place.
typedef struct gpu_vmm_region gpu_vmm_region;

// How a call ended.
typedef int32_t gpu_vmm_status;

// What a pool is to be. All zeros, as after `= {0}`, is the default: a pool of device 0 without limits that keeps its memory.
typedef struct {
  // Whose memory it is.
  uint32_t device;
  // The most physical memory that the pool may hold; 0 for no limit.
  uint64_t budget;
  // The most free memory that the pool keeps, in bytes; 0 for all of it, GPU_VMM_KEEP_NOTHING for none.
  uint64_t keep;
  // The size in which physical memory is created and mapped, a power of two; 0 for the driver's granularity, or for 16 MiB
  // where PyTorch is served. Larger pieces take fewer driver calls, and more may lie unused beside blocks.
  uint64_t page;
  // By how many hundredths the pool may hold more than was ever needed at one time, before it maps free memory from
  // elsewhere rather than create new, which is slow where sizes change all the time; 0 for 1, or 7 once it
  // serves several streams or PyTorch.
  uint32_t slack;
  // Memory is overwritten with zeros where it passes from one tag to another.
  bool scrub;
  // The pool remembers where each block came from.
  bool debug;
  // Must be zero. Later versions add their settings here, so that the size stays: a setting that this version does not know
  // is an error and not ignored.
  uint64_t reserved[4];
} gpu_vmm_pool_options;

// What is known of a block.
typedef struct {
  // Its first address.
  uint64_t base;
  // How much it takes: what was asked for, rounded up.
  uint64_t size;
  // How far behind the first address the one lies that was asked about.
  uint64_t offset;
  // The stream that it was allocated for.
  void *stream;
  // Whose memory it is.
  uint32_t device;
  // Its tag; a longer one is cut.
  char tag[64];
} gpu_vmm_block;

// PyTorch's number for what several captures share: `c10::cuda::MempoolId_t`, a `std::pair` of two numbers.
typedef struct {
  // Of those that PyTorch makes by itself.
  uint64_t first;
  // Of those that users make.
  uint64_t second;
} gpu_vmm_torch_mempool_id;

// All went well.
#define GPU_VMM_OK 0

// What was given cannot be: null, a size of zero, an alignment that is no power of two, a bad tensor.
#define GPU_VMM_INVALID_ARGUMENT 1

// There is too little memory; the text has the pool's statistics.
#define GPU_VMM_OUT_OF_MEMORY 2

// There are too few addresses.
#define GPU_VMM_OUT_OF_ADDRESSES 3

// No library, or a driver that is too old or cannot do this; the text says what was looked for.
#define GPU_VMM_UNAVAILABLE 4

// No block has the address, or it was freed already; or nothing has this tag.
#define GPU_VMM_NOT_FOUND 5

// The memory is suspended.
#define GPU_VMM_SUSPENDED 6

// A file for contents cannot be made, written or read; the text has its path and what the system answered.
#define GPU_VMM_FILE 7

// The memory is in use: a region cannot shrink or be suspended while a tensor of it exists.
#define GPU_VMM_BUSY 9

// The process was forked: no driver works in the child.
#define GPU_VMM_FORKED 10

// The device is lost to this process.
#define GPU_VMM_DEVICE_LOST 11

// Another answer of the driver; the text has its code and name.
#define GPU_VMM_DRIVER 12

// A defect of the library was stopped at its border.
#define GPU_VMM_INTERNAL 13

// A size, offset or address that is not a multiple of the granularity.
#define GPU_VMM_UNALIGNED 14

// A part that ends outside of the region or the vector.
#define GPU_VMM_OUT_OF_RANGE 15

// Memory is mapped there already.
#define GPU_VMM_ALREADY_MAPPED 16

// No memory is mapped there.
#define GPU_VMM_NOT_MAPPED 17

// The addresses are in use or cannot be had.
#define GPU_VMM_ADDRESS_TAKEN 18

// No device has this number, or there is no device.
#define GPU_VMM_NO_SUCH_DEVICE 19

// The device cannot reach the memory of the other one.
#define GPU_VMM_PEER_UNREACHABLE 20

// A device or a process does not have the right that the call needs.
#define GPU_VMM_ACCESS_DENIED 21

// An operation failed and so did its rollback; the part cannot be used any more.
#define GPU_VMM_POISONED 22

// Another process is gone, refused, came late, or sent something that cannot be.
#define GPU_VMM_PEER 23

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a backend: "cuda", "hip" or "host" (memory of the host, for machines without a GPU). With null, opens the one that the
// environment variable GPU_VMM_BACKEND names; if that is not set, the one whose library the process has loaded already, as
// PyTorch for ROCm loads HIP's, or else the best one.
//
// # Safety
//
// `name` is null or a string; `backend` is room for a pointer.
gpu_vmm_status gpu_vmm_open(const char *name,
                            gpu_vmm_backend **backend);

// Closes a backend. Its pools and regions stay. Null is nothing.
//
// # Safety
//
// `backend` is null or one that gpu_vmm_open gave and that was not closed yet.
void gpu_vmm_close(gpu_vmm_backend *backend);

// "cuda", "hip" or "host"; "" for null. It need not be freed.
//
// # Safety
//
// `backend` is null or an open one.
const char *gpu_vmm_backend_name(const gpu_vmm_backend *backend);

// How many devices there are, usable or not.
//
// # Safety
//
// `backend` is null or an open one; `count` is null or room for a number.
gpu_vmm_status gpu_vmm_backend_devices(const gpu_vmm_backend *backend, uint32_t *count);

// The driver, its devices and its known deviations, as JSON; `gpu-vmm info --json` says more.
//
// # Safety
//
// `backend` is null or an open one; `json` is null or room for a pointer, to be freed with gpu_vmm_string_free.
gpu_vmm_status gpu_vmm_backend_info(const gpu_vmm_backend *backend, char **json);

// Free and total memory of a device now. CUDA: cuMemGetInfo, HIP: hipMemGetInfo. Where one of the two is null, it is not
// wanted.
//
// # Safety
//
// `backend` is null or an open one; `free_bytes` and `total_bytes` are null or room for a number each.
gpu_vmm_status gpu_vmm_memory(const gpu_vmm_backend *backend,
                              uint32_t device,
                              uint64_t *free_bytes,
                              uint64_t *total_bytes);

// Says where Python's PyCapsule_IsValid, PyCapsule_GetPointer and Py_IsFinalizing are, which gpu_vmm_python_capsule_dropped
// needs; the last may be null. The first time holds. Null is nothing.
//
// # Safety
//
// They are null or these functions.
void gpu_vmm_python_capsules(const void *is_valid,
                             const void *get_pointer,
                             const void *is_finalizing);

// The destructor of a capsule with a DLPack tensor: where nobody has taken the tensor, calls its deleter.
//
// # Safety
//
// `capsule` is a PyObject * of a capsule, whose tensor gpu_vmm_region_dlpack gave; the caller has Python's lock, as Python has
// when it calls a destructor.
void gpu_vmm_python_capsule_dropped(void *capsule);

// Makes a pool of a device's memory. Nothing is reserved or created before the first block. `options` may be null: device 0
// without limits.
//
// # Safety
//
// `backend` is null or an open one, `options` null or filled in; `pool` is null or room for a pointer.
gpu_vmm_status gpu_vmm_pool_new(const gpu_vmm_backend *backend,
                                const gpu_vmm_pool_options *options,
                                gpu_vmm_pool **pool);

// The same pool for blocks with a tag: they are suspended together. To be freed as a pool of its own.
//
// # Safety
//
// `pool` is null or a pool, `tag` null or a string; `tagged` is null or room for a pointer.
gpu_vmm_status gpu_vmm_pool_tagged(const gpu_vmm_pool *pool, const char *tag, gpu_vmm_pool **tagged);

// Lets a pool go. With the last of its tags all blocks end that were not freed. Null is nothing.
//
// # Safety
//
// `pool` is null or one that this library gave and that was not freed yet.
void gpu_vmm_pool_free(gpu_vmm_pool *pool);

// Allocates `size` bytes for a stream: what was freed on it serves the next request for the same stream at once, other
// streams when the device is done with it. `alignment` is a power of two, or 0 for 256. `stream` is CUDA's CUstream or HIP's
// hipStream_t, null for the default stream; it has to stay until gpu_vmm_forget_stream.
//
// # Safety
//
// `pool` is null or a pool, `stream` null or a live stream of its vendor; `address` is null or room for a number.
gpu_vmm_status gpu_vmm_alloc(const gpu_vmm_pool *pool,
                             uint64_t size,
                             uint64_t alignment,
                             void *stream,
                             uint64_t *address);

// Frees a block, in the order of the stream that it was allocated for: work that is queued there may still use it.
//
// # Safety
//
// `pool` is null or a pool.
gpu_vmm_status gpu_vmm_free(const gpu_vmm_pool *pool, uint64_t address);

// Notes that work on another stream uses a block: once freed, it is used again when that stream has done what is queued on
// it then. PyTorch: record_stream.
//
// # Safety
//
// `pool` is null or a pool, `stream` null or a live stream of its vendor.
gpu_vmm_status gpu_vmm_record_use(const gpu_vmm_pool *pool,
                                  uint64_t address,
                                  void *stream);

// The live block in which an address lies. For questions now and then.
//
// # Safety
//
// `pool` is null or a pool, `block` null or room for one.
gpu_vmm_status gpu_vmm_find(const gpu_vmm_pool *pool, uint64_t address, gpu_vmm_block *block);

// Copies bytes of a block to the host and waits for the copy. Work of streams is not waited for.
//
// # Safety
//
// `pool` is null or a pool, `to` null or room for `size` bytes. Nobody frees or suspends the block meanwhile.
gpu_vmm_status gpu_vmm_read(const gpu_vmm_pool *pool, uint64_t address, void *to, uint64_t size);

// Copies bytes of the host to a block and waits until they are there. Work of streams is not waited for.
//
// # Safety
//
// `pool` is null or a pool, `from` null or `size` bytes. Nobody frees or suspends the block meanwhile.
gpu_vmm_status gpu_vmm_write(const gpu_vmm_pool *pool, uint64_t address, const void *from, uint64_t size);

// Gives memory back to the driver in which nothing is, until no more than `keep` of it is kept. `given_back` may be null.
//
// # Safety
//
// `pool` is null or a pool, `given_back` null or room for a number.
gpu_vmm_status gpu_vmm_trim(const gpu_vmm_pool *pool,
                            uint64_t keep,
                            uint64_t *given_back);

// Forgets a stream that is to be destroyed, without waiting: what it has used serves other streams once its work is done.
// GPU_VMM_BUSY while the stream captures.
//
// # Safety
//
// `pool` is null or a pool, `stream` null or a live stream of its vendor.
gpu_vmm_status gpu_vmm_forget_stream(const gpu_vmm_pool *pool,
                                     void *stream);

// Where the pool's memory is, as JSON: live, cached, pending, kept, held, mapped, reserved, peak_live, peak_held, and more.
//
// # Safety
//
// `pool` is null or a pool; `json` is null or room for a pointer, to be freed with gpu_vmm_string_free.
gpu_vmm_status gpu_vmm_pool_stats(const gpu_vmm_pool *pool,
                                  char **json);

// What the pool looks like now, as JSON: what `gpu-vmm report FILE.json --html OUT` draws.
//
// # Safety
//
// As for gpu_vmm_pool_stats.
gpu_vmm_status gpu_vmm_pool_snapshot(const gpu_vmm_pool *pool, char **json);

// Reserves addresses for memory of a device; there is none yet behind them. `reserve` is how many bytes it can grow to, 0 for
// as much as the device has.
//
// # Safety
//
// `backend` is null or an open one; `region` is null or room for a pointer.
gpu_vmm_status gpu_vmm_region_new(const gpu_vmm_backend *backend,
                                  uint32_t device,
                                  uint64_t reserve,
                                  gpu_vmm_region **region);

// Lets a region go. Its memory stays as long as a tensor of it does. Null is nothing.
//
// # Safety
//
// `region` is null or one that gpu_vmm_region_new gave and that was not freed yet.
void gpu_vmm_region_free(gpu_vmm_region *region);

// Grows a region to `size` bytes at least, where it lies: pointers stay good, and no byte is copied.
//
// # Safety
//
// `region` is null or a region.
gpu_vmm_status gpu_vmm_region_grow(const gpu_vmm_region *region, uint64_t size);

// Gives memory back behind the first `size` bytes, in whole handles; waits for the devices. GPU_VMM_BUSY while a tensor of
// the region exists, unless `force` is true: then nothing may use elements of a tensor behind the new end.
//
// # Safety
//
// `region` is null or a region.
gpu_vmm_status gpu_vmm_region_shrink(const gpu_vmm_region *region,
                                     uint64_t size,
                                     bool force);

// The first address.
//
// # Safety
//
// `region` is null or a region, `address` null or room for a number.
gpu_vmm_status gpu_vmm_region_address(const gpu_vmm_region *region, uint64_t *address);

// How many bytes have memory behind them; 0 while the region is suspended.
//
// # Safety
//
// `region` is null or a region, `size` null or room for a number.
gpu_vmm_status gpu_vmm_region_size(const gpu_vmm_region *region, uint64_t *size);

// Copies bytes from `offset` on to the host and waits for the copy. Work of streams is not waited for. `to` must not overlap
// the region.
//
// # Safety
//
// `region` is null or a region, `to` null or room for `size` bytes.
gpu_vmm_status gpu_vmm_region_read(const gpu_vmm_region *region,
                                   uint64_t offset,
                                   void *to,
                                   uint64_t size);

// Copies bytes of the host to `offset` and waits until they are there. Work of streams is not waited for. `from` must not
// overlap the region.
//
// # Safety
//
// `region` is null or a region, `from` null or `size` bytes.
gpu_vmm_status gpu_vmm_region_write(const gpu_vmm_region *region,
                                    uint64_t offset,
                                    const void *from,
                                    uint64_t size);

// Gives the region's memory back and keeps its addresses; waits for the devices. `keep` is as for gpu_vmm_suspend. `bytes`, how
// much memory went, may be null. GPU_VMM_BUSY while a tensor of the region exists, unless `force` is true: then nothing may use
// the memory of a tensor before gpu_vmm_region_resume.
//
// # Safety
//
// `region` is null or a region, `keep` null or a string, `bytes` null or room for a number.
gpu_vmm_status gpu_vmm_region_suspend(const gpu_vmm_region *region,
                                      const char *keep,
                                      bool force,
                                      uint64_t *bytes);

// Brings a region's memory back, with its contents, at the same addresses. `bytes`, how much memory came, may be null.
//
// # Safety
//
// `region` is null or a region, `bytes` null or room for a number.
gpu_vmm_status gpu_vmm_region_resume(const gpu_vmm_region *region, uint64_t *bytes);

// Whether a tag is suspended: then nothing is allocated with it, and nobody may use its blocks.
//
// # Safety
//
// `pool` is null or a pool, `tag` null or a string, `suspended` null or room for a bool.
gpu_vmm_status gpu_vmm_is_suspended(const gpu_vmm_pool *pool, const char *tag, bool *suspended);

// Gives the memory of all blocks with a tag back to the driver and keeps their addresses; waits for the devices. Until
// gpu_vmm_resume nothing is allocated with the tag, and nobody may use its blocks; they can be freed.
//
// `keep` says where the contents go: null, nowhere; "host", ordinary memory; "pinned", page-locked memory, which is slow to
// make the first time and fast from then on; "file", a file without a name in the folder for temporary files; "file:FOLDER",
// in that one. `bytes`, how much memory went, may be null; 0 where the tag was suspended already.
//
// # Safety
//
// `pool` is null or a pool, `tag` and `keep` are null or strings, `bytes` null or room for a number.
gpu_vmm_status gpu_vmm_suspend(const gpu_vmm_pool *pool,
                               const char *tag,
                               const char *keep,
                               uint64_t *bytes);

// Brings the memory of all blocks with a tag back, with its contents, at the same addresses. `bytes`, how much memory came,
// may be null; 0 where the tag was not suspended. Where there is too little memory, what is not back yet stays suspended and
// its contents safe.
//
// # Safety
//
// `pool` is null or a pool, `tag` null or a string, `bytes` null or room for a number.
gpu_vmm_status gpu_vmm_resume(const gpu_vmm_pool *pool,
                              const char *tag,
                              uint64_t *bytes);

// What went wrong in this thread's last call that failed: what was to be done, the numbers, what would have been right, the
// driver's own code and name. Empty where none has failed. Valid until the thread's next call that fails.
const char *gpu_vmm_last_error(void);

// The library's version.
const char *gpu_vmm_version(void);

// A DLPack tensor over a part of a region, from `offset` bytes on; the region's memory stays as long as the tensor does, also
// when the region has grown or was freed.
//
// `code`, `bits` and `lanes` are DLDataType's; `shape` and `strides`, in elements, have `ndim` numbers each; null for strides
// is row after row. `tensor` gets a `DLManagedTensorVersioned *` where `versioned` is true, else a `DLManagedTensor *`, which
// cannot say that it is read-only.
//
// # Safety
//
// `region` is null or a region; `shape` is null or `ndim` numbers, `strides` as well; `tensor` is null or room for a pointer.
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

// Calls the deleter of a tensor that nobody has taken. Null is nothing.
//
// # Safety
//
// `tensor` is null or one that gpu_vmm_region_dlpack gave with the same `versioned`, whose deleter nobody has called.
void gpu_vmm_dlpack_delete(void *tensor, bool versioned);

// DLPack's name for a device: its type (1 memory of the host, 2 CUDA, 10 ROCm) and its number.
//
// # Safety
//
// `backend` is null or an open one; `device_type` and `device_id` are null or room for a number each.
gpu_vmm_status gpu_vmm_dlpack_device(const gpu_vmm_backend *backend,
                                     uint32_t device,
                                     int32_t *device_type,
                                     int32_t *device_id);

// Frees a string that a function gave. Null is nothing.
//
// # Safety
//
// `text` is null or a string that a function of this library gave, and was not freed yet.
void gpu_vmm_string_free(char *text);

// Memory for a tensor, in the order of a stream; where there is none, a C++ exception (std::runtime_error) with the account,
// which Python gets as a RuntimeError. Null for a size of 0.
//
// # Safety
//
// `stream` is null or a live stream of the device's vendor.
void *gpu_vmm_torch_alloc(ptrdiff_t size,
                          int number,
                          void *stream);

// Frees it, in the order of the stream that it was allocated for. Null is nothing.
void gpu_vmm_torch_free(void *block, ptrdiff_t _size, int number, void *_stream);

// Notes that work on another stream uses a block: for set_record_stream_fn.
//
// # Safety
//
// `stream` is null or a live stream of the vendor of the block's device.
void gpu_vmm_torch_record_stream(void *block, void *stream);

// Gives memory back to the driver in which nothing is: for set_reset_fn, which torch.cuda.empty_cache() calls.
void gpu_vmm_torch_empty_cache(void);

// A capture begins: what is allocated from now on on streams that capture is its graph's alone. For
// set_begin_allocate_to_pool. The last argument, PyTorch's question whether a stream is meant, is not asked: the driver says
// which streams capture.
void gpu_vmm_torch_begin_allocate_to_pool(int number,
                                          gpu_vmm_torch_mempool_id id,
                                          const void *_filter);

// A capture has ended: for set_end_allocate_to_pool_fn.
void gpu_vmm_torch_end_allocate_to_pool(int number, gpu_vmm_torch_mempool_id id);

// The graph of a capture is gone: for set_release_pool.
void gpu_vmm_torch_release_pool(int number, gpu_vmm_torch_mempool_id id);

// Says which backend serves PyTorch, by name or null for the one whose library the process has loaded, and with which options;
// the device in them is not looked at, each has a pool of its own. Before the first allocation: GPU_VMM_BUSY from then on.
//
// # Safety
//
// `backend` is null or a string, `options` null or filled in.
gpu_vmm_status gpu_vmm_torch_configure(const char *backend,
                                       const gpu_vmm_pool_options *options);

// What this thread allocates from now on has this tag; null for "torch".
//
// # Safety
//
// `tag` is null or a string.
gpu_vmm_status gpu_vmm_torch_set_tag(const char *tag);

// The process's pool for a device, for its statistics, and to suspend and resume its tags. To be freed with gpu_vmm_pool_free,
// which leaves the memory as it is.
//
// # Safety
//
// `pool` is null or room for a pointer.
gpu_vmm_status gpu_vmm_torch_pool(int device_number,
                                  gpu_vmm_pool **pool);

// A pair of functions for a CUDAPluggableAllocator of a torch.cuda.MemPool, whose memory has this tag. At most 64 tags. Unlike
// gpu_vmm_torch_alloc, `alloc` gives null where there is no memory.
//
// # Safety
//
// `tag` is null or a string; `alloc_function` and `free_function` are null or room for a pointer each.
gpu_vmm_status gpu_vmm_torch_functions(const char *tag,
                                       void **alloc_function,
                                       void **free_function);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GPU_VMM_H */
