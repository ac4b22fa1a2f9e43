"""Calls what PyTorch scripts call of its allocator, with PyTorch's own, with its expandable segments, with RMM if that is installed, and
with gpu-vmm, and compares the results with those of PyTorch's own.

Each call runs in a child process of its own, so one that hangs or dies is one cell of the table, which is printed as Markdown. The exit
status is 0 if gpu-vmm does in each row what PyTorch's own allocator does.
"""

import argparse
import concurrent.futures
import gc
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

from harness import MIB, Failed, child, environment, say, start
from training import CONF, EXPANDABLE, NATIVE, VMM
from training import enable as enable_vmm

RMM = "RMM"
TIMEOUT = 300.0
# Tells a row in which process it runs.
VARIABLE = "GPU_VMM_CALLS"


def enable(who: str) -> None:
    if who == RMM:
        import rmm
        import torch
        from rmm.allocators.torch import rmm_torch_allocator

        rmm.reinitialize(pool_allocator=True)
        torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
    else:
        enable_vmm(who)


def statistics(torch: Any) -> Any:
    """memory_allocated, max_memory_allocated, reset_peak_memory_stats, memory_stats, memory_summary"""
    cuda = torch.cuda
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    small, large = torch.ones(1000, device="cuda"), torch.ones(3 * MIB, device="cuda")
    now, reserved = cuda.memory_allocated(), cuda.memory_reserved()
    stats = cuda.memory_stats()
    counts = [stats[f"allocation.{kind}.current"] for kind in ("all", "small_pool", "large_pool")]
    requested = stats["requested_bytes.all.current"]
    del small, large
    after, peak = cuda.memory_allocated(), cuda.max_memory_allocated()
    cuda.reset_peak_memory_stats()
    return [now, counts, requested, after, peak, cuda.max_memory_allocated(), reserved >= now, "Allocated memory" in cuda.memory_summary()]


def snapshot(torch: Any) -> Any:
    """memory_snapshot, _record_memory_history, _snapshot, _dump_snapshot"""
    memory = torch.cuda.memory
    memory._record_memory_history()
    kept = torch.ones(3 * MIB, device="cuda")
    del kept
    kept = torch.ones(5 * MIB, device="cuda")
    shown = memory._snapshot()
    actions = [entry["action"] for entry in shown["device_traces"][0] if entry["action"] in ("alloc", "free_requested", "free_completed")]
    framed = any(frame["name"] == "snapshot" for entry in shown["device_traces"][0] for frame in entry.get("frames", []))
    blocks = [block for segment in shown["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"]
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "snapshot.pickle")
        memory._dump_snapshot(file)
        size = os.path.getsize(file)
    memory._record_memory_history(enabled=None)
    return [actions, framed, [block["requested_size"] for block in blocks], size > 1000, len(torch.cuda.memory_snapshot()) > 0]


def consistent(torch: Any) -> Any:
    """the sums of memory_snapshot are memory_stats"""
    kept = [torch.ones(size, device="cuda") for size in (10, 1000, 300_000, 3 * MIB)]
    del kept[1]
    shown, stats = torch.cuda.memory_snapshot(), torch.cuda.memory_stats()
    sums = {key: sum(segment[key] for segment in shown) for key in ("allocated_size", "active_size", "total_size", "requested_size")}
    names = {"allocated_size": "allocated_bytes", "active_size": "active_bytes", "total_size": "reserved_bytes", "requested_size": "requested_bytes"}
    return [sums[key] == stats[f"{name}.all.current"] for key, name in names.items()]


def out_of_memory(torch: Any) -> Any:
    """torch.OutOfMemoryError: catch it, free, go on, 20 times"""
    texts = []
    for _ in range(20):
        full = []
        try:
            while True:
                full.append(torch.empty(512 * MIB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            texts.append(str(error))
        del full
        gc.collect()
        torch.ones(1000, device="cuda")
    stats = torch.cuda.memory_stats()
    said = all(text.startswith("CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of") for text in texts)
    return [len(texts), said, stats["num_ooms"], stats["allocated_bytes.all.current"]]


def fraction(torch: Any) -> Any:
    """set_per_process_memory_fraction"""
    torch.cuda.set_per_process_memory_fraction(0.01)
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(int(total * 0.02), dtype=torch.uint8, device="cuda")
        limited = False
    except torch.OutOfMemoryError as error:
        limited = "allowed" in str(error)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(int(total * 0.02), dtype=torch.uint8, device="cuda")
    return limited


def model(torch: Any) -> Any:
    torch.manual_seed(1)
    nn = torch.nn
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 256)).cuda()


def train(torch: Any, work: Any, net: Any, steps: int = 20) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    generator = torch.Generator(device="cuda").manual_seed(2)
    for _ in range(steps):
        torch.compiler.cudagraph_mark_step_begin()
        data = torch.randn(64, 256, device="cuda", generator=generator)
        loss = ((work(data) - data) ** 2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compile_default(torch: Any) -> Any:
    """torch.compile"""
    net = model(torch)
    return train(torch, torch.compile(net), net)


def compile_graphs(torch: Any) -> Any:
    """torch.compile(mode="reduce-overhead")"""
    net = model(torch)
    return train(torch, torch.compile(net, mode="reduce-overhead"), net)


def graph(torch: Any) -> Any:
    """CUDAGraph and make_graphed_callables"""
    data = torch.ones(MIB, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        data * 2 + 1
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = data * 2 + 1
    sums = []
    for value in (3, 4):
        data.fill_(value)
        torch.ones(8 * MIB, device="cuda")
        captured.replay()
        sums.append(result.sum().item())
    net = model(torch)
    graphed = torch.cuda.make_graphed_callables(net, (torch.randn(64, 256, device="cuda"),))
    return [sums, train(torch, graphed, net, 5)]


def receive(who: str, queue: Any, back: Any) -> None:
    enable(who)
    tensor = queue.get(timeout=120)
    back.put(tensor.sum().item())
    del tensor


def processes(torch: Any) -> Any:
    """torch.multiprocessing shares a CUDA tensor"""
    spawn = torch.multiprocessing.get_context("spawn")
    queue, back = spawn.Queue(), spawn.Queue()
    process = spawn.Process(target=receive, args=(os.environ[VARIABLE], queue, back))
    process.start()
    tensor = torch.arange(MIB, device="cuda", dtype=torch.float64)
    queue.put(tensor)
    total = back.get(timeout=150)
    process.join(60)
    return total


def profiler(torch: Any) -> Any:
    """profiler with profile_memory"""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as recorded:
        kept = torch.empty(3 * MIB, device="cuda")
        del kept
    events = [event for event in recorded.events() if event.name == "[memory]"]
    most = max(getattr(event, "device_memory_usage", 0) for event in [*events, *recorded.key_averages()])
    return most >= 12 * MIB


def mem_pool(torch: Any) -> Any:
    """torch.cuda.MemPool() and use_mem_pool"""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(3 * MIB, device="cuda")
        address = inside.data_ptr()
        del inside
        again = torch.ones(3 * MIB, device="cuda")
        same = again.data_ptr() == address
    del again
    outside = torch.ones(3 * MIB, device="cuda")
    other = outside.data_ptr() != address
    uses, segments = pool.use_count(), len(pool.snapshot()) > 0
    del pool
    return [same, other, uses, segments, torch.cuda.memory_allocated()]


def has(torch: Any, needed: str) -> bool:
    return tuple(map(int, torch.__version__.split(".")[:2])) >= tuple(map(int, needed.split(".")))


def mem_pool_options(torch: Any) -> Any:
    """torch.cuda.MemPool with use_on_oom and no_split; reserved_bytes_by_private_pools"""
    pool, whole = torch.cuda.MemPool(use_on_oom=True), torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(whole):
        sums = [torch.ones(size, device="cuda").sum().item() for size in (1000, MIB, 3 * MIB)]
    with torch.cuda.use_mem_pool(pool):
        address = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda").data_ptr()
    counted = not has(torch, "2.13") or any(
        name.startswith("reserved_bytes_by_private_pools") and value >= 256 * MIB for name, value in torch.cuda.memory_stats().items()
    )
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64 * MIB) / total)
    outside = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    served = outside.data_ptr() == address
    torch.cuda.set_per_process_memory_fraction(1.0)
    return [sums, counted, served]


def accelerator(torch: Any) -> Any:
    """torch.accelerator: memory_allocated, memory_stats, reset_peak_memory_stats, get_memory_info, empty_cache (2.9 and later)"""
    if not has(torch, "2.9"):
        return None
    calls = torch.accelerator
    kept = torch.ones(3 * MIB, device="cuda")
    now, stats = calls.memory_allocated(), calls.memory_stats()
    same = [now == torch.cuda.memory_allocated(), stats["allocated_bytes.all.current"] == now, calls.memory_reserved() >= now]
    del kept
    peak = calls.max_memory_allocated()
    calls.reset_peak_memory_stats()
    calls.reset_accumulated_memory_stats()
    calls.empty_cache()
    free = not has(torch, "2.10") or 0 < calls.get_memory_info()[0] < calls.get_memory_info()[1]
    return [same, peak >= now, calls.max_memory_allocated() < peak, free]


def rejections(torch: Any) -> Any:
    """throw_on_cudamalloc_oom and num_oom_rejections (2.12 and later)"""
    if not has(torch, "2.12"):
        return None
    total = torch.cuda.get_device_properties(0).total_memory
    torch._C._accelerator_setAllocatorSettings("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.01")
    answers = []
    for limit in (None, 0.01):
        # A limit of the program's own is a lack of memory.
        if limit is not None:
            torch.cuda.set_per_process_memory_fraction(limit)
        try:
            torch.empty(int(total * 0.02), dtype=torch.uint8, device="cuda")
            answers.append("served")
        except torch.OutOfMemoryError as error:
            answers.append("preemptively rejected" in str(error))
    stats = torch.cuda.memory_stats()
    return [*answers, stats["num_oom_rejections"], stats["num_ooms"]]


def annotations(torch: Any) -> Any:
    """_set_memory_metadata, _annotate_tensor (2.14 and later), host_segments in a snapshot"""
    if not has(torch, "2.14"):
        return None
    memory = torch.cuda.memory
    memory._record_memory_history()
    memory._set_memory_metadata("the step")
    kept = torch.ones(3 * MIB, device="cuda")
    memory._set_memory_metadata("")
    memory._annotate_tensor(kept[1:], "packed")
    shown = memory._snapshot()
    memory._record_memory_history(enabled=None)
    entries = [entry for entry in shown["device_traces"][0] if entry["action"] in ("alloc", "annotate")]
    texts = [(entry["action"], entry["user_metadata"], entry["addr"] == kept.data_ptr()) for entry in entries]
    return [texts, memory._memory_metadata_supported(), "host_segments" in shown]


def streams(torch: Any) -> Any:
    """record_stream, 8 threads on 8 streams, pinned copies, empty_cache, mem_get_info"""
    import threading

    sums = [0.0] * 8

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for step in range(50):
                data = torch.full((MIB // 4,), float(number), device="cuda")
                data.record_stream(torch.cuda.default_stream())
                host = torch.ones(1000).pin_memory().cuda(non_blocking=True)
                sums[number] += (data[:1000] * host).sum().item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return [sums, 0 < free < total, torch.cuda.memory_allocated()]


ROWS: dict[str, Callable[[Any], Any]] = {
    work.__name__: work
    for work in (
        statistics, snapshot, consistent, out_of_memory, fraction, compile_default, compile_graphs, graph, processes, profiler, mem_pool,
        mem_pool_options, accelerator, rejections, annotations, streams,
    )
}  # fmt: skip

# They fill the GPU, so no other row may run meanwhile.
ALONE = {"out_of_memory"}


def worker(who: str, name: str) -> int:
    import torch

    os.environ[VARIABLE] = who
    enable(who)
    try:
        torch.ones(1, device="cuda")
        answer = {"result": ROWS[name](torch)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    print(json.dumps(answer))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[[], *ROWS], help="the rows to run; all without")
    parser.add_argument("--jobs", type=int, default=8, help="processes that share the GPU at a time (default: %(default)s)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return worker(*given.worker)
    players = [NATIVE, EXPANDABLE, *([RMM] if importlib.util.find_spec("rmm") else []), VMM]

    def run(name: str, who: str) -> dict[str, Any]:
        say(name, who)
        try:
            return child(__file__, ["--worker", who, name], environment(CONF.get(who)), TIMEOUT)
        except Failed as failure:
            return {"error": str(failure)}

    jobs = [(name, who) for name in given.rows or ROWS for who in players]
    found = {(name, who): run(name, who) for name, who in jobs if name in ALONE}
    beside = [job for job in jobs if job not in found]
    with concurrent.futures.ThreadPoolExecutor(max_workers=given.jobs) as threads:
        found.update(zip(beside, threads.map(lambda job: run(*job), beside)))
    lines, good = [], True
    for name in given.rows or ROWS:
        answers = {who: found[name, who] for who in players}
        native = answers[NATIVE]
        good &= "result" in native and native == answers[VMM]
        lines.append([ROWS[name].__doc__, *(cell(answers[who], native) for who in players)])
    for line in (("call", *players), ("---",) * (1 + len(players)), *lines):
        print("| " + " | ".join(str(text).replace("|", "/") for text in line) + " |")
    return 0 if good else 1


def cell(answer: dict[str, Any], native: dict[str, Any]) -> str:
    """Returns "yes" for the result of PyTorch's own allocator, else what came instead."""
    if "result" not in answer:
        return str(answer["error"])
    return "yes" if answer == native else f"{answer['result']}, native {native.get('result', native.get('error'))}"


if __name__ == "__main__":
    start(main)
