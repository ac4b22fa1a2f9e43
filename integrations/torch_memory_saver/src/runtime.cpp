#include "runtime.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <string>

namespace tms {
namespace {

struct Search {
    const char *stem;
    std::string path;
};

// Returns whether a file is named `stem.so`, with or without a version, or as in PyTorch's wheels `stem-HASH.so`.
bool is_library(const std::string &file, const std::string &stem) {
    if (file.compare(0, stem.size(), stem) != 0) {
        return false;
    }
    const std::string rest = file.substr(stem.size());
    return rest.compare(0, 3, ".so") == 0 || (rest[0] == '-' && rest.find(".so") != std::string::npos);
}

int look(dl_phdr_info *info, size_t, void *context) {
    auto *search = static_cast<Search *>(context);
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *name = slash ? slash + 1 : info->dlpi_name;
    if (!is_library(name, search->stem)) {
        return 0;
    }
    search->path = info->dlpi_name;
    return 1;
}

// Returns a function of a library that the process has loaded. PyTorch loads the runtime outside of the global scope, in which RTLD_NEXT
// searches.
void *loaded_function(const char *stem, const char *symbol) {
    Search search{stem, {}};
    dl_iterate_phdr(look, &search);
    void *library = search.path.empty() ? nullptr : dlopen(search.path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (!library) {
        return nullptr;
    }
    void *found = dlsym(library, symbol);
    dlclose(library);  // the process's own references keep it loaded
    return found;
}

template <typename... Arguments>
bool call(Vendor vendor, const char *name, Arguments... arguments) {
    auto function = reinterpret_cast<int (*)(Arguments...)>(runtime_function(vendor, name));
    return function && function(arguments...) == SUCCESS;
}

}  // namespace

void *runtime_function(Vendor vendor, const char *name) {
    const bool is_cuda = vendor == Vendor::CUDA;
    const std::string symbol = std::string(is_cuda ? "cuda" : "hip") + name;
    if (void *found = dlsym(RTLD_NEXT, symbol.c_str())) {
        return found;
    }
    return loaded_function(is_cuda ? "libcudart" : "libamdhip64", symbol.c_str());
}

int current_device(Vendor vendor) {
    int device = 0;
    return call(vendor, "GetDevice", &device) ? device : 0;
}

bool synchronize(int device) {
    for (Vendor vendor : {Vendor::CUDA, Vendor::HIP}) {
        int before = 0;
        if (!call(vendor, "GetDevice", &before)) {
            continue;
        }
        const bool done = call(vendor, "SetDevice", device) && call(vendor, "DeviceSynchronize");
        call(vendor, "SetDevice", before);
        return done;
    }
    return false;
}

}  // namespace tms
