//! Kernels, as HIP launches them: a loaded code object, a packet in a queue, arguments in memory. The code object is built
//! here, with descriptors and no code.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // calls C functions, and writes packets
#![allow(clippy::unwrap_used)] // tests may panic

mod support;

use gpu_vmm_hsa_sim::abi::{Agent, PacketKind, Queue, Status};
use gpu_vmm_hsa_sim::code::{executable, reader, symbol};
use gpu_vmm_hsa_sim::counters::hsa_sim_fault_count;
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

fn writes_where_nothing_is() {
    let (at, _) = mapped(gpu(), MIB);
    let queue = queue_of(gpu());
    let object = load(gpu(), "gpu_vmm_write_pattern", 24);
    let (at, all) = (at as u64, MIB as u64 / 8);
    dispatch(queue, object, &[at + MIB as u64, 1, 1]);
    assert_eq!(hsa_sim_fault_count(), 1);
    dispatch(queue, object, &[at, 1, 1]);
    let written = read(at as usize, 1);
    assert_ne!(written, [0], "the queue continues");
    dispatch(queue, object, &[at, all + 1, 7]);
    assert_eq!(hsa_sim_fault_count(), 2);
    assert_eq!(read(at as usize, 1), written, "and a kernel that faults has written nothing");
}

#[test]
fn faulting_kernel_ends_the_process() {
    let output = child("faulting_kernel_ends_the_process", &[], writes_where_nothing_is);
    let Some(output) = output else { return };
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{told}");
    assert!(told.contains("Memory access fault by GPU node-1 on address 0x"), "{told}");
    assert!(told.contains("gpu_vmm_write_pattern"), "{told}");
}

#[test]
fn faulting_kernel_can_be_counted() {
    let settings = [("HSA_SIM_ON_FAULT", "skip")];
    let output = child("faulting_kernel_can_be_counted", &settings, writes_where_nothing_is);
    assert!(output.is_none_or(|output| output.status.success()));
}

#[test]
fn unknown_kernel_ends_or_is_skipped() {
    const NAME: &str = "unknown_kernel_ends_or_is_skipped";
    let body = || dispatch(queue_of(gpu()), load(gpu(), "missing_kernel", 8), &[0]);
    let Some(output) = child(NAME, &[], body) else { return };
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    assert!(String::from_utf8_lossy(&output.stderr).contains("kernel missing_kernel is not simulated"));
    let skipped = child(NAME, &[("HSA_SIM_ON_UNKNOWN_KERNEL", "skip")], body).unwrap();
    assert!(skipped.status.success());
}

#[test]
fn kernel_declared_otherwise_ends_the_process() {
    let output = child("kernel_declared_otherwise_ends_the_process", &[], || {
        dispatch(queue_of(gpu()), load(gpu(), "gpu_vmm_write_pattern", 20), &[0, 0, 0]);
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
        dispatch(queue, load(gpu(), "gpu_vmm_write_pattern", 24), &[place, 1, 7]);
        assert_eq!(read(place as usize, 1), [0]);
    });
    assert!(output.is_none_or(|output| output.status.success()));
}
