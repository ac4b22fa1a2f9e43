//! Kernels, as HIP launches them: a loaded code object, a packet in a queue, arguments in memory. The code object is built
//! here, with descriptors and no code.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // calls C functions, and writes packets
#![allow(clippy::unwrap_used)] // tests may panic

mod support;

use gpu_vmm_hsa_sim::abi::{Agent, PacketKind, Queue, Status};
use gpu_vmm_hsa_sim::code::{executable, reader, symbol};
use gpu_vmm_hsa_sim::counters::hsa_sim_fault_count;
use gpu_vmm_hsa_sim::work::queue;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::ptr::{null, with_exposed_provenance_mut};
use support::*;

/// Builds a code object with one kernel and its number of argument bytes.
fn code_object(kernel: &str, arguments: u32) -> Vec<u8> {
    const HEADERS: usize = 64 + 56;
    let name = format!("\0{kernel}.kd\0");
    let descriptor = HEADERS + name.len().next_multiple_of(64);
    let symbols = descriptor + 64;
    let sections = symbols + 24;
    let mut file = vec![0; sections + 2 * 64];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    let mut long = |at: usize, value: usize| put(at, &value.to_le_bytes());
    long(32, 64); // program headers
    long(40, sections);
    long(64 + 32, sections); // the size of the one segment, at 0 in the file and in memory
    long(symbols + 8, descriptor);
    long(symbols + 16, 64);
    long(sections + 24, symbols);
    long(sections + 32, 24);
    long(sections + 64 + 24, HEADERS); // the names
    put(0, b"\x7fELF\x02");
    put(56, &[1]); // one program header
    put(60, &[2]); // two sections
    put(64, &[1]); // to be loaded
    put(HEADERS, name.as_bytes());
    put(descriptor + 8, &arguments.to_le_bytes());
    put(symbols, &[1, 0, 0, 0, 1, 0, 1, 0]); // the name, an object, defined in section 1
    put(sections + 4, &[11]); // dynamic symbols
    put(sections + 40, &[1]); // the section of their names
    file
}

fn given<T>(call: impl FnOnce(Option<&mut MaybeUninit<T>>) -> Status) -> T {
    let mut out = MaybeUninit::uninit();
    assert_eq!(call(Some(&mut out)), Status::SUCCESS);
    // SAFETY: a call that succeeds writes its result.
    unsafe { out.assume_init() }
}

/// Loads a kernel and returns the address of its descriptor.
fn load(gpu: Agent, kernel: &str, arguments: u32) -> u64 {
    let file = code_object(kernel, arguments);
    let name = CString::new(format!("{kernel}.kd")).unwrap();
    // SAFETY: pointers to places for the results, and texts that end with a zero byte.
    unsafe {
        let code =
            given(|out| reader::hsa_code_object_reader_create_from_memory(file.as_ptr(), file.len(), out));
        let program = given(|out| executable::hsa_executable_create_alt(0, 0, null(), out));
        let loaded = executable::hsa_executable_load_agent_code_object(program, gpu, code, null(), None);
        assert_eq!(loaded, Status::SUCCESS);
        let found = given(|out| {
            symbol::hsa_executable_get_symbol_by_name(program, name.as_ptr(), &raw const gpu, out)
        });
        let mut object = 0u64;
        assert_eq!(
            symbol::hsa_executable_symbol_get_info(found, 22, (&raw mut object).cast()),
            Status::SUCCESS
        );
        object
    }
}

/// Dispatches a kernel in a queue and waits.
fn dispatch(queue: *mut Queue, object: u64, arguments: &[u64]) {
    let kernarg = allocate(pools(cpu())[1], PAGE).unwrap();
    // The program lets the GPU read its arguments, as HIP does.
    allow(&agents(), kernarg).unwrap();
    let words: *mut u64 = with_exposed_provenance_mut(kernarg);
    // SAFETY: a page that is not shared yet.
    unsafe { words.copy_from_nonoverlapping(arguments.as_ptr(), arguments.len()) };
    let done = signal_of_one();
    let fields = [(8, 0), (16, 0), (24, 0), (32, object), (40, kernarg as u64), (56, done.0)];
    ring(queue, write_packet(queue, PacketKind::KERNEL, &fields));
    wait(done);
    deallocate(kernarg).unwrap();
}

#[test]
fn kernels_do_what_they_are_named_for() {
    let _alone = alone();
    let gpu = gpu();
    let queue = queue_of(gpu);
    // Two adjacent mappings, so that the words are in several pieces.
    let at = reserve(2 * MIB, 0, 0).unwrap();
    let parts = [0, 1].map(|_| create(memory_of(gpu), MIB).unwrap());
    map(at, MIB, parts[1]).unwrap();
    map(at + MIB, MIB, parts[0]).unwrap();
    set_access(at, 2 * MIB, &[(gpu, 3)]).unwrap();
    let (first, all) = (at as u64, 2 * MIB as u64 / 8);
    let counter = allocate(memory_of(gpu), PAGE).unwrap();
    let run = |kernel: &str, arguments: &[u64]| {
        dispatch(queue, load(gpu, kernel, arguments.len() as u32 * 8), arguments);
    };

    run("gpu_vmm_write_pattern", &[first, all, 9]);
    let mixed = 10u64.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    assert_eq!(read(at, 2)[1], mixed ^ (mixed >> 32));
    run("gpu_vmm_count_wrong", &[first, 0, 9, 0x1000]); // there is nothing to count, and no counter is touched
    run("gpu_vmm_write_at", &[first + MIB as u64 + 8, 1]);
    run("gpu_vmm_write_at", &[counter as u64, 7]);
    run("gpu_vmm_write_at", &[counter as u64 + 8, 5]);
    run("gpu_vmm_count_wrong", &[first, all, 9, counter as u64]);
    assert_eq!(read(counter, 2), [7 + all, 6], "all are checked, and one more is wrong");
    run("gpu_vmm_count_wrong", &[first, all, 10, counter as u64]);
    assert_eq!(read(counter, 2), [7 + 2 * all, 6 + all], "all are wrong, under another seed");

    run("gpu_vmm_fill", &[first, all, 3]);
    assert!(read(at, all as usize).iter().all(|word| *word == 3));
    run("gpu_vmm_write_at", &[counter as u64, 100]);
    run("gpu_vmm_checksum", &[first, 4, counter as u64]);
    assert_eq!(read(counter, 1), [100 + 3 * (1 + 3 + 5 + 7)]);
    for index in 0..4 {
        run("gpu_vmm_write_at", &[first + 24 * index, index + 20]);
    }
    run("gpu_vmm_copy_strided", &[first + MIB as u64, 2, first, 3, 4]);
    assert_eq!(read(at + MIB, 8), [20, 3, 21, 3, 22, 3, 23, 3]);

    assert_eq!(hsa_sim_fault_count(), 0);
    // SAFETY: created above, and idle.
    assert_eq!(unsafe { queue::hsa_queue_destroy(queue) }, Status::SUCCESS);
    // SAFETY: the pointer is only compared.
    assert_eq!(unsafe { queue::hsa_queue_destroy(queue) }, Status::INVALID_QUEUE);
    deallocate(counter).unwrap();
    unmap(at, 2 * MIB).unwrap();
    parts.into_iter().for_each(|part| release(part).unwrap());
    free(at, 2 * MIB).unwrap();
}

fn writes_where_nothing_is() {
    let (at, _) = mapped(gpu(), MIB);
    let queue = queue_of(gpu());
    let object = load(gpu(), "gpu_vmm_write_at", 16);
    dispatch(queue, object, &[(at + MIB) as u64, 1]);
    assert_eq!(hsa_sim_fault_count(), 1);
    dispatch(queue, object, &[at as u64, 1]);
    assert_eq!(read(at, 1), [1], "the queue continues");
    let fill = load(gpu(), "gpu_vmm_fill", 24);
    dispatch(queue, fill, &[at as u64, MIB as u64 / 8 + 1, 7]);
    assert_eq!(hsa_sim_fault_count(), 2);
    assert_eq!(read(at, 1), [1], "and a kernel that faults has written nothing");
}

#[test]
fn a_kernel_that_faults_ends_the_process() {
    let output = child("a_kernel_that_faults_ends_the_process", &[], writes_where_nothing_is);
    let Some(output) = output else { return };
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{told}");
    assert!(told.contains("Memory access fault by GPU node-1 on address 0x"), "{told}");
    assert!(told.contains("gpu_vmm_write_at"), "{told}");
}

#[test]
fn a_kernel_that_faults_can_be_counted() {
    let settings = [("HSA_SIM_ON_FAULT", "skip")];
    let output = child("a_kernel_that_faults_can_be_counted", &settings, writes_where_nothing_is);
    assert!(output.is_none_or(|output| output.status.success()));
}

#[test]
fn an_unknown_kernel_ends_the_process_or_is_left_out() {
    const NAME: &str = "an_unknown_kernel_ends_the_process_or_is_left_out";
    let body = || dispatch(queue_of(gpu()), load(gpu(), "missing_kernel", 8), &[0]);
    let Some(output) = child(NAME, &[], body) else { return };
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    assert!(String::from_utf8_lossy(&output.stderr).contains("kernel missing_kernel is not simulated"));
    let skipped = child(NAME, &[("HSA_SIM_ON_UNKNOWN_KERNEL", "skip")], body).unwrap();
    assert!(skipped.status.success());
}

#[test]
fn a_kernel_that_is_declared_otherwise_ends_the_process() {
    let output = child("a_kernel_that_is_declared_otherwise_ends_the_process", &[], || {
        dispatch(queue_of(gpu()), load(gpu(), "gpu_vmm_fill", 20), &[0, 0, 0]);
    });
    let Some(output) = output else { return };
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the declarations differ"));
}

#[test]
fn kernels_are_ignored_as_told() {
    let output = child("kernels_are_ignored_as_told", &[("HSA_SIM_KERNELS", "ignore")], || {
        let place = allocate(memory_of(gpu()), PAGE).unwrap() as u64;
        let queue = queue_of(gpu());
        dispatch(queue, load(gpu(), "gpu_vmm_write_at", 16), &[place, 7]);
        assert_eq!(read(place as usize, 1), [0]);
    });
    assert!(output.is_none_or(|output| output.status.success()));
}
