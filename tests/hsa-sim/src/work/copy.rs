//! Copy engines: one thread simulates all of them, and does each copy with the page table of a GPU.
//!
//! Rules: `hsa_amd_memory_async_copy*` in `hsa_ext_amd.h`: a copy begins when all the signals that it waits for are zero, and
//! decrements its own at the end. The engine is the source's GPU, or the target's if the source is the CPU's.
#![allow(unsafe_code)] // exported to C
#![allow(clippy::too_many_arguments)] // as in the header

use super::signal::{complete, value};
use super::{now, wait_until};
use crate::abi::{Agent, Pitched, SignalHandle, Status, list};
use crate::report::thread;
use crate::{agent, memory};
use std::mem::MaybeUninit;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

struct Job {
    agent: usize,
    parts: Vec<Part>,
    after: Vec<SignalHandle>,
    done: SignalHandle,
}

struct Part {
    to: usize,
    from: usize,
    size: usize,
}

fn jobs() -> MutexGuard<'static, Vec<Job>> {
    static JOBS: Mutex<Vec<Job>> = Mutex::new(Vec::new());
    JOBS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work() {
    loop {
        let awaited = || jobs().iter().flat_map(|job| job.after.clone()).collect();
        let job = wait_until(awaited, None, || {
            let mut jobs = jobs();
            let ready = |job: &Job| job.after.iter().all(|signal| value(*signal) == 0);
            let first = jobs.iter().position(ready)?;
            Some(jobs.remove(first))
        });
        let start = now();
        for part in &job.parts {
            if let Err(wrong) = memory::copy::copy(job.agent, part.to, part.from, part.size) {
                memory::fault(job.agent, wrong, "a copy");
            }
        }
        complete(job.done, start);
    }
}

fn submit(agent: usize, parts: Vec<Part>, after: &[SignalHandle], done: SignalHandle) -> Status {
    static ENGINE: LazyLock<JoinHandle<()>> = LazyLock::new(|| thread("hsa-sim copies", work));
    let after = after.iter().copied().filter(|signal| *signal != SignalHandle(0)).collect();
    jobs().push(Job { agent, parts, after, done });
    ENGINE.thread().unpark();
    Status::SUCCESS
}

fn submit_one(
    to: (usize, Agent),
    from: (usize, Agent),
    size: usize,
    after: &[SignalHandle],
    done: SignalHandle,
) -> Status {
    let (Some(target), Some(source)) = (agent::index(to.1), agent::index(from.1)) else {
        return Status::INVALID_AGENT;
    };
    trace!("memory_async_copy({:#x} agent {target}, {:#x} agent {source}, {size:#x})", to.0, from.0);
    let agent = if source > 0 { source } else { target };
    submit(agent, vec![Part { to: to.0, from: from.0, size }], after, done)
}

/// Returns the first byte of a row.
const fn row(base: &Pitched, offset: &[u32; 3], y: u32, z: u32) -> usize {
    let (y, z) = (offset[1] as usize + y as usize, offset[2] as usize + z as usize);
    base.base + offset[0] as usize + y * base.pitch + z * base.slice
}

hsa! {
    /// Queues a copy that waits for signals.
    pub unsafe fn hsa_amd_memory_async_copy(
        to: usize,
        to_agent: Agent,
        from: usize,
        from_agent: Agent,
        size: usize,
        count: u32,
        after: *const SignalHandle,
        done: SignalHandle,
    ) {
        // SAFETY: the caller's list has `count` signals.
        let after = unsafe { list(after, count as usize) };
        submit_one((to, to_agent), (from, from_agent), size, after, done)
    }

    /// Does the same on an engine of the caller's choice; there is only one.
    pub unsafe fn hsa_amd_memory_async_copy_on_engine(
        to: usize,
        to_agent: Agent,
        from: usize,
        from_agent: Agent,
        size: usize,
        count: u32,
        after: *const SignalHandle,
        done: SignalHandle,
        _engine: u32,
        _force: bool,
    ) {
        // SAFETY: the caller's list has `count` signals.
        let after = unsafe { list(after, count as usize) };
        submit_one((to, to_agent), (from, from_agent), size, after, done)
    }

    /// Copies a box, row by row.
    pub unsafe fn hsa_amd_memory_async_copy_rect(
        to: Option<&Pitched>,
        to_offset: Option<&[u32; 3]>,
        from: Option<&Pitched>,
        from_offset: Option<&[u32; 3]>,
        range: Option<&[u32; 3]>,
        agent: Agent,
        _direction: u32,
        count: u32,
        after: *const SignalHandle,
        done: SignalHandle,
    ) {
        let Some(agent) = agent::index(agent) else { return Status::INVALID_AGENT };
        let (Some(to), Some(to_offset), Some(from), Some(from_offset), Some([width, height, depth])) =
            (to, to_offset, from, from_offset, range)
        else {
            return Status::INVALID_ARGUMENT;
        };
        // SAFETY: the caller's list has `count` signals.
        let after = unsafe { list(after, count as usize) };
        let rows = (0..*depth).flat_map(|z| (0..*height).map(move |y| (y, z)));
        let parts = rows.map(|(y, z)| Part {
            to: row(to, to_offset, y, z),
            from: row(from, from_offset, y, z),
            size: *width as usize,
        });
        submit(agent, parts.collect(), after, done)
    }

    /// Reports two free engines.
    pub unsafe fn hsa_amd_memory_copy_engine_status(
        _to: Agent,
        _from: Agent,
        mask: Option<&mut MaybeUninit<u32>>,
    ) {
        let Some(mask) = mask else { return Status::INVALID_ARGUMENT };
        mask.write(3);
        Status::SUCCESS
    }

    /// Reports the first engine; all are equal.
    pub unsafe fn hsa_amd_memory_get_preferred_copy_engine(
        _to: Agent,
        _from: Agent,
        mask: Option<&mut MaybeUninit<u32>>,
    ) {
        let Some(mask) = mask else { return Status::INVALID_ARGUMENT };
        mask.write(1);
        Status::SUCCESS
    }
}
