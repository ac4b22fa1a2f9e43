// Clients of a server that keeps memory when programs end, in one process.
//
// The first argument is the backend. The environment variable GPU_VMM_TEST_SERVER is the command of a server for it, to which the program
// adds --socket and a path.

#include "support.hpp"
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

using namespace gpu_vmm::literals;
using namespace std::chrono_literals;
namespace serve = gpu_vmm::serve;

static pid_t server;

static serve::client connected(const gpu_vmm::backend &backend, const std::string &path) {
    for (int turn = 0; turn < 2000; ++turn) {
#if GPU_VMM_EXCEPTIONS
        try {
            return serve::client::connect(backend, path);
        } catch (const gpu_vmm::error &) {
        }
#else
        auto client = serve::client::connect(backend, path);
        if (client) return std::move(client).value();
#endif
        ::usleep(10000);
    }
    demand(false, "the server listens");
    return {};
}

static void layouts() {
    auto layout = VALUE(serve::layout::create());
    VALUE(layout.set_part({"letters", 512_B, {1, 8, 1, {2, 3}, {}}}));
    VALUE(layout.set_note("from", "a test"));
    FAILS(invalid_argument, layout.set_part({"wrong", 0_B, {1, 8, 1, {2, 3}, {1}}}));
    FAILS(invalid_argument, layout.set_part({"wrong", 0_B, {1, 8, 1, std::vector<std::int64_t>(200, 1), {}}}));
    demand(VALUE(layout.sizes()).parts == 1 && VALUE(layout.sizes()).notes == 1, "one part and one note");
    const auto part = VALUE(layout.part_at(0));
    demand(part.name == "letters" && part.offset == 512_B && part.elements.shape == std::vector<std::int64_t>{2, 3}, "the part");
    demand(VALUE(layout.find_part("letters")).elements.bits == 8 && VALUE(layout.note_at(0)).key == "from", "by name and by index");
    demand(VALUE(layout.find_note("from")) == "a test", "the note");
    FAILS(not_found, layout.find_part("none"));
}

static void programs(const gpu_vmm::backend &backend, const std::string &path) {
    FAILS(invalid_argument, serve::set_pool_server(std::string("a\0b", 3)));
    FAILS(invalid_argument, serve::set_pool_server(path, {std::string("a\0b", 3), 1, 20s, {}}));
    VALUE(serve::set_pool_server(path, {"C++", 1, 20s, {}}));
    auto pool = VALUE(gpu_vmm::pool::create(backend));
    VALUE(serve::set_no_pool_server());
    demand(VALUE(pool.is_connected()), "the pool has a server");
    VALUE(pool.reserve(8_MiB, 20s));
    demand(VALUE(pool.granted()) >= 8_MiB, "the reservation");
    auto tagged = VALUE(pool.tagged("kv"));
    const auto block = VALUE(tagged.allocate(2_MiB));
    VALUE(pool.let_sleep("kv"));
    demand(VALUE(pool.wake("kv")) == 0_B, "no other program has needed the memory");
    FAILS(not_found, pool.let_sleep("none"));
    auto alone = VALUE(gpu_vmm::pool::create(backend));
    FAILS(unsupported, alone.reserve(8_MiB, 0s));
}

int main(int count, char **arguments) {
    layouts();
    const char *const command = std::getenv("GPU_VMM_TEST_SERVER");
    demand(count > 1 && command != nullptr, "GPU_VMM_TEST_SERVER is set");
    const std::string path = temporary("socket"), file = temporary("weights");
    server = ::fork();
    demand(server >= 0, "a process starts");
    if (server == 0) {
        const std::string whole = "exec " + std::string(command) + " --socket " + path;
        ::execl("/bin/sh", "sh", "-c", whole.c_str(), static_cast<char *>(nullptr));
        ::_exit(127);
    }
    std::atexit([] {
        ::kill(server, SIGTERM);
        ::waitpid(server, nullptr, 0);
    });

    const auto backend = backend_of(count, arguments);
    auto client = connected(backend, path);
    programs(backend, path);
    auto writer = VALUE(client.create("model/weights", 1_MiB));
    VALUE(VALUE(writer.region()).write("first", 6_B, 512_B));
    auto layout = VALUE(serve::layout::create());
    VALUE(layout.set_part({"letters", 512_B, {1, 8, 1, {2, 3}, {}}}));
    // No layout would mean the former one.
    FAILS(invalid_argument, writer.commit(serve::layout()));
    demand(VALUE(writer.commit(layout)) == 1, "the first epoch");
    FAILS(busy, client.create("model/weights", 1_MiB));

    // The writer's memory is at one address in every process: in this one the region can be mapped once.
    FAILS(address_taken, client.open("model/weights", serve::lease_kind::read, 1000ms));
    demand(VALUE(writer.save(file)) > 0_B, "a file of safetensors");
    VALUE(writer.downgrade());
    demand(VALUE(writer.state()).kind == serve::lease_kind::read && VALUE(writer.state()).epoch == 1, "a read lease of the first epoch");
    FAILS(access_denied, writer.renew(0_B, 1_MiB, true));
    demand(VALUE(writer.next(0ms)) == serve::lease_event::none && VALUE(writer.fd()) >= 0, "nothing to receive");
    demand(VALUE(writer.apply()) == 1, "nothing to apply");
    demand(VALUE(VALUE(writer.layout()).find_part("letters")).offset == 512_B, "the layout of the epoch");
    auto capture = VALUE(backend.begin_capture());
    FAILS(busy, writer.close());
    demand(VALUE(writer.state()).epoch == 1, "the lease goes on");
    VALUE(capture.close());
    VALUE(writer.close());

    auto reader = VALUE(client.open("model/weights", serve::lease_kind::write, 10s));
    char text[6] = "";
    VALUE(VALUE(reader.region()).read(text, 6_B, 512_B));
    demand(std::strcmp(text, "first") == 0, "the contents outlive the lease that wrote them");
    const auto renewed = VALUE(reader.renew(512_B, 1_B, true));
    demand(renewed.offset == 0_B && renewed.length >= 1_MiB, "whole handles are replaced");
    VALUE(VALUE(reader.region()).write("other", 6_B, 512_B));
    demand(VALUE(reader.commit()) == 2, "the second epoch, with the same layout");
    demand(VALUE(client.status()).find("model/weights") != std::string::npos, "the server has the region");
    VALUE(client.drop("model/weights"));
    demand(VALUE(reader.next(10s)) == serve::lease_event::dropped, "its clients receive that");
    VALUE(reader.close());

    serve::create_options options;
    options.mode = 0640;
    auto loaded = VALUE(client.load(file, "model/copy", options));
    VALUE(VALUE(loaded.region()).read(text, 6_B, VALUE(VALUE(loaded.layout()).find_part("letters")).offset));
    demand(std::strcmp(text, "first") == 0, "the file has the first contents");
    FAILS(not_found, client.open("model/none", serve::lease_kind::read, 0ms));
    ::unlink(file.c_str());
    std::puts("passed");
    return 0;
}
