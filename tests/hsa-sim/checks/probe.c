/* Real HIP's results of unusual virtual memory calls. Every case runs in a child of its own:
 * some of them crash HIP. Prints findings; checks nothing. `probe NAME` runs one case. */
#define _GNU_SOURCE
#include <hip/hip_runtime_api.h>
#include <pthread.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define S ((size_t)2 << 20)
#define T(x) do { hipError_t e_ = (x); printf("  %-74s %s\n", #x, hipGetErrorName(e_)); fflush(stdout); (void)hipGetLastError(); } while (0)
#define SAY(...) do { printf("  " __VA_ARGS__); printf("\n"); fflush(stdout); } while (0)
typedef hipMemGenericAllocationHandle_t H;
static hipMemAllocationProp prop;
static hipMemAccessDesc rw;
static unsigned *a, *b;
static char *va;
static H h, h2, h4;

static void counts(const char *when) {
  void (*f)(size_t *, size_t *, size_t *) = (void (*)(size_t *, size_t *, size_t *))dlsym(RTLD_DEFAULT, "hsa_sim_vmem_counts");
  size_t r, p, m;
  if (f) { f(&r, &p, &m); SAY("[alive in HSA %s: %zu reservations, %zu physical, %zu mappings]", when, r, p, m); }
}
static void *import_arg(int *fd) {
#if HIP_VERSION_MAJOR >= 7
  return (void *)(intptr_t)*fd;
#else
  return fd;
#endif
}
static void setup(void) {
  hipInit(0); hipSetDevice(0);
  memset(&prop, 0, sizeof prop); memset(&rw, 0, sizeof rw);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  prop.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
  rw.location = prop.location; rw.flags = hipMemAccessFlagsProtReadWrite;
  a = malloc(4 * S); b = malloc(4 * S);
  for (size_t i = 0; i < S; i++) a[i] = (unsigned)i * 2654435761u;
  void *p = 0;
  if (hipMemAddressReserve(&p, 8 * S, 0, 0, 0) || hipMemCreate(&h, S, &prop, 0) || hipMemCreate(&h2, S, &prop, 0) || hipMemCreate(&h4, 2 * S, &prop, 0)) { SAY("setup failed"); exit(3); }
  va = p;
}
/* checks that the GPU has this memory at the address */
static void works(char *at, size_t n) {
  memset(b, 0, n);
  hipError_t e1 = hipMemcpy(at, a, n, hipMemcpyHostToDevice), e2 = hipMemcpy(b, at, n, hipMemcpyDeviceToHost);
  SAY("copy of %zu bytes to and from +%#zx: %s, %s, bytes %s", n, (size_t)(at - va), hipGetErrorName(e1), hipGetErrorName(e2), memcmp(a, b, n) ? "DIFFER" : "right");
}

static void c_reserve(void) {
  void *p = 0;
  T(hipMemAddressReserve(&p, 0, 0, 0, 0));
  T(hipMemAddressReserve(&p, 1000, 0, 0, 0));
  T(hipMemAddressReserve(&p, 4096, 0, 0, 0)); SAY("%p", p);
  T(hipMemAddressReserve(&p, S, 3, 0, 0));
  T(hipMemAddressReserve(&p, S, 0, 0, 1));
  T(hipMemAddressReserve(&p, S, 64, 0, 0)); SAY("%p", p);
  T(hipMemAddressReserve(&p, S, (size_t)1 << 30, 0, 0)); SAY("asked for alignment 1 GiB: %p %s", p, (uintptr_t)p & (((size_t)1 << 30) - 1) ? "NOT aligned" : "aligned");
  T(hipMemAddressReserve(&p, S, 0, (void *)0x6f0000000123, 0)); SAY("hint 0x6f0000000123: %p", p);
  T(hipMemAddressReserve(&p, S, 0, (void *)0x6f1000001000, 0)); SAY("hint 0x6f1000001000: %p", p);
  T(hipMemAddressReserve(&p, S, S, (void *)0x6f2000001000, 0)); SAY("hint 0x6f2000001000, alignment 2 MiB: %p", p);
  T(hipMemAddressReserve(&p, S, 0, va, 0)); SAY("hint taken (%p): %p", va, p);
  T(hipMemAddressReserve(&p, S, 0, a, 0)); SAY("hint is the program's own heap (%p): %p", (void *)a, p);
  T(hipMemAddressReserve(&p, (size_t)1 << 40, 0, 0, 0)); SAY("1 TiB: %p", p);
  T(hipMemAddressReserve(&p, (size_t)1 << 47, 0, 0, 0)); SAY("128 TiB: %p", p);
  T(hipMemAddressReserve(0, S, 0, 0, 0));
}
static void c_create(void) {
  H x = 0; hipMemAllocationProp q = prop;
  T(hipMemCreate(&x, 0, &prop, 0));
  T(hipMemCreate(&x, 100, &prop, 0));
  T(hipMemCreate(&x, 2048, &prop, 0));
  T(hipMemCreate(&x, 4096, &prop, 0));
  T(hipMemCreate(&x, S, &prop, 1));
  q.type = 0; T(hipMemCreate(&x, S, &q, 0)); q = prop;
  q.location.id = 99; T(hipMemCreate(&x, S, &q, 0)); q = prop;
  q.location.id = -1; T(hipMemCreate(&x, S, &q, 0)); q = prop;
  q.requestedHandleType = hipMemHandleTypeNone; T(hipMemCreate(&x, S, &q, 0));
  q.requestedHandleType = hipMemHandleTypeWin32; T(hipMemCreate(&x, S, &q, 0)); q = prop;
#if HIP_VERSION_MAJOR >= 7
  q.location.type = hipMemLocationTypeHost; T(hipMemCreate(&x, S, &q, 0)); q = prop;
  q.location.type = hipMemLocationTypeHostNuma; T(hipMemCreate(&x, S, &q, 0)); q = prop;
#endif
  size_t f, t; hipMemGetInfo(&f, &t); SAY("free %zu total %zu", f, t);
  T(hipMemCreate(&x, t + S, &prop, 0));
  T(hipMemCreate(&x, f + S, &prop, 0));
  T(hipMemCreate(&x, f - 64 * S, &prop, 0));
  T(hipMemCreate(&x, 128 * S, &prop, 0));
  T(hipMemCreate(&x, 1ull << 50, &prop, 0));
}
static void c_location_none(void) { H x = 0; hipMemAllocationProp q = prop; q.location.type = 0; T(hipMemCreate(&x, S, &q, 0)); }
static void c_map_offset(void) { T(hipMemMap(va, S, S, h4, 0)); T(hipMemSetAccess(va, S, &rw, 1)); }
static void c_map_short(void) { T(hipMemMap(va, S, 0, h4, 0)); T(hipMemSetAccess(va, S, &rw, 1)); works(va, S); }
static void c_map_long(void) { T(hipMemMap(va, 2 * S, 0, h, 0)); T(hipMemSetAccess(va, 2 * S, &rw, 1)); }
static void c_map_null(void) { T(hipMemMap(va, S, 0, 0, 0)); T(hipMemMap(0, S, 0, h, 0)); T(hipMemMap(va, 0, 0, h, 0)); T(hipMemMap(va, S, 0, h, 1)); }
static void c_map_unreserved(void) { T(hipMemMap((void *)0x600000000000, S, 0, h, 0)); T(hipMemSetAccess((void *)0x600000000000, S, &rw, 1)); }
static void c_map_past_end(void) { T(hipMemMap(va + 7 * S, 2 * S, 0, h4, 0)); T(hipMemSetAccess(va + 7 * S, S, &rw, 1)); }
static void c_map_twice(void) {
  T(hipMemMap(va, S, 0, h, 0)); T(hipMemMap(va, S, 0, h2, 0)); T(hipMemSetAccess(va, S, &rw, 1)); works(va, S);
  H r = 0; T(hipMemRetainAllocationHandle(&r, va)); SAY("mapped is %s", r == h ? "the first" : r == h2 ? "the SECOND" : "?");
  T(hipMemUnmap(va, S)); counts("after unmap");
  T(hipMemRelease(h)); T(hipMemRelease(h2)); counts("after both releases (h4 is left)");
}
static void c_map_overlap(void) { T(hipMemMap(va, 2 * S, 0, h4, 0)); T(hipMemMap(va + S, S, 0, h2, 0)); T(hipMemSetAccess(va, 2 * S, &rw, 1)); works(va, 2 * S); }
static void c_map_odd(void) { T(hipMemMap(va + 4096, S, 0, h, 0)); T(hipMemSetAccess(va + 4096, S, &rw, 1)); works(va + 4096, S); T(hipMemMap(va + 4 * S + 100, S, 0, h2, 0)); T(hipMemSetAccess(va + 4 * S + 100, S, &rw, 1)); }
static void c_alias(void) {
  T(hipMemMap(va, S, 0, h, 0)); T(hipMemMap(va + 2 * S, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); T(hipMemSetAccess(va + 2 * S, S, &rw, 1));
  T(hipMemcpy(va, a, S, hipMemcpyHostToDevice)); memset(b, 0, S); T(hipMemcpy(b, va + 2 * S, S, hipMemcpyDeviceToHost)); SAY("bytes through the other address %s", memcmp(a, b, S) ? "DIFFER" : "right");
  T(hipMemUnmap(va, S)); works(va + 2 * S, S); T(hipMemUnmap(va + 2 * S, S)); T(hipMemRelease(h)); counts("(h2, h4 are left)");
}
static void c_access_before_map(void) { T(hipMemSetAccess(va, S, &rw, 1)); }
static void c_access_part(void) {
  T(hipMemMap(va, 2 * S, 0, h4, 0)); T(hipMemSetAccess(va, S, &rw, 1)); works(va, 2 * S);
  unsigned long long f = 9; T(hipMemGetAccess(&f, &prop.location, va + S)); SAY("access of the other half: %llu", f);
}
static void c_access_inside(void) { T(hipMemMap(va, 2 * S, 0, h4, 0)); T(hipMemSetAccess(va + S, S, &rw, 1)); }
static void c_access_gap(void) { T(hipMemMap(va, S, 0, h, 0)); T(hipMemMap(va + 2 * S, S, 0, h2, 0)); T(hipMemSetAccess(va, 3 * S, &rw, 1)); unsigned long long f = 9; T(hipMemGetAccess(&f, &prop.location, va)); SAY("access %llu", f); }
static void c_access_args(void) {
  hipMemAccessDesc d = rw; T(hipMemMap(va, S, 0, h, 0));
  T(hipMemSetAccess(va, S, &d, 0)); T(hipMemSetAccess(va, S, 0, 1)); T(hipMemSetAccess(va, 0, &d, 1));
  d.location.id = 99; T(hipMemSetAccess(va, S, &d, 1)); d = rw;
  d.flags = 2; T(hipMemSetAccess(va, S, &d, 1)); d.flags = 77; T(hipMemSetAccess(va, S, &d, 1)); d = rw;
#if HIP_VERSION_MAJOR >= 7
  d.location.type = hipMemLocationTypeHost; T(hipMemSetAccess(va, S, &d, 1)); d = rw;
#endif
  d.location.type = 0; T(hipMemSetAccess(va, S, &d, 1)); d = rw;
  unsigned long long f = 9; hipMemLocation l = prop.location;
  T(hipMemGetAccess(&f, &l, va)); SAY("access %llu", f); T(hipMemGetAccess(&f, &l, va + 100)); T(hipMemGetAccess(&f, &l, va + S)); T(hipMemGetAccess(0, &l, va));
  l.id = 99; T(hipMemGetAccess(&f, &l, va));
}
static void c_access_host(void) {
#if HIP_VERSION_MAJOR >= 7
  hipMemAccessDesc d = rw; d.location.type = hipMemLocationTypeHost; d.location.id = 0;
  T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); T(hipMemSetAccess(va, S, &d, 1)); va[0] = 42; SAY("the CPU wrote and read %d", va[0]);
#else
  T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); SAY("the CPU reads %d", va[0]);
#endif
}
static void c_readonly(void) { hipMemAccessDesc d = rw; d.flags = hipMemAccessFlagsProtRead; T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &d, 1)); T(hipMemcpy(b, va, S, hipMemcpyDeviceToHost)); SAY("read, now a write:"); T(hipMemcpy(va, a, S, hipMemcpyHostToDevice)); }
static void c_no_access(void) { T(hipMemMap(va, S, 0, h, 0)); T(hipMemcpy(va, a, S, hipMemcpyHostToDevice)); }
static void c_copy_unmapped(void) { T(hipMemcpy(va, a, S, hipMemcpyHostToDevice)); T(hipMemset(va, 1, S)); }
static void c_copy_after_unmap(void) { T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); works(va, S); T(hipMemUnmap(va, S)); T(hipMemcpy(b, va, S, hipMemcpyDeviceToHost)); }
static void two(void) { T(hipMemMap(va, S, 0, h, 0)); T(hipMemMap(va + S, S, 0, h2, 0)); T(hipMemSetAccess(va, 2 * S, &rw, 1)); }
static void c_copy_across(void) { two(); works(va, 2 * S); works(va + S - 4096, 8192); }
static void c_copy_across_d2d(void) { two(); T(hipMemMap(va + 4 * S, 2 * S, 0, h4, 0)); T(hipMemSetAccess(va + 4 * S, 2 * S, &rw, 1)); works(va + 4 * S, 2 * S); T(hipMemcpy(va, va + 4 * S, 2 * S, hipMemcpyDeviceToDevice)); T(hipDeviceSynchronize()); memset(b, 0, 2 * S); T(hipMemcpy(b, va, S, hipMemcpyDeviceToHost)); T(hipMemcpy(b + S / 4, va + S, S, hipMemcpyDeviceToHost)); SAY("bytes %s", memcmp(a, b, 2 * S) ? "DIFFER" : "right"); }
static void c_memset_across(void) { two(); T(hipMemset(va, 7, 2 * S)); T(hipDeviceSynchronize()); T(hipMemcpy(b, va, S, hipMemcpyDeviceToHost)); SAY("first mapping %d", *(char *)b); T(hipMemcpy(b, va + S, S, hipMemcpyDeviceToHost)); SAY("second mapping %d", *(char *)b); }
static void c_memset_async_across(void) { two(); T(hipMemsetAsync(va, 7, 2 * S, 0)); T(hipMemsetD8(va, 7, 2 * S)); T(hipMemsetD32Async(va, 7, 2 * S / 4, 0)); T(hipDeviceSynchronize()); }
static void c_copy_async_across(void) { two(); T(hipMemcpyAsync(va, a, 2 * S, hipMemcpyHostToDevice, 0)); T(hipMemcpyAsync(b, va, 2 * S, hipMemcpyDeviceToHost, 0)); T(hipDeviceSynchronize()); SAY("bytes %s", memcmp(a, b, 2 * S) ? "DIFFER" : "right"); T(hipMemcpyDtoD(va + S, va, S)); T(hipMemcpyHtoD(va, a, 2 * S)); }
static void c_unmap_part(void) { T(hipMemMap(va, 2 * S, 0, h4, 0)); T(hipMemSetAccess(va, 2 * S, &rw, 1)); T(hipMemUnmap(va, S)); counts("after the unmap"); works(va + S, S); }
static void c_unmap_inside(void) { T(hipMemMap(va, 2 * S, 0, h4, 0)); T(hipMemUnmap(va + S, S)); counts("after the unmap"); }
static void c_unmap_two(void) { two(); T(hipMemUnmap(va, 2 * S)); counts("after the unmap"); unsigned long long f = 9; T(hipMemGetAccess(&f, &prop.location, va + S)); T(hipMemUnmap(va + S, S)); }
static void c_unmap_unmapped(void) { T(hipMemUnmap(va, S)); }
static void c_unmap_twice(void) { T(hipMemMap(va, S, 0, h, 0)); T(hipMemUnmap(va, S)); T(hipMemUnmap(va, S)); }
static void c_unmap_null(void) { T(hipMemUnmap(0, S)); T(hipMemUnmap(va, 0)); }
static void c_free_mapped(void) { T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); T(hipMemAddressFree(va, 8 * S)); counts("after the free"); works(va, S); T(hipMemUnmap(va, S)); T(hipMemAddressFree(va, 8 * S)); counts("in the end"); }
static void c_free_wrong_size(void) { T(hipMemAddressFree(va, S)); counts("after the free"); }
static void c_free_inside(void) { T(hipMemAddressFree(va + S, S)); }
static void c_free_unknown(void) { T(hipMemAddressFree((void *)0x600000000000, S)); }
static void c_free_twice(void) { T(hipMemAddressFree(va, 8 * S)); T(hipMemAddressFree(va, 8 * S)); }
static void c_free_null(void) { T(hipMemAddressFree(0, S)); T(hipMemAddressFree(va, 0)); }
static void c_release_mapped(void) { T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); T(hipMemRelease(h)); counts("after release"); works(va, S); T(hipMemUnmap(va, S)); counts("after unmap (h2, h4 are left)"); }
static void c_release_twice(void) { T(hipMemRelease(h)); T(hipMemRelease(h)); counts("after"); }
static void c_release_null(void) { T(hipMemRelease(0)); }
static void c_retain(void) {
  H r = 0; T(hipMemRetainAllocationHandle(&r, va)); T(hipMemMap(va, S, 0, h, 0)); T(hipMemRetainAllocationHandle(&r, va)); SAY("%s", r == h ? "the same handle" : "ANOTHER handle");
  r = 0; T(hipMemRetainAllocationHandle(&r, va + 4096)); SAY("inside the mapping: %s", r == h ? "the same handle" : "another or none");
  T(hipMemUnmap(va, S)); T(hipMemRelease(h)); counts("after one release of a handle that was retained (h2, h4 and, if counted, h are left)"); T(hipMemRelease(h)); counts("after the second release");
}
static void c_retain_malloc(void) { void *p; H r = 0; T(hipMalloc(&p, S)); T(hipMemRetainAllocationHandle(&r, p)); }
static void c_props(void) { hipMemAllocationProp q; memset(&q, 0xff, sizeof q); T(hipMemGetAllocationPropertiesFromHandle(&q, h)); SAY("type %d handle type %d location %d/%d", q.type, q.requestedHandleType, q.location.type, q.location.id); T(hipMemGetAllocationPropertiesFromHandle(0, h)); }
static void c_export(void) {
  int fd = -1, fd2 = -1; T(hipMemExportToShareableHandle(&fd, h, hipMemHandleTypePosixFileDescriptor, 0)); T(hipMemExportToShareableHandle(&fd2, h, hipMemHandleTypePosixFileDescriptor, 0)); SAY("fds %d %d, cloexec %d", fd, fd2, fcntl(fd, F_GETFD));
  T(hipMemExportToShareableHandle(&fd2, h, hipMemHandleTypePosixFileDescriptor, 1)); T(hipMemExportToShareableHandle(&fd2, h, hipMemHandleTypeNone, 0)); T(hipMemExportToShareableHandle(&fd2, h, hipMemHandleTypeWin32, 0));
  H n = 0; hipMemAllocationProp q = prop; q.requestedHandleType = hipMemHandleTypeNone; T(hipMemCreate(&n, S, &q, 0)); T(hipMemExportToShareableHandle(&fd2, n, hipMemHandleTypePosixFileDescriptor, 0));
}
static void c_import(void) {
  int fd = -1; H i1 = 0, i2 = 0; counts("at the start"); T(hipMemExportToShareableHandle(&fd, h, hipMemHandleTypePosixFileDescriptor, 0));
  T(hipMemImportFromShareableHandle(&i1, import_arg(&fd), hipMemHandleTypePosixFileDescriptor)); T(hipMemImportFromShareableHandle(&i2, import_arg(&fd), hipMemHandleTypePosixFileDescriptor));
  SAY("handles %s", i1 == i2 ? "equal" : "different"); SAY("the fd is %s after the import", fcntl(fd, F_GETFD) < 0 ? "CLOSED" : "still open"); counts("after two imports");
  hipMemAllocationProp q; memset(&q, 0, sizeof q); T(hipMemGetAllocationPropertiesFromHandle(&q, i1)); SAY("type %d handle type %d location %d/%d", q.type, q.requestedHandleType, q.location.type, q.location.id);
  T(hipMemRelease(i1)); T(hipMemRelease(i2)); counts("after both releases");
  int other = open("/dev/null", O_RDWR); T(hipMemImportFromShareableHandle(&i1, import_arg(&other), hipMemHandleTypePosixFileDescriptor)); int none = 999; T(hipMemImportFromShareableHandle(&i1, import_arg(&none), hipMemHandleTypePosixFileDescriptor));
}
static void c_import_unmapped_release(void) { int fd = -1; H i = 0; T(hipMemExportToShareableHandle(&fd, h, hipMemHandleTypePosixFileDescriptor, 0)); T(hipMemImportFromShareableHandle(&i, import_arg(&fd), hipMemHandleTypePosixFileDescriptor)); T(hipMemMap(va, S, 0, i, 0)); T(hipMemSetAccess(va, S, &rw, 1)); works(va, S); int f2 = -1; T(hipMemExportToShareableHandle(&f2, i, hipMemHandleTypePosixFileDescriptor, 0)); T(hipMemUnmap(va, S)); T(hipMemRelease(i)); counts("(h, h2, h4 are left)"); }
static void c_import_other_way(void) { /* 7: by pointer, 6: by value */
  int fd = -1; H i = 0; T(hipMemExportToShareableHandle(&fd, h, hipMemHandleTypePosixFileDescriptor, 0));
#if HIP_VERSION_MAJOR >= 7
  T(hipMemImportFromShareableHandle(&i, &fd, hipMemHandleTypePosixFileDescriptor));
#else
  T(hipMemImportFromShareableHandle(&i, (void *)(intptr_t)fd, hipMemHandleTypePosixFileDescriptor));
#endif
}
static void c_hipfree(void) { T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); T(hipFree(va)); counts("after hipFree"); T(hipMemUnmap(va, S)); }
static void c_pointer_reserved(void) { hipPointerAttribute_t p; memset(&p, 0, sizeof p); T(hipPointerGetAttributes(&p, va)); SAY("type %d device %d", p.type, p.device); }
static void c_pointer_mapped(void) { hipPointerAttribute_t p; two(); memset(&p, 0, sizeof p); T(hipPointerGetAttributes(&p, va + 100)); SAY("type %d device %d devicePointer +%#zx hostPointer %p", p.type, p.device, (size_t)((char *)p.devicePointer - va), p.hostPointer); hipDeviceptr_t base = 0; size_t n = 0; T(hipMemGetAddressRange(&base, &n, va + S + 100)); SAY("range +%#zx %#zx", (size_t)((char *)base - va), n); memset(&p, 0, sizeof p); T(hipPointerGetAttributes(&p, va + 3 * S)); SAY("not mapped: type %d device %d", p.type, p.device); }
static void c_two_gpus(void) {
  int n; hipGetDeviceCount(&n); if (n < 2) { SAY("one GPU only"); return; }
  unsigned long long f = 9; hipMemLocation l1 = prop.location; l1.id = 1; hipMemAccessDesc d[2] = {rw, rw}; d[1].location = l1;
  T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); T(hipMemGetAccess(&f, &l1, va)); SAY("GPU 1's access: %llu", f); works(va, S);
  T(hipMemSetAccess(va, S, d, 2)); T(hipMemGetAccess(&f, &l1, va)); SAY("GPU 1's access: %llu", f);
  hipMemAllocationProp q = prop; q.location = l1; H g = 0; T(hipMemCreate(&g, S, &q, 0)); T(hipMemMap(va + S, S, 0, g, 0)); T(hipMemSetAccess(va + S, S, d, 2));
  works(va + S, S); T(hipMemcpy(va + S, va, S, hipMemcpyDeviceToDevice)); T(hipDeviceSynchronize());
  T(hipSetDevice(1)); works(va, S); works(va + S, S); T(hipMemset(va, 3, S)); T(hipDeviceSynchronize());
  int fd = -1; H i = 0; T(hipSetDevice(0)); T(hipMemExportToShareableHandle(&fd, g, hipMemHandleTypePosixFileDescriptor, 0)); T(hipMemImportFromShareableHandle(&i, import_arg(&fd), hipMemHandleTypePosixFileDescriptor)); T(hipMemGetAllocationPropertiesFromHandle(&q, i)); SAY("memory of GPU 1, imported with GPU 0 current: location.id %d", q.location.id);
  void *p = 0; T(hipSetDevice(1)); T(hipMemAddressReserve(&p, S, 0, 0, 0)); T(hipMemMap(p, S, 0, g, 0)); T(hipMemUnmap(p, S)); T(hipMemAddressFree(p, S));
}
static void c_two_gpus_no_access(void) { int n; hipGetDeviceCount(&n); if (n < 2) { SAY("one GPU only"); return; } T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); T(hipSetDevice(1)); T(hipMemset(va, 3, S)); T(hipDeviceSynchronize()); }
static void c_peer(void) { int n; hipGetDeviceCount(&n); if (n < 2) { SAY("one GPU only"); return; } int c = -1; T(hipDeviceCanAccessPeer(&c, 0, 1)); SAY("can access peer: %d", c); T(hipDeviceEnablePeerAccess(1, 0)); }
static void c_reuse(void) { for (int i = 0; i < 200; i++) { void *p = 0; H x = 0; if (hipMemAddressReserve(&p, S, 0, 0, 0) || hipMemCreate(&x, S, &prop, 0) || hipMemMap(p, S, 0, x, 0) || hipMemSetAccess(p, S, &rw, 1) || hipMemcpy(p, a, S, hipMemcpyHostToDevice) || hipMemUnmap(p, S) || hipMemRelease(x) || hipMemAddressFree(p, S)) { SAY("failed at %d", i); return; } } counts("after 200 rounds (8*S, h, h2, h4 are left)"); size_t f, t; hipMemGetInfo(&f, &t); SAY("free %zu of %zu", f, t); }
static void c_memgetinfo(void) { size_t f, t; T(hipMemGetInfo(&f, &t)); SAY("free %zu", f); void *p = 0; for (int i = 0; i < 100; i++) hipMemAddressReserve(&p, 1ull << 30, 0, 0, 0); T(hipMemGetInfo(&f, &t)); SAY("free after 100 reservations of 1 GiB: %zu", f); void *m = 0; T(hipMalloc(&m, S)); T(hipMemCreate(&h, S, &prop, 0)); }
static void *th(void *arg) { hipSetDevice(0); long k = (long)arg; char *p = va + k * 2 * S; H x; for (int i = 0; i < 100; i++) { if (hipMemCreate(&x, S, &prop, 0) || hipMemMap(p, S, 0, x, 0) || hipMemSetAccess(p, S, &rw, 1) || hipMemcpy(p, a, 65536, hipMemcpyHostToDevice) || hipMemUnmap(p, S) || hipMemRelease(x)) return (void *)1; } return 0; }
static void c_threads(void) { pthread_t t[4]; void *r; int bad = 0; for (long k = 0; k < 4; k++) pthread_create(&t[k], 0, th, (void *)k); for (int k = 0; k < 4; k++) { pthread_join(t[k], &r); bad += r != 0; } SAY("4 threads of 100 rounds: %d failed", bad); counts("after (h, h2, h4 are left)"); }

/* rounds of reserve, create, map, use, unmap, release, free: sync 1: hipDeviceSynchronize before the unmap; 2: before the free; 3: the range is kept */
static void rounds(int sync) {
  void *p = 0;
  for (int i = 0; i < 500; i++) {
    H x = 0;
    if (!p || sync != 3) if (hipMemAddressReserve(&p, S, 0, 0, 0)) { SAY("reserve failed at %d", i); return; }
    if (hipMemCreate(&x, S, &prop, 0) || hipMemMap(p, S, 0, x, 0) || hipMemSetAccess(p, S, &rw, 1) || hipMemcpy(p, a, S, hipMemcpyHostToDevice)) { SAY("failed at %d", i); return; }
    if (sync == 1) hipDeviceSynchronize();
    if (hipMemUnmap(p, S) || hipMemRelease(x)) { SAY("unmap or release failed at %d", i); return; }
    if (sync == 2) hipDeviceSynchronize();
    if (sync == 4) usleep(20000);
    if (sync != 3 && hipMemAddressFree(p, S)) { SAY("free failed at %d", i); return; }
  }
  SAY("500 rounds done"); counts("after");
}
static void c_rounds(void) { rounds(0); }
static void c_rounds_sync_unmap(void) { rounds(1); }
static void c_rounds_sync_free(void) { rounds(2); }
static void c_rounds_keep_va(void) { rounds(3); }
static void c_rounds_pause(void) { rounds(4); }
static void c_retain_as_cuda(void) { /* in CUDA each retain requires a release */
  H r = 0; T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); T(hipMemRetainAllocationHandle(&r, va)); T(hipMemRelease(h)); counts("after the release of h"); T(hipMemRelease(r)); counts("after the release of the retained one"); works(va, S); T(hipMemUnmap(va, S)); counts("after the unmap");
}
static void c_release_then_retain(void) { H r = 0; T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); T(hipMemRelease(h)); T(hipMemRetainAllocationHandle(&r, va)); T(hipMemMap(va + S, S, 0, r, 0)); T(hipMemSetAccess(va + S, S, &rw, 1)); works(va + S, S); T(hipMemUnmap(va, S)); T(hipMemUnmap(va + S, S)); counts("(h2, h4 are left)"); }
static void c_memset_other_gpu(void) {
  int n; hipGetDeviceCount(&n); if (n < 2) { SAY("one GPU only"); return; }
  void *m = 0; T(hipMalloc(&m, S)); T(hipMemMap(va, S, 0, h, 0)); hipMemAccessDesc d[2] = {rw, rw}; d[1].location.id = 1; T(hipMemSetAccess(va, S, d, 2));
  T(hipSetDevice(1)); T(hipDeviceEnablePeerAccess(0, 0)); T(hipMemset(m, 3, S)); T(hipMemset(va, 3, S)); T(hipMemsetAsync(va, 3, S, 0)); T(hipDeviceSynchronize()); }
static void c_mempool(void) { void *p = 0; T(hipMallocAsync(&p, S, 0)); works(p, S); T(hipFreeAsync(p, 0)); T(hipDeviceSynchronize()); }
static void c_managed(void) { void *p = 0; T(hipMallocManaged(&p, S, hipMemAttachGlobal)); works(p, S); T(hipFree(p)); }
static void c_map_from_capture(void) { hipStream_t st; hipGraph_t g; T(hipStreamCreate(&st)); T(hipStreamBeginCapture(st, hipStreamCaptureModeGlobal)); T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); T(hipMemUnmap(va, S)); T(hipStreamEndCapture(st, &g)); }
static void c_other_process(void) {
  int sv[2]; pid_t me; (void)me; T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1)); works(va, S);
  int fd = -1; T(hipMemExportToShareableHandle(&fd, h, hipMemHandleTypePosixFileDescriptor, 0));
  (void)sv; char num[32]; snprintf(num, sizeof num, "%d", fd); fcntl(fd, F_SETFD, 0);
  pid_t p = fork(); if (!p) { execlp("/bin/sh", "sh", "-c", "exec $HIP_RUN \"$0\" --import $1", getenv("HIP_SELF"), num, (char *)0); _exit(9); }
  int st; waitpid(p, &st, 0); SAY("the other process ended with %d", st);
  memset(b, 0, S); T(hipMemcpy(b, va, S, hipMemcpyDeviceToHost)); SAY("its bytes are %s", ((unsigned char *)b)[S - 1] == 0x77 ? "here" : "NOT here");
}
static int import_main(int fd) {
  setup(); H i = 0; T(hipMemImportFromShareableHandle(&i, import_arg(&fd), hipMemHandleTypePosixFileDescriptor)); T(hipMemMap(va, S, 0, i, 0)); T(hipMemSetAccess(va, S, &rw, 1));
  memset(b, 0, S); T(hipMemcpy(b, va, S, hipMemcpyDeviceToHost)); SAY("in the other process: bytes %s", memcmp(a, b, S) ? "DIFFER" : "right"); T(hipMemset(va, 0x77, S)); T(hipDeviceSynchronize()); T(hipMemUnmap(va, S)); T(hipMemRelease(i)); fflush(stdout); return 0;
}

/* a pool that grows at its end, chunk by chunk of odd sizes: the pattern of ROCm/rocm-systems#2516 */
static void c_grow(void) {
  char *pool = 0; size_t used = 0; unsigned seed = 1, ok = 0, said = 0; hipMemAllocationProp q = prop; q.requestedHandleType = hipMemHandleTypeNone;
  T(hipMemAddressReserve((void **)&pool, 1ull << 35, 0, 0, 0));
  for (int i = 0; i < 300; i++) {
    seed = seed * 1103515245 + 12345; size_t n = (1 + (seed >> 16) % 700) * 4096; H x = 0;
    if (hipMemCreate(&x, n, &q, 0) || hipMemMap(pool + used, n, 0, x, 0) || hipMemRelease(x)) { SAY("step %d of %zu bytes: create, map or release failed", i, n); return; }
    hipError_t e = hipMemSetAccess(pool + used, n, &rw, 1); if (!e) ok++; else if (said++ < 3) SAY("step %d, %zu bytes at +%#zx: hipMemSetAccess: %s", i, n, used, hipGetErrorName(e));
    used += n;
  }
  SAY("300 steps, %u with access, %zu bytes", ok, used); hipError_t e = hipMemUnmap(pool, used); SAY("one unmap of it all: %s", hipGetErrorName(e)); counts("after"); T(hipMemAddressFree(pool, 1ull << 35)); counts("after the free");
}
/* the same with chunks of one size: forwards, in a scattered order, runs of several, after holes */
static void c_grow_uniform(void) {
  char *p = 0; H x[64]; unsigned bad = 0, i; hipMemAllocationProp q = prop; q.requestedHandleType = hipMemHandleTypeNone;
  T(hipMemAddressReserve((void **)&p, 64 * S, 0, 0, 0));
  for (i = 0; i < 64; i++) if (hipMemCreate(&x[i], S, &q, 0)) bad++;
  for (i = 0; i < 32; i++) if (hipMemMap(p + i * S, S, 0, x[i], 0) || hipMemSetAccess(p + i * S, S, &rw, 1)) bad++;
  SAY("32 forwards, one by one: %u failed", bad); bad = 0;
  for (i = 0; i < 32; i++) { unsigned k = 32 + (i * 13) % 32; if (hipMemMap(p + k * S, S, 0, x[k], 0) || hipMemSetAccess(p + k * S, S, &rw, 1)) bad++; }
  SAY("32 scattered, one by one: %u failed", bad); bad = 0;
  for (i = 0; i + 5 < 64; i++) if (hipMemSetAccess(p + i * S, 5 * S, &rw, 1)) bad++;
  SAY("runs of 5: %u failed", bad); bad = 0;
  for (i = 0; i < 64; i += 3) if (hipMemUnmap(p + i * S, S)) bad++;
  for (i = 1; i + 1 < 64; i += 3) if (hipMemSetAccess(p + i * S, 2 * S, &rw, 1)) bad++;
  SAY("holes, then runs of 2 between them: %u failed", bad); bad = 0;
  for (i = 0; i < 64; i += 3) if (hipMemMap(p + i * S, S, 0, x[i], 0) || hipMemSetAccess(p + i * S, S, &rw, 1)) bad++;
  SAY("holes filled again: %u failed", bad); bad = 0;
  for (i = 0; i < 64; i++) { memset(b, 0, S); if (hipMemcpy(p + i * S, a, S, hipMemcpyHostToDevice) || hipMemcpy(b, p + i * S, S, hipMemcpyDeviceToHost) || memcmp(a, b, S)) bad++; }
  SAY("copies to and from each: %u failed", bad); bad = 0;
  for (i = 0; i < 64; i++) if (hipMemUnmap(p + i * S, S) || hipMemRelease(x[i])) bad++;
  SAY("unmap and release: %u failed", bad); T(hipMemAddressFree(p, 64 * S)); counts("(1 reservation and h, h2, h4 are left)");
}
/* access set once, for the whole run from its start, in chunks of odd sizes */
static void c_grow_whole(void) {
  char *p = 0; size_t used = 0; unsigned seed = 1, bad = 0; hipMemAllocationProp q = prop;
  T(hipMemAddressReserve((void **)&p, 1ull << 30, 0, 0, 0));
  for (int i = 0; i < 50; i++) { seed = seed * 1103515245 + 12345; size_t n = (1 + (seed >> 16) % 700) * 4096; H x; if (hipMemCreate(&x, n, &q, 0) || hipMemMap(p + used, n, 0, x, 0)) { SAY("create or map failed"); return; } used += n; if (hipMemSetAccess(p, used, &rw, 1)) bad++; }
  SAY("odd sizes, access always set from the start to the end: %u of 50 failed", bad);
}
static void c_two_reservations(void) {
  char *p[3]; unsigned bad = 0; for (int r = 0; r < 3; r++) hipMemAddressReserve((void **)&p[r], 16 * S, 0, 0, 0);
  for (int i = 0; i < 8; i++) for (int r = 0; r < 3; r++) { H x; size_t n = (r + 1) * S; if (hipMemCreate(&x, n, &prop, 0) || ((size_t)(i + 1) * n <= 16 * S && (hipMemMap(p[r] + i * n, n, 0, x, 0) || hipMemSetAccess(p[r] + i * n, n, &rw, 1)))) bad++; }
  SAY("three reservations, each with its own chunk size, grown in turns: %u failed", bad);
}
static void c_map_after_unmap_all(void) { two(); T(hipMemUnmap(va, 2 * S)); T(hipMemMap(va, S, 0, h, 0)); T(hipMemMap(va + S, S, 0, h2, 0)); T(hipMemSetAccess(va, 2 * S, &rw, 1)); works(va, S); works(va + S, S); T(hipMemUnmap(va, S)); T(hipMemUnmap(va + S, S)); T(hipMemRelease(h)); T(hipMemRelease(h2)); counts("(h4 is left, if all is well)"); T(hipMemAddressFree(va, 8 * S)); }
static void c_map_on_busy_stream(void) { hipStream_t st; T(hipStreamCreateWithFlags(&st, hipStreamNonBlocking)); two(); for (int i = 0; i < 20; i++) hipMemcpyAsync(va, a, S, hipMemcpyHostToDevice, st); T(hipMemUnmap(va, S)); T(hipStreamSynchronize(st)); SAY("hipMemUnmap on a range that another stream was copying to"); }

#define C(n) {#n, c_##n}
static struct { const char *name; void (*run)(void); } cases[] = {
  C(reserve), C(create), C(location_none), C(map_offset), C(map_short), C(map_long), C(map_null), C(map_unreserved), C(map_past_end), C(map_twice), C(map_overlap), C(map_odd), C(alias),
  C(access_before_map), C(access_part), C(access_inside), C(access_gap), C(access_args), C(access_host), C(readonly), C(no_access), C(copy_unmapped), C(copy_after_unmap), C(copy_across), C(copy_across_d2d), C(memset_across), C(memset_async_across), C(copy_async_across),
  C(unmap_part), C(unmap_inside), C(unmap_two), C(unmap_unmapped), C(unmap_twice), C(unmap_null), C(free_mapped), C(free_wrong_size), C(free_inside), C(free_unknown), C(free_twice), C(free_null),
  C(release_mapped), C(release_twice), C(release_null), C(retain), C(retain_malloc), C(props), C(export), C(import), C(import_unmapped_release), C(import_other_way), C(hipfree), C(pointer_reserved), C(pointer_mapped),
  C(two_gpus), C(two_gpus_no_access), C(peer), C(reuse), C(memgetinfo), C(threads),
  C(rounds), C(rounds_sync_unmap), C(rounds_sync_free), C(rounds_keep_va), C(rounds_pause), C(retain_as_cuda), C(release_then_retain), C(memset_other_gpu), C(mempool), C(managed), C(map_from_capture), C(other_process), C(grow), C(grow_uniform), C(grow_whole), C(two_reservations), C(map_after_unmap_all), C(map_on_busy_stream),
};
int main(int argc, char **argv) {
  if (argc > 2 && !strcmp(argv[1], "--import")) return import_main(atoi(argv[2]));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (argc > 1 && strcmp(argv[1], cases[i].name)) continue;
    printf("%s:\n", cases[i].name); fflush(stdout);
    pid_t p = fork();
    if (!p) { alarm(30); setup(); cases[i].run(); fflush(stdout); _exit(0); }
    int st; waitpid(p, &st, 0);
    if (WIFSIGNALED(st)) printf("  -> DIED: %s\n", strsignal(WTERMSIG(st)));
    else if (WEXITSTATUS(st)) printf("  -> exit status %d\n", WEXITSTATUS(st));
  }
  return 0;
}
