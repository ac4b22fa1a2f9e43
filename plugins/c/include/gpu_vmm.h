// gpu-vmm for C: GPU virtual memory on NVIDIA's driver, AMD's HIP runtime or host memory. Physical memory, regions of addresses,
// mappings and access; memory that is exchanged behind a fixed address, shared and saved; pools.
//
// Every function that can fail returns a status: GPU_VMM_OK or the code of an error. gpu_vmm_last_error returns the error's text.
// All sizes are bytes, and all addresses are device addresses.
//
// Threads: several threads may use one object. The comment of a type says whether their calls run at the same time or take turns: a call
// that takes turns waits until the call before it on the same object has returned, whatever that waits for. A thread must not be cancelled
// (pthread_cancel) during a call: that ends the process.
//
// Results: every function with a status first sets its out-parameters to zero or NULL, and a descriptor to -1. After an error they hold
// that. The bytes that a function has copied to `to` by then are undefined. A call that fails has changed nothing, unless it returns
// GPU_VMM_POISONED.
//
// Statuses: the comment of a function names the statuses that depend on its arguments. Besides these, every function returns
// GPU_VMM_INVALID_ARGUMENT for null and for values that it does not know, and GPU_VMM_INTERNAL for a defect of gpu-vmm; every function
// that changes an object or calls a driver returns GPU_VMM_FORKED in a forked child, GPU_VMM_DEVICE_LOST, GPU_VMM_DRIVER, and
// GPU_VMM_POISONED for memory on which a rollback has failed.
//
// Objects: a pointer to an object names it and is no address. A pointer to a freed object, or to one of another type, is
// GPU_VMM_INVALID_ARGUMENT, and the functions that free an object do nothing with it. An object must not be freed while another
// thread uses it.
//
// Strings: UTF-8. Paths, and folders in `keep`, are any bytes on Unix, and UTF-8 elsewhere.
//
// Options: a struct of zeros, `gpu_vmm_pool_options options = {0};`, is the default.
//
// Memory in use: functions that take a region's memory away (such as gpu_vmm_region_shrink and gpu_vmm_region_suspend) fail with
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

// For gpu_vmm_banked_selected: no bank is mapped.
#define GPU_VMM_NO_BANK 4294967295

// For gpu_vmm_followed_next: no event has arrived in time.
#define GPU_VMM_EVENT_NONE 0

// For gpu_vmm_followed_next: the exporter has published a change of its region.
#define GPU_VMM_EVENT_CHANGED 1

// For gpu_vmm_followed_next: the exporter asks this process to release the memory.
#define GPU_VMM_EVENT_RELEASE_REQUESTED 2

// For gpu_vmm_followed_next: the exporter has ended the exchange or has died. The memory stays mapped.
#define GPU_VMM_EVENT_GONE 3

// For gpu_vmm_exporter_wait_released: the importer has released the memory.
#define GPU_VMM_RELEASED 0

// For gpu_vmm_exporter_wait_released: the importer keeps the memory.
#define GPU_VMM_RELEASE_KEPT 1

// For gpu_vmm_exporter_wait_released: the importer has died or closed its end.
#define GPU_VMM_RELEASE_GONE 2

// For `effect` of gpu_vmm_backing_change: the memory is unmapped, and nothing is mapped afterwards.
#define GPU_VMM_BACKING_REMOVED 0

// For `effect` of gpu_vmm_backing_change: a resume or the selection of a bank maps memory where none was.
#define GPU_VMM_BACKING_RESTORED 1

// For `effect` of gpu_vmm_backing_change: other memory is mapped at the same addresses.
#define GPU_VMM_BACKING_REPLACED 2

// For `effect` of gpu_vmm_backing_change: the memory is mapped from `new_address` on, and nothing at the old addresses.
#define GPU_VMM_BACKING_MOVED 3

// An outcome of a change: the memory has changed as announced.
#define GPU_VMM_OUTCOME_CHANGED 0

// An outcome of a change: the operation failed, and the memory is the same as before.
#define GPU_VMM_OUTCOME_UNCHANGED 1

// An outcome of a change: the rollback failed too, and it is unknown which memory is mapped.
#define GPU_VMM_OUTCOME_POISONED 2

// For `keep` of gpu_vmm_pool_options: the pool returns free memory to the driver at once. (One byte is less than any page.)
#define GPU_VMM_KEEP_NOTHING 1

// For `location` of gpu_vmm_properties: the device's own memory.
#define GPU_VMM_LOCATION_DEVICE 0

// For `location` of gpu_vmm_properties: host memory on a NUMA node that the driver chooses.
#define GPU_VMM_LOCATION_HOST 1

// For `location` of gpu_vmm_properties: host memory on the NUMA node `node`.
#define GPU_VMM_LOCATION_HOST_NODE 2

// For `handle_types` of gpu_vmm_properties: file descriptors, for processes of one Linux machine.
#define GPU_VMM_HANDLE_FD 1

// For `handle_types` of gpu_vmm_properties: fabric handles, for machines whose GPUs share a fabric.
#define GPU_VMM_HANDLE_FABRIC 8

// No reads and no writes.
#define GPU_VMM_ACCESS_NONE 0

// Reads only.
#define GPU_VMM_ACCESS_READ 1

// Reads and writes.
#define GPU_VMM_ACCESS_READ_WRITE 3

// The CPU, in calls that set or query access. It is not a device.
#define GPU_VMM_DEVICE_HOST 127

// For `placement` of gpu_vmm_region_options: any address that the driver chooses.
#define GPU_VMM_PLACE_ANYWHERE 0

// For `placement` of gpu_vmm_region_options: `address` if it is free, else any address.
#define GPU_VMM_PLACE_PREFER 1

// For `placement` of gpu_vmm_region_options: `address`, or the error GPU_VMM_ADDRESS_TAKEN.
#define GPU_VMM_PLACE_EXACT 2

// For `placement` of gpu_vmm_region_options: a random address that other processes can reserve as well. Set `size`.
#define GPU_VMM_PLACE_RESTORABLE 3

// For `placement` of gpu_vmm_region_options: any addresses that are all below `address`, also after growth and moves.
#define GPU_VMM_PLACE_BELOW 4

// For gpu_vmm_client_open and gpu_vmm_lease_state: the lease maps the memory read-only. Any number of clients can have one.
#define GPU_VMM_LEASE_READ 0

// For gpu_vmm_client_open and gpu_vmm_lease_state: the lease can replace contents. One client can have it.
#define GPU_VMM_LEASE_WRITE 1

// For gpu_vmm_lease_next: no event has arrived in time.
#define GPU_VMM_LEASE_EVENT_NONE 0

// For gpu_vmm_lease_next: a writer has committed an epoch, which gpu_vmm_lease_apply maps.
#define GPU_VMM_LEASE_EVENT_NEW_EPOCH 1

// For gpu_vmm_lease_next: the region was dropped from the server. The lease keeps the memory that it has.
#define GPU_VMM_LEASE_EVENT_DROPPED 2

// For gpu_vmm_lease_next: the server has ended. The lease keeps the memory that it has.
#define GPU_VMM_LEASE_EVENT_SERVER_GONE 3

// For gpu_vmm_region_offer and gpu_vmm_physical_offer: processes of this machine take the descriptors from this process
// (pidfd_getfd), for which they need the same user and the right to trace it. Linux only.
#define GPU_VMM_OFFER_BY_PROCESS 0

// For gpu_vmm_region_offer and gpu_vmm_physical_offer: processes on all machines of the fabric import fabric handles.
#define GPU_VMM_OFFER_BY_FABRIC 1

// For `from` of gpu_vmm_device_pair: every device without an entry of its own.
#define GPU_VMM_DEVICE_ALL 4294967295

// The block is allocated.
#define GPU_VMM_TORCH_LIVE 0

// The block was freed and is kept for its private pool.
#define GPU_VMM_TORCH_FREE 1

// The block was freed and waits for work on a stream.
#define GPU_VMM_TORCH_PENDING 2

// The major version of the header.
#define GPU_VMM_VERSION_MAJOR 0

// The minor version of the header.
#define GPU_VMM_VERSION_MINOR 1

// The patch version of the header.
#define GPU_VMM_VERSION_PATCH 0

// An open driver. Pools and regions that were created from it stay valid when it is closed.
// Calls of several threads run at the same time.
typedef struct gpu_vmm_backend gpu_vmm_backend;

// A fixed range of addresses and several banks of memory, of which one at a time is mapped there. The others keep their contents.
// Calls of several threads take turns.
typedef struct gpu_vmm_banked gpu_vmm_banked;

// An announced capture of a stream into a graph.
typedef struct gpu_vmm_capture gpu_vmm_capture;

// A checkpoint of a private pool: its identifier, and its live blocks by address.
typedef struct gpu_vmm_torch_checkpoint_state gpu_vmm_torch_checkpoint_state;

// A connection to a server that keeps memory when programs end. Calls of several threads run at the same time.
typedef struct gpu_vmm_client gpu_vmm_client;

// A queue of copies between one device and page-locked memory. It has no order with other streams except by events:
// gpu_vmm_copy_queue_hold and gpu_vmm_copy_queue_record. Calls of several threads take turns.
typedef struct gpu_vmm_copy_queue gpu_vmm_copy_queue;

// An event of one device. CUDA: CUevent; HIP: hipEvent_t. Calls of several threads take turns.
typedef struct gpu_vmm_event gpu_vmm_event;

// The exporter's end of an exchange: another process has the region's memory and receives its changes.
// Calls of several threads take turns.
typedef struct gpu_vmm_exporter gpu_vmm_exporter;

// A region of another process that is mapped here and follows that region's changes. Calls of several threads take turns.
typedef struct gpu_vmm_followed gpu_vmm_followed;

// Memory of another process that is mapped here.
typedef struct gpu_vmm_torch_imported gpu_vmm_torch_imported;

// The named parts of a region, such as the tensors of a model, and a program's own notes about the contents.
// Calls of several threads take turns.
typedef struct gpu_vmm_layout gpu_vmm_layout;

// A region of a server that is mapped in this process at the region's address. Calls of several threads take turns.
typedef struct gpu_vmm_lease gpu_vmm_lease;

// A path at which other processes of this machine and user can connect, for gpu_vmm_export.
// Calls of several threads run at the same time.
typedef struct gpu_vmm_listener gpu_vmm_listener;

// One address for the memory of several devices, which kernels reach by the multimem instructions of PTX. Calls of several threads
// take turns.
typedef struct gpu_vmm_multicast gpu_vmm_multicast;

// A region or physical memory that other processes can import, as bytes. Keep it until all of them have imported it.
// Calls of several threads run at the same time.
typedef struct gpu_vmm_offer gpu_vmm_offer;

// A list of free pages: physical memory in pieces of one size. All pages together, free and in use, are at most its budget. A page
// returns to the list when no region maps it and no object names it any more. Calls of several threads run at the same time.
typedef struct gpu_vmm_page_list gpu_vmm_page_list;

// Physical memory of one device. Several objects can share one memory: the device gets it back when all are released and no region
// maps it. Calls of several threads run at the same time.
typedef struct gpu_vmm_physical gpu_vmm_physical;

// Page-locked host memory, which devices copy to and from at full speed.
// Calls of several threads run at the same time; no lock protects its bytes.
typedef struct gpu_vmm_pinned gpu_vmm_pinned;

// A pool of one device's memory that allocates under one tag. Calls of several threads run at the same time, also during gpu_vmm_suspend
// and gpu_vmm_resume; but gpu_vmm_suspend, gpu_vmm_host_memory and gpu_vmm_trim_host take turns.
typedef struct gpu_vmm_pool gpu_vmm_pool;

// A contiguous range of device addresses whose memory grows in place. Calls of several threads take turns.
typedef struct gpu_vmm_region gpu_vmm_region;

// The result of a call: GPU_VMM_OK or the code of an error.
typedef int32_t gpu_vmm_status;

// The properties of physical memory. All zeros, as after `= {0}`, is memory of device 0 that cannot be exported.
typedef struct {
  // The device that owns the memory. For host memory, the device that copies to and from it.
  uint32_t device;
  // GPU_VMM_LOCATION_DEVICE, GPU_VMM_LOCATION_HOST or GPU_VMM_LOCATION_HOST_NODE.
  uint32_t location;
  // The NUMA node for GPU_VMM_LOCATION_HOST_NODE, else zero.
  uint32_t node;
  // The handles by which the memory can be exported, which the driver must know when it creates the memory:
  // GPU_VMM_HANDLE_FD, GPU_VMM_HANDLE_FABRIC, both (CUDA only), or zero.
  uint32_t handle_types;
  // Whether the driver may compress the memory. gpu_vmm_physical_properties returns whether it does.
  bool compressible;
  // Whether a network card can access the memory without the host.
  bool remote_dma;
  // Must be zero. Later versions place their settings here.
  uint64_t reserved[4];
} gpu_vmm_properties;

// The options of a region. All zeros, as after `= {0}`, is the default: addresses for as many bytes as device 0 has memory, wherever
// the driver chooses, and growth with memory of device 0.
typedef struct {
  // The memory with which the region grows.
  gpu_vmm_properties memory;
  // The number of bytes of addresses, rounded up; 0 for the size of the device's memory.
  uint64_t size;
  // GPU_VMM_PLACE_ANYWHERE, GPU_VMM_PLACE_PREFER, GPU_VMM_PLACE_EXACT, GPU_VMM_PLACE_RESTORABLE or GPU_VMM_PLACE_BELOW.
  uint32_t placement;
  // Whether the region has units that every driver supports, so that another driver can restore it at its address.
  bool portable;
  // Whether the unit of offsets and lengths is the granularity that the driver recommends, as gpu_vmm_recommended_granularity returns it.
  bool recommended_granularity;
  // The address for GPU_VMM_PLACE_PREFER and GPU_VMM_PLACE_EXACT, and the limit for GPU_VMM_PLACE_BELOW. Must be zero for the
  // others.
  uint64_t address;
  // The alignment of the address beyond the granularity, a power of two; 0 for none.
  uint64_t alignment;
  // The number of bytes of addresses that growth first tries to add behind a full reservation; 0 for as many as the region has. If
  // they are too few or taken, growth adds just what it needs.
  uint64_t extend_by;
  // The number of bytes of addresses to keep free on either side, rounded up; 0 for none. Freed memory is then overwritten.
  uint64_t guard;
  // Must be zero. Later versions place their settings here.
  uint64_t reserved[4];
} gpu_vmm_region_options;

// A range of offsets in a region.
typedef struct {
  // The first offset.
  uint64_t offset;
  // The length.
  uint64_t length;
} gpu_vmm_range;

// A change of the memory behind addresses of a region. It and what it points to are valid during the callback.
typedef struct {
  // The name of the operation, such as "suspend".
  const char *operation;
  // What happens to the memory, such as GPU_VMM_BACKING_REMOVED.
  uint32_t effect;
  // The first address of the region before the change.
  uint64_t address;
  // The first address of the region after GPU_VMM_BACKING_MOVED, else zero.
  uint64_t new_address;
  // The ranges of the region whose memory changes, in ascending order.
  const gpu_vmm_range *parts;
  // The number of ranges.
  uint64_t count;
} gpu_vmm_backing_change;

// Callbacks before and after each change of the memory behind a region's addresses, for code that has registered the memory with a
// network card, opened it in another process, or captured its addresses in a graph. Calls of one region come one at a time, on the
// thread of the operation, and of several regions at the same time. A callback must return normally, without an exception or a
// longjmp, and must not free the region.
//
// A call of the library from a callback with the region that changes returns GPU_VMM_BUSY and does not wait, and so does one with
// another region that is in use.
typedef struct {
  // The first argument of each callback.
  void *context;
  // Called before anything changes and before the operation waits for the devices. Any status except GPU_VMM_OK refuses the
  // change: the operation returns GPU_VMM_BUSY, and nothing has changed. The end of a region cannot be refused. May be null.
  gpu_vmm_status (*before)(void *context, const gpu_vmm_backing_change *change);
  // Called once for each `before` that did not refuse, with an outcome such as GPU_VMM_OUTCOME_CHANGED, on every path. May be
  // null.
  void (*after)(void *context, const gpu_vmm_backing_change *change, uint32_t outcome);
  // Called once when no callback will be called any more: the observer was removed, or the region's memory was released. May be
  // null.
  void (*released)(void *context);
  // Must be zero. Later versions place their settings here.
  uint64_t reserved[4];
} gpu_vmm_observer;

// A dma-buf of a part of a region.
typedef struct {
  // The descriptor, which the caller must close.
  int32_t fd;
  // The offset in the region at which the memory begins. In the dma-buf the memory begins at 0.
  uint64_t offset;
  // The size of the memory.
  uint64_t length;
} gpu_vmm_dma_buf;

// One mapping of a region.
typedef struct {
  // The offset in the region at which the mapping begins.
  uint64_t offset;
  // The length of the mapping: the size of the memory.
  uint64_t length;
  // The device that owns the memory.
  uint32_t device;
  // Whether the mapping cannot be used, because an operation on it failed and so did the rollback.
  bool poisoned;
} gpu_vmm_mapping;

// The settings of a multicast object. A struct of zeros, with devices and a size, is one of this process alone.
typedef struct {
  // The devices of this process.
  const uint32_t *devices;
  // The number of devices of this process, at least one.
  uint64_t device_count;
  // The size of the memory that each device can bind, rounded up to the granularity of multicast.
  uint64_t size;
  // The number of devices that other processes add.
  uint32_t elsewhere;
  // The handles by which it can be exported; GPU_VMM_HANDLE_FD and so on. Zero means descriptors if devices are elsewhere.
  uint32_t handle_types;
  // Must be zero.
  uint64_t reserved[4];
} gpu_vmm_team_options;

// The options of a pool. All zeros, as after `= {0}`, is the default: a pool of device 0 without limits that keeps its memory.
typedef struct {
  // The device that the pool allocates from.
  uint32_t device;
  // The largest amount of physical memory that the pool may hold, in bytes; 0 for what GPU_VMM_BUDGET says, or no limit.
  uint64_t budget;
  // The largest amount of free memory that the pool keeps, in bytes; 0 for all of it, GPU_VMM_KEEP_NOTHING for none.
  uint64_t keep;
  // The size in which the pool creates and maps physical memory, in bytes, a power of two. 0 for 2 MiB (8 MiB on devices with
  // 64 GiB and more) or the driver's granularity, whichever is larger, and for 16 MiB in PyTorch's pools. Larger pages take fewer
  // driver calls, but leave more memory unused around blocks.
  uint64_t page;
  // How far the memory held may exceed the largest amount ever needed at one time, in percent. Up to that the pool creates new
  // memory; beyond it, the pool maps free memory from elsewhere, which is slow if sizes change all the time. 0 for 1 %, or 7 %
  // once the pool serves several streams.
  uint32_t slack;
  // Whether the pool overwrites memory with zeros when it passes from one tag to another.
  bool scrub;
  // Whether the pool records where each block was allocated.
  bool debug;
  // Whether the pool creates memory that other processes of the machine can map, if the driver has such memory.
  bool shareable;
  // Whether the pool reserves addresses that other processes can reserve as well, for gpu_vmm_pool_restore.
  bool restorable;
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

// How the pools of a program take part in a server's budget. All zeros, as after `= {0}`, is the default.
typedef struct {
  // The program's name in lists and errors, a string; null for the name of its executable file.
  const char *name;
  // Programs of a lower priority are asked first for memory, and their requests wait longer: -128 to 127. Those above 0 are for the
  // server's own user and for root.
  int32_t priority;
  // The effective user that the server must have, if `has_user` is true; else this process's.
  uint32_t user;
  // Whether the server has the user `user`.
  bool has_user;
  // How long a request waits for memory that other programs have, in milliseconds; 0 for 10 seconds.
  uint64_t wait_ms;
  // Must be zero. Later versions place their settings here.
  uint64_t reserved[4];
} gpu_vmm_program_options;

// A block of a restored pool.
typedef struct {
  // Its first address.
  uint64_t address;
  // The requested size, or `capacity` if the file does not have it.
  uint64_t size;
  // The bytes that it occupies.
  uint64_t capacity;
  // The stream that it belongs to: the default stream.
  void *stream;
  // Its tag, terminated by a zero; a tag of more than 63 bytes is truncated.
  char tag[64];
} gpu_vmm_restored_block;

// The options of a new region of a server. All zeros, as after `= {0}`, is the default: memory of device 0 for this user alone.
typedef struct {
  // The device and the kind of the memory. `handle_types` has no effect: the server exports the memory as file descriptors.
  gpu_vmm_properties memory;
  // The users that may read and replace the region, as the permission bits of a file: read 4 and write 2 for its owner, its group
  // and all others. 0 for the default, 0600.
  uint32_t mode;
  // The group of the region, if `has_group` is true.
  uint32_t group;
  // Whether the region has the group `group`, and not the group of this process.
  bool has_group;
  // The address of the region, which must be free in this process and on the server; 0 for a random one.
  uint64_t address;
  // The size of a memory handle, rounded up to the granularity; 0 for the default, at most 256 MiB. gpu_vmm_lease_renew replaces whole
  // handles.
  uint64_t handle;
  // Must be zero. Later versions place their settings here.
  uint64_t reserved[4];
} gpu_vmm_create_options;

// A named part of a region: a tensor for gpu_vmm_region_dlpack. All zeros but the name is an invalid part: set the element type.
typedef struct {
  // The name.
  const char *name;
  // The offset of the first element in the region.
  uint64_t offset;
  // DLDataType's `code`.
  uint8_t code;
  // DLDataType's `bits`.
  uint8_t bits;
  // DLDataType's `lanes`.
  uint16_t lanes;
  // The number of dimensions, at most 32.
  int32_t ndim;
  // The number of elements in each dimension. May be null without dimensions.
  const int64_t *shape;
  // The distance in elements between neighbours in each dimension; null for row-major order.
  const int64_t *strides;
  // Must be zero. Later versions place their settings here.
  uint64_t reserved[4];
} gpu_vmm_part;

// A fabric handle, which any network can carry. Every process on a machine of the same fabric that has its bytes can import the
// memory.
typedef struct {
  // The handle.
  uint8_t bytes[64];
} gpu_vmm_fabric_handle;

// A device of a file, and the device of this process that replaces it.
typedef struct {
  // The number of the device in the process that wrote the file, or GPU_VMM_DEVICE_ALL.
  uint32_t from;
  // The number of the device in this process.
  uint32_t to;
} gpu_vmm_device_pair;

// The options of restoring regions. All zeros, as after `= {0}`, is the default: at the address that each region had, and on the devices
// with the same numbers.
typedef struct {
  // Whether a region lies elsewhere if its address is taken.
  bool relocate;
  // Whether each device without an entry in `devices` is the one with the same UUID here, whatever its number. A device that has no
  // UUID in the file is taken by its number, and one that is missing here by the entry of GPU_VMM_DEVICE_ALL, if there is one.
  bool by_uuid;
  // The devices that replace devices of the file, with their access; null for none. GPU_VMM_DEVICE_HOST is the CPU.
  const gpu_vmm_device_pair *devices;
  // The number of entries in `devices`.
  uint64_t device_count;
  // Must be zero. Later versions place their settings here.
  uint64_t reserved[4];
} gpu_vmm_restore_options;

// A quantity of live blocks. The first of two numbers counts blocks of up to 1 MiB, the second larger ones.
typedef struct {
  // The live amount.
  uint64_t live[2];
  // The amount that was freed since gpu_vmm_torch_reset_accumulated.
  uint64_t freed[2];
  // The amount that was allocated since then.
  uint64_t allocated[2];
  // The most that was live since gpu_vmm_torch_reset_peak.
  uint64_t peak[2];
  // The most of both together.
  uint64_t peak_of_all;
} gpu_vmm_torch_quantity;

// The live blocks of one device: their number, their sizes as PyTorch rounds them, and their requested sizes.
typedef struct {
  gpu_vmm_torch_quantity blocks;
  gpu_vmm_torch_quantity bytes;
  gpu_vmm_torch_quantity requested;
} gpu_vmm_torch_amounts;

// The amounts of one device's memory. All sizes are bytes.
typedef struct {
  // All physical memory.
  uint64_t held;
  // The most physical memory since gpu_vmm_torch_reset_peak.
  uint64_t peak_held;
  // The physical memory that contains blocks of up to 1 MiB.
  uint64_t held_small;
  // The number and the size of freed blocks that wait for work on a stream: blocks of up to 1 MiB, and larger ones.
  uint64_t pending_blocks[2];
  uint64_t pending_bytes[2];
  // The number of pages of physical memory that were ever created, and returned to the driver.
  uint64_t created;
  uint64_t released;
  // The size of a page.
  uint64_t page;
  // The live blocks.
  gpu_vmm_torch_amounts live;
} gpu_vmm_torch_usage;

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

// A function that receives blocks one by one, with the context of its caller; null for none.
typedef void (*gpu_vmm_torch_visit)(void*, const gpu_vmm_torch_block*);

// The call succeeded.
#define GPU_VMM_OK 0

// An argument is invalid: null, a size of zero, an alignment that is no power of two, a malformed tensor.
#define GPU_VMM_INVALID_ARGUMENT 1

// The device is out of memory or the pool's budget is exhausted; the text of a pool's error has the pool's statistics.
#define GPU_VMM_OUT_OF_MEMORY 2

// The process has too little free address space.
#define GPU_VMM_OUT_OF_ADDRESS_SPACE 3

// No driver library was found, or the driver is too old or does not support the call; the text names the libraries that were looked for.
#define GPU_VMM_UNSUPPORTED 4

// No live block has the address, or no block has the tag. Freeing a block twice reports this.
#define GPU_VMM_NOT_FOUND 5

// The memory is suspended.
#define GPU_VMM_SUSPENDED 6

// A file for contents cannot be created, written or read; the text has its path and the system's error.
#define GPU_VMM_FILE 7

// The memory is in use: a tensor of it exists, it is held elsewhere, a stream captures, or an observer refuses the change.
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

// The peer process exited, refused or sent invalid data.
#define GPU_VMM_PEER 23

// The process exits, and its drivers end with it.
#define GPU_VMM_EXITING 24

// The peer process did not connect, reply or read in time.
#define GPU_VMM_TIMED_OUT 25

// No process listens at the path, or not yet.
#define GPU_VMM_NO_LISTENER 26

// The path is a stale socket: the process that listened there is gone.
#define GPU_VMM_STALE_SOCKET 27

// The process has as many open files as RLIMIT_NOFILE allows.
#define GPU_VMM_OUT_OF_DESCRIPTORS 28

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Describes what this process has at an address as JSON: the region or the pool that has reserved it, its tag, the mapping there with
// the access of each device, and the block of a pool. It finds the regions of all backends, calls no driver, and can be called by any
// thread, except where a pool must not be called. Free the text with gpu_vmm_string_free.
//
// Returns GPU_VMM_NOT_FOUND for an address in no region of this process.
//
// # Safety
//
// `json` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_at(uint64_t address,
                          char **json);

// Opens a backend: "cuda", "hip" or "host" (host memory, for machines without a GPU).
//
// With null, opens the backend that the environment variable GPU_VMM_BACKEND names. If that is not set, opens the backend whose
// library the process has already loaded, as PyTorch for ROCm loads HIP's, or else the best one. Close it with gpu_vmm_close.
// In a child of a process that has initialized a driver, GPU_VMM_FORKED is returned and never host memory.
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

// Reserves the addresses of a banked region, without a bank. `size` of the options must be the size of the largest bank. Null options
// mean the default. Free it with gpu_vmm_banked_free.
//
// Returns the statuses of gpu_vmm_region_reserve.
//
// # Safety
//
// `backend` is null or an open backend. `options` is null or points to options. `banked` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_banked_new(const gpu_vmm_backend *backend,
                                  const gpu_vmm_region_options *options,
                                  gpu_vmm_banked **banked);

// Frees a banked region and its banks. Null does nothing.
//
// # Safety
//
// `banked` is null or comes from gpu_vmm_banked_new, and was not freed yet.
void gpu_vmm_banked_free(gpu_vmm_banked *banked);

// Returns the first address, which never changes.
//
// # Safety
//
// `banked` is null or a banked region. `address` is null or points to a writable number.
gpu_vmm_status gpu_vmm_banked_address(const gpu_vmm_banked *banked, uint64_t *address);

// Adds a bank of new memory of at least `size` bytes. Nothing is mapped. `bank` receives its number.
//
// Returns GPU_VMM_OUT_OF_MEMORY, and GPU_VMM_OUT_OF_RANGE for a bank larger than the address range.
//
// # Safety
//
// `banked` is null or a banked region. `bank` is null or points to a writable number.
gpu_vmm_status gpu_vmm_banked_add(const gpu_vmm_banked *banked, uint64_t size, uint32_t *bank);

// Adds a bank of `count` pieces of existing memory, one behind the other. `bank` receives its number.
//
// Returns GPU_VMM_OUT_OF_RANGE for a bank larger than the address range, GPU_VMM_UNALIGNED, GPU_VMM_PEER_UNREACHABLE, and
// GPU_VMM_INVALID_ARGUMENT for no piece or memory of another backend.
//
// # Safety
//
// `banked` is null or a banked region. `physicals` is null or points to `count` pointers, each null or physical memory. `bank` is
// null or points to a writable number.
gpu_vmm_status gpu_vmm_banked_add_physical(const gpu_vmm_banked *banked,
                                           const gpu_vmm_physical *const *physicals,
                                           uint64_t count,
                                           uint32_t *bank);

// Maps a bank at the address, after waiting for the devices. The previous bank keeps its contents. The selected bank stays.
//
// Returns GPU_VMM_NOT_FOUND if there is no such bank, and GPU_VMM_BUSY for a capture or if an observer refuses.
//
// # Safety
//
// `banked` is null or a banked region.
gpu_vmm_status gpu_vmm_banked_select(const gpu_vmm_banked *banked,
                                     uint32_t bank);

// Unmaps the selected bank, after waiting for the devices, so that nothing is mapped.
//
// Returns GPU_VMM_BUSY for a capture or if an observer refuses.
//
// # Safety
//
// `banked` is null or a banked region.
gpu_vmm_status gpu_vmm_banked_hide(const gpu_vmm_banked *banked);

// Removes a bank, hides it first if it is selected, and releases its memory.
//
// Returns GPU_VMM_NOT_FOUND if there is no such bank, and GPU_VMM_BUSY for a capture or if an observer refuses.
//
// # Safety
//
// `banked` is null or a banked region.
gpu_vmm_status gpu_vmm_banked_remove(const gpu_vmm_banked *banked, uint32_t bank);

// Returns the number of the selected bank, or GPU_VMM_NO_BANK.
//
// # Safety
//
// `banked` is null or a banked region. `bank` is null or points to a writable number.
gpu_vmm_status gpu_vmm_banked_selected(const gpu_vmm_banked *banked, uint32_t *bank);

// Copies `size` bytes at `offset` of the selected bank to the host, as gpu_vmm_region_read does.
//
// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED.
//
// # Safety
//
// `banked` is null or a banked region. `to` is null or points to `size` writable bytes.
gpu_vmm_status gpu_vmm_banked_read(const gpu_vmm_banked *banked, uint64_t offset, void *to, uint64_t size);

// Copies `size` bytes of the host to `offset` of the selected bank, as gpu_vmm_region_write does.
//
// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED.
//
// # Safety
//
// `banked` is null or a banked region. `from` is null or points to `size` bytes.
gpu_vmm_status gpu_vmm_banked_write(const gpu_vmm_banked *banked, uint64_t offset, const void *from, uint64_t size);

// Adds an observer to a banked region, as gpu_vmm_region_on_backing_change does. It is removed with the banked region.
//
// # Safety
//
// As for gpu_vmm_region_on_backing_change.
gpu_vmm_status gpu_vmm_banked_on_backing_change(const gpu_vmm_banked *banked, const gpu_vmm_observer *observer);

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

// Announces a capture of a stream into a graph that is about to begin. Returns when no running call would invalidate it any more. End
// it with gpu_vmm_capture_end, once the capture has ended.
//
// Vendors refuse to wait for a device while one of its streams captures, and the attempt invalidates the capture. Until the end, calls
// of all of the vendor's backends in this process that need to wait for a device return GPU_VMM_BUSY, and the memory of regions and
// pools that are freed is kept, still mapped. Without an announcement the library knows captures of the streams that its pools serve,
// and on CUDA of blocking streams.
//
// Several captures can be announced at a time. One whose end is forgotten lasts until the process ends.
//
// # Safety
//
// `backend` is null or an open backend. `capture` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_capture_begin(const gpu_vmm_backend *backend,
                                     gpu_vmm_capture **capture);

// Ends the announcement of a capture. Kept memory is freed by the next call that waits for its devices or finds too little memory, or by
// gpu_vmm_collect. Null does nothing.
//
// Returns GPU_VMM_INVALID_ARGUMENT if it was ended already; nothing changes then.
//
// # Safety
//
// No other thread ends the same announcement.
gpu_vmm_status gpu_vmm_capture_end(gpu_vmm_capture *capture);

// Waits for the devices of all memory that was kept because of a capture, and frees it. `freed` receives its size in bytes and may be
// null.
//
// Returns GPU_VMM_BUSY if a capture still forbids the wait; the memory is still kept.
//
// # Safety
//
// `backend` is null or an open backend. `freed` is null or points to a writable number.
gpu_vmm_status gpu_vmm_collect(const gpu_vmm_backend *backend,
                               uint64_t *freed);

// Returns the granularity of memory with these properties: the unit of its size. Null properties mean the default.
//
// Returns GPU_VMM_NO_SUCH_DEVICE, or GPU_VMM_UNSUPPORTED if the driver has no such memory.
//
// # Safety
//
// `backend` is null or an open backend. `properties` is null or points to properties. `granularity` is null or points to a
// writable number.
gpu_vmm_status gpu_vmm_granularity(const gpu_vmm_backend *backend,
                                   const gpu_vmm_properties *properties,
                                   uint64_t *granularity);

// Returns the granularity that the driver recommends for memory with these properties, a multiple of gpu_vmm_granularity: the largest
// pages of the hardware, for instance. The pages of pools are multiples of it. Null properties mean the default.
//
// Returns GPU_VMM_NO_SUCH_DEVICE, or GPU_VMM_UNSUPPORTED if the driver has no such memory.
//
// # Safety
//
// As for gpu_vmm_granularity.
gpu_vmm_status gpu_vmm_recommended_granularity(const gpu_vmm_backend *backend,
                                               const gpu_vmm_properties *properties,
                                               uint64_t *granularity);

// Returns the index of the first of `count` kinds of memory that the device supports. Each is tried: a granule is created, and exported by
// each of its handle types. `refused` receives, as JSON, an array with the reason for each kind before it; it may be null. Free the text
// with gpu_vmm_string_free.
//
// Returns GPU_VMM_UNSUPPORTED with all reasons if the device supports none.
//
// # Safety
//
// `backend` is null or an open backend. `preferred` is null or points to `count` properties. `index` is null or points to a writable
// number, and `refused` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_first_supported(const gpu_vmm_backend *backend,
                                       const gpu_vmm_properties *preferred,
                                       uint64_t count,
                                       uint64_t *index,
                                       char **refused);

// Returns the unit of address ranges: the sizes of regions are multiples of it.
//
// # Safety
//
// `backend` is null or an open backend. `unit` is null or points to a writable number.
gpu_vmm_status gpu_vmm_reservation_unit(const gpu_vmm_backend *backend, uint64_t *unit);

// Returns whether `device` can access memory of the device `owner`. CUDA: cuDeviceCanAccessPeer; HIP: hipDeviceCanAccessPeer.
//
// Returns GPU_VMM_NO_SUCH_DEVICE.
//
// # Safety
//
// `backend` is null or an open backend. `reachable` is null or points to a writable bool.
gpu_vmm_status gpu_vmm_can_access(const gpu_vmm_backend *backend,
                                  uint32_t device,
                                  uint32_t owner,
                                  bool *reachable);

// Describes the capabilities of a device as a JSON array. Each element has `feature` (such as "peer access"), `available`,
// `found_by` (how it was found) and `note` (why the feature is missing, or its limits). The first call may allocate one granule of
// memory for trials. Free the text with gpu_vmm_string_free.
//
// Returns GPU_VMM_NO_SUCH_DEVICE.
//
// # Safety
//
// `backend` is null or an open backend. `json` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_capabilities(const gpu_vmm_backend *backend,
                                    uint32_t device,
                                    char **json);

// Exports a range of whole mappings as dma-bufs, in order and without a gap, as network cards register them (ibv_reg_dmabuf_mr). The
// range is one dma-buf where it can be, and otherwise one for each reservation, for each run of memory with the same owner and
// properties, or, as on HIP, for each mapping. At most `capacity` of them are written, and `count` receives their number: if they end
// before the range does, call again from there. The caller closes each descriptor. A dma-buf is invalid once its range is mapped anew,
// unmapped, suspended or moved. CUDA: cuMemGetHandleForAddressRange; HIP: hipMemGetHandleForAddressRange.
//
// Returns GPU_VMM_UNSUPPORTED if the driver has none, GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_SUSPENDED,
// and GPU_VMM_INVALID_ARGUMENT for a part of a mapping and for a capacity of 0. After an error no descriptor is left open.
//
// # Safety
//
// `region` is null or a region. `dma_bufs` is null or points to `capacity` writable elements. `count` is null or points to a writable
// number.
gpu_vmm_status gpu_vmm_region_dma_bufs(const gpu_vmm_region *region,
                                       uint64_t offset,
                                       uint64_t length,
                                       gpu_vmm_dma_buf *dma_bufs,
                                       uint64_t capacity,
                                       uint64_t *count);

// Creates an event, which is done until it is recorded. Free it with gpu_vmm_event_free.
//
// Returns GPU_VMM_NO_SUCH_DEVICE.
//
// # Safety
//
// `backend` is null or an open backend. `event` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_event_new(const gpu_vmm_backend *backend, uint32_t device, gpu_vmm_event **event);

// Frees an event. Streams that wait for it still do. Null does nothing.
//
// # Safety
//
// `event` is null or comes from gpu_vmm_event_new, and was not freed yet.
void gpu_vmm_event_free(gpu_vmm_event *event);

// Records the work that is queued on a stream now. Null is the default stream of the event's device.
//
// Returns GPU_VMM_INVALID_ARGUMENT for a stream of another device.
//
// # Safety
//
// `event` is null or an event. `stream` is null or a live CUstream or hipStream_t of the event's vendor.
gpu_vmm_status gpu_vmm_event_record(const gpu_vmm_event *event, void *stream);

// Returns whether the recorded work is done. Nothing recorded, and a lost device, count as done.
//
// # Safety
//
// `event` is null or an event. `done` is null or points to a writable bool.
gpu_vmm_status gpu_vmm_event_done(const gpu_vmm_event *event, bool *done);

// Waits until the recorded work is done. Other calls with the event wait meanwhile.
//
// # Safety
//
// `event` is null or an event.
gpu_vmm_status gpu_vmm_event_wait(const gpu_vmm_event *event);

// Makes all work that is queued on a stream from now on wait for the recorded work. The CPU does not wait.
//
// # Safety
//
// `event` is null or an event. `stream` is null or a live CUstream or hipStream_t of the event's vendor, of any device.
gpu_vmm_status gpu_vmm_event_hold(const gpu_vmm_event *event, void *stream);

// Listens at a path, which must not exist. Only processes of this user can connect. Free it with gpu_vmm_listener_free, which
// removes the path. Linux only, as all functions of exporters.
//
// Returns GPU_VMM_STALE_SOCKET if the path is a socket whose process is gone, and GPU_VMM_DRIVER with the system's error if the path
// exists otherwise or cannot be created.
//
// # Safety
//
// `path` is null or a string. `listener` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_listener_new(const char *path,
                                    gpu_vmm_listener **listener);

// Does as gpu_vmm_listener_new, and replaces a stale socket at the path. No other file is replaced.
//
// Returns GPU_VMM_DRIVER with the system's error if the path exists otherwise or cannot be created.
//
// # Safety
//
// `path` is null or a string. `listener` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_listener_replace_stale(const char *path, gpu_vmm_listener **listener);

// Frees a listener. Exchanges that have begun go on. Null does nothing.
//
// # Safety
//
// `listener` is null or comes from gpu_vmm_listener_new, and was not freed yet.
void gpu_vmm_listener_free(gpu_vmm_listener *listener);

// Waits up to `milliseconds` until a process has called gpu_vmm_follow, and sends it a region with its memory, which must have been
// created with GPU_VMM_HANDLE_FD. Free the exporter with gpu_vmm_exporter_free.
//
// From then on, the region's memory cannot be suspended or moved: the other process would keep the old memory.
//
// Returns GPU_VMM_TIMED_OUT if no process connects in time, GPU_VMM_ACCESS_DENIED for one of another user, GPU_VMM_PEER for one that has
// given up meanwhile, GPU_VMM_UNSUPPORTED for memory that was not created for it, and GPU_VMM_SUSPENDED. Another process can connect after it.
//
// # Safety
//
// `listener` is null or a listener. `region` is null or a region. `exporter` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_export(const gpu_vmm_listener *listener,
                              const gpu_vmm_region *region,
                              uint64_t milliseconds,
                              gpu_vmm_exporter **exporter);

// Does as gpu_vmm_export, for a process of the effective user `user` instead of this process's. That user needs access to the path,
// which gpu_vmm_listener_new creates for its own user alone (mode 0600).
//
// Returns the statuses of gpu_vmm_export.
//
// # Safety
//
// `listener` is null or a listener. `region` is null or a region. `exporter` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_export_to_user(const gpu_vmm_listener *listener,
                                      const gpu_vmm_region *region,
                                      uint32_t user,
                                      uint64_t milliseconds,
                                      gpu_vmm_exporter **exporter);

// Frees an exporter, which ends the exchange. The other process keeps the memory. Null does nothing.
//
// # Safety
//
// `exporter` is null or comes from gpu_vmm_export, and was not freed yet.
void gpu_vmm_exporter_free(gpu_vmm_exporter *exporter);

// Sends the changes of the region since the last call: removed mappings, new memory, a new address. `sent` receives whether there were
// any; it may be null.
//
// Returns GPU_VMM_PEER if the other process has ended, and the statuses of gpu_vmm_export.
//
// # Safety
//
// `exporter` is null or an exporter. `region` is null or its region. `sent` is null or points to a writable bool.
gpu_vmm_status gpu_vmm_exporter_publish(const gpu_vmm_exporter *exporter,
                                        const gpu_vmm_region *region,
                                        bool *sent);

// Waits up to `milliseconds` until the other process has applied everything that was sent. Other calls with the exporter wait meanwhile.
//
// Returns GPU_VMM_PEER with the reason if the other process could not apply it or has ended, and GPU_VMM_TIMED_OUT if it does not
// answer in time.
//
// # Safety
//
// `exporter` is null or an exporter.
gpu_vmm_status gpu_vmm_exporter_wait_applied(const gpu_vmm_exporter *exporter,
                                             uint64_t milliseconds);

// Asks the other process to release the memory. A second call sends nothing.
//
// Returns GPU_VMM_PEER if the other process has ended.
//
// # Safety
//
// `exporter` is null or an exporter.
gpu_vmm_status gpu_vmm_exporter_request_release(const gpu_vmm_exporter *exporter);

// Waits up to `milliseconds` until the exchange has ended. `outcome` receives GPU_VMM_RELEASED, GPU_VMM_RELEASE_KEPT or
// GPU_VMM_RELEASE_GONE.
//
// Returns GPU_VMM_TIMED_OUT if it does not end in time.
//
// # Safety
//
// `exporter` is null or an exporter. `outcome` is null or points to a writable number.
gpu_vmm_status gpu_vmm_exporter_wait_released(const gpu_vmm_exporter *exporter,
                                              uint64_t milliseconds,
                                              uint32_t *outcome);

// Connects to the listener of another process of this user at a path and imports the region that it exports: the devices that own
// its memory read and write it. `reserve` is the size that the region can grow to in place; 0 for its size now. Waits up to
// `milliseconds`. Free it with gpu_vmm_followed_free.
//
// Returns GPU_VMM_NO_LISTENER if no process listens at the path, or not yet, GPU_VMM_STALE_SOCKET if the process that listened there is
// gone, GPU_VMM_TIMED_OUT if the other process does not answer in time, GPU_VMM_PEER if it has ended, has other devices or sends invalid
// data, GPU_VMM_ACCESS_DENIED if it is of another user, and GPU_VMM_DRIVER with the system's error for another path.
//
// # Safety
//
// `backend` is null or an open backend. `path` is null or a string. `followed` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_follow(const gpu_vmm_backend *backend,
                              const char *path,
                              uint64_t reserve,
                              uint64_t milliseconds,
                              gpu_vmm_followed **followed);

// Does as gpu_vmm_follow, for a listener of the effective user `user` instead of this process's.
//
// Returns the statuses of gpu_vmm_follow.
//
// # Safety
//
// `backend` is null or an open backend. `path` is null or a string. `followed` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_follow_user(const gpu_vmm_backend *backend,
                                   const char *path,
                                   uint32_t user,
                                   uint64_t reserve,
                                   uint64_t milliseconds,
                                   gpu_vmm_followed **followed);

// Frees a followed region: releases the memory and ends the exchange. Null does nothing.
//
// # Safety
//
// `followed` is null or comes from gpu_vmm_follow, and was not freed yet.
void gpu_vmm_followed_free(gpu_vmm_followed *followed);

// Waits up to `milliseconds` for an event from the exporter. `event` receives GPU_VMM_EVENT_NONE, GPU_VMM_EVENT_CHANGED,
// GPU_VMM_EVENT_RELEASE_REQUESTED or GPU_VMM_EVENT_GONE. Other calls with the region wait meanwhile.
//
// Returns GPU_VMM_PEER for invalid data. The region then keeps its memory, and the exchange is over.
//
// # Safety
//
// `followed` is null or a followed region. `event` is null or points to a writable number.
gpu_vmm_status gpu_vmm_followed_next(const gpu_vmm_followed *followed,
                                     uint64_t milliseconds,
                                     uint32_t *event);

// Applies all changes that were received, after waiting for the devices if memory is unmapped. With `may_move`, the region moves if it
// cannot grow in place; pointers into the old range are then invalid.
//
// Returns GPU_VMM_ADDRESS_TAKEN without `may_move`, GPU_VMM_OUT_OF_ADDRESS_SPACE, and GPU_VMM_BUSY for a capture. The region is then as
// before, and the caller can try again.
//
// # Safety
//
// `followed` is null or a followed region.
gpu_vmm_status gpu_vmm_followed_apply(const gpu_vmm_followed *followed,
                                      bool may_move);

// Releases the memory after waiting for the devices, and reports that to the exporter. Later calls with the region, except
// gpu_vmm_followed_free, return GPU_VMM_INVALID_ARGUMENT.
//
// Returns GPU_VMM_BUSY for a capture. The exporter learns that the memory is kept, and gpu_vmm_collect releases it after the capture.
//
// # Safety
//
// `followed` is null or a followed region.
gpu_vmm_status gpu_vmm_followed_release(const gpu_vmm_followed *followed);

// Returns the first address, which only gpu_vmm_followed_apply changes, and the end of the mapped memory. Each may be null.
//
// # Safety
//
// `followed` is null or a followed region. `address` and `size` are null or point to a writable number each.
gpu_vmm_status gpu_vmm_followed_range(const gpu_vmm_followed *followed,
                                      uint64_t *address,
                                      uint64_t *size);

// Copies `size` bytes at `offset` to the host, as gpu_vmm_region_read does.
//
// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED.
//
// # Safety
//
// `followed` is null or a followed region. `to` is null or points to `size` writable bytes.
gpu_vmm_status gpu_vmm_followed_read(const gpu_vmm_followed *followed, uint64_t offset, void *to, uint64_t size);

// Copies `size` bytes of the host to `offset`, as gpu_vmm_region_write does.
//
// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED.
//
// # Safety
//
// `followed` is null or a followed region. `from` is null or points to `size` bytes.
gpu_vmm_status gpu_vmm_followed_write(const gpu_vmm_followed *followed,
                                      uint64_t offset,
                                      const void *from,
                                      uint64_t size);

// Maps the memory of the first `length` bytes of a region in the region `into` as well, at the same offsets. No byte is copied. Both
// regions may only read the part then, until gpu_vmm_region_make_private: work that writes through a tensor of it is a fault. The part
// must consist of whole mappings without a hole, and nothing may be mapped there in `into`. The call waits for the devices that may
// write it.
//
// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_ALREADY_MAPPED, GPU_VMM_SUSPENDED, GPU_VMM_BUSY for a
// capture, and GPU_VMM_INVALID_ARGUMENT for the same region twice, for a part of a mapping or for regions of two backends. Both regions
// are then as before.
//
// # Safety
//
// `region` and `into` are null or regions.
gpu_vmm_status gpu_vmm_region_fork(const gpu_vmm_region *region,
                                   uint64_t length,
                                   const gpu_vmm_region *into);

// Gives a range memory of its own, with the same contents: devices that could read it may write it afterwards. Memory with another
// holder is copied by its device into a page of `pages`, or into new memory if `pages` is null or its pages have another size or other
// properties. The copy is mapped in its place. Other memory stays. `bytes` receives the size of the copies; it may be null. The range must consist of whole mappings without a
// hole. Tensors of the region stay valid. The call waits for the devices.
//
// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_OUT_OF_MEMORY, GPU_VMM_OUT_OF_ADDRESS_SPACE,
// GPU_VMM_SUSPENDED, GPU_VMM_INVALID_ARGUMENT for a part of a mapping, and GPU_VMM_BUSY for a capture or if an observer refuses. What
// was copied before such an error stays private, and a second call does the rest.
//
// # Safety
//
// `region` is null or a region. `pages` is null or a list of pages. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_make_private(const gpu_vmm_region *region,
                                           uint64_t offset,
                                           uint64_t length,
                                           const gpu_vmm_page_list *pages,
                                           uint64_t *bytes);

// Returns the number of holders of the memory that is mapped at an offset: objects of gpu_vmm_physical, and mappings, this one
// included. All suspended regions that share the memory count as one. Another thread can change the number at any time.
//
// Returns GPU_VMM_NOT_MAPPED if nothing is mapped there, and GPU_VMM_SUSPENDED.
//
// # Safety
//
// `region` is null or a region. `holders` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_holders(const gpu_vmm_region *region,
                                      uint64_t offset,
                                      uint64_t *holders);

// Returns the number of holders of physical memory: objects, this one included, and mappings. All suspended regions that share the
// memory count as one. Another thread can change the number at any time.
//
// # Safety
//
// `physical` is null or physical memory. `holders` is null or points to a writable number.
gpu_vmm_status gpu_vmm_physical_holders(const gpu_vmm_physical *physical,
                                        uint64_t *holders);

// Suspends a region, as gpu_vmm_region_suspend does, whose memory others may hold: another region, an object of gpu_vmm_physical or
// another process. Memory with such a holder stays, the region keeps it, and the resume maps it again. When suspended regions alone
// hold it, it is saved once for all and released: when the last of them is suspended by this function, or when this function is called
// again for a suspended region after the others have let go of it. The first region that resumes restores it for all.
//
// Pages of a gpu_vmm_page_list return to their list. `bytes` receives the number of bytes that the call has released, and `stayed` the
// number of bytes that others hold; each may be null. A null `keep` discards the region's own contents and keeps shared memory.
//
// Returns the statuses of gpu_vmm_region_suspend, but not GPU_VMM_BUSY for memory with other holders. If shared memory alone cannot be
// saved, for instance because the store is full, returns that error with the region suspended and its own memory released: another call,
// with another store, saves the rest.
//
// # Safety
//
// `region` is null or a region. `keep` is null or a string. `bytes` and `stayed` are null or point to a writable number each.
gpu_vmm_status gpu_vmm_region_suspend_shared(const gpu_vmm_region *region,
                                             const char *keep,
                                             bool force,
                                             uint64_t *bytes,
                                             uint64_t *stayed);

// Maps physical memory as a whole at an offset. No device has access yet. The same memory can be mapped several times. CUDA:
// cuMemMap; HIP: hipMemMap.
//
// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_ALREADY_MAPPED, GPU_VMM_SUSPENDED, and GPU_VMM_INVALID_ARGUMENT for
// memory of another backend.
//
// # Safety
//
// `region` is null or a region. `physical` is null or physical memory.
gpu_vmm_status gpu_vmm_region_map(const gpu_vmm_region *region,
                                  uint64_t offset,
                                  const gpu_vmm_physical *physical);

// Unmaps a range, which must consist of whole mappings without a hole, after waiting for the devices. The addresses stay
// reserved. With `force`, tensors of the region may exist; nothing may use their elements in the range. CUDA: cuMemUnmap; HIP:
// hipMemUnmap.
//
// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_SUSPENDED, GPU_VMM_INVALID_ARGUMENT for a part of a
// mapping, and GPU_VMM_BUSY for a tensor, a capture, or if an observer refuses.
//
// # Safety
//
// `region` is null or a region.
gpu_vmm_status gpu_vmm_region_unmap(const gpu_vmm_region *region,
                                    uint64_t offset,
                                    uint64_t length,
                                    bool force);

// Sets the access of a device, or of GPU_VMM_DEVICE_HOST, to whole mappings. `level` is GPU_VMM_ACCESS_NONE, GPU_VMM_ACCESS_READ or
// GPU_VMM_ACCESS_READ_WRITE. If the device has another access already, the call waits for it first. CUDA: cuMemSetAccess; HIP:
// hipMemSetAccess.
//
// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_PEER_UNREACHABLE,
// GPU_VMM_SUSPENDED, and GPU_VMM_UNSUPPORTED if the driver gives the host no access.
//
// # Safety
//
// `region` is null or a region.
gpu_vmm_status gpu_vmm_region_set_access(const gpu_vmm_region *region,
                                         uint64_t offset,
                                         uint64_t length,
                                         uint32_t device,
                                         uint32_t level);

// Returns the access of a device, or of GPU_VMM_DEVICE_HOST, at an offset: GPU_VMM_ACCESS_NONE where nothing is mapped.
//
// # Safety
//
// `region` is null or a region. `level` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_access(const gpu_vmm_region *region, uint64_t offset, uint32_t device, uint32_t *level);

// Returns the mapping that contains an offset.
//
// Returns GPU_VMM_NOT_MAPPED if nothing is mapped there, and GPU_VMM_SUSPENDED.
//
// # Safety
//
// `region` is null or a region. `mapping` is null or points to a writable mapping.
gpu_vmm_status gpu_vmm_region_mapping(const gpu_vmm_region *region, uint64_t offset, gpu_vmm_mapping *mapping);

// Returns the memory that is mapped at an offset, as an object that the caller must release.
//
// Returns GPU_VMM_NOT_MAPPED if nothing is mapped there, and GPU_VMM_SUSPENDED.
//
// # Safety
//
// `region` is null or a region. `physical` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_region_physical(const gpu_vmm_region *region, uint64_t offset, gpu_vmm_physical **physical);

// Creates a multicast object and adds the devices of this process. EXPERIMENTAL, and it was never run on hardware: an object takes
// resources of the whole machine. Free it with gpu_vmm_multicast_free. CUDA: cuMulticastCreate, cuMulticastAddDevice.
//
// Returns GPU_VMM_UNSUPPORTED on HIP and host memory and for devices without multicast, GPU_VMM_NO_SUCH_DEVICE, and
// GPU_VMM_OUT_OF_MEMORY for a size above a device's memory.
//
// # Safety
//
// `backend` is null or an open backend. `options` is null or points to options, whose devices are null or as many as they say.
// `multicast` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_multicast_create(const gpu_vmm_backend *backend,
                                        const gpu_vmm_team_options *options,
                                        gpu_vmm_multicast **multicast);

// Imports a multicast object that another process has exported, and adds the devices of this process. The descriptor stays open and
// stays the caller's. All processes together must add the number of devices with which it was created.
//
// Returns the statuses of gpu_vmm_multicast_create, and GPU_VMM_DRIVER for another kind of descriptor.
//
// # Safety
//
// As for gpu_vmm_multicast_create. `fd` is a descriptor of a multicast object that was created with this size, this number of devices in
// all, and these handle types.
gpu_vmm_status gpu_vmm_multicast_import_fd(const gpu_vmm_backend *backend,
                                           const gpu_vmm_team_options *options,
                                           int32_t fd,
                                           gpu_vmm_multicast **multicast);

// Exports the object as a new file descriptor, which the caller must close, before memory is bound to it. Only the process that created
// it can. After an error `*fd` is -1.
//
// Returns GPU_VMM_UNSUPPORTED for an object without handle types and for an imported one, and GPU_VMM_BUSY once memory was bound.
//
// # Safety
//
// `multicast` is null or a multicast object. `fd` is null or points to a writable number.
gpu_vmm_status gpu_vmm_multicast_export_fd(const gpu_vmm_multicast *multicast,
                                           int32_t *fd);

// Returns the size that each device can bind, the unit of offsets and lengths, and the unit that the driver recommends. Each of the
// three may be null. CUDA: cuMulticastGetGranularity.
//
// # Safety
//
// `multicast` is null or a multicast object. The others are null or point to a writable number each.
gpu_vmm_status gpu_vmm_multicast_sizes(const gpu_vmm_multicast *multicast,
                                       uint64_t *size,
                                       uint64_t *granularity,
                                       uint64_t *recommended);

// Binds `length` bytes of memory, from `memory_offset` on, to the object at `offset`. The binding keeps the memory. If devices are
// elsewhere, call it when all processes have added theirs: the driver waits until then, and only the end of the process ends that.
// CUDA: cuMulticastBindMem.
//
// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_ALREADY_MAPPED for a range with memory of the device, GPU_VMM_INVALID_ARGUMENT
// for memory of a device outside of the team, GPU_VMM_UNSUPPORTED for memory of the host and for memory that cannot be exported if the
// object can, and GPU_VMM_BUSY for a mapped object.
//
// # Safety
//
// `multicast` is null or a multicast object. `physical` is null or physical memory.
gpu_vmm_status gpu_vmm_multicast_bind(const gpu_vmm_multicast *multicast,
                                      uint64_t offset,
                                      const gpu_vmm_physical *physical,
                                      uint64_t memory_offset,
                                      uint64_t length);

// Removes the binding of a device's memory that begins at `offset`. CUDA: cuMulticastUnbind.
//
// Returns GPU_VMM_NOT_MAPPED if no binding of the device begins there, and GPU_VMM_BUSY for a mapped object.
//
// # Safety
//
// `multicast` is null or a multicast object.
gpu_vmm_status gpu_vmm_multicast_unbind(const gpu_vmm_multicast *multicast, uint32_t device, uint64_t offset);

// Maps the object with read and write access for all devices of this process, and returns its address, for kernels with multimem
// instructions alone: any other access is undefined. CUDA: cuMemAddressReserve, cuMemMap, cuMemSetAccess.
//
// Returns GPU_VMM_NOT_MAPPED if a device of this process has no binding, and GPU_VMM_BUSY for a mapped object.
//
// # Safety
//
// `multicast` is null or a multicast object. `address` is null or points to a writable number.
gpu_vmm_status gpu_vmm_multicast_map(const gpu_vmm_multicast *multicast,
                                     uint64_t *address);

// Waits for the devices of this process and unmaps the object. Its bindings stay. No other process may store to it any more.
//
// Returns GPU_VMM_NOT_MAPPED if it is not mapped, and GPU_VMM_BUSY for a capture.
//
// # Safety
//
// `multicast` is null or a multicast object.
gpu_vmm_status gpu_vmm_multicast_unmap(const gpu_vmm_multicast *multicast);

// Waits for the devices of this process, unmaps, unbinds and releases the object. Null does nothing.
//
// # Safety
//
// `multicast` is null or comes from a function of this library, and was not freed yet.
void gpu_vmm_multicast_free(gpu_vmm_multicast *multicast);

// Adds an observer to a region: its callbacks are called before and after each change of the memory behind the region's addresses.
// `id` receives a number for gpu_vmm_region_remove_observer; it may be null. Growing and mapping call no callback: they add memory
// where none was mapped.
//
// After gpu_vmm_region_free, callbacks can still come until `released` is called: tensors keep the region, and memory that a
// captured graph uses is released later.
//
// Returns GPU_VMM_BUSY in a callback of the same region.
//
// # Safety
//
// `region` is null or a region. `observer` is null or points to an observer, whose callbacks any thread may call with `context`
// until `released` has been called. `id` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_on_backing_change(const gpu_vmm_region *region,
                                                const gpu_vmm_observer *observer,
                                                uint64_t *id);

// Removes an observer. Its callbacks are not called any more, except for `released`.
//
// Returns GPU_VMM_NOT_FOUND if the region has no such observer, and GPU_VMM_BUSY in a callback of the same region.
//
// # Safety
//
// `region` is null or a region.
gpu_vmm_status gpu_vmm_region_remove_observer(const gpu_vmm_region *region, uint64_t id);

// Creates an empty list of pages of at least `page` bytes, rounded up to the granularity. All its pages take at most `budget` bytes.
// Null properties mean the default. Free the list with gpu_vmm_page_list_free.
//
// Returns GPU_VMM_INVALID_ARGUMENT for a page of 0 bytes, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_OUT_OF_MEMORY for a page that exceeds the
// device's memory, or GPU_VMM_UNSUPPORTED if the driver has no such memory.
//
// # Safety
//
// `backend` is null or an open backend. `properties` is null or points to properties. `pages` is null or points to a writable
// pointer.
gpu_vmm_status gpu_vmm_page_list_new(const gpu_vmm_backend *backend,
                                     const gpu_vmm_properties *properties,
                                     uint64_t page,
                                     uint64_t budget,
                                     gpu_vmm_page_list **pages);

// Frees a list: its free pages return to the device now, and pages in use when they are no longer used. Null does nothing.
//
// # Safety
//
// `pages` is null or comes from gpu_vmm_page_list_new, and was not freed yet.
void gpu_vmm_page_list_free(gpu_vmm_page_list *pages);

// Returns the size of a page, and the sizes of all pages, of the free pages and of the budget. Each may be null.
//
// # Safety
//
// `pages` is null or a list. `page`, `held`, `free` and `budget` are null or point to a writable number each.
gpu_vmm_status gpu_vmm_page_list_sizes(const gpu_vmm_page_list *pages,
                                       uint64_t *page,
                                       uint64_t *held,
                                       uint64_t *free,
                                       uint64_t *budget);

// Changes the budget. Free pages beyond it return to the device now, and pages in use when they are no longer used.
//
// # Safety
//
// `pages` is null or a list.
gpu_vmm_status gpu_vmm_page_list_set_budget(const gpu_vmm_page_list *pages, uint64_t budget);

// Takes one page out of the list, a free one or a new one. It keeps the bytes of its last owner. Release it with
// gpu_vmm_physical_release.
//
// Returns GPU_VMM_OUT_OF_MEMORY if the budget is exhausted or the device has no more memory.
//
// # Safety
//
// `pages` is null or a list. `physical` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_page_list_take(const gpu_vmm_page_list *pages, gpu_vmm_physical **physical);

// Grows a region in place to at least `size` bytes, as gpu_vmm_region_grow does, with pages of a list. Pages keep the bytes of their
// last owner.
//
// Returns GPU_VMM_OUT_OF_MEMORY if the budget is exhausted or the device has no more memory, GPU_VMM_OUT_OF_ADDRESS_SPACE,
// GPU_VMM_UNALIGNED for a page that is no multiple of the region's granularity, GPU_VMM_SUSPENDED, and GPU_VMM_INVALID_ARGUMENT for a
// list of another backend. The region is then as before, and the list has all pages.
//
// # Safety
//
// `region` is null or a region. `pages` is null or a list.
gpu_vmm_status gpu_vmm_region_grow_with(const gpu_vmm_region *region,
                                        uint64_t size,
                                        const gpu_vmm_page_list *pages);

// Resumes a region, as gpu_vmm_region_resume does, with pages of a list in the place of its memory. Memory of another size than the
// pages is created anew, outside of the budget. `bytes` receives the number of bytes that were mapped, 0 if the region was not
// suspended; it may be null.
//
// Returns GPU_VMM_OUT_OF_MEMORY if the budget is exhausted or the device has no more memory. The region is then still suspended.
//
// # Safety
//
// `region` is null or a region. `pages` is null or a list. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_resume_with(const gpu_vmm_region *region,
                                          const gpu_vmm_page_list *pages,
                                          uint64_t *bytes);

// Creates physical memory of at least `size` bytes, rounded up to the granularity. Null properties mean the default. Release it
// with gpu_vmm_physical_release. CUDA: cuMemCreate; HIP: hipMemCreate.
//
// Returns GPU_VMM_OUT_OF_MEMORY, GPU_VMM_NO_SUCH_DEVICE, or GPU_VMM_UNSUPPORTED if the driver has no such memory.
//
// # Safety
//
// `backend` is null or an open backend. `properties` is null or points to properties. `physical` is null or points to a writable
// pointer.
gpu_vmm_status gpu_vmm_physical_create(const gpu_vmm_backend *backend,
                                       const gpu_vmm_properties *properties,
                                       uint64_t size,
                                       gpu_vmm_physical **physical);

// Takes a reference to the memory that other code of this process has mapped at an address: PyTorch's expandable segments, NCCL's
// buffers, or memory of the driver's own calls. It lives after the other code has released it. No other thread may unmap it during the
// call. Release the object with gpu_vmm_physical_release. CUDA: cuMemRetainAllocationHandle; HIP, from 7.15 on:
// hipMemRetainAllocationHandle.
//
// Returns GPU_VMM_NOT_MAPPED for a plain allocation and where nothing is mapped; GPU_VMM_UNSUPPORTED for an address in a region of this
// backend and on HIP before 7.15.
//
// # Safety
//
// `backend` is null or an open backend. `physical` is null or points to a writable pointer. No other thread unmaps the memory at the
// address during the call.
gpu_vmm_status gpu_vmm_physical_adopt(const gpu_vmm_backend *backend,
                                      uint64_t address,
                                      gpu_vmm_physical **physical);

// Returns another object for the same memory. Each is released on its own.
//
// # Safety
//
// `physical` is null or physical memory. `retained` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_physical_retain(const gpu_vmm_physical *physical, gpu_vmm_physical **retained);

// Releases an object. Mappings of the memory stay valid. Null does nothing.
//
// # Safety
//
// `physical` is null or comes from a function of this library, and was not released yet.
void gpu_vmm_physical_release(gpu_vmm_physical *physical);

// Returns the size, which is a multiple of the granularity.
//
// # Safety
//
// `physical` is null or physical memory. `size` is null or points to a writable number.
gpu_vmm_status gpu_vmm_physical_size(const gpu_vmm_physical *physical, uint64_t *size);

// Returns the properties that the memory has.
//
// # Safety
//
// `physical` is null or physical memory. `properties` is null or points to writable properties.
gpu_vmm_status gpu_vmm_physical_properties(const gpu_vmm_physical *physical, gpu_vmm_properties *properties);

// Returns whether two objects share one memory.
//
// # Safety
//
// `physical` and `other` are null or physical memory. `same` is null or points to a writable bool.
gpu_vmm_status gpu_vmm_physical_same(const gpu_vmm_physical *physical, const gpu_vmm_physical *other, bool *same);

// Copies `size` bytes at `offset` to the host, whether or not the memory is mapped, and waits for the copy. Each call maps the
// memory at addresses of its own: for many copies, map it in a region.
//
// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_OUT_OF_ADDRESS_SPACE.
//
// # Safety
//
// `physical` is null or physical memory. `to` is null or points to `size` writable bytes.
gpu_vmm_status gpu_vmm_physical_read(const gpu_vmm_physical *physical,
                                     uint64_t offset,
                                     void *to,
                                     uint64_t size);

// Copies `size` bytes of the host to `offset`, as gpu_vmm_physical_read does in the other direction.
//
// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_OUT_OF_ADDRESS_SPACE.
//
// # Safety
//
// `physical` is null or physical memory. `from` is null or points to `size` bytes.
gpu_vmm_status gpu_vmm_physical_write(const gpu_vmm_physical *physical,
                                      uint64_t offset,
                                      const void *from,
                                      uint64_t size);

// Copies `size` bytes at `from_offset` of the memory `from` to `offset` of the memory `to`, whether or not they are mapped, and waits for
// the copy, which the device that owns `to` makes. Each call maps both at addresses of its own. Two ranges of one memory must not
// overlap: the bytes are undefined then. CUDA: cuMemcpyDtoD; HIP: hipMemcpyDtoD.
//
// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_OUT_OF_ADDRESS_SPACE, GPU_VMM_PEER_UNREACHABLE, and GPU_VMM_INVALID_ARGUMENT for memory of two
// backends.
//
// # Safety
//
// `to` and `from` are null or physical memory.
gpu_vmm_status gpu_vmm_physical_copy(const gpu_vmm_physical *to,
                                     uint64_t offset,
                                     const gpu_vmm_physical *from,
                                     uint64_t from_offset,
                                     uint64_t size);

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

// Forgets a tag: its name is free for another tag at once. Objects and blocks of the tag stay valid; its addresses are free when the
// last of both has ended. A tag that is not forgotten ends in the same way. GPU_VMM_NOT_FOUND if no tag has the name.
// GPU_VMM_SUSPENDED while the tag is suspended: gpu_vmm_resume finds it by its name.
//
// # Safety
//
// `pool` is null or a pool. `tag` is null or a string.
gpu_vmm_status gpu_vmm_pool_forget_tag(const gpu_vmm_pool *pool,
                                       const char *tag);

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
// `alignment` is a power of two, or 0 for 256; a texture of linear memory needs 512 on NVIDIA's GPUs. `stream` is a CUstream or a
// hipStream_t, null for the default stream. The stream must exist until gpu_vmm_forget_stream or the end of the pool.
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

// Allocates `size` bytes at an address, a multiple of 512, for a stream: see gpu_vmm_alloc. If the tag has addresses there, they must be
// free; otherwise the pool reserves them.
//
// Returns GPU_VMM_ADDRESS_TAKEN if a block, another tag or something outside of the pool is there, which the text names; GPU_VMM_UNALIGNED;
// GPU_VMM_OUT_OF_ADDRESS_SPACE; GPU_VMM_UNSUPPORTED on a device without virtual memory management.
//
// # Safety
//
// `pool` is null or a pool. `stream` is null or a live stream of the pool's vendor.
gpu_vmm_status gpu_vmm_alloc_at(const gpu_vmm_pool *pool,
                                uint64_t address,
                                uint64_t size,
                                void *stream);

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
// `pool` is null or a pool. `to` is null or points to `size` writable bytes. No other thread frees, suspends or moves the block
// during the call.
gpu_vmm_status gpu_vmm_read(const gpu_vmm_pool *pool,
                            uint64_t address,
                            void *to,
                            uint64_t size);

// Copies bytes of the host to a block and waits for the copy. It does not wait for work on streams. The range has the same
// limits as in gpu_vmm_read.
//
// # Safety
//
// `pool` is null or a pool. `from` is null or points to `size` bytes. No other thread frees, suspends or moves the block during
// the call.
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

// Sets the largest amount of physical memory that the pool may hold, in bytes; UINT64_MAX for no limit. Any thread may call it at
// any time. A pool that holds more returns free memory to the driver at once, without waiting for work that still uses it, and the
// memory of blocks as they are freed. Until it holds less, requests that need new memory return GPU_VMM_OUT_OF_MEMORY.
//
// # Safety
//
// `pool` is null or a pool.
gpu_vmm_status gpu_vmm_set_budget(const gpu_vmm_pool *pool,
                                  uint64_t bytes);

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

// Returns the same pool, allocating another kind of memory under the same tag name: host memory, memory that can be exported, and so on.
// All kinds share the budget; each has tags, streams and statistics of its own, and the same tag in two kinds is two tags. Free memory of
// one kind gives way to a request of another. Null `properties` are plain device memory of device 0. GPU_VMM_UNSUPPORTED if the driver has
// no such memory, or for another device than the pool's. Free the result with gpu_vmm_pool_free.
//
// # Safety
//
// `pool` is null or a pool. `properties` is null or points to initialized properties. `with_memory` is null or points to a writable
// pointer.
gpu_vmm_status gpu_vmm_pool_with_memory(const gpu_vmm_pool *pool,
                                        const gpu_vmm_properties *properties,
                                        gpu_vmm_pool **with_memory);

// Returns the kinds of memory of a pool as JSON, its own first: an array of objects with `memory`, a text that describes the kind, and
// `stats`, as gpu_vmm_pool_stats returns them. Free the text with gpu_vmm_string_free.
//
// # Safety
//
// As for gpu_vmm_pool_stats.
gpu_vmm_status gpu_vmm_pool_kinds(const gpu_vmm_pool *pool,
                                  char **json);

// Returns the physical memory behind an address of a block of any kind, and the address's offset in it: to export the block, or to map it
// elsewhere. A larger block has more memory behind the end of this one. The memory outlives the block, and other blocks may lie in it. It
// can be exported if its properties say so: gpu_vmm_physical_export_fd. Release it with gpu_vmm_physical_release.
//
// Returns GPU_VMM_NOT_FOUND if the pool has no mapped memory there, and GPU_VMM_UNSUPPORTED on a device without virtual memory
// management.
//
// # Safety
//
// `pool` is null or a pool. `physical` is null or points to a writable pointer. `offset` is null or points to a writable number.
gpu_vmm_status gpu_vmm_pool_memory_at(const gpu_vmm_pool *pool,
                                      uint64_t address,
                                      gpu_vmm_physical **physical,
                                      uint64_t *offset);

// Gives a device, or GPU_VMM_DEVICE_HOST, access to all memory of this object's kind, present and future: GPU_VMM_ACCESS_READ or
// GPU_VMM_ACCESS_READ_WRITE, for the CPU GPU_VMM_ACCESS_READ_WRITE alone. A device that has this access or more keeps what it has.
//
// Returns GPU_VMM_UNSUPPORTED for a device that has less access already, for read-only access where the driver has none, and for the
// CPU where it cannot access such memory; GPU_VMM_PEER_UNREACHABLE and GPU_VMM_NO_SUCH_DEVICE.
//
// # Safety
//
// `pool` is null or a pool.
gpu_vmm_status gpu_vmm_pool_allow_access(const gpu_vmm_pool *pool,
                                         uint32_t device,
                                         uint32_t access);

// Moves a pool to another device, after waiting for the devices: all blocks of all kinds and tags keep their addresses and their bytes, and
// have memory of `device`, from which the pool allocates from then on. That device gets read and write access, and the old one loses
// its access: gpu_vmm_pool_allow_access gives it access as a peer. No work may use a block until the call returns. Requests of other
// threads wait; gpu_vmm_read and gpu_vmm_write must end before, as before a suspension. Do not move a pool of gpu_vmm_torch_pool:
// PyTorch's tensors stay tensors of their device.
//
// Returns GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_PEER_UNREACHABLE, GPU_VMM_OUT_OF_MEMORY, GPU_VMM_SUSPENDED while a tag is suspended, and
// GPU_VMM_BUSY for memory that is exported or held elsewhere, or for a capture.
//
// # Safety
//
// `pool` is null or a pool.
gpu_vmm_status gpu_vmm_pool_move_to_device(const gpu_vmm_pool *pool,
                                           uint32_t device);

// Lets the server at a path, `gpu-vmm serve`, divide the memory of its devices between the pools of this program, which are created from
// now on, and those of other programs: also the pools that serve PyTorch and CuPy. Null options mean the default. A null path: new pools
// have no server. Before the first call, the server is the one at the path in the environment variable GPU_VMM_POOL_SERVER, if that is set.
//
// The call does not connect. A pool connects when it is created, which fails with the statuses of gpu_vmm_connect, and with
// GPU_VMM_INVALID_ARGUMENT for a priority that is not allowed. Linux only.
//
// # Safety
//
// `path` is null or a string. `options` is null or points to initialized options.
gpu_vmm_status gpu_vmm_set_pool_server(const char *path,
                                       const gpu_vmm_program_options *options);

// Allocates page-locked host memory of `size` bytes. Allocating takes longer than a copy. Free it with
// gpu_vmm_pinned_free. CUDA: cuMemHostRegister or cuMemHostAlloc; HIP: hipHostMalloc.
//
// Returns GPU_VMM_DRIVER if the host has too little memory.
//
// # Safety
//
// `backend` is null or an open backend. `pinned` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_pinned_new(const gpu_vmm_backend *backend, uint64_t size, gpu_vmm_pinned **pinned);

// Frees page-locked memory, after the copies that are queued with it: at once if they are done, else in a later call with their queue.
// Null does nothing.
//
// # Safety
//
// `pinned` is null or comes from gpu_vmm_pinned_new, and was not freed yet. Nothing uses its bytes any more.
void gpu_vmm_pinned_free(gpu_vmm_pinned *pinned);

// Returns the address of page-locked memory, for the CPU.
//
// # Safety
//
// `pinned` is null or page-locked memory. `data` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_pinned_data(const gpu_vmm_pinned *pinned, void **data);

// Creates a queue for copies of one device. Free it with gpu_vmm_copy_queue_free. CUDA: cuStreamCreate; HIP:
// hipStreamCreateWithFlags.
//
// Returns GPU_VMM_NO_SUCH_DEVICE.
//
// # Safety
//
// `backend` is null or an open backend. `queue` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_copy_queue_new(const gpu_vmm_backend *backend, uint32_t device, gpu_vmm_copy_queue **queue);

// Frees a queue after its copies. Null does nothing.
//
// # Safety
//
// `queue` is null or comes from gpu_vmm_copy_queue_new, and was not freed yet.
void gpu_vmm_copy_queue_free(gpu_vmm_copy_queue *queue);

// Queues a copy of `size` bytes of page-locked memory to a region and returns at once. Until gpu_vmm_copy_queue_finish, nothing may
// write to either range. The queue's device must own the range and have write access. CUDA: cuMemcpyHtoDAsync; HIP: hipMemcpyAsync.
//
// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_ACCESS_DENIED, GPU_VMM_SUSPENDED, and GPU_VMM_INVALID_ARGUMENT for
// memory of another device or backend.
//
// # Safety
//
// `queue` is null or a queue, `region` null or a region, `pinned` null or page-locked memory.
gpu_vmm_status gpu_vmm_copy_queue_write(const gpu_vmm_copy_queue *queue,
                                        const gpu_vmm_region *region,
                                        uint64_t offset,
                                        const gpu_vmm_pinned *pinned,
                                        uint64_t pinned_offset,
                                        uint64_t size);

// Queues a copy of `size` bytes of a region to page-locked memory, as gpu_vmm_copy_queue_write does in the other direction. The
// bytes are there after gpu_vmm_copy_queue_finish. CUDA: cuMemcpyDtoHAsync; HIP: hipMemcpyAsync.
//
// Returns the statuses of gpu_vmm_copy_queue_write.
//
// # Safety
//
// `queue` is null or a queue, `region` null or a region, `pinned` null or page-locked memory.
gpu_vmm_status gpu_vmm_copy_queue_read(const gpu_vmm_copy_queue *queue,
                                       const gpu_vmm_region *region,
                                       uint64_t offset,
                                       const gpu_vmm_pinned *pinned,
                                       uint64_t pinned_offset,
                                       uint64_t size);

// Makes all copies that are queued from now on wait for the work that an event has recorded, such as the work of the caller's stream. The
// CPU does not wait, except on host memory. CUDA: cuStreamWaitEvent; HIP: hipStreamWaitEvent.
//
// Returns GPU_VMM_INVALID_ARGUMENT for an event of another backend.
//
// The event must not record work of a stream that captures: later copies would become part of the graph, and
// gpu_vmm_copy_queue_finish would not wait for them.
//
// # Safety
//
// `queue` is null or a queue, `event` null or an event that no capturing stream has recorded.
gpu_vmm_status gpu_vmm_copy_queue_hold(const gpu_vmm_copy_queue *queue,
                                       const gpu_vmm_event *event);

// Records the copies that are queued now in an event of the queue's device. With gpu_vmm_event_hold, work on any stream waits for them.
// CUDA: cuEventRecord; HIP: hipEventRecord.
//
// Returns GPU_VMM_INVALID_ARGUMENT for an event of another device or backend.
//
// # Safety
//
// `queue` is null or a queue, `event` null or an event.
gpu_vmm_status gpu_vmm_copy_queue_record(const gpu_vmm_copy_queue *queue,
                                         const gpu_vmm_event *event);

// Waits until all queued copies are done. Returns the error of one that failed.
//
// # Safety
//
// `queue` is null or a queue.
gpu_vmm_status gpu_vmm_copy_queue_finish(const gpu_vmm_copy_queue *queue);

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
// `region` is null or comes from a function of this library, and was not freed yet.
void gpu_vmm_region_free(gpu_vmm_region *region);

// Grows a region in place to at least `size` bytes. Pointers into it stay valid, and no byte is copied.
//
// A plain region (gpu_vmm_region_is_plain) waits for the devices and is copied to another address, which gpu_vmm_region_address
// returns. The call then returns GPU_VMM_BUSY while a tensor of the region exists.
//
// # Safety
//
// `region` is null or a region.
gpu_vmm_status gpu_vmm_region_grow(const gpu_vmm_region *region,
                                   uint64_t size);

// Shrinks a region from its end to `size` bytes and waits for the devices first. The region releases whole memory handles, so it
// may stay larger than `size`. `bytes` receives the number of bytes that were removed; it may be null. Returns GPU_VMM_BUSY while a
// tensor of the region exists, unless `force` is true. With `force`, nothing may use the elements of a tensor beyond the new end. A
// plain region (gpu_vmm_region_is_plain) is copied to another address, and `force` has no effect.
//
// # Safety
//
// `region` is null or a region. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_shrink(const gpu_vmm_region *region,
                                     uint64_t size,
                                     bool force,
                                     uint64_t *bytes);

// Returns the region's first address, which never changes, except if the region is plain: see gpu_vmm_region_is_plain.
//
// # Safety
//
// `region` is null or a region. `address` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_address(const gpu_vmm_region *region, uint64_t *address);

// Returns whether the region is one plain allocation (cuMemAlloc, hipMalloc), because its device has no virtual memory management. The
// region then has another address after it grows or shrinks, 0 while it is empty. Calls that keep an address while memory changes, map
// memory or share it return GPU_VMM_UNSUPPORTED.
//
// # Safety
//
// `region` is null or a region. `plain` is null or points to a writable bool.
gpu_vmm_status gpu_vmm_region_is_plain(const gpu_vmm_region *region,
                                       bool *plain);

// Returns the number of bytes that have memory; 0 while the region is suspended.
//
// # Safety
//
// `region` is null or a region. `size` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_size(const gpu_vmm_region *region, uint64_t *size);

// Returns whether a region is suspended. While it is, every call that needs its memory returns GPU_VMM_SUSPENDED.
//
// # Safety
//
// `region` is null or a region. `suspended` is null or points to a writable bool.
gpu_vmm_status gpu_vmm_region_is_suspended(const gpu_vmm_region *region, bool *suspended);

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
// gpu_vmm_suspend. `bytes` receives the number of bytes that were returned, 0 if the region was suspended already; it may be null.
// Returns GPU_VMM_BUSY while a tensor of the region exists, unless `force` is true. With `force`, nothing may use the tensors before
// gpu_vmm_region_resume.
//
// # Safety
//
// `region` is null or a region. `keep` is null or a string. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_suspend(const gpu_vmm_region *region,
                                      const char *keep,
                                      bool force,
                                      uint64_t *bytes);

// Resumes a region: maps memory at the same addresses and restores the contents. `bytes` receives the number of bytes that were
// mapped, 0 if the region was not suspended; it may be null.
//
// # Safety
//
// `region` is null or a region. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_resume(const gpu_vmm_region *region,
                                     uint64_t *bytes);

// Exchanges the memory of a range with the memory of a range of another region, after waiting for the devices. The addresses stay the
// same, and no byte is copied. Both ranges must consist of whole mappings. With `force`, tensors may exist; they then have the
// other contents.
//
// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_PEER_UNREACHABLE, GPU_VMM_SUSPENDED,
// GPU_VMM_INVALID_ARGUMENT for the same region twice or for a part of a mapping, and GPU_VMM_BUSY for a tensor, a capture, or if an
// observer refuses.
//
// # Safety
//
// `region` and `other` are null or regions.
gpu_vmm_status gpu_vmm_region_swap(const gpu_vmm_region *region,
                                   uint64_t offset,
                                   const gpu_vmm_region *other,
                                   uint64_t other_offset,
                                   uint64_t length,
                                   bool force);

// Exchanges all memory of two regions, which must be mapped at the same offsets, as gpu_vmm_region_swap does for a range.
//
// Returns the statuses of gpu_vmm_region_swap.
//
// # Safety
//
// `region` and `other` are null or regions.
gpu_vmm_status gpu_vmm_region_swap_all(const gpu_vmm_region *region,
                                       const gpu_vmm_region *other,
                                       bool force);

// Moves the contents of a region to memory of another device, at the same addresses, after waiting for the devices. From then on
// the region grows with memory of that device. Fails while a tensor of the region exists: tensors name their device.
//
// Returns GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_PEER_UNREACHABLE, GPU_VMM_OUT_OF_MEMORY, GPU_VMM_SUSPENDED, and GPU_VMM_BUSY for a
// tensor, for memory that is exported, imported or held elsewhere, for a capture, or if an observer refuses.
//
// # Safety
//
// `region` is null or a region.
gpu_vmm_status gpu_vmm_region_move_to_device(const gpu_vmm_region *region,
                                             uint32_t device);

// Sets every byte of a range to `value` and waits until that is done. It does not wait for work on streams. CUDA: cuMemsetD8; HIP:
// hipMemset.
//
// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_ACCESS_DENIED, GPU_VMM_SUSPENDED.
//
// # Safety
//
// `region` is null or a region.
gpu_vmm_status gpu_vmm_region_fill(const gpu_vmm_region *region,
                                   uint64_t offset,
                                   uint64_t length,
                                   uint8_t value);

// Copies a range of the region `from` into the region `to` and waits for the copy. It does not wait for work on streams. The
// device that owns the target copies, and must have read access to the source. CUDA: cuMemcpyDtoD; HIP: hipMemcpyDtoD.
//
// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_ACCESS_DENIED, GPU_VMM_SUSPENDED, and GPU_VMM_INVALID_ARGUMENT for the
// same region twice.
//
// # Safety
//
// `to` and `from` are null or regions.
gpu_vmm_status gpu_vmm_region_copy(const gpu_vmm_region *to,
                                   uint64_t offset,
                                   const gpu_vmm_region *from,
                                   uint64_t from_offset,
                                   uint64_t length);

// Reserves addresses and maps nothing. Null options mean the default. Free the region with gpu_vmm_region_free. CUDA:
// cuMemAddressReserve; HIP: hipMemAddressReserve.
//
// Returns GPU_VMM_ADDRESS_TAKEN if the addresses of GPU_VMM_PLACE_EXACT are not free, or if no place is free that is restorable or
// below the limit; GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_ADDRESS_SPACE, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_INVALID_ARGUMENT for an address
// without a placement that has one, or GPU_VMM_UNSUPPORTED for memory that the driver lacks.
//
// # Safety
//
// `backend` is null or an open backend. `options` is null or points to options. `region` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_region_reserve(const gpu_vmm_backend *backend,
                                      const gpu_vmm_region_options *options,
                                      gpu_vmm_region **region);

// Returns the number of bytes of addresses that the region has, mapped or not.
//
// # Safety
//
// `region` is null or a region. `size` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_reserved(const gpu_vmm_region *region, uint64_t *size);

// Returns the unit of every offset and length of the region.
//
// # Safety
//
// `region` is null or a region. `granularity` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_granularity(const gpu_vmm_region *region, uint64_t *granularity);

// Grows a region to at least `size` bytes, at another address if the addresses behind it are taken. The same memory is mapped at
// the new address, which `address` receives; it may be null. Pointers into the old range are then invalid, so the call fails while
// a tensor of the region exists. It waits for the devices before it unmaps the old addresses.
//
// Returns GPU_VMM_OUT_OF_MEMORY, GPU_VMM_OUT_OF_ADDRESS_SPACE, GPU_VMM_SUSPENDED, GPU_VMM_BUSY for a tensor or if an observer refuses.
//
// # Safety
//
// `region` is null or a region. `address` is null or points to a writable number.
gpu_vmm_status gpu_vmm_region_grow_or_move(const gpu_vmm_region *region,
                                           uint64_t size,
                                           uint64_t *address);

// Writes the live blocks of a pool to a file, after waiting for the devices: their addresses, tags, sizes and bytes. An existing file of
// that name is replaced when the new one is complete. Null `tags` and a `count` of zero mean all tags of this object's kind of memory; the
// empty tag stands for blocks without one. Nothing may write to the blocks meanwhile; other threads allocate and free. `compress`
// compresses the contents.
//
// Create the pool with the option `restorable`: otherwise its addresses may be in use in another process.
//
// Returns GPU_VMM_NOT_FOUND for a tag that does not exist, GPU_VMM_SUSPENDED, GPU_VMM_FILE if the file cannot be written, GPU_VMM_BUSY
// for a capture, and GPU_VMM_UNSUPPORTED on a device without virtual memory management.
//
// # Safety
//
// `pool` is null or a pool. `path` is null or a string. `tags` is null or points to `count` pointers, each null or a string.
gpu_vmm_status gpu_vmm_pool_save(const gpu_vmm_pool *pool,
                                 const char *path,
                                 const char *const *tags,
                                 uint64_t count,
                                 bool compress);

// Returns the number of blocks in the file of a pool.
//
// Returns GPU_VMM_FILE for a file that cannot be read, is damaged, or has no pool.
//
// # Safety
//
// `path` is null or a string. `count` is null or points to a writable number.
gpu_vmm_status gpu_vmm_saved_pool_count(const char *path, uint64_t *count);

// Creates the pool that gpu_vmm_pool_save has written to a file: its blocks have the same addresses, tags and bytes, and gpu_vmm_free
// frees them. `blocks` receives them in the order of their addresses; `count` must be the number that gpu_vmm_saved_pool_count returns.
// Null `blocks` and a `count` of zero skip that: gpu_vmm_find finds the blocks. Free the pool with gpu_vmm_pool_free.
//
// `options` are those of gpu_vmm_pool_new, with the device that the blocks are restored on. The page size is that of the file, and the pool
// is restorable if the saved one was. No other device has access to it before gpu_vmm_pool_allow_access.
//
// Returns GPU_VMM_ADDRESS_TAKEN with a text that names what uses the addresses; GPU_VMM_FILE for a file that cannot be read, is damaged or
// has no pool; GPU_VMM_OUT_OF_MEMORY, also for a budget or a device that is smaller than the memory; GPU_VMM_UNSUPPORTED for pages that are
// smaller than the device's granularity, and for a file of another version; GPU_VMM_NO_SUCH_DEVICE; and GPU_VMM_INVALID_ARGUMENT for
// another `count`. Everything created so far is released.
//
// # Safety
//
// `backend` is null or an open backend. `path` is null or a string. `options` is null or points to initialized options. `pool` is null or
// points to a writable pointer. `blocks` is null or points to `count` writable blocks.
gpu_vmm_status gpu_vmm_pool_restore(const gpu_vmm_backend *backend,
                                    const char *path,
                                    const gpu_vmm_pool_options *options,
                                    gpu_vmm_pool **pool,
                                    gpu_vmm_restored_block *blocks,
                                    uint64_t count);

// Connects to the server of this user at a path, the path of its socket. `client` keeps the backend open. Free it with
// gpu_vmm_client_free. Linux only, as all functions of clients and leases.
//
// Returns GPU_VMM_NO_LISTENER if no server listens at the path, or not yet, GPU_VMM_STALE_SOCKET if the server that listened there is
// gone, GPU_VMM_ACCESS_DENIED if it is of another user, GPU_VMM_PEER if its memory is another vendor's or it sends invalid data,
// GPU_VMM_UNSUPPORTED if no version of the protocol is known to both sides, and GPU_VMM_TIMED_OUT if it does not answer.
//
// # Safety
//
// `backend` is null or an open backend. `path` is null or a string. `client` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_connect(const gpu_vmm_backend *backend,
                               const char *path,
                               gpu_vmm_client **client);

// Does as gpu_vmm_connect, for a server of the effective user `user` instead of this process's.
//
// Returns the statuses of gpu_vmm_connect.
//
// # Safety
//
// `backend` is null or an open backend. `path` is null or a string. `client` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_connect_user(const gpu_vmm_backend *backend,
                                    const char *path,
                                    uint32_t user,
                                    gpu_vmm_client **client);

// Frees a client. Its leases go on. Null does nothing.
//
// # Safety
//
// `client` is null or comes from gpu_vmm_connect, and was not freed yet.
void gpu_vmm_client_free(gpu_vmm_client *client);

// Returns the state of the server, the regions that this user may read, and their clients, as JSON: an object with `server`, `regions`,
// `clients`, `programs` and `devices`. All sizes are bytes. Free it with gpu_vmm_string_free.
//
// | of | fields |
// |---|---|
// | `server` | `version`, `vendor`, `process`; `held`: the memory that it holds or has promised; `old`: the part of it that only clients still use; `budget`, or null; `clients`: the number of connections |
// | each of `regions` | `name`, `address`, `size`, `handles`: their number; `device`: its UUID; `epoch`: 0 before the first commit; `layout`: its size; `user`, `group`, `mode`: in octal; `readers`, `waiting`: numbers of clients; `has_writer` |
// | each of `clients` | `process`, `user`, `region`, `lease`: "read" or "write"; `waits`: whether it waits for the lease; `epoch`, `bytes`: the memory that it keeps alive or fills; `lingers`: whether its connection has ended and its process may still map the memory |
// | each of `programs` | `process`, `user`, `name`: empty for those of other users; `device`, `priority`, `granted`: its part of the budget; `reserved`, `held`, `live`, `can_sleep`, `asleep`: what its pool has, as it said last; `wants`: what it waits for, 0 if it does not; `waited_ms`, `waits_for`: a text; `answers`: whether it has answered the last question; `lingers` |
// | each of `devices` | `device`, `name`, `budget`; `held`: what regions and programs have; `granted`: the part of programs |
//
// Returns the statuses of gpu_vmm_connect.
//
// # Safety
//
// `client` is null or a client. `json` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_client_status(const gpu_vmm_client *client,
                                     char **json);

// Creates a region of at least `size` bytes on the server, by default at a random address that is free in this process and on the server.
// Null options mean the default. The lease can write to all of its memory. Other clients see the region after the first gpu_vmm_lease_commit; a lease
// that ends before that leaves nothing. Free the lease with gpu_vmm_lease_free.
//
// Returns GPU_VMM_BUSY if the server has a region of the name or its limit of regions, GPU_VMM_OUT_OF_MEMORY if the server's budget or
// the device has no room, GPU_VMM_ADDRESS_TAKEN if the address of the options is not free, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_UNSUPPORTED for a device without a UUID, GPU_VMM_INVALID_ARGUMENT for a name
// that is none, and the statuses of gpu_vmm_connect.
//
// # Safety
//
// `client` is null or a client. `name` is null or a string. `options` is null or points to options. `lease` is null or points to a
// writable pointer.
gpu_vmm_status gpu_vmm_client_create(const gpu_vmm_client *client,
                                     const char *name,
                                     uint64_t size,
                                     const gpu_vmm_create_options *options,
                                     gpu_vmm_lease **lease);

// Creates a region with the contents of a safetensors file, and commits it. Its tensors are parts of the layout, aligned to 256 bytes, and
// its metadata are the notes. A file that gpu_vmm_lease_save has written is loaded at the address that its region had, unless the options
// have another one. A null name is the name in such a file. Null options mean the default. Free the lease with gpu_vmm_lease_free.
//
// Returns GPU_VMM_FILE for a file that cannot be read, is malformed, has no contents or no name, or has elements of less than 8 bits, and
// the statuses of gpu_vmm_client_create. There is then no region.
//
// # Safety
//
// `client` is null or a client. `path` is null or a string. `name` is null or a string. `options` is null or points to options. `lease` is
// null or points to a writable pointer.
gpu_vmm_status gpu_vmm_client_load(const gpu_vmm_client *client,
                                   const char *path,
                                   const char *name,
                                   const gpu_vmm_create_options *options,
                                   gpu_vmm_lease **lease);

// Opens a region of the server: maps its last epoch at its address, read-only. `kind` is GPU_VMM_LEASE_READ or GPU_VMM_LEASE_WRITE. Waits
// up to `milliseconds` until the region exists and is committed and, to write, until no other client has its write lease. Free the lease
// with gpu_vmm_lease_free.
//
// Returns GPU_VMM_NOT_FOUND, also for a region that this user may not read, GPU_VMM_ACCESS_DENIED for one that this user may not write,
// GPU_VMM_TIMED_OUT if another client has the write lease, GPU_VMM_ADDRESS_TAKEN if this process uses the region's addresses,
// GPU_VMM_PEER for a device that this process does not see, and the statuses of gpu_vmm_connect.
//
// # Safety
//
// `client` is null or a client. `name` is null or a string. `lease` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_client_open(const gpu_vmm_client *client,
                                   const char *name,
                                   uint32_t kind,
                                   uint64_t milliseconds,
                                   gpu_vmm_lease **lease);

// Removes a region from the server. Clients keep the memory that they have mapped, and gpu_vmm_lease_next reports it to them.
//
// Returns GPU_VMM_NOT_FOUND, GPU_VMM_ACCESS_DENIED if the region is another user's, and the statuses of gpu_vmm_connect.
//
// # Safety
//
// `client` is null or a client. `name` is null or a string.
gpu_vmm_status gpu_vmm_client_drop(const gpu_vmm_client *client,
                                   const char *name);

// Frees a lease and its region. The memory stays as long as a tensor of the region exists, and the lease ends with it. Memory that was not
// committed is lost. Null does nothing.
//
// # Safety
//
// `lease` is null or comes from gpu_vmm_client_create or gpu_vmm_client_open, and was not freed yet. No other thread uses its region.
void gpu_vmm_lease_free(gpu_vmm_lease *lease);

// Unmaps the memory after waiting for the devices, and ends the lease: when the call returns, the server has freed the memory that no
// region and no other client has. Later calls with the lease, except gpu_vmm_lease_free, return GPU_VMM_INVALID_ARGUMENT, and its region
// is empty. It is no error if the server has ended.
//
// Returns GPU_VMM_BUSY while a tensor of the region exists, for a capture. The lease then goes on.
//
// # Safety
//
// `lease` is null or a lease.
gpu_vmm_status gpu_vmm_lease_close(const gpu_vmm_lease *lease);

// Returns the region of a lease, which all functions for regions take. It belongs to the lease and is valid until the lease is freed; do
// not free it. The lease decides what is mapped where: do not map, unmap, swap or suspend its memory.
//
// # Safety
//
// `lease` is null or a lease. `region` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_lease_region(const gpu_vmm_lease *lease,
                                    gpu_vmm_region **region);

// Returns the kind of a lease, GPU_VMM_LEASE_READ or GPU_VMM_LEASE_WRITE, and the epoch that is mapped, 0 for a region that was never
// committed. Each may be null.
//
// # Safety
//
// `lease` is null or a lease. `kind` and `epoch` are null or point to a writable number each.
gpu_vmm_status gpu_vmm_lease_state(const gpu_vmm_lease *lease,
                                   uint32_t *kind,
                                   uint64_t *epoch);

// Returns a copy of the layout of the epoch that is mapped. Free it with gpu_vmm_layout_free. Another process has written it:
// gpu_vmm_region_dlpack checks each part.
//
// Returns GPU_VMM_PEER for a text with a zero byte, and for a part with more than 32 dimensions or another number of strides.
//
// # Safety
//
// `lease` is null or a lease. `layout` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_lease_layout(const gpu_vmm_lease *lease,
                                    gpu_vmm_layout **layout);

// Returns the descriptor of a lease's connection, for poll: it is readable when gpu_vmm_lease_next has something to receive. It belongs
// to the lease; do not close it. After an error `*fd` is -1.
//
// # Safety
//
// `lease` is null or a lease. `fd` is null or points to a writable number.
gpu_vmm_status gpu_vmm_lease_fd(const gpu_vmm_lease *lease,
                                int32_t *fd);

// Waits up to `milliseconds` for an event from the server. `event` receives GPU_VMM_LEASE_EVENT_NONE, GPU_VMM_LEASE_EVENT_NEW_EPOCH,
// GPU_VMM_LEASE_EVENT_DROPPED or GPU_VMM_LEASE_EVENT_SERVER_GONE, which it then always receives. Other calls with the lease wait
// meanwhile. The server sends a further epoch when the last one was applied, and skips those between.
//
// Returns GPU_VMM_PEER for invalid data, or the driver's error for memory that cannot be imported. The lease then keeps the memory that it
// has, and receives no more events than GPU_VMM_LEASE_EVENT_SERVER_GONE.
//
// # Safety
//
// `lease` is null or a lease. `event` is null or points to a writable number.
gpu_vmm_status gpu_vmm_lease_next(const gpu_vmm_lease *lease,
                                  uint64_t milliseconds,
                                  uint32_t *event);

// Maps the epoch that was received, at the addresses that the region has, after waiting for the devices. Tensors of the region then have
// its contents. `epoch` receives the epoch that is mapped; it may be null. Without a new epoch it does nothing.
//
// Returns GPU_VMM_BUSY for a capture or if an observer refuses. The region is then as before, and the caller can try again.
//
// # Safety
//
// `lease` is null or a lease. `epoch` is null or points to a writable number.
gpu_vmm_status gpu_vmm_lease_apply(const gpu_vmm_lease *lease,
                                   uint64_t *epoch);

// Replaces the memory of a range by new memory, which this write lease may write, after waiting for the devices. With `copy` it has the
// same contents, copied by the device, else undefined bytes. Readers keep the old memory until they apply the next epoch. Whole handles
// are replaced: `renewed` receives the range, which contains the wanted one; it may be null. Memory that was replaced since the last commit
// stays as it is. The new memory counts against the server's budget beside the old one.
//
// Returns GPU_VMM_ACCESS_DENIED for a read lease, GPU_VMM_OUT_OF_MEMORY, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_FOUND if the region was
// dropped, GPU_VMM_PEER if the server has ended, and GPU_VMM_BUSY for a capture or if an observer refuses. What was replaced before an
// error stays so; a second call does the rest, and gpu_vmm_lease_commit fails until then.
//
// # Safety
//
// `lease` is null or a lease. `renewed` is null or points to a writable range.
gpu_vmm_status gpu_vmm_lease_renew(const gpu_vmm_lease *lease,
                                   uint64_t offset,
                                   uint64_t length,
                                   bool copy,
                                   gpu_vmm_range *renewed);

// Makes the new memory the region's next epoch, for clients that open the region from now on and for readers when they apply it. `epoch`
// receives its number; it may be null. A layout replaces the former one; null keeps it. The call first takes the right to write the
// memory, for which it waits for all work on the device: this lease then has the epoch mapped read-only.
//
// Returns GPU_VMM_ACCESS_DENIED for a read lease, GPU_VMM_NOT_FOUND if the region was dropped, GPU_VMM_INVALID_ARGUMENT after a renewal
// that has failed and for a layout of more than 16 MiB, and GPU_VMM_PEER if the server has ended. The new memory is then writable and
// uncommitted, as before.
//
// # Safety
//
// `lease` is null or a lease. `layout` is null or a layout. `epoch` is null or points to a writable number.
gpu_vmm_status gpu_vmm_lease_commit(const gpu_vmm_lease *lease,
                                    const gpu_vmm_layout *layout,
                                    uint64_t *epoch);

// Writes the region, with its layout, name and address, to a safetensors file, from which gpu_vmm_client_load makes the same region again.
// A file of that name is replaced when the new one is complete. `bytes` receives its size; it may be null. Other readers of the format find
// the parts whose elements follow each other.
//
// Returns GPU_VMM_FILE if the file cannot be written, and for a layout that its header cannot have. A file of that name is then as before.
//
// # Safety
//
// `lease` is null or a lease. `path` is null or a string. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_lease_save(const gpu_vmm_lease *lease,
                                  const char *path,
                                  uint64_t *bytes);

// Makes a write lease a read lease, so that another client can write, after waiting for the devices. New memory that was not committed is
// lost, and the epoch's memory is mapped in its place.
//
// Returns GPU_VMM_ACCESS_DENIED for a read lease, GPU_VMM_INVALID_ARGUMENT for a region that was never committed, GPU_VMM_PEER if the
// server has ended, and GPU_VMM_BUSY for a capture or if an observer refuses.
//
// # Safety
//
// `lease` is null or a lease.
gpu_vmm_status gpu_vmm_lease_downgrade(const gpu_vmm_lease *lease);

// Creates an empty layout, for gpu_vmm_lease_commit. Free it with gpu_vmm_layout_free.
//
// # Safety
//
// `layout` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_layout_new(gpu_vmm_layout **layout);

// Frees a layout. Null does nothing.
//
// # Safety
//
// `layout` is null or comes from gpu_vmm_layout_new or gpu_vmm_lease_layout, and was not freed yet.
void gpu_vmm_layout_free(gpu_vmm_layout *layout);

// Adds a part to a layout, or replaces the part of that name. The call copies everything that `part` points to.
//
// # Safety
//
// `layout` is null or a layout. `part` is null or points to a part whose `name` is null or a string, and whose `shape` and `strides` are
// null or point to `ndim` numbers each.
gpu_vmm_status gpu_vmm_layout_set_part(const gpu_vmm_layout *layout,
                                       const gpu_vmm_part *part);

// Adds a note to a layout, or replaces the note of that key.
//
// # Safety
//
// `layout` is null or a layout. `key` and `note` are null or a string each.
gpu_vmm_status gpu_vmm_layout_set_note(const gpu_vmm_layout *layout, const char *key, const char *note);

// Returns the number of parts and the number of notes. Each may be null.
//
// # Safety
//
// `layout` is null or a layout. `parts` and `notes` are null or point to a writable number each.
gpu_vmm_status gpu_vmm_layout_sizes(const gpu_vmm_layout *layout, uint64_t *parts, uint64_t *notes);

// Returns a part by its index. The parts of a lease are in the order of their names, the parts of a new layout in the order in which they
// were added. What `part` points to is valid until the part is replaced or the layout is freed.
//
// Returns GPU_VMM_NOT_FOUND if there are fewer.
//
// # Safety
//
// `layout` is null or a layout. `part` is null or points to a writable part.
gpu_vmm_status gpu_vmm_layout_part(const gpu_vmm_layout *layout,
                                   uint64_t index,
                                   gpu_vmm_part *part);

// Returns a part by its name, as gpu_vmm_layout_part does.
//
// Returns GPU_VMM_NOT_FOUND if there is none.
//
// # Safety
//
// `layout` is null or a layout. `name` is null or a string. `part` is null or points to a writable part.
gpu_vmm_status gpu_vmm_layout_find_part(const gpu_vmm_layout *layout, const char *name, gpu_vmm_part *part);

// Returns a note by its index, as gpu_vmm_layout_part returns a part. The texts are valid until the note is replaced or the layout is
// freed.
//
// Returns GPU_VMM_NOT_FOUND if there are fewer.
//
// # Safety
//
// `layout` is null or a layout. `key` and `note` are null or point to a writable pointer each.
gpu_vmm_status gpu_vmm_layout_note(const gpu_vmm_layout *layout,
                                   uint64_t index,
                                   const char **key,
                                   const char **note);

// Returns a note by its key, as gpu_vmm_layout_note does.
//
// Returns GPU_VMM_NOT_FOUND if there is none.
//
// # Safety
//
// `layout` is null or a layout. `key` is null or a string. `note` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_layout_find_note(const gpu_vmm_layout *layout, const char *key, const char **note);

// Returns what a server has granted to a pool, in bytes, and whether the server is there: it may have ended, and the pool then keeps its
// budget. Null places are not written.
//
// Returns GPU_VMM_UNSUPPORTED for a pool without a server.
//
// # Safety
//
// `pool` is null or a pool. `granted` and `is_connected` are null or point to writable values.
gpu_vmm_status gpu_vmm_pool_granted(const gpu_vmm_pool *pool,
                                    uint64_t *granted,
                                    bool *is_connected);

// Reserves a part of the server's budget before it is used: waits until the server has granted `bytes` in all, up to `wait_ms`
// milliseconds, and gives no part of that back until another call reserves less.
//
// Returns GPU_VMM_OUT_OF_MEMORY if there is too little, GPU_VMM_PEER if the server is gone, and GPU_VMM_UNSUPPORTED for a pool
// without a server.
//
// # Safety
//
// `pool` is null or a pool.
gpu_vmm_status gpu_vmm_pool_reserve(const gpu_vmm_pool *pool,
                                    uint64_t bytes,
                                    uint64_t wait_ms);

// Tells the server that the memory of a tag can be suspended when other programs need it. Until gpu_vmm_pool_wake, the program does not use
// the tag's blocks, on the host or by work on a device.
//
// Returns GPU_VMM_NOT_FOUND if there is no such tag, and GPU_VMM_UNSUPPORTED for a pool without a server.
//
// # Safety
//
// `pool` is null or a pool. `tag` is null or a string.
gpu_vmm_status gpu_vmm_pool_let_sleep(const gpu_vmm_pool *pool,
                                      const char *tag);

// Makes a tag usable again that can sleep: its memory stays from now on, and comes back with its contents if it was suspended. Waits for
// memory that other programs have. `bytes` receives the number of bytes that came back.
//
// Returns the statuses of gpu_vmm_resume, and GPU_VMM_UNSUPPORTED for a pool without a server.
//
// # Safety
//
// `pool` is null or a pool. `tag` is null or a string. `bytes` points to a writable number.
gpu_vmm_status gpu_vmm_pool_wake(const gpu_vmm_pool *pool,
                                 const char *tag,
                                 uint64_t *bytes);

// Exports memory as a new file descriptor, which the caller must close. The memory must have been created with
// GPU_VMM_HANDLE_FD. Send the descriptor over a Unix socket (SCM_RIGHTS).
//
// Returns GPU_VMM_UNSUPPORTED for memory that was not created for it. After an error `*fd` is -1.
//
// # Safety
//
// `physical` is null or physical memory. `fd` is null or points to a writable number.
gpu_vmm_status gpu_vmm_physical_export_fd(const gpu_vmm_physical *physical, int32_t *fd);

// Imports memory from a file descriptor, which stays open and stays the caller's. `size` and `properties` must equal the
// exported memory's: no driver reports them.
//
// Returns GPU_VMM_UNALIGNED, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_UNSUPPORTED, or GPU_VMM_DRIVER for another kind of descriptor.
//
// # Safety
//
// `backend` is null or an open backend. `properties` is null or points to properties. `fd` is a descriptor that the same vendor's
// driver exported for memory of this size and device. `physical` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_physical_import_fd(const gpu_vmm_backend *backend,
                                          const gpu_vmm_properties *properties,
                                          uint64_t size,
                                          int32_t fd,
                                          gpu_vmm_physical **physical);

// Exports memory as a fabric handle. The memory must have been created with GPU_VMM_HANDLE_FABRIC.
//
// Returns GPU_VMM_UNSUPPORTED for memory that was not created for it, or if the driver has no fabric handles.
//
// # Safety
//
// `physical` is null or physical memory. `handle` is null or points to a writable handle.
gpu_vmm_status gpu_vmm_physical_export_fabric(const gpu_vmm_physical *physical, gpu_vmm_fabric_handle *handle);

// Imports memory from a fabric handle. `size` and `properties` must equal the exported memory's: no driver reports them.
//
// Returns GPU_VMM_UNALIGNED, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_UNSUPPORTED, or GPU_VMM_DRIVER for an invalid handle.
//
// # Safety
//
// `backend` is null or an open backend. `properties` is null or points to properties. `handle` is null or points to a handle that
// the same vendor's driver exported for memory of this size and device. `physical` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_physical_import_fabric(const gpu_vmm_backend *backend,
                                              const gpu_vmm_properties *properties,
                                              uint64_t size,
                                              const gpu_vmm_fabric_handle *handle,
                                              gpu_vmm_physical **physical);

// Offers a region as it is now to other processes. Its memory must have been created for it. `by` is GPU_VMM_OFFER_BY_PROCESS or
// GPU_VMM_OFFER_BY_FABRIC. Free the offer with gpu_vmm_offer_free when all processes have imported it.
//
// From then on, the region's memory cannot be suspended or moved: other processes would keep the old memory.
//
// Returns GPU_VMM_UNSUPPORTED for memory that was not created for it, GPU_VMM_SUSPENDED.
//
// # Safety
//
// `region` is null or a region. `offer` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_region_offer(const gpu_vmm_region *region,
                                    uint32_t by,
                                    gpu_vmm_offer **offer);

// Offers physical memory to other processes, as gpu_vmm_region_offer offers a region.
//
// Returns GPU_VMM_UNSUPPORTED for memory that was not created for it.
//
// # Safety
//
// `backend` is null or the open backend of the memory. `physical` is null or physical memory. `offer` is null or points to a
// writable pointer.
gpu_vmm_status gpu_vmm_physical_offer(const gpu_vmm_backend *backend,
                                      const gpu_vmm_physical *physical,
                                      uint32_t by,
                                      gpu_vmm_offer **offer);

// Returns the bytes of an offer, to be sent to other processes by any means. They are valid until the offer is freed. Treat those
// of an offer by fabric as a secret: every process that has them can map the memory.
//
// # Safety
//
// `offer` is null or an offer. `data` and `size` are null or point to a writable pointer and a writable number.
gpu_vmm_status gpu_vmm_offer_bytes(const gpu_vmm_offer *offer,
                                   const void **data,
                                   uint64_t *size);

// Frees an offer. Processes that have imported it keep the memory. Null does nothing.
//
// # Safety
//
// `offer` is null or an offer that was not freed yet.
void gpu_vmm_offer_free(gpu_vmm_offer *offer);

// Imports an offer as a region: the devices that own its memory read and write it. Import offers only from senders that you trust:
// an offer by process takes descriptors with the rights of the caller.
//
// Returns GPU_VMM_PEER for bytes that are no offer, and if the process that made it has ended or has other devices;
// GPU_VMM_ACCESS_DENIED or GPU_VMM_DRIVER if the system refuses its descriptors.
//
// # Safety
//
// `backend` is null or an open backend. `data` is null or points to `size` bytes. `region` is null or points to a writable
// pointer.
gpu_vmm_status gpu_vmm_region_import(const gpu_vmm_backend *backend,
                                     const void *data,
                                     uint64_t size,
                                     gpu_vmm_region **region);

// Imports an offer of physical memory.
//
// Returns the statuses of gpu_vmm_region_import, and GPU_VMM_PEER for an offer of several pieces of memory.
//
// # Safety
//
// `backend` is null or an open backend. `data` is null or points to `size` bytes. `physical` is null or points to a writable
// pointer.
gpu_vmm_status gpu_vmm_physical_import(const gpu_vmm_backend *backend,
                                       const void *data,
                                       uint64_t size,
                                       gpu_vmm_physical **physical);

// Returns whether a tag is suspended. While it is, allocations under the tag fail, and nothing may use its blocks.
//
// # Safety
//
// `pool` is null or a pool. `tag` is null or a string. `suspended` is null or points to a writable bool.
gpu_vmm_status gpu_vmm_is_suspended(const gpu_vmm_pool *pool, const char *tag, bool *suspended);

// Suspends a tag: waits for the devices, returns the memory of all blocks with the tag to the driver and keeps their addresses.
// Until gpu_vmm_resume, allocations under the tag fail, and nothing may use its blocks. The blocks can be freed.
//
// `keep` selects where the contents go: null discards them; "host" is ordinary memory, which gpu_vmm_resume frees; "host-kept" is
// ordinary memory that stays for the next suspension, which is then faster; "pinned" is page-locked memory, which is slow to create
// the first time, fast from then on, and stays as well; "file" is an unnamed file in the directory for temporary files;
// "file:FOLDER" is one in that directory, and "files:FOLDERS" one in each of several directories, whose disks then work at the same
// time: a list as in PATH, with colons between them, on Windows semicolons. Folders are any bytes on Unix, and UTF-8 elsewhere. If the host has too little available memory, the call
// fails and the tag is not suspended. gpu_vmm_host_memory returns what has been taken, and gpu_vmm_trim_host frees what stays.
//
// Contents pass through page-locked buffers, unless they go to page-locked memory: 8 MiB for each core that the process may use, at
// most 16. GPU_VMM_COPY_THREADS sets another number.
//
// `bytes` receives the number of bytes that were returned, 0 if the tag was suspended
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

// Returns the size of the host memory that the pool has taken for the contents of suspended tags: what holds contents, what stays
// for the next suspension, and the page-locked buffers through which contents pass.
//
// # Safety
//
// `pool` is null or a pool. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_host_memory(const gpu_vmm_pool *pool,
                                   uint64_t *bytes);

// Frees the host memory that stays for the next suspension. Contents of suspended tags stay as they are. `bytes` receives the number
// of bytes that were freed; it may be null.
//
// # Safety
//
// `pool` is null or a pool. `bytes` is null or points to a writable number.
gpu_vmm_status gpu_vmm_trim_host(const gpu_vmm_pool *pool,
                                 uint64_t *bytes);

// Writes a region to a file, after waiting for the devices: its address, mappings, access and contents. An existing file of that
// name is replaced when the new one is complete. Nothing may write to the region meanwhile. `compress` compresses the contents.
//
// Returns GPU_VMM_FILE if the file cannot be written, GPU_VMM_SUSPENDED, and GPU_VMM_BUSY for a capture.
//
// # Safety
//
// `region` is null or a region. `path` is null or a string.
gpu_vmm_status gpu_vmm_region_snapshot(const gpu_vmm_region *region,
                                       const char *path,
                                       bool compress);

// Returns the name that gpu_vmm_region_set_tag has given to the region or to the one in the file from which it was restored; an empty
// string if there is none. Free the text with gpu_vmm_string_free.
//
// Returns GPU_VMM_INVALID_ARGUMENT for a name with a zero byte, which a file can have.
//
// # Safety
//
// `region` is null or a region. `tag` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_region_tag(const gpu_vmm_region *region,
                                  char **tag);

// Names a region for the program's own use. Files of regions have the name: it can say what the contents are.
//
// # Safety
//
// `region` is null or a region. `tag` is null or a string.
gpu_vmm_status gpu_vmm_region_set_tag(const gpu_vmm_region *region, const char *tag);

// Recreates a region from a file with exactly one, with its contents. Null options mean the default: at its address, and on the device
// with the same number. The file may come from another process, device or vendor.
//
// Returns GPU_VMM_ADDRESS_TAKEN without `relocate`, GPU_VMM_FILE for a file that cannot be read or is no snapshot,
// GPU_VMM_OUT_OF_MEMORY, GPU_VMM_NO_SUCH_DEVICE, also for a UUID that no device has, GPU_VMM_PEER_UNREACHABLE, GPU_VMM_UNSUPPORTED for
// memory that the driver lacks, and GPU_VMM_INVALID_ARGUMENT for a file with several regions or none.
//
// # Safety
//
// `backend` is null or an open backend. `path` is null or a string. `options` is null or points to options whose `devices` is null or
// points to `device_count` pairs. `region` is null or points to a writable pointer.
gpu_vmm_status gpu_vmm_region_restore(const gpu_vmm_backend *backend,
                                      const char *path,
                                      const gpu_vmm_restore_options *options,
                                      gpu_vmm_region **region);

// Writes several regions to one file, as gpu_vmm_region_snapshot writes one, at one point of time. Memory that is mapped in several of
// them is written once. All regions must be of one backend.
//
// Returns the statuses of gpu_vmm_region_snapshot, and GPU_VMM_INVALID_ARGUMENT for no region, more than 1024, the same region twice, or
// regions of several backends.
//
// # Safety
//
// `regions` is null or points to `count` pointers, each null or a region. `path` is null or a string.
gpu_vmm_status gpu_vmm_regions_snapshot(const gpu_vmm_region *const *regions,
                                        uint64_t count,
                                        const char *path,
                                        bool compress);

// Returns the number of regions in a file.
//
// Returns GPU_VMM_FILE for a file that cannot be read or is no snapshot.
//
// # Safety
//
// `path` is null or a string. `count` is null or points to a writable number.
gpu_vmm_status gpu_vmm_snapshot_count(const char *path, uint64_t *count);

// Recreates all regions of a file in the order in which they were written, as gpu_vmm_region_restore recreates one. Each must be freed
// on its own. After an error none exists.
//
// Returns the statuses of gpu_vmm_region_restore, and GPU_VMM_INVALID_ARGUMENT if `count` is not the number of regions in the file, which
// gpu_vmm_snapshot_count returns.
//
// # Safety
//
// `backend` is null or an open backend. `path` is null or a string. `options` is null or points to options whose `devices` is null or
// points to `device_count` pairs. `regions` is null or points to `count` writable pointers.
gpu_vmm_status gpu_vmm_regions_restore(const gpu_vmm_backend *backend,
                                       const char *path,
                                       const gpu_vmm_restore_options *options,
                                       gpu_vmm_region **regions,
                                       uint64_t count);

// Returns the text of this thread's last error: the operation, the numbers, what would have been right, and the driver's own
// code and name. Empty if no call of this thread has failed. The pointer is valid until this thread's next call that fails.
const char *gpu_vmm_last_error(void);

// Exports a part of a region, from `offset` bytes on, as a DLPack tensor. The memory stays as long as the tensor exists, also
// after the region grows or is freed.
//
// `code`, `bits` and `lanes` are the fields of DLDataType. `shape` and `strides`, in elements, have `ndim` numbers each, at most 32.
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

// Sets the peaks of a device's held memory and of its live blocks to the current amounts.
gpu_vmm_status gpu_vmm_torch_reset_peak(int number);

// Sets to zero what a device's blocks have allocated and freed.
gpu_vmm_status gpu_vmm_torch_reset_accumulated(int number);

// Counts a block of another allocator as allocated or freed, in the amounts that gpu_vmm_torch_measure returns. PyTorch's private
// pools may have allocators of their own.
//
// # Safety
//
// `block` is null or points to a block.
gpu_vmm_status gpu_vmm_torch_count(const gpu_vmm_torch_block *block,
                                   bool allocated);

// Sets the largest amount of physical memory that PyTorch's pool of a device may hold, in bytes; at most the budget of
// gpu_vmm_torch_configure. Free memory beyond it returns to the driver at once, and the memory of blocks as they are freed. Blocks of
// private pools stay.
gpu_vmm_status gpu_vmm_torch_set_limit(int number,
                                       uint64_t bytes);

// Gives the device `peer` access to all memory of PyTorch's pool of another device, present and future.
gpu_vmm_status gpu_vmm_torch_allow_access(int number, int peer);

// Returns all free memory of every device to the driver, including the memory of destroyed graphs.
gpu_vmm_status gpu_vmm_torch_collect(void);

// Returns free memory to the driver: on each device, as many whole pages as ended private pools have returned to the general pool
// since the last collection. If their own pages are in use again, other free pages are returned.
gpu_vmm_status gpu_vmm_torch_collect_ended(void);

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

// Notes that the caller diverts requests to a private pool from now on. Until the end the pool's memory that graphs may use stays in it.
// `stream` is the one that may capture a graph meanwhile: while it does, the library waits for no device. Null is none.
//
// # Safety
//
// `stream` is null or a stream of PyTorch's vendor that is live until gpu_vmm_torch_pool_end.
gpu_vmm_status gpu_vmm_torch_pool_begin(int number,
                                        gpu_vmm_torch_mempool_id id,
                                        void *stream);

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

// Gives the memory that a private pool allocates from now on a tag of its own, to suspend and resume it by gpu_vmm_suspend and
// gpu_vmm_resume. Call it before the pool's first allocation: other memory of private pools has the tag "torch graphs".
//
// # Safety
//
// `tag` is null or a string.
gpu_vmm_status gpu_vmm_torch_pool_tag(int number,
                                      gpu_vmm_torch_mempool_id id,
                                      const char *tag);

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
// Until all such blocks are freed, every process of the same user may take descriptors from this one and trace it, where the kernel
// restricts that to ancestors (PR_SET_PTRACER with PR_SET_PTRACER_ANY). Afterwards none may, whatever the program has set before.
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

// Restores PyTorch's pool of a device from a file of gpu_vmm_pool_save, with the options of gpu_vmm_torch_configure: see
// gpu_vmm_pool_restore, also for `blocks` and `count`. The blocks wait for gpu_vmm_torch_claim; gpu_vmm_torch_end_restore frees the others.
// `tag` is a tag that the file must have, or null.
//
// Returns the statuses of gpu_vmm_pool_restore, GPU_VMM_FILE for a file without the tag, and GPU_VMM_BUSY if the device has a pool
// already, as after its first allocation.
//
// # Safety
//
// `path` is null or a string, and so is `tag`. `blocks` is null or points to `count` writable blocks.
gpu_vmm_status gpu_vmm_torch_restore_pool(int device_number,
                                          const char *path,
                                          const char *tag,
                                          gpu_vmm_restored_block *blocks,
                                          uint64_t count);

// Claims a block of gpu_vmm_torch_restore_pool for this thread: PyTorch's next allocation on the device, of no more than its capacity,
// returns it, whatever the stream. It is then a block like any other. Allocations of private pools and of captures take no claimed block.
// One thread of the process restores at a time.
//
// Returns GPU_VMM_NOT_FOUND if there is no such block, or if it was claimed before.
gpu_vmm_status gpu_vmm_torch_claim(int device_number,
                                   uint64_t address);

// Frees the blocks of gpu_vmm_torch_restore_pool that were not claimed, and forgets the claim of this thread.
gpu_vmm_status gpu_vmm_torch_end_restore(int device_number);

// Returns a pair of functions for the CUDAPluggableAllocator of a torch.cuda.MemPool, whose memory gets this tag. There can be 64
// such tags. Unlike gpu_vmm_torch_alloc, the returned function returns null if memory is short.
//
// # Safety
//
// `tag` is null or a string. `alloc_function` and `free_function` are null or point to a writable pointer each.
gpu_vmm_status gpu_vmm_torch_functions(const char *tag,
                                       void **alloc_function,
                                       void **free_function);

// Returns the library's version, such as "0.1.0". The string is static. GPU_VMM_VERSION_MAJOR, GPU_VMM_VERSION_MINOR and
// GPU_VMM_VERSION_PATCH are the header's version.
const char *gpu_vmm_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GPU_VMM_H */
