// A profiler: it writes each range of NVTX and of rocTX, and each registration of memory, as a line to the file in TOOL_LOG. It
// declares what it needs of NVIDIA's headers nvtxTypes.h, nvtxExtTypes.h and nvToolsExtMem.h itself.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *output;

// The part of the tool that TOOL_REFUSES names is not there: `nvtx`, `memory` (the extension), `regions` (one function of it),
// or `heaps` (a heap is refused).
static int refuses(const char *part) {
    const char *refused = getenv("TOOL_REFUSES");
    return refused && !strcmp(refused, part);
}

static void open_output(void) {
    if (!output) {
        const char *path = getenv("TOOL_LOG");
        output = fopen(path ? path : "/dev/null", "a");
        if (!output) abort();
        setvbuf(output, NULL, _IOLBF, 0);
    }
}

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
} Event;

static void *domain_create(const char *name) {
    fprintf(output, "domain %s\n", name);
    return &output;
}

static int push(void *domain, const Event *event) {
    int is_right = domain == &output && event->version == 3 && event->size == sizeof(Event) && event->message_type == 1;
    fprintf(output, "%s %s\n", is_right ? "push" : "wrong", event->message);
    return 0;
}

static int pop(void *domain) {
    fprintf(output, "%s\n", domain == &output ? "pop" : "wrong pop");
    return 0;
}

typedef struct {
    size_t size;
    int (*module)(int module, void ***(*table), unsigned *size);
} Callbacks;

typedef struct {
    size_t size;
    uint32_t version;
} Version;

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    open_output();
    const Callbacks *callbacks = export_table(1);
    const Version *version = export_table(3);
    void ***table;
    unsigned size;
    if (!callbacks || callbacks->size != sizeof(Callbacks) || !version || version->version != 3) return 0;
    if (export_table(99) || callbacks->module(0, &table, &size) || callbacks->module(7, &table, &size)) return 0;
    const unsigned sizes[] = {0, 16, 9, 15, 7, 16, 7};
    for (int module = 1; module < 7; module++) {
        if (!callbacks->module(module, &table, &size) || size != sizes[module] || table[0] || table[size]) return 0;
        for (unsigned slot = 1; slot < size; slot++)
            if (!table[slot]) return 0;
    }
    callbacks->module(5, &table, &size);
    *table[12] = (void *)domain_create;
    *table[4] = (void *)push;
    *table[5] = (void *)pop;
    if (!refuses("nvtx")) return 1;
    fprintf(output, "refused\n");
    return 0;
}

typedef struct {
    size_t size;
    const void *address;
} Range;

typedef struct {
    uint16_t compatible, size;
    uint32_t reserved, usage, type;
    size_t range_size;
    const Range *range;
    uint32_t category, message_type;
    const void *message;
} Heap;

typedef struct {
    uint16_t compatible, size;
    uint32_t type;
    void *heap;
    size_t count, range_size;
    const Range *ranges;
    void **handles;
} Register;

typedef struct {
    uint16_t compatible, size;
    uint32_t type;
    size_t count, reference_size;
    const void *const *references;
} Unregister;

static void *heap_register(void *domain, const Heap *heap) {
    int is_right = domain == &output && heap->compatible == 0x0102 && heap->size == sizeof(Heap) && heap->usage == 1
        && heap->type == 1 && heap->range_size == sizeof(Range);
    fprintf(output, "%s %p %zu\n", is_right ? "heap" : "wrong heap", heap->range->address, heap->range->size);
    return refuses("heaps") ? NULL : (void *)heap->range->address;
}

static void heap_unregister(void *domain, void *heap) {
    fprintf(output, "%s %p\n", domain == &output ? "heap-gone" : "wrong heap-gone", heap);
}

static void regions_register(void *domain, const Register *list) {
    int is_right = domain == &output && list->compatible == 0x0102 && list->size == sizeof(Register) && list->type == 1
        && list->range_size == sizeof(Range) && !list->handles;
    for (size_t i = 0; i < list->count; i++)
        fprintf(output, "%s %p %zu %p\n", is_right ? "block" : "wrong block", list->ranges[i].address, list->ranges[i].size, list->heap);
}

static void regions_unregister(void *domain, const Unregister *list) {
    int is_right = domain == &output && list->compatible == 0x0102 && list->size == sizeof(Unregister) && list->type == 1
        && list->reference_size == sizeof(void *);
    for (size_t i = 0; i < list->count; i++)
        fprintf(output, "%s %p\n", is_right ? "block-gone" : "wrong block-gone", list->references[i]);
}

typedef struct {
    size_t id, count;
    intptr_t *slots;
} Segment;

typedef struct {
    uint16_t version, size, module, compatible;
    size_t segment_count;
    Segment *segments;
    intptr_t (*function)(uint32_t);
    const void *info;
} Module;

int InitializeInjectionNvtxExtension(Module *module) {
    if (module->version != 3 || module->size != sizeof(Module) || module->module != 1 || module->compatible != 0x0102) return 0;
    if (module->segment_count != 1 || module->segments->id != 1 || module->segments->count != 63) return 0;
    intptr_t *slots = module->segments->slots;
    slots[0] = (intptr_t)heap_register;
    slots[1] = (intptr_t)heap_unregister;
    if (!refuses("regions")) slots[3] = (intptr_t)regions_register;
    slots[5] = (intptr_t)regions_unregister;
    return !refuses("memory");
}

// rocTX, which AMD's profilers load with a program.
int roctxRangePushA(const char *name) {
    open_output();
    fprintf(output, "rocTX push %s\n", name);
    return 0;
}

int roctxRangePop(void) {
    fprintf(output, "rocTX pop\n");
    return 0;
}
