"""A pool that suspends the memory of a tag, and a vector that grows in place. Runs on the best device, or on host memory.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/examples/growing_vector.py
"""

import gpu_vmm


def main() -> None:
    backend = gpu_vmm.open()
    pool = backend.pool()
    print(pool)

    with pool.tagged("cache").alloc(4 << 20) as block:
        block.write(b"kept")
        print("suspended:", pool.suspend("cache") >> 20, "MiB went to the host,", pool.stats()["held"], "bytes are held")
        pool.resume("cache")
        print("resumed:", block.read(0, 4))

    vec = gpu_vmm.DeviceVec("float32", range(8), backend=backend)
    address = vec.address
    vec[0] = 0.5
    vec[2:4] = [20, 30]  # one value for each element
    vec[-2:] = 0  # or one number for all
    print("elements:", vec[:4], "every other:", vec[::2], "last:", vec[-1])

    vec.resize(1_000_000, 7)  # no byte is copied
    vec.extend([8, 9])
    print("grown:", len(vec), "elements, same address:", vec.address == address, "sum of the last three:", sum(vec[-3:]))

    vec.suspend()
    vec.resume()
    print("resumed:", vec[:4], "same address:", vec.address == address)


if __name__ == "__main__":
    main()
