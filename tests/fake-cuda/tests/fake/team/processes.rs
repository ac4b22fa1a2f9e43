//! One team in two halves.

use super::{ONE, SIZE, TWO, bound, check_nothing_is_left, idle, open, wrong_words};
use crate::child::{Case, DONE, case, start};
use crate::rig::Cuda;
use gpu_vmm_core::multicast::{Multicast, Team};
use gpu_vmm_core::{
    Backend, Bytes, Detail, DeviceId, Error, FabricHandle, Operation, PhysicalMemory, Placement, Properties,
};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_test_settings::cases;
use gpu_vmm_testkit::TestKit;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, BorrowedFd};

cases! {
    two_halves_are_one_team;
    an_import_is_not_exported;
    what_is_no_object_is_not_imported;
    fabric_handle_needs_an_object_for_it [FABRIC = "1"];
    two_processes_are_one_team;
    a_forked_child_drops_nothing;
}

/// The second process of the case with two.
pub(crate) const OTHER_HALF: Case = case("the_other_half", &[], the_other_half);

/// The environment variable with the object's descriptor.
const DESCRIPTOR: &str = "GPU_VMM_TEST_DESCRIPTOR";

/// Binds shareable memory of a device, whole.
fn bind(
    object: &mut Multicast<CudaBackend>,
    backend: &CudaBackend,
    device: DeviceId,
) -> PhysicalMemory<CudaBackend> {
    let memory = PhysicalMemory::create(backend, SIZE, Properties::on(device).shareable()).unwrap();
    object.bind(Bytes::ZERO, &memory, Bytes::ZERO, SIZE).unwrap();
    memory
}

fn half(backend: &CudaBackend, device: DeviceId) -> gpu_vmm_core::multicast::TeamBuilder<'_, CudaBackend> {
    Team::builder(backend).size(SIZE).device(device).elsewhere(1)
}

fn two_halves_are_one_team(cuda: &Cuda) {
    let backend = open(cuda);
    let first = half(&backend, ONE).create().unwrap();
    let descriptor = first.export().unwrap();
    // SAFETY: the descriptor is of an object with these settings.
    let second = unsafe { half(&backend, TWO).import(std::os::fd::AsFd::as_fd(&descriptor)) }.unwrap();
    drop(descriptor);
    assert_eq!(second.devices(), [TWO]);
    let (mut first, mut second) = (first.complete(), second.complete());
    // Each half binds its own memory.
    let own = [bind(&mut first, &backend, ONE), bind(&mut second, &backend, TWO)];
    let error = first.bind(Bytes::ZERO, &own[1], Bytes::ZERO, SIZE).unwrap_err();
    assert!(matches!(error.detail(), Detail::NotInTeam { .. }), "{error}");
    let ranges = [first, second].map(|half| half.map(Placement::Anywhere).unwrap());
    for (seed, (device, range)) in (3..).zip([(ONE, &ranges[0]), (TWO, &ranges[1])]) {
        // SAFETY: the range is mapped, and this device may store to it.
        unsafe { backend.write_pattern(device, range.address(), SIZE, seed) }.unwrap();
        assert_eq!(own.each_ref().map(|memory| wrong_words(&backend, memory, seed)), [0, 0]);
    }
    // Everything is unmapped before anything is unbound, as two processes would agree.
    let halves = ranges.map(|range| range.unmap(idle()).unwrap());
    drop((halves, own));
    check_nothing_is_left(cuda, &backend);
}

fn an_import_is_not_exported(cuda: &Cuda) {
    let backend = open(cuda);
    let first = half(&backend, ONE).create().unwrap();
    let descriptor = first.export().unwrap();
    // SAFETY: the descriptor is of an object with these settings.
    let second = unsafe { half(&backend, TWO).import(std::os::fd::AsFd::as_fd(&descriptor)) }.unwrap();
    let error = second.export().unwrap_err();
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
    drop((first, second));
    check_nothing_is_left(cuda, &backend);
}

fn what_is_no_object_is_not_imported(cuda: &Cuda) {
    let backend = open(cuda);
    let file = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: the driver checks that a descriptor is one of its own.
    let error = unsafe { half(&backend, TWO).import(std::os::fd::AsFd::as_fd(&file)) }.unwrap_err();
    assert!(matches!(error.detail(), Detail::Driver { .. }), "{error}");
    assert_eq!(error.operation(), Operation::ImportMulticast);
    check_nothing_is_left(cuda, &backend);
}

fn fabric_handle_needs_an_object_for_it(cuda: &Cuda) {
    let backend = open(cuda);
    let bytes = FabricHandle([7; 64]);
    // SAFETY: the driver checks that the bytes name an object.
    let error = unsafe { half(&backend, TWO).import_fabric(&bytes) }.unwrap_err();
    let (operation, name) = (error.operation(), error.driver_error().map(|driver| driver.name.as_ref()));
    assert_eq!((operation, name), (Operation::ImportMulticast, Some("CUDA_ERROR_INVALID_VALUE")), "{error}");
    // SAFETY: nothing is imported.
    let error = unsafe { Team::builder(&backend).size(SIZE).import_fabric(&bytes) }.unwrap_err();
    assert!(matches!(error.detail(), Detail::BadTeam { .. }), "{error}");
    assert_eq!(error.operation(), Operation::ImportMulticast);
    let team = half(&backend, ONE).create().unwrap();
    let error = team.export_fabric().unwrap_err();
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
    drop((team.export().unwrap(), team));
    check_nothing_is_left(cuda, &backend);
}

fn two_processes_are_one_team(cuda: &Cuda) {
    let backend = open(cuda);
    let team = half(&backend, ONE).create().unwrap();
    let descriptor = team.export().unwrap();
    // SAFETY: the descriptor is open, and the child must inherit it.
    assert_eq!(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    let mut child = start(&OTHER_HALF, &[(DESCRIPTOR, descriptor.as_raw_fd().to_string())]);
    drop(descriptor);
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut tell = child.stdin.take().unwrap();
    // The other process has added its device and bound its memory.
    assert_eq!(said.next().as_deref(), Some("bound"));
    let mut object = team.complete();
    let own = bind(&mut object, &backend, ONE);
    writeln!(tell, "bound").unwrap();
    let range = object.map(Placement::Anywhere).unwrap();
    // SAFETY: the range is mapped, and this device may store to it.
    unsafe { backend.write_pattern(ONE, range.address(), SIZE, 3) }.unwrap();
    assert_eq!(wrong_words(&backend, &own, 3), 0);
    assert_eq!(said.next().as_deref(), Some("stored"));
    let object = range.unmap(idle()).unwrap();
    writeln!(tell, "unmapped").unwrap();
    assert_eq!(said.next().as_deref(), Some("unmapped"));
    object.close().unwrap();
    assert_eq!(said.next().as_deref(), Some(DONE));
    assert!(child.wait().unwrap().success());
    drop(own);
    check_nothing_is_left(cuda, &backend);
}

fn the_other_half(cuda: &Cuda) {
    let backend = open(cuda);
    let number: i32 = std::env::var(DESCRIPTOR).unwrap().parse().unwrap();
    // SAFETY: the child inherited this descriptor, of an object with these settings.
    let team = unsafe { half(&backend, TWO).import(BorrowedFd::borrow_raw(number)) }.unwrap();
    let mut heard = std::io::stdin().lines().map(Result::unwrap);
    let mut object = team.complete();
    let own = bind(&mut object, &backend, TWO);
    println!("bound");
    assert_eq!(heard.next().as_deref(), Some("bound"));
    let range = object.map(Placement::Anywhere).unwrap();
    // SAFETY: the range is mapped, and this device may store to it.
    unsafe { backend.write_pattern(TWO, range.address(), SIZE, 4) }.unwrap();
    assert_eq!(wrong_words(&backend, &own, 4), 0);
    println!("stored");
    let object = range.unmap(idle()).unwrap();
    assert_eq!(heard.next().as_deref(), Some("unmapped"));
    println!("unmapped");
    object.close().unwrap();
    drop(own);
    check_nothing_is_left(cuda, &backend);
}

fn a_forked_child_drops_nothing(cuda: &Cuda) {
    let backend = open(cuda);
    let mut object = bound(&backend);
    let range = bound(&backend).map(Placement::Anywhere).unwrap();
    let before = cuda.counts();
    // SAFETY: none of the child's calls reaches the driver, and it ends without returning.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let more = object.bindings().next().unwrap().memory.clone();
        let answers = [
            super::both(&backend).create().map(drop),
            object.bind(Bytes::ZERO, &more, Bytes::ZERO, SIZE),
            object.unbind(ONE, Bytes::ZERO),
        ];
        // The object's state refuses the binding without a driver call.
        let is_right = matches!(
            answers.each_ref().map(|answer| answer.as_ref().map_err(Error::detail)),
            [Err(Detail::Forked), Err(Detail::AlreadyBound { .. }), Err(Detail::Forked)]
        );
        drop((object, range, more));
        let is_quiet = (backend.drop_log().count(), cuda.violations()) == (0, 0);
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(if is_right && is_quiet { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's, and the pointer is valid for one int.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(cuda.counts(), before);
    drop((object, range));
    check_nothing_is_left(cuda, &backend);
}
