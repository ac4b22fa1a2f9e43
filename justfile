# What contributors run every day; `just` lists it. CONTRIBUTING.md says more.

[private]
default:
    @just --list --unsorted

# Test the core, the pool and the host backend
quick:
    cargo test --quiet --package gpu-vmm-core --package gpu-vmm-pool --package gpu-vmm-host

# Run all tests that need no driver
test:
    cargo test --workspace --no-fail-fast

# Run everything: also the fake NVIDIA driver, AMD's runtime, C and Python
all:
    cargo test-all

# Run the long tier of CI: mutations, schedules, further simulated machines, packages, other systems (hours; a release needs it)
nightly:
    .ci/long

# Check format, lints, documentation and spelling
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items
    RUSTDOCFLAGS="-D warnings" cargo doc --package gpu-vmm-cli --bin gpu-vmm --no-deps --document-private-items --target-dir target/command-doc
    typos
    cargo test --quiet --test prose

# Run a group of the conformance suite on host memory, such as grow
case group:
    cargo test --quiet --package gpu-vmm-conformance --test conformance -- host::{{group}}

# Run a group of the conformance suite on the fake NVIDIA driver
cuda group:
    cargo build --quiet --package gpu-vmm-cli
    cargo test-all run-cuda target/debug/gpu-vmm conformance --backend cuda --filter {{group}}

# Run a group of the conformance suite on both versions of AMD's runtime
hip group:
    cargo test-all hip -- hip::{{group}}

# Check that the suite finds the mutations whose names contain the filter
mutations filter="":
    cargo test-all mutations {{filter}}

# Build the guide into target/guide
guide:
    mdbook build docs

# Build and try what a release publishes: the packages for crates.io, the wheels, the source distribution, the command as one file
release:
    cargo test-all packages --build
    python3 plugins/python/release.py build target/python-release
    .ci/dist
    tests/debian/run target/python-release/dist/gpu_vmm-*_x86_64.whl target/dist-files/gpu-vmm-x86_64

# Build the command as one file for x86-64 and aarch64, and check the files
dist:
    .ci/dist

# Install the C library, its header, and the files for pkg-config and CMake, into a folder
install-c prefix:
    plugins/c/install --prefix {{prefix}}

# Write generated files again: the C header and its list of functions, the command's table of outputs
write:
    GPU_VMM_WRITE_HEADER=1 cargo test --quiet --package gpu-vmm-c --test header
    GPU_VMM_WRITE_TABLE=1 cargo test --quiet --package gpu-vmm-cli --test cli table
