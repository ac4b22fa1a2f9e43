// A program on host memory whose cudaMalloc and cudaFree are replaced by LD_PRELOAD. Its runtime is outside of the global scope.
//
//     LD_PRELOAD=libtorch_memory_saver.so preload USER_LIBRARY

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                     \
    do {                                                                \
        if (!(what)) {                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);  \
            exit(1);                                                    \
        }                                                               \
    } while (0)

static void *function(void *library, const char *name) {
    void *found = dlsym(library, name);
    CHECK(found);
    return found;
}

static int is_runtime(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size, (void)context;
    return strstr(info->dlpi_name, "libcudart") != NULL;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    CHECK(dlsym(RTLD_DEFAULT, "cudaDeviceSynchronize") == NULL);
    void *user = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(user);
    int (*allocate)(void **, size_t), (*release)(void *), (*pause)(const char *), (*resume)(const char *), counts[3];
    void (*count_calls)(int *), (*set_interesting)(bool), (*set_backup)(bool);
    *(void **)&allocate = function(user, "user_allocate");
    *(void **)&release = function(user, "user_free");
    *(void **)&count_calls = function(user, "user_counts");
    *(void **)&pause = function(RTLD_DEFAULT, "tms_pause");
    *(void **)&resume = function(RTLD_DEFAULT, "tms_resume");
    *(void **)&set_interesting = function(RTLD_DEFAULT, "tms_set_interesting_region");
    *(void **)&set_backup = function(RTLD_DEFAULT, "tms_set_enable_cpu_backup");

    void *plain, *mine;
    CHECK(allocate(&plain, 1000) == 0);
    count_calls(counts);
    CHECK(counts[0] == 1);
    memset(plain, 1, 1000);
    set_interesting(true);
    set_backup(true);
    CHECK(allocate(&mine, 1 << 20) == 0);
    count_calls(counts);
    CHECK(counts[0] == 1);  // the runtime did not allocate this one
    memset(mine, 7, 1 << 20);
    CHECK(pause("default") == 0);
    count_calls(counts);
    CHECK(counts[2] == 1);  // the runtime has waited for the device
    CHECK(resume("default") == 0);
    for (int at = 0; at < 1 << 20; at++) {
        CHECK(((unsigned char *)mine)[at] == 7);
    }
    set_interesting(false);
    CHECK(release(mine) == 0 && release(plain) == 0);
    count_calls(counts);
    CHECK(counts[1] == 1);  // only the plain one is the runtime's
    // The calls that were passed on have left no reference.
    CHECK(dl_iterate_phdr(is_runtime, NULL));
    CHECK(dlclose(user) == 0 && !dl_iterate_phdr(is_runtime, NULL));
    printf("cudaMalloc and cudaFree were replaced\n");
    return 0;
}
