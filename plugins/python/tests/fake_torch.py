"""A fake PyTorch with the functions that gpu_vmm.torch calls: it records its calls, and its MemPools call real functions.

`install(...)` puts it into `sys.modules` and makes gpu_vmm.torch use the backend of the tests.
"""

import contextlib
import ctypes
import os
import sys
import types

import gpu_vmm
from support import NAME

ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
SETTERS = (
    "set_record_stream_fn", "set_reset_fn", "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool",
)  # fmt: skip


def install(setters=SETTERS, mem_pools=True, used=False, hip=None, cuda="13.0", native=None):
    """Returns the module, and the list of recorded calls. `native`: a folder in which PyTorch's headers are, for the allocator class."""
    calls = []
    torch = types.ModuleType("torch")
    torch.__version__ = "2.0.9"
    torch.version = types.SimpleNamespace(hip=hip, cuda=cuda)
    torch.device = lambda name: types.SimpleNamespace(index=int(name.split(":")[1]) if ":" in name else None)

    class Allocator:
        def __init__(self, alloc=None, free=None):
            self.alloc, self.free = alloc and ALLOC(alloc), free and FREE(free)

    def setter(name):
        return lambda self, address: calls.append((name, address))

    for name in setters:
        setattr(Allocator, name, setter(name))

    class CUDAPluggableAllocator:
        def __init__(self, path, alloc, free):
            self.library = ctypes.CDLL(path)
            calls.append(("allocator", alloc, free))
            self._allocator = Allocator()

        def allocator(self):
            return self._allocator

    def change_current_allocator(allocator):
        calls.append(("change",))
        if used:
            raise RuntimeError("Can't swap an already initialized allocator")

    memory = types.SimpleNamespace(
        CUDAPluggableAllocator=CUDAPluggableAllocator, change_current_allocator=change_current_allocator
    )
    torch.cuda = types.SimpleNamespace(
        memory=memory,
        device=0,
        current_device=lambda: torch.cuda.device,
        synchronize=lambda device=None: calls.append(("synchronize", device)),
        empty_cache=lambda: calls.append(("empty_cache",)),
    )
    torch._C = types.SimpleNamespace(_cuda_customAllocator=Allocator)
    active = []
    if mem_pools:

        class MemPool:
            def __init__(self, allocator=None):
                # As in PyTorch, it belongs to the current device.
                self.allocator, self.device, self.id = allocator, torch.cuda.device, (0, 1)

        @contextlib.contextmanager
        def use_mem_pool(pool, device=None):
            # As in PyTorch, the outermost pool applies, and the same pool cannot be entered twice.
            assert pool not in active
            assert pool.device == torch.cuda.device
            active.append(pool)
            try:
                yield
            finally:
                active.remove(pool)

        torch.cuda.MemPool, torch.cuda.use_mem_pool = MemPool, use_mem_pool

    def empty(size):
        """Allocates from the pool in use."""
        return active[0].allocator.alloc(size, torch.cuda.device, None)

    torch.empty, torch.active = empty, active
    sys.modules["torch"] = torch
    gpu_vmm.torch._backend = lambda torch: NAME.encode()
    if native is None:
        os.environ[gpu_vmm.torch.CLASS] = "off"
    else:
        torch.__version__, torch.__file__ = "2.11.0", os.path.join(native, "torch", "__init__.py")
        torch.compiled_with_cxx11_abi = lambda: True
    return torch, calls
