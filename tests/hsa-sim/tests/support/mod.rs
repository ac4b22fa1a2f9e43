//! HSA's calls as Rust functions, and child processes with their own settings.
#![allow(unsafe_code)] // calls C functions
#![allow(dead_code, unreachable_pub)] // each test file uses a part
#![allow(clippy::unwrap_used, clippy::expect_used)] // tests may panic

use gpu_vmm_hsa_sim::abi::{
    AccessDescription, Agent, PacketKind, Pool, Queue, SignalHandle, Status, VmemHandle, condition,
    permission,
};
use gpu_vmm_hsa_sim::counters::hsa_sim_vmem_counts;
use gpu_vmm_hsa_sim::memory::{allocation, copy};
use gpu_vmm_hsa_sim::vmem::{access, mapping, physical, reservation, share};
use gpu_vmm_hsa_sim::work::{copy as engine, queue, signal};
use gpu_vmm_hsa_sim::{agent_info, pool};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::process::{Command, Output};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU16, Ordering::Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub const PAGE: usize = 4096;
pub const MIB: usize = 1 << 20;

/// The result of a call.
pub type Answer<T> = Result<T, Status>;

/// Runs one test at a time: they count live objects of the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn given<T>(call: impl FnOnce(Option<&mut MaybeUninit<T>>) -> Status) -> Answer<T> {
    let mut out = MaybeUninit::uninit();
    match call(Some(&mut out)) {
        // SAFETY: a call that succeeds writes its result.
        Status::SUCCESS => Ok(unsafe { out.assume_init() }),
        status => Err(status),
    }
}

/// Returns an attribute with its type.
fn attribute<T: Copy>(call: impl FnOnce(*mut u8) -> Status) -> Answer<T> {
    given(|out: Option<&mut MaybeUninit<T>>| call(out.unwrap().as_mut_ptr().cast()))
}

fn done(status: Status) -> Answer<()> {
    if status == Status::SUCCESS { Ok(()) } else { Err(status) }
}

extern "C" fn collect(item: u64, list: *mut c_void) -> Status {
    // SAFETY: the list that `listed` passes.
    unsafe { &mut *list.cast::<Vec<u64>>() }.push(item);
    Status::SUCCESS
}

extern "C" fn collect_agent(agent: Agent, list: *mut c_void) -> Status {
    collect(agent.0, list)
}

extern "C" fn collect_pool(pool: Pool, list: *mut c_void) -> Status {
    collect(pool.0, list)
}

/// Returns the CPU and the GPUs.
pub fn agents() -> Vec<Agent> {
    let mut list: Vec<u64> = Vec::new();
    // SAFETY: the callback gets the list.
    unsafe { done(agent_info::hsa_iterate_agents(collect_agent, (&raw mut list).cast())) }.unwrap();
    list.into_iter().map(Agent).collect()
}

/// Returns an agent's pools.
pub fn pools(agent: Agent) -> Vec<Pool> {
    let mut list: Vec<u64> = Vec::new();
    // SAFETY: the callback gets the list.
    unsafe { done(pool::hsa_amd_agent_iterate_memory_pools(agent, collect_pool, (&raw mut list).cast())) }
        .unwrap();
    list.into_iter().map(Pool).collect()
}

pub fn cpu() -> Agent {
    agents()[0]
}

pub fn gpu() -> Agent {
    agents()[1]
}

/// Returns the pool of `hipMalloc`: a GPU's first.
pub fn memory_of(gpu: Agent) -> Pool {
    pools(gpu)[0]
}

pub fn agent_info<T: Copy>(agent: Agent, number: u32) -> Answer<T> {
    // SAFETY: the tests name attributes with their types.
    attribute(|out| unsafe { agent_info::hsa_agent_get_info(agent, number, out) })
}

pub fn free_memory(gpu: Agent) -> u64 {
    agent_info(gpu, 0xA015).unwrap()
}

pub fn reserve(size: usize, hint: usize, alignment: usize) -> Answer<usize> {
    let (hint, alignment) = (hint as u64, alignment as u64);
    // SAFETY: a place for one address.
    given(|out| unsafe { reservation::hsa_amd_vmem_address_reserve_align(out, size, hint, alignment, 0) })
}

pub fn free(at: usize, size: usize) -> Answer<()> {
    // SAFETY: numbers, which are checked.
    done(unsafe { reservation::hsa_amd_vmem_address_free(at, size) })
}

pub fn create(pool: Pool, size: usize) -> Answer<VmemHandle> {
    // SAFETY: a place for one handle.
    given(|out| unsafe { physical::hsa_amd_vmem_handle_create(pool, size, 1, 0, out) })
}

pub fn release(handle: VmemHandle) -> Answer<()> {
    // SAFETY: numbers, which are checked.
    done(unsafe { physical::hsa_amd_vmem_handle_release(handle) })
}

pub fn map(at: usize, size: usize, handle: VmemHandle) -> Answer<()> {
    // SAFETY: numbers, which are checked.
    done(unsafe { mapping::hsa_amd_vmem_map(at, size, 0, handle, 0) })
}

pub fn unmap(at: usize, size: usize) -> Answer<()> {
    // SAFETY: numbers, which are checked.
    done(unsafe { mapping::hsa_amd_vmem_unmap(at, size) })
}

pub fn set_access(at: usize, size: usize, agents: &[(Agent, u32)]) -> Answer<()> {
    let list: Vec<_> = agents
        .iter()
        .map(|(agent, permissions)| AccessDescription { permissions: *permissions, agent: *agent })
        .collect();
    // SAFETY: a list with its length.
    done(unsafe { access::hsa_amd_vmem_set_access(at, size, list.as_ptr(), list.len()) })
}

pub fn get_access(at: usize, agent: Agent) -> Answer<u32> {
    // SAFETY: a place for one number.
    given(|out| unsafe { access::hsa_amd_vmem_get_access(at, out, agent) })
}

pub fn export(handle: VmemHandle) -> Answer<i32> {
    // SAFETY: a place for one descriptor.
    given(|out| unsafe { share::hsa_amd_vmem_export_shareable_handle(out, handle, 0) })
}

pub fn import(file: i32) -> Answer<VmemHandle> {
    // SAFETY: a place for one handle.
    given(|out| unsafe { share::hsa_amd_vmem_import_shareable_handle(file, out) })
}

pub fn allocate(pool: Pool, size: usize) -> Answer<usize> {
    // SAFETY: a place for one address.
    given(|out| unsafe { allocation::hsa_amd_memory_pool_allocate(pool, size, 0, out) })
}

pub fn deallocate(at: usize) -> Answer<()> {
    // SAFETY: a number, which is checked.
    done(unsafe { allocation::hsa_amd_memory_pool_free(at) })
}

pub fn allow(agents: &[Agent], at: usize) -> Answer<()> {
    // SAFETY: a list with its length.
    done(unsafe {
        allocation::hsa_amd_agents_allow_access(agents.len() as u32, agents.as_ptr(), std::ptr::null(), at)
    })
}

/// Copies by any agent that can.
pub fn copy_any(to: usize, from: usize, size: usize) -> Answer<()> {
    // SAFETY: the tests pass addresses of their own memory.
    done(unsafe { copy::hsa_memory_copy(to, from, size) })
}

/// Reads the words at an address, by any agent that can.
pub fn read(at: usize, words: usize) -> Vec<u64> {
    let mut read = vec![0; words];
    copy_any(read.as_mut_ptr().expose_provenance(), at, words * 8).unwrap();
    read
}

/// Copies between an agent's memory and the CPU's by a copy engine, and waits.
pub fn copy_by(gpu: Agent, to: usize, from: usize, size: usize) {
    let done = signal_of_one();
    // SAFETY: the tests pass addresses of their own memory; the copy waits for no signal.
    let status =
        unsafe { engine::hsa_amd_memory_async_copy(to, gpu, from, gpu, size, 0, std::ptr::null(), done) };
    assert_eq!(status, Status::SUCCESS);
    wait(done);
}

/// Creates a signal that one piece of work sets to zero.
pub fn signal_of_one() -> SignalHandle {
    // SAFETY: a place for one handle.
    given(|out| unsafe { signal::hsa_signal_create(1, 0, null(), out) }).unwrap()
}

/// Creates a queue to which several threads may write, as all of HIP's are.
pub fn queue_of(gpu: Agent) -> *mut Queue {
    // SAFETY: a place for one queue.
    given(|out| unsafe { queue::hsa_queue_create(gpu, 64, 0, null(), null_mut::<c_void>(), 0, 0, out) })
        .unwrap()
}

/// Takes the next packet of a queue, and writes it, each field by its offset. Returns its number, for the doorbell.
pub fn write_packet(queue: *mut Queue, kind: PacketKind, fields: &[(usize, u64)]) -> i64 {
    // SAFETY: the queue is alive and its ring has room; the header is written last.
    unsafe {
        let number = queue::hsa_queue_add_write_index_screlease(queue, 1);
        let packet = (*queue).base.add((number % 64) as usize * PacketKind::PACKET);
        for (offset, value) in fields {
            packet.add(*offset).cast::<u64>().write(*value);
        }
        (*packet.cast::<AtomicU16>()).store(u16::from(kind.0), Release);
        number as i64
    }
}

/// Rings the doorbell for a packet.
pub fn ring(queue: *mut Queue, number: i64) {
    // SAFETY: the queue is alive.
    signal::hsa_signal_store_screlease(unsafe { (*queue).doorbell }, number);
}

/// Waits until a signal is zero.
pub fn wait(done: SignalHandle) {
    let left = signal::hsa_signal_wait_scacquire(done, condition::LT, 1, 20_000_000_000, 0);
    assert_eq!(left, 0, "the signal still has {left} after 20 seconds");
    // SAFETY: created by the caller, and not used any more.
    assert_eq!(unsafe { signal::hsa_signal_destroy(done) }, Status::SUCCESS);
}

/// Returns the numbers of reservations, physical memory objects and mappings.
pub fn counts() -> [usize; 3] {
    let mut counts = [MaybeUninit::new(0); 3];
    let [reserved, physical, mapped] = &mut counts;
    hsa_sim_vmem_counts(Some(reserved), Some(physical), Some(mapped));
    // SAFETY: initialized before the call, and written by it.
    counts.map(|count| unsafe { count.assume_init() })
}

/// Maps memory of a GPU, with full access for it. The page after it is reserved and not mapped.
pub fn mapped(gpu: Agent, size: usize) -> (usize, VmemHandle) {
    let at = reserve(size + PAGE, 0, 0).unwrap();
    let handle = create(memory_of(gpu), size).unwrap();
    map(at, size, handle).unwrap();
    set_access(at, size, &[(gpu, permission::READ_WRITE)]).unwrap();
    (at, handle)
}

/// Unmaps and frees it.
pub fn unmapped((at, handle): (usize, VmemHandle), size: usize) {
    unmap(at, size).unwrap();
    release(handle).unwrap();
    free(at, size + PAGE).unwrap();
}

const CHILD: &str = "GPU_VMM_TEST_CHILD";

/// Runs `body` in a child process with these settings, under the name of the calling test. Returns `None` in the child, after
/// it has run `body`.
pub fn child(name: &str, settings: &[(&str, &str)], body: impl FnOnce()) -> Option<Output> {
    if std::env::var(CHILD).is_ok_and(|wanted| wanted == name) {
        body();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, name)
        .envs(settings.iter().copied());
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("running 1 test"), "there is no test {name}: {told}");
    Some(output)
}
