// Callbacks before and after the memory behind an address changes.
//
// The first argument is the backend. The exit status is 0 if every check holds.

#include "support.h"
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

// What a registrar of a network card counts.
typedef struct {
    gpu_vmm_region *region;
    int before;
    int after;
    int released;
    uint32_t effect;
    uint32_t outcome;
    uint64_t bytes;
    uint64_t new_address;
    char operation[32];
    gpu_vmm_status answer;
    gpu_vmm_status nested[4];
} registrar;

static gpu_vmm_status before(void *context, const gpu_vmm_backing_change *change) {
    registrar *state = (registrar *)context;
    state->before++;
    state->effect = change->effect;
    state->new_address = change->new_address;
    state->bytes = 0;
    for (uint64_t at = 0; at < change->count; ++at) {
        state->bytes += change->parts[at].length;
    }
    snprintf(state->operation, sizeof state->operation, "%s", change->operation);
    if (state->region != NULL) {
        // The region that changes is in use: these calls must return, and not wait for themselves.
        uint64_t number = 0;
        state->nested[0] = gpu_vmm_region_size(state->region, &number);
        state->nested[1] = gpu_vmm_region_suspend(state->region, "host", false, &number);
        state->nested[2] = gpu_vmm_region_swap_all(state->region, (const gpu_vmm_region *)state->region, false);
        state->nested[3] = gpu_vmm_region_remove_observer(state->region, 0);
    }
    return state->answer;
}

static void after(void *context, const gpu_vmm_backing_change *change, uint32_t outcome) {
    registrar *state = (registrar *)context;
    demand(change->effect == state->effect, "the change after is the change before");
    state->after++;
    state->outcome = outcome;
}

static void released(void *context) {
    ((registrar *)context)->released++;
}

static gpu_vmm_observer observer_of(registrar *state) {
    gpu_vmm_observer observer;
    memset(&observer, 0, sizeof observer);
    observer.context = state;
    observer.before = before;
    observer.after = after;
    observer.released = released;
    return observer;
}

// One change was announced and reported since the last call.
static void told(registrar *state, const char *operation, uint32_t effect, uint32_t outcome, uint64_t bytes) {
    demand(state->before == 1 && state->after == 1, operation);
    demand(strcmp(state->operation, operation) == 0, state->operation);
    demand(state->effect == effect && state->outcome == outcome && state->bytes == bytes, operation);
    state->before = state->after = 0;
}

static void changes(const gpu_vmm_backend *backend, uint64_t unit) {
    registrar state, second;
    memset(&state, 0, sizeof state);
    memset(&second, 0, sizeof second);
    gpu_vmm_region *region = filled(backend, 2, 1), *other = filled(backend, 2, 3);
    const gpu_vmm_observer observer = observer_of(&state), other_observer = observer_of(&second);
    uint64_t id = 0, size = 0;
    CHECK(gpu_vmm_region_on_backing_change(region, &observer, &id));
    CHECK(gpu_vmm_region_on_backing_change(other, &other_observer, NULL));
    CHECK(gpu_vmm_region_suspend(region, "host", false, NULL));
    told(&state, "suspend", GPU_VMM_BACKING_REMOVED, GPU_VMM_OUTCOME_CHANGED, 2 * unit);
    CHECK(gpu_vmm_region_resume(region, NULL));
    told(&state, "resume", GPU_VMM_BACKING_RESTORED, GPU_VMM_OUTCOME_CHANGED, 2 * unit);
    CHECK(gpu_vmm_region_swap(region, 0, other, unit, unit, false));
    told(&state, "swap", GPU_VMM_BACKING_REPLACED, GPU_VMM_OUTCOME_CHANGED, unit);
    told(&second, "swap", GPU_VMM_BACKING_REPLACED, GPU_VMM_OUTCOME_CHANGED, unit);

    // A refusal: nothing has changed, and the other region's observer learns that.
    state.answer = GPU_VMM_BUSY;
    second.answer = GPU_VMM_BUSY;
    const uint8_t byte = byte_at(region, 0);
    RETURNS(GPU_VMM_BUSY, gpu_vmm_region_swap_all(region, other, false));
    demand(strstr(gpu_vmm_last_error(), "observer") != NULL, "the error names the observer");
    demand(state.before == 1 && state.after == 0 && second.before == 0, "only the first observer is called");
    state.before = 0;
    state.answer = GPU_VMM_OK;
    RETURNS(GPU_VMM_BUSY, gpu_vmm_region_swap_all(region, other, false));
    told(&state, "swap", GPU_VMM_BACKING_REPLACED, GPU_VMM_OUTCOME_UNCHANGED, 2 * unit);
    demand(second.before == 1 && second.after == 0 && byte_at(region, 0) == byte, "nothing has changed");
    second.before = 0;
    RETURNS(GPU_VMM_BUSY, gpu_vmm_region_shrink(other, 0, false, NULL));
    CHECK(gpu_vmm_region_size(other, &size));
    demand(size == 2 * unit && second.before == 1, "a refused shrink keeps the memory");
    second.before = 0;
    // The end of a region cannot be refused.
    gpu_vmm_region_free(other);
    told(&second, "free reservation", GPU_VMM_BACKING_REMOVED, GPU_VMM_OUTCOME_CHANGED, 2 * unit);
    demand(second.released == 1, "the observer is released with its region");

    // Growing and wrong calls announce nothing.
    CHECK(gpu_vmm_region_fill(region, 0, 1, 1));
    RETURNS(GPU_VMM_UNALIGNED, gpu_vmm_region_unmap(region, 1, unit, false));
    CHECK(gpu_vmm_region_unmap(region, unit, unit, false));
    told(&state, "unmap", GPU_VMM_BACKING_REMOVED, GPU_VMM_OUTCOME_CHANGED, unit);
    CHECK(gpu_vmm_region_grow(region, 2 * unit));
    demand(state.before == 0, "growth announces nothing");

    // Calls of the region in a callback return at once.
    state.region = region;
    CHECK(gpu_vmm_region_shrink(region, unit, false, NULL));
    told(&state, "shrink", GPU_VMM_BACKING_REMOVED, GPU_VMM_OUTCOME_CHANGED, unit);
    demand(state.nested[0] == GPU_VMM_BUSY && state.nested[1] == GPU_VMM_BUSY, "the region is in use");
    demand(state.nested[2] == GPU_VMM_INVALID_ARGUMENT && state.nested[3] == GPU_VMM_BUSY, "the region is in use");
    CHECK(gpu_vmm_region_suspend(region, "host", false, NULL));
    told(&state, "suspend", GPU_VMM_BACKING_REMOVED, GPU_VMM_OUTCOME_CHANGED, unit);
    demand(state.nested[1] == GPU_VMM_BUSY, "the stores of the region are in use");
    CHECK(gpu_vmm_region_resume(region, NULL));
    state.before = state.after = 0;
    state.region = NULL;

    CHECK(gpu_vmm_region_remove_observer(region, id));
    demand(state.released == 1, "a removed observer is released");
    RETURNS(GPU_VMM_NOT_FOUND, gpu_vmm_region_remove_observer(region, id));
    gpu_vmm_region_free(region);
    demand(state.before == 0 && state.released == 1, "and not called again");
}

static void moves(const gpu_vmm_backend *backend) {
    registrar state;
    memset(&state, 0, sizeof state);
    const gpu_vmm_observer observer = observer_of(&state);
    gpu_vmm_region_options options;
    memset(&options, 0, sizeof options);
    options.size = unit_of(backend);
    options.guard = 1; // a guarded region cannot be extended: it moves
    gpu_vmm_region *region = NULL;
    uint64_t size = 0, end = 0, address = 0;
    CHECK(gpu_vmm_region_reserve(backend, &options, &region));
    CHECK(gpu_vmm_region_reserved(region, &size));
    CHECK(gpu_vmm_region_grow(region, 1));
    CHECK(gpu_vmm_region_size(region, &end));
    CHECK(gpu_vmm_region_on_backing_change(region, &observer, NULL));
    CHECK(gpu_vmm_region_grow_or_move(region, size + 1, &address));
    told(&state, "grow", GPU_VMM_BACKING_MOVED, GPU_VMM_OUTCOME_CHANGED, end);
    demand(state.new_address == address, "the new address is announced");
    gpu_vmm_region_free(region);
}

static void banks(const gpu_vmm_backend *backend, uint64_t unit) {
    registrar state;
    memset(&state, 0, sizeof state);
    gpu_vmm_observer observer = observer_of(&state);
    gpu_vmm_region_options options;
    memset(&options, 0, sizeof options);
    options.size = unit;
    gpu_vmm_banked *banked = NULL;
    uint32_t bank = 0;
    CHECK(gpu_vmm_banked_new(backend, &options, &banked));
    observer.reserved[1] = 1;
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_banked_on_backing_change(banked, &observer));
    demand(state.released == 0, "an observer that was not added is not released");
    observer.reserved[1] = 0;
    CHECK(gpu_vmm_banked_on_backing_change(banked, &observer));
    CHECK(gpu_vmm_banked_add(banked, unit, &bank));
    CHECK(gpu_vmm_banked_select(banked, bank));
    told(&state, "select bank", GPU_VMM_BACKING_RESTORED, GPU_VMM_OUTCOME_CHANGED, unit);
    state.answer = 4711;
    RETURNS(GPU_VMM_BUSY, gpu_vmm_banked_hide(banked));
    demand(strstr(gpu_vmm_last_error(), "4711") != NULL, "the error has the callback's status");
    state.before = 0;
    gpu_vmm_banked_free(banked);
    told(&state, "free reservation", GPU_VMM_BACKING_REMOVED, GPU_VMM_OUTCOME_CHANGED, unit);
    demand(state.released == 1, "the observer is released");
}

// A banked region that another thread has locked until `go`, and a region whose observer ends meanwhile.
typedef struct {
    gpu_vmm_banked *banked;
    gpu_vmm_region *region;
    uint32_t bank;
    sem_t locked;
    sem_t go;
    gpu_vmm_status answers[2];
} ending;

static gpu_vmm_status waits(void *context, const gpu_vmm_backing_change *change) {
    (void)change;
    ending *state = (ending *)context;
    sem_post(&state->locked);
    while (sem_wait(&state->go) != 0) {
    }
    return GPU_VMM_OK;
}

static void *selects(void *context) {
    ending *state = (ending *)context;
    CHECK(gpu_vmm_banked_select(state->banked, state->bank));
    return NULL;
}

static void calls(void *context) {
    ending *state = (ending *)context;
    uint64_t size = 0;
    uint8_t byte = 0;
    state->answers[0] = gpu_vmm_region_size(state->region, &size);
    state->answers[1] = gpu_vmm_banked_read(state->banked, 0, &byte, 1);
    sem_post(&state->go);
}

// `released` may call the library, and waits for nothing: neither for its own region nor for what another thread has locked.
static void released_calls(const gpu_vmm_backend *backend, uint64_t unit) {
    ending state;
    memset(&state, 0, sizeof state);
    sem_init(&state.locked, 0, 0);
    sem_init(&state.go, 0, 0);
    gpu_vmm_region_options options;
    memset(&options, 0, sizeof options);
    options.size = unit;
    CHECK(gpu_vmm_banked_new(backend, &options, &state.banked));
    CHECK(gpu_vmm_banked_add(state.banked, unit, &state.bank));
    state.region = reserve(backend, 1);
    gpu_vmm_observer observer;
    memset(&observer, 0, sizeof observer);
    observer.context = &state;
    observer.before = waits;
    CHECK(gpu_vmm_banked_on_backing_change(state.banked, &observer));
    observer.before = NULL;
    observer.released = calls;
    uint64_t id = 0;
    CHECK(gpu_vmm_region_on_backing_change(state.region, &observer, &id));
    pthread_t thread;
    demand(pthread_create(&thread, NULL, selects, &state) == 0, "a thread");
    while (sem_wait(&state.locked) != 0) {
    }
    alarm(60); // ends a program in which one waits for the other
    CHECK(gpu_vmm_region_remove_observer(state.region, id));
    demand(pthread_join(thread, NULL) == 0, "the thread ends");
    alarm(0);
    demand(state.answers[0] == GPU_VMM_OK, "the region has been unlocked before its observer ends");
    demand(state.answers[1] == GPU_VMM_BUSY, "another thread has the banked region");
    gpu_vmm_region_free(state.region);
    sem_post(&state.go); // for the change at the end
    gpu_vmm_banked_free(state.banked);
    sem_destroy(&state.locked);
    sem_destroy(&state.go);
}

int main(int count, char **arguments) {
    gpu_vmm_backend *backend = backend_of(count, arguments);
    const uint64_t unit = unit_of(backend);
    changes(backend, unit);
    moves(backend);
    banks(backend, unit);
    released_calls(backend, unit);
    gpu_vmm_close(backend);
    puts("passed");
    return 0;
}
