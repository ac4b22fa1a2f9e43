/* HIP's results of calls while a stream of the program captures. A table: for each of the three modes and each call, the
 * calling thread (the capturing one or another, each in its own mode or after hipThreadExchangeStreamCaptureMode to
 * relaxed), and "the call's result/the later result of hipStreamEndCapture". Every line runs in a child of its own,
 * so that calls do not affect each other. `capture.6.4.3.txt` and `capture.7.2.4.txt` have its output. */
#define _GNU_SOURCE
#include <hip/hip_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define S ((size_t)2 << 20)
#define LEGACY ((hipStream_t)(uintptr_t)1)
#define PER_THREAD ((hipStream_t)(uintptr_t)2)
static hipStream_t captured, other, blocking;
static hipEvent_t event, earlier; /* recorded on another stream; on the one that captures, before it did */
static char *memory;
static hipError_t first(hipError_t a, hipError_t b) { return a != hipSuccess ? a : b; }

static hipError_t c_none(void) { return hipSuccess; }
static hipError_t c_event_query(void) { return hipEventQuery(event); }
static hipError_t c_event_wait(void) { return hipEventSynchronize(event); }
static hipError_t c_query_earlier(void) { return hipEventQuery(earlier); }
static hipError_t c_wait_earlier(void) { return hipEventSynchronize(earlier); }
static hipError_t c_hold_earlier(void) { return hipStreamWaitEvent(other, earlier, 0); }
static hipError_t c_record_earlier(void) { return hipEventRecord(earlier, other); }
static hipError_t c_end_earlier(void) { hipEvent_t ended = earlier; return first(hipEventCreateWithFlags(&earlier, hipEventDisableTiming), hipEventDestroy(ended)); }
static hipError_t c_record_other(void) { return hipEventRecord(event, other); }
static hipError_t c_record_blocking(void) { return hipEventRecord(event, blocking); }
static hipError_t c_record_null(void) { return hipEventRecord(event, NULL); }
static hipError_t c_record_legacy(void) { return hipEventRecord(event, LEGACY); }
static hipError_t c_record_per_thread(void) { return hipEventRecord(event, PER_THREAD); }
static hipError_t c_wait_event_other(void) { return hipStreamWaitEvent(other, event, 0); }
static hipError_t c_query_other(void) { return hipStreamQuery(other); }
static hipError_t c_query_null(void) { return hipStreamQuery(NULL); }
static hipError_t c_wait_other(void) { return hipStreamSynchronize(other); }
static hipError_t c_wait_blocking(void) { return hipStreamSynchronize(blocking); }
static hipError_t c_wait_null(void) { return hipStreamSynchronize(NULL); }
static hipError_t c_wait_legacy(void) { return hipStreamSynchronize(LEGACY); }
static hipError_t c_wait_per_thread(void) { return hipStreamSynchronize(PER_THREAD); }
static hipError_t c_wait_device(void) { return hipDeviceSynchronize(); }
static hipError_t c_wait_other_device(void) { hipError_t a = hipSetDevice(1), b = hipDeviceSynchronize(); (void)hipSetDevice(0); return first(a, b); }
/* Its status is printed plus 1000. */
static hipError_t capturing(hipStream_t stream) {
    hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
    hipError_t error = hipStreamIsCapturing(stream, &status);
    return error ? error : status ? (hipError_t)(1000 + status) : hipSuccess;
}
static hipError_t c_is_captured(void) { return capturing(captured); }
static hipError_t c_is_other(void) { return capturing(other); }
static hipError_t c_is_blocking(void) { return capturing(blocking); }
static hipError_t c_is_null(void) { return capturing(NULL); }
static hipError_t c_is_legacy(void) { return capturing(LEGACY); }
static hipError_t c_is_per_thread(void) { return capturing(PER_THREAD); }
static hipError_t c_info_null(void) {
    hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
    hipError_t error = hipStreamGetCaptureInfo(NULL, &status, NULL);
    return error ? error : status ? (hipError_t)(1000 + status) : hipSuccess;
}
static hipError_t c_device_of_null(void) { hipDevice_t device; return hipStreamGetDevice(NULL, &device); }
static hipError_t c_flags_null(void) { unsigned flags; return hipStreamGetFlags(NULL, &flags); }
static hipError_t c_malloc(void) { void *at = NULL; hipError_t a = hipMalloc(&at, 4096); return first(a, hipFree(at)); }
static hipError_t c_host_malloc(void) { void *at = NULL; hipError_t a = hipHostMalloc(&at, 4096, 0); return first(a, hipHostFree(at)); }
static hipError_t c_copy(void) { char bytes[16]; return hipMemcpy(bytes, memory, sizeof bytes, hipMemcpyDeviceToHost); }
static hipError_t c_memset(void) { return hipMemset(memory, 0, 4096); }
static hipError_t c_event(void) { hipEvent_t made; hipError_t a = hipEventCreateWithFlags(&made, hipEventDisableTiming); return first(a, hipEventDestroy(made)); }
static hipError_t c_stream(void) { hipStream_t made; hipError_t a = hipStreamCreateWithFlags(&made, hipStreamNonBlocking); return first(a, hipStreamDestroy(made)); }
static hipError_t c_memory_info(void) { size_t a, b; return hipMemGetInfo(&a, &b); }
static hipError_t c_virtual_memory(void) {
    hipMemAllocationProp prop; hipMemAccessDesc rw; hipMemGenericAllocationHandle_t handle; void *at = NULL;
    memset(&prop, 0, sizeof prop); memset(&rw, 0, sizeof rw);
    prop.type = hipMemAllocationTypePinned; prop.location.type = hipMemLocationTypeDevice;
    rw.location = prop.location; rw.flags = hipMemAccessFlagsProtReadWrite;
    hipError_t e = hipMemAddressReserve(&at, S, 0, 0, 0);
    e = first(e, hipMemCreate(&handle, S, &prop, 0));
    e = first(e, hipMemMap(at, S, 0, handle, 0));
    e = first(e, hipMemSetAccess(at, S, &rw, 1));
    e = first(e, hipMemUnmap(at, S));
    e = first(e, hipMemRelease(handle));
    return first(e, hipMemAddressFree(at, S));
}

static const struct { const char *name; hipError_t (*call)(void); } calls[] = {
    {"none", c_none},
    {"hipEventQuery", c_event_query}, {"hipEventSynchronize", c_event_wait},
    {"hipEventQuery(recorded here before)", c_query_earlier}, {"hipEventSynchronize(recorded here before)", c_wait_earlier},
    {"hipStreamWaitEvent(other, recorded here)", c_hold_earlier}, {"hipEventRecord(recorded here, other)", c_record_earlier},
    {"hipEventDestroy(recorded here before)", c_end_earlier},
    {"hipEventRecord(other)", c_record_other}, {"hipEventRecord(blocking)", c_record_blocking}, {"hipEventRecord(null)", c_record_null},
    {"hipEventRecord(hipStreamLegacy)", c_record_legacy}, {"hipEventRecord(hipStreamPerThread)", c_record_per_thread},
    {"hipStreamWaitEvent(other)", c_wait_event_other},
    {"hipStreamQuery(other)", c_query_other}, {"hipStreamQuery(null)", c_query_null},
    {"hipStreamSynchronize(other)", c_wait_other}, {"hipStreamSynchronize(blocking)", c_wait_blocking}, {"hipStreamSynchronize(null)", c_wait_null},
    {"hipStreamSynchronize(hipStreamLegacy)", c_wait_legacy}, {"hipStreamSynchronize(hipStreamPerThread)", c_wait_per_thread},
    {"hipDeviceSynchronize", c_wait_device}, {"hipDeviceSynchronize of another device", c_wait_other_device},
    {"hipStreamIsCapturing(captured)", c_is_captured}, {"hipStreamIsCapturing(other)", c_is_other}, {"hipStreamIsCapturing(blocking)", c_is_blocking},
    {"hipStreamIsCapturing(null)", c_is_null}, {"hipStreamIsCapturing(hipStreamLegacy)", c_is_legacy},
    {"hipStreamIsCapturing(hipStreamPerThread)", c_is_per_thread}, {"hipStreamGetCaptureInfo(null)", c_info_null},
    {"hipStreamGetDevice(null)", c_device_of_null}, {"hipStreamGetFlags(null)", c_flags_null},
    {"hipMalloc, hipFree", c_malloc}, {"hipHostMalloc, hipHostFree", c_host_malloc}, {"hipMemcpy to the host", c_copy}, {"hipMemset", c_memset},
    {"an event made and destroyed", c_event}, {"a stream made and destroyed", c_stream}, {"hipMemGetInfo", c_memory_info},
    {"virtual memory made and undone", c_virtual_memory},
};
enum { CALLS = sizeof calls / sizeof *calls };

struct cell { int call, elsewhere, relaxed; hipError_t answer; };
static void *work(void *argument) {
    struct cell *cell = argument;
    hipStreamCaptureMode mode = hipStreamCaptureModeRelaxed;
    if (cell->relaxed) (void)hipThreadExchangeStreamCaptureMode(&mode);
    cell->answer = calls[cell->call].call();
    if (cell->relaxed) (void)hipThreadExchangeStreamCaptureMode(&mode);
    return NULL;
}

static void run(struct cell cell, hipStreamCaptureMode mode, unsigned flags, int out) {
    int answers[2] = {-1, -1};
    hipGraph_t graph = NULL;
    if (hipStreamCreateWithFlags(&captured, flags) || hipEventRecord(event, other) || hipEventRecord(earlier, captured) || hipDeviceSynchronize() ||
        hipStreamBeginCapture(captured, mode)) exit(3);
    if (cell.elsewhere) { pthread_t thread; pthread_create(&thread, NULL, work, &cell); pthread_join(thread, NULL); }
    else work(&cell);
    answers[0] = cell.answer;
    answers[1] = hipStreamEndCapture(captured, &graph);
    if (write(out, answers, sizeof answers) < 0) exit(4);
    (void)hipStreamDestroy(captured); /* an invalidated capture would stay invalid */
}

static void line(int call, hipStreamCaptureMode mode, unsigned flags, int out) {
    if (hipInit(0) || hipSetDevice(0) || hipStreamCreateWithFlags(&other, hipStreamNonBlocking) || hipStreamCreate(&blocking) ||
        hipEventCreateWithFlags(&event, hipEventDisableTiming) || hipEventCreateWithFlags(&earlier, hipEventDisableTiming) || hipMalloc((void **)&memory, 4096)) exit(3);
    for (int who = 0; who < 4; who++) {
        struct cell cell = {call, who / 2, who % 2, hipSuccess};
        run(cell, mode, flags, out);
    }
    _exit(0);
}

int main(void) {
    static const struct { const char *name; hipStreamCaptureMode mode; } modes[] = {
        {"global", hipStreamCaptureModeGlobal}, {"thread-local", hipStreamCaptureModeThreadLocal}, {"relaxed", hipStreamCaptureModeRelaxed}};
    static const struct { const char *name; unsigned flags; } kinds[] = {{"non-blocking", hipStreamNonBlocking}, {"blocking", hipStreamDefault}};
    for (int k = 0; k < 2; k++) for (int m = 0; m < 3; m++) {
        printf("== a %s stream captures, mode %s\n%-42s %-11s %-11s %-11s %-11s\n", kinds[k].name, modes[m].name, "", "same", "relaxed", "other", "relaxed");
        for (int c = 0; c < CALLS; c++) {
            int ends[2], answers[2], status = 0;
            printf("%-42s", calls[c].name);
            fflush(stdout);
            if (pipe(ends)) return 1;
            pid_t child = fork();
            if (child == 0) { alarm(60); line(c, modes[m].mode, kinds[k].flags, ends[1]); }
            close(ends[1]);
            while (read(ends[0], answers, sizeof answers) == sizeof answers) {
                char text[32];
                snprintf(text, sizeof text, "%d/%d", answers[0], answers[1]);
                printf(" %-11s", text);
            }
            close(ends[0]);
            waitpid(child, &status, 0);
            if (WIFSIGNALED(status)) printf(" signal %d", WTERMSIG(status));
            else if (WEXITSTATUS(status)) printf(" exit %d", WEXITSTATUS(status));
            printf("\n");
        }
    }
    return 0;
}
