// Memory that outlives its program: a server, a client that is killed, a reader and a writer, each in a process of its own.
//
// The first argument is the backend. The environment variable GPU_VMM_TEST_SERVER is the command of a server for it, to which the program
// adds --socket and a path. The exit status is 0 if every check holds.

// For kill, mkdtemp and nanosleep.
#define _POSIX_C_SOURCE 200809L

#include "support.h"
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WAIT = 20000 }; // milliseconds

static const char *vendor;
static char path[256];
static const char first[] = "first", second[] = "other";

// Ends with this process.
static pid_t server;

// Two processes that take turns: what one writes, the other reads.
typedef struct {
    int read_end, write_end;
} line;

static line connect_line(void) {
    int ends[2];
    demand(pipe(ends) == 0, "a pipe is made");
    const line made = {ends[0], ends[1]};
    return made;
}

static void signal_other(line to) {
    demand(write(to.write_end, "x", 1) == 1, "the other process can go on");
}

static void await(line from) {
    char byte = 0;
    demand(read(from.read_end, &byte, 1) == 1, "the other process goes on");
}

static gpu_vmm_client *connected(gpu_vmm_backend **backend) {
    gpu_vmm_client *client = NULL;
    const struct timespec pause = {0, 5000000};
    CHECK(gpu_vmm_open(vendor, backend));
    for (int turn = 0; turn < WAIT / 5; ++turn) {
        if (gpu_vmm_connect(*backend, path, &client) == GPU_VMM_OK) {
            return client;
        }
        nanosleep(&pause, NULL);
    }
    demand(0, "the server listens");
    return NULL;
}

static gpu_vmm_region *region_of(const gpu_vmm_lease *lease) {
    gpu_vmm_region *region = NULL;
    CHECK(gpu_vmm_lease_region(lease, &region));
    return region;
}

static int has(const gpu_vmm_lease *lease, const char *text) {
    char read[sizeof first] = "";
    CHECK(gpu_vmm_region_read(region_of(lease), 512, read, sizeof read));
    return memcmp(read, text, sizeof read) == 0;
}

// Creates and commits the region, and is killed then.
static void create(line to) {
    gpu_vmm_backend *backend = NULL;
    gpu_vmm_lease *lease = NULL;
    gpu_vmm_layout *layout = NULL;
    gpu_vmm_client *client = connected(&backend);
    CHECK(gpu_vmm_client_create(client, "model/weights", 1 << 20, NULL, &lease));
    CHECK(gpu_vmm_region_write(region_of(lease), 512, first, sizeof first));
    const int64_t shape[2] = {2, 3};
    gpu_vmm_part part;
    memset(&part, 0, sizeof part);
    part.name = "letters";
    part.offset = 512;
    part.code = 1; // unsigned integers
    part.bits = 8;
    part.lanes = 1;
    part.ndim = 2;
    part.shape = shape;
    CHECK(gpu_vmm_layout_new(&layout));
    CHECK(gpu_vmm_layout_set_part(layout, &part));
    CHECK(gpu_vmm_layout_set_note(layout, "from", "a killed process"));
    uint64_t epoch = 0;
    CHECK(gpu_vmm_lease_commit(lease, layout, &epoch));
    demand(epoch == 1, "the first epoch is 1");
    signal_other(to);
    pause();
}

// Reads the region, and what a writer commits, through one tensor.
static void follow(line from, line to) {
    gpu_vmm_backend *backend = NULL;
    gpu_vmm_lease *lease = NULL;
    gpu_vmm_layout *layout = NULL;
    await(from);
    gpu_vmm_client *client = connected(&backend);
    CHECK(gpu_vmm_client_open(client, "model/weights", GPU_VMM_LEASE_READ, WAIT, &lease));
    gpu_vmm_client_free(client);
    gpu_vmm_close(backend);
    demand(has(lease, first), "the contents outlive the process that wrote them");
    RETURNS(GPU_VMM_ACCESS_DENIED, gpu_vmm_region_write(region_of(lease), 0, "x", 1));
    CHECK(gpu_vmm_lease_layout(lease, &layout));
    gpu_vmm_part part;
    CHECK(gpu_vmm_layout_find_part(layout, "letters", &part));
    const char *note = NULL;
    CHECK(gpu_vmm_layout_find_note(layout, "from", &note));
    demand(strcmp(note, "a killed process") == 0, "so does the layout");
    void *tensor = NULL, *other = NULL;
    RETURNS(GPU_VMM_ACCESS_DENIED, gpu_vmm_region_dlpack(region_of(lease), part.offset, part.code, part.bits, part.lanes, part.ndim,
                                                         part.shape, part.strides, false, true, &other));
    CHECK(gpu_vmm_region_dlpack(region_of(lease), part.offset, part.code, part.bits, part.lanes, part.ndim, part.shape, part.strides,
                                true, true, &tensor));
    gpu_vmm_layout_free(layout);
    int fd = -1;
    uint32_t event = 0, kind = 9;
    uint64_t epoch = 0;
    CHECK(gpu_vmm_lease_fd(lease, &fd));
    CHECK(gpu_vmm_lease_next(lease, 0, &event));
    demand(event == GPU_VMM_LEASE_EVENT_NONE, "nothing was committed yet");
    signal_other(to);
    struct pollfd waits = {fd, POLLIN, 0};
    demand(poll(&waits, 1, WAIT) == 1, "the descriptor is readable when there is an event");
    CHECK(gpu_vmm_lease_next(lease, WAIT, &event));
    demand(event == GPU_VMM_LEASE_EVENT_NEW_EPOCH && has(lease, first), "a new epoch is not mapped before it is applied");
    CHECK(gpu_vmm_lease_apply(lease, &epoch));
    demand(epoch == 2 && has(lease, second), "it is mapped at the same addresses");
    CHECK(gpu_vmm_lease_state(lease, &kind, &epoch));
    demand(kind == GPU_VMM_LEASE_READ && epoch == 2, "the lease has the new epoch");
    RETURNS(GPU_VMM_BUSY, gpu_vmm_lease_close(lease));
    gpu_vmm_dlpack_delete(tensor, true);
    CHECK(gpu_vmm_lease_next(lease, WAIT, &event));
    demand(event == GPU_VMM_LEASE_EVENT_DROPPED && has(lease, second), "the memory outlives the region's name");
    signal_other(to);
    CHECK(gpu_vmm_lease_next(lease, WAIT, &event));
    demand(event == GPU_VMM_LEASE_EVENT_SERVER_GONE && has(lease, second), "and the server");
    CHECK(gpu_vmm_lease_close(lease));
    gpu_vmm_lease_free(lease);
}

static pid_t forked(void) {
    const pid_t child = fork();
    demand(child >= 0, "a process is forked");
    if (child == 0) {
        alarm(60);
    }
    return child;
}

static void end_server(void) {
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
        server = 0;
    }
}

int main(int count, char **arguments) {
    vendor = count > 1 ? arguments[1] : "host";
    demand(getenv("GPU_VMM_TEST_SERVER") != NULL, "GPU_VMM_TEST_SERVER names a server");
    char folder[] = "/tmp/gpu-vmm-serve-XXXXXX";
    demand(mkdtemp(folder) != NULL, "a folder is made");
    snprintf(path, sizeof path, "%s/socket", folder);
    // All processes are forked before this one opens a driver.
    server = forked();
    if (server == 0) {
        execl("/bin/sh", "sh", "-c", "exec $GPU_VMM_TEST_SERVER --socket \"$0\"", path, (char *)NULL);
        _exit(127);
    }
    atexit(end_server);
    const line created = connect_line(), go = connect_line(), done = connect_line();
    const pid_t creator = forked();
    if (creator == 0) {
        server = 0;
        create(created);
    }
    const pid_t reader = forked();
    if (reader == 0) {
        server = 0;
        follow(go, done);
        exit(0);
    }
    await(created);
    demand(kill(creator, SIGKILL) == 0 && waitpid(creator, NULL, 0) == creator, "the creator is killed");
    signal_other(go);
    await(done);

    gpu_vmm_backend *backend = NULL;
    gpu_vmm_lease *lease = NULL, *other = NULL;
    gpu_vmm_client *client = connected(&backend);
    RETURNS(GPU_VMM_NOT_FOUND, gpu_vmm_client_open(client, "model/biases", GPU_VMM_LEASE_READ, 0, &other));
    RETURNS(GPU_VMM_BUSY, gpu_vmm_client_create(client, "model/weights", 1, NULL, &other));
    CHECK(gpu_vmm_client_open(client, "model/weights", GPU_VMM_LEASE_WRITE, WAIT, &lease));
    RETURNS(GPU_VMM_TIMED_OUT, gpu_vmm_client_open(client, "model/weights", GPU_VMM_LEASE_WRITE, 1, &other));
    gpu_vmm_range renewed;
    CHECK(gpu_vmm_lease_renew(lease, 512, sizeof second, true, &renewed));
    demand(renewed.offset == 0 && renewed.length >= 1 << 20 && has(lease, first), "the contents are copied");
    CHECK(gpu_vmm_region_write(region_of(lease), 512, second, sizeof second));
    uint64_t epoch = 0;
    CHECK(gpu_vmm_lease_commit(lease, NULL, &epoch));
    demand(epoch == 2, "the second epoch is 2");
    CHECK(gpu_vmm_lease_downgrade(lease));
    char *json = NULL;
    CHECK(gpu_vmm_client_status(client, &json));
    demand(strstr(json, "\"name\":\"model/weights\"") != NULL && strstr(json, "\"lease\":\"read\"") != NULL, json);
    gpu_vmm_string_free(json);
    gpu_vmm_lease_free(lease);
    CHECK(gpu_vmm_client_drop(client, "model/weights"));
    RETURNS(GPU_VMM_NOT_FOUND, gpu_vmm_client_open(client, "model/weights", GPU_VMM_LEASE_READ, 0, &other));
    await(done);
    end_server();
    int status = 0;
    demand(waitpid(reader, &status, 0) == reader && status == 0, "the reader has found everything");
    RETURNS(GPU_VMM_STALE_SOCKET, gpu_vmm_client_drop(client, "model/weights"));
    gpu_vmm_client_free(client);
    gpu_vmm_close(backend);
    unlink(path);
    rmdir(folder);
    puts("memory outlives its programs");
    return 0;
}
