/* Kernels through AMD's compiler and runtime: compiled from kernels.hip by hiprtc, launched as modules.
 * kernels FILE.hip; exit status 0: every check passed. kernels FILE.hip fault: one kernel makes a forbidden write. */
#define _GNU_SOURCE
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long word;
static int bad;
#define T(x) do { int e_ = (x); if (e_) { printf("%s: %d\n", #x, e_); bad++; } } while (0)
#define CHECK(x) do { int ok_ = !!(x); printf("  check %-70s %s\n", #x, ok_ ? "ok" : "FAILED"); if (!ok_) bad++; } while (0)
#define S ((size_t)2 << 20)

static hipModule_t module;

static void compile(const char *file) {
  FILE *f = fopen(file, "rb");
  static char text[1 << 16];
  if (!f || !fread(text, 1, sizeof text - 1, f)) { perror(file); exit(2); }
  fclose(f);
  hiprtcProgram program;
  T(hiprtcCreateProgram(&program, text, file, 0, 0, 0));
  T(hiprtcCompileProgram(program, 0, 0));
  size_t size = 0;
  T(hiprtcGetCodeSize(program, &size));
  char *code = malloc(size);
  T(hiprtcGetCode(program, code));
  T(hiprtcDestroyProgram(&program));
  T(hipModuleLoadData(&module, code));
  free(code);
}

static void run(const char *name, void **arguments) {
  hipFunction_t function = 0;
  T(hipModuleGetFunction(&function, module, name));
  T(hipModuleLaunchKernel(function, 8, 1, 1, 256, 1, 1, 0, 0, arguments, 0));
  T(hipDeviceSynchronize());
}
#define RUN(name, ...) do { word v_[] = {__VA_ARGS__}; void *p_[8]; for (size_t i_ = 0; i_ < sizeof v_ / 8; i_++) p_[i_] = &v_[i_]; run(name, p_); } while (0)

static word at(char *p) { word w = 0; T(hipMemcpy(&w, p, 8, hipMemcpyDeviceToHost)); return w; }

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  T(hipInit(0)); T(hipSetDevice(0));
  compile(argv[1]);
  hipMemAllocationProp prop; memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned; prop.location.type = hipMemLocationTypeDevice;
  hipMemAccessDesc rw; memset(&rw, 0, sizeof rw); rw.location = prop.location; rw.flags = hipMemAccessFlagsProtReadWrite;
  char *va = 0; hipMemGenericAllocationHandle_t h;
  T(hipMemAddressReserve((void **)&va, 2 * S, 0, 0, 0));
  T(hipMemCreate(&h, S, &prop, 0)); T(hipMemMap(va, S, 0, h, 0)); T(hipMemSetAccess(va, S, &rw, 1));
  if (argc > 2) { RUN("gpu_vmm_write_at", (word)va + S, 1); printf("went on\n"); return bad; }
  char *sum = 0; T(hipMalloc((void **)&sum, 8));
  RUN("gpu_vmm_fill", (word)va, S / 8, 3);
  CHECK(at(va) == 3 && at(va + S - 8) == 3);
  T(hipMemset(sum, 0, 8));
  RUN("gpu_vmm_checksum", (word)va, 1000, (word)sum);
  CHECK(at(sum) == 3 * 1000 * 1000);
  RUN("gpu_vmm_write_at", (word)va + 16, 7);
  CHECK(at(va + 16) == 7 && at(va + 8) == 3 && at(va + 24) == 3);
  RUN("gpu_vmm_copy_strided", (word)va + 4096, 5, (word)va, 2, 2);
  CHECK(at(va + 4096) == 3 && at(va + 4096 + 40) == 7 && at(va + 4096 + 8) == 3);
  T(hipFree(sum)); T(hipMemUnmap(va, S)); T(hipMemRelease(h)); T(hipMemAddressFree(va, 2 * S)); T(hipModuleUnload(module));
  printf("%d failed\n", bad);
  return bad != 0;
}
