// Regions that share memory until they write it, and lists of pages with a budget.
//
// The first argument is the backend. The exit status is 0 if every check holds.

#include "support.h"

static uint64_t holders_at(const gpu_vmm_region *region, uint64_t offset) {
    uint64_t holders = 0;
    CHECK(gpu_vmm_region_holders(region, offset, &holders));
    return holders;
}

static uint64_t held(const gpu_vmm_page_list *pages) {
    uint64_t bytes = 0;
    CHECK(gpu_vmm_page_list_sizes(pages, NULL, &bytes, NULL, NULL));
    return bytes;
}

static uint64_t free_in(const gpu_vmm_page_list *pages) {
    uint64_t bytes = 0;
    CHECK(gpu_vmm_page_list_sizes(pages, NULL, NULL, &bytes, NULL));
    return bytes;
}

static void fork_and_part(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_region *parent = filled(backend, 3, 1), *child = reserve(backend, 4);
    uint64_t bytes = 0, holders = 0;
    uint32_t level = 0;
    demand(holders_at(parent, 0) == 1, "a region alone holds its memory");
    CHECK(gpu_vmm_region_fork(parent, 2 * unit, child));
    demand(byte_at(child, 0) == 1 && byte_at(child, 2 * unit - 1) == 2, "the child has the contents");
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_region_holders(child, 2 * unit, &holders));
    demand(holders_at(parent, unit) == 2 && holders_at(parent, 2 * unit) == 1, "two pages are shared");
    CHECK(gpu_vmm_region_access(parent, 0, 0, &level));
    demand(level == GPU_VMM_ACCESS_READ, "shared memory is read-only");
    RETURNS(GPU_VMM_ACCESS_DENIED, gpu_vmm_region_fill(parent, unit, 1, 9));
    RETURNS(GPU_VMM_ACCESS_DENIED, gpu_vmm_region_fill(child, unit, 1, 9));
    CHECK(gpu_vmm_region_fill(parent, 2 * unit, 1, 9));

    CHECK(gpu_vmm_region_make_private(child, unit, unit, NULL, &bytes));
    demand(bytes == unit, "one page is copied");
    CHECK(gpu_vmm_region_fill(child, unit, 1, 9));
    demand(byte_at(child, unit) == 9 && byte_at(child, unit + 1) == 2, "the child has a copy");
    demand(byte_at(parent, unit) == 2, "the parent has the contents as they were");
    // The last holder of a page gets no copy.
    CHECK(gpu_vmm_region_make_private(parent, unit, unit, NULL, &bytes));
    demand(bytes == 0, "nothing is copied");
    CHECK(gpu_vmm_region_fill(parent, unit, 1, 7));

    RETURNS(GPU_VMM_ALREADY_MAPPED, gpu_vmm_region_fork(parent, unit, child));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_fork(parent, unit, parent));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_fork(parent, unit, NULL));
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_region_make_private(child, 2 * unit, unit, NULL, &bytes));
    gpu_vmm_physical *memory = NULL;
    CHECK(gpu_vmm_region_physical(parent, 0, &memory));
    CHECK(gpu_vmm_physical_holders(memory, &holders));
    demand(holders == 3, "two regions and an object hold the memory");
    gpu_vmm_region_free(child);
    CHECK(gpu_vmm_physical_holders(memory, &holders));
    demand(holders == 2, "the freed region does not");
    gpu_vmm_physical_release(memory);
    gpu_vmm_region_free(parent);
}

static void sleep_together(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_region *parent = filled(backend, 2, 1), *child = reserve(backend, 2);
    uint64_t bytes = 0, stayed = 0;
    CHECK(gpu_vmm_region_fork(parent, unit, child));
    RETURNS(GPU_VMM_BUSY, gpu_vmm_region_suspend(parent, "host", false, NULL));
    CHECK(gpu_vmm_region_suspend_shared(parent, "host", false, &bytes, &stayed));
    demand(bytes == unit && stayed == unit, "the shared page stays");
    demand(byte_at(child, 0) == 1, "the other region has its memory");
    CHECK(gpu_vmm_region_suspend_shared(child, "file", false, &bytes, &stayed));
    demand(bytes == unit && stayed == 0, "it goes with its last holder");
    CHECK(gpu_vmm_region_suspend_shared(child, "host", false, &bytes, &stayed));
    demand(bytes == 0 && stayed == 0, "a second call has nothing to release");
    CHECK(gpu_vmm_region_resume(parent, &bytes));
    demand(bytes == 2 * unit, "the first one restores all of its memory");
    demand(byte_at(parent, 0) == 1 && byte_at(parent, unit) == 2, "and the contents");
    CHECK(gpu_vmm_region_resume(child, &bytes));
    demand(bytes == 0 && byte_at(child, 0) == 1 && holders_at(child, 0) == 2, "the other one maps the same memory");
    gpu_vmm_region_free(child);
    gpu_vmm_region_free(parent);
}

static void lists(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_page_list *pages = NULL;
    uint64_t page = 0, budget = 0, bytes = 0;
    CHECK(gpu_vmm_page_list_new(backend, NULL, unit, 4 * unit + 1, &pages));
    CHECK(gpu_vmm_page_list_sizes(pages, &page, NULL, NULL, &budget));
    demand(page == unit && budget == 4 * unit && held(pages) == 0, "the budget is of whole pages");
    gpu_vmm_region *one = reserve(backend, 8), *other = reserve(backend, 8);
    CHECK(gpu_vmm_region_grow_with(one, 2 * unit + 1, pages));
    CHECK(gpu_vmm_region_grow_with(one, unit, pages));
    CHECK(gpu_vmm_region_size(one, &bytes));
    demand(bytes == 3 * unit && held(pages) == 3 * unit, "the region has three pages");
    CHECK(gpu_vmm_region_fill(one, 0, 3 * unit, 5));
    RETURNS(GPU_VMM_OUT_OF_MEMORY, gpu_vmm_region_grow_with(other, 2 * unit, pages));
    demand(held(pages) == 3 * unit, "no page is created beyond the budget");

    CHECK(gpu_vmm_region_fork(one, 3 * unit, other));
    CHECK(gpu_vmm_region_make_private(other, 2 * unit, unit, pages, &bytes));
    demand(bytes == unit && held(pages) == 4 * unit, "the copy is a page of the list");
    RETURNS(GPU_VMM_OUT_OF_MEMORY, gpu_vmm_region_make_private(other, 0, unit, pages, &bytes));
    demand(holders_at(other, 0) == 2, "the page is shared as before");

    CHECK(gpu_vmm_region_suspend_shared(other, "host", false, &bytes, NULL));
    demand(bytes == unit && free_in(pages) == unit, "its own page is free");
    gpu_vmm_physical *taken = NULL;
    CHECK(gpu_vmm_page_list_take(pages, &taken));
    RETURNS(GPU_VMM_OUT_OF_MEMORY, gpu_vmm_region_resume_with(other, pages, &bytes));
    gpu_vmm_physical *more = NULL;
    RETURNS(GPU_VMM_OUT_OF_MEMORY, gpu_vmm_page_list_take(pages, &more));
    demand(more == NULL && held(pages) == 4 * unit, "the list has no further page");
    CHECK(gpu_vmm_physical_write(taken, 0, "overwritten", 12));
    gpu_vmm_physical_release(taken);
    CHECK(gpu_vmm_region_resume_with(other, pages, &bytes));
    demand(bytes == unit && byte_at(other, 2 * unit) == 5, "the page has its contents again");
    CHECK(gpu_vmm_region_resume_with(other, pages, &bytes));
    demand(bytes == 0 && held(pages) == 4 * unit, "a second resume takes nothing");

    gpu_vmm_region_free(other);
    CHECK(gpu_vmm_page_list_set_budget(pages, 3 * unit));
    demand(held(pages) == 3 * unit && free_in(pages) == 0, "a smaller budget releases free pages");
    gpu_vmm_page_list_free(pages);
    demand(byte_at(one, 0) == 5, "pages in use outlive their list");
    gpu_vmm_region_free(one);
    gpu_vmm_page_list_free(NULL);
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_page_list_new(backend, NULL, 0, unit, &pages));
}

static void copies(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_physical *one = NULL, *other = NULL;
    CHECK(gpu_vmm_physical_create(backend, NULL, unit, &one));
    CHECK(gpu_vmm_physical_create(backend, NULL, unit, &other));
    CHECK(gpu_vmm_physical_write(one, 3, "copied", 7));
    CHECK(gpu_vmm_physical_copy(other, 1, one, 3, 7));
    char read[7] = "";
    CHECK(gpu_vmm_physical_read(other, 1, read, 7));
    demand(strcmp(read, "copied") == 0, "the bytes are in the other memory");
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_physical_copy(other, unit - 1, one, 0, 2));
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_physical_copy(other, 0, one, unit, 1));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_physical_copy(other, 0, NULL, 0, 1));
    gpu_vmm_physical_release(one);
    gpu_vmm_physical_release(other);
}

int main(int count, char **arguments) {
    gpu_vmm_backend *backend = backend_of(count, arguments);
    const uint64_t unit = unit_of(backend);
    fork_and_part(backend, unit);
    sleep_together(backend, unit);
    lists(backend, unit);
    copies(backend, unit);
    gpu_vmm_close(backend);
    puts("passed");
    return 0;
}
