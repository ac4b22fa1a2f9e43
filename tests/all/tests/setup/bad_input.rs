//! Everything that can be wrong.

use crate::rig::Rig;
use std::fs;
use std::process::Command;

crate::tests!(
    a_package_is_missing,
    a_package_is_truncated,
    packages_are_incomplete,
    another_architecture,
    a_version_too_old,
    a_list_without_hip,
    a_path_in_a_list,
    no_folder,
    no_list,
    no_dpkg,
    no_apt,
    no_network,
    fake_driver_needs_no_package,
    a_folder_that_cannot_be_made,
    what_cannot_be_set_up_is_skipped,
    what_was_named_has_to_work,
);

fn setup(rig: &Rig) -> Command {
    let mut command = rig.command();
    command.arg("setup");
    command
}

fn a_package_is_missing(rig: &Rig) {
    fs::remove_file(rig.libc()).unwrap();
    rig.refuses(&mut setup(rig), &["9.list", "libc6_2.99-1_amd64.deb", "does not exist", "put the package"]);
}

fn a_package_is_truncated(rig: &Rig) {
    let bytes = fs::read(rig.hip()).unwrap();
    fs::write(rig.hip(), &bytes[..bytes.len() / 2]).unwrap();
    rig.refuses(&mut setup(rig), &["HIP 9.1.2", "libamdhip64-9_", "cannot be unpacked", "fetch it again"]);
}

fn packages_are_incomplete(rig: &Rig) {
    // The package of the C library without the C library.
    fs::remove_dir_all(rig.folder.join("tree/libc6")).unwrap();
    rig.package("libc6_2.99-1_amd64.deb", &[("ld-linux-x86-64.so.2", "ld-linux-x86-64.so.2")]);
    rig.refuses(&mut setup(rig), &["HIP 9.1.2", "incomplete", "libc.so.6", "add the packages"]);
    // Without a loader, libraries cannot be checked.
    rig.list(&["libamdhip64-9_9.1.2+dfsg-3_amd64.deb"]);
    rig.refuses(&mut setup(rig), &["HIP 9.1.2", "ld-linux-x86-64.so.2"]);
}

fn another_architecture(rig: &Rig) {
    rig.list(&["libamdhip64-9_9.1.2-3_arm64.deb"]);
    rig.refuses(&mut setup(rig), &["9.list", "arm64", "only x86-64 packages"]);
}

fn a_version_too_old(rig: &Rig) {
    rig.package("libamdhip64-9_6.0.2-1_amd64.deb", &[]);
    rig.list(&["libamdhip64-9_6.0.2-1_amd64.deb"]);
    rig.refuses(&mut setup(rig), &["9.list", "6.0.2 is too old", "6.1"]);
}

fn a_list_without_hip(rig: &Rig) {
    rig.list(&["libc6_2.99-1_amd64.deb"]);
    rig.refuses(&mut setup(rig), &["9.list", "libamdhip64-9_"]);
}

fn a_path_in_a_list(rig: &Rig) {
    rig.list(&["../debs/libc6_2.99-1_amd64.deb"]);
    rig.refuses(&mut setup(rig), &["9.list", "not a file name", "next to the list"]);
}

fn no_folder(rig: &Rig) {
    fs::remove_dir_all(rig.debs()).unwrap();
    rig.refuses(&mut setup(rig), &["HIP_RUNTIME_DEBS", "debs", "not a folder"]);
}

fn no_list(rig: &Rig) {
    fs::remove_file(rig.debs().join("9.list")).unwrap();
    rig.refuses(&mut setup(rig), &["HIP_RUNTIME_DEBS", "no list", "7.list"]);
}

fn no_dpkg(rig: &Rig) {
    let path = rig.path_without(&["dpkg-deb"]);
    rig.refuses(setup(rig).env("PATH", path), &["dpkg-deb", "not installed", "install dpkg"]);
}

fn no_apt(rig: &Rig) {
    let mut command = setup(rig);
    command.env("PATH", rig.path_without(&["apt-get", "apt-cache"])).env_remove("HIP_RUNTIME_DEBS");
    rig.refuses(&mut command, &["apt-get", "not installed", "install apt", "HIP_RUNTIME_DEBS"]);
}

/// apt itself, if it is installed, with a mirror that cannot be reached.
fn no_network(rig: &Rig) {
    let mut command = setup(rig);
    command.env_remove("HIP_RUNTIME_DEBS").env("HIP_RUNTIME_MIRROR", "http://127.0.0.1:9/debian");
    rig.refuses(&mut command, &["HIP_RUNTIME_DEBS"]);
    let lists = rig.runtimes().join("debs");
    let named = fs::read_dir(lists).into_iter().flatten().flatten();
    assert!(!named.into_iter().any(|file| file.path().extension().is_some_and(|end| end == "list")));
}

fn fake_driver_needs_no_package(rig: &Rig) {
    fs::remove_dir_all(rig.debs()).unwrap();
    let output = rig.set_up();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "HIP was not set up");
    assert!(said.starts_with("the fake NVIDIA driver is in "), "{said}");
    assert!(rig.runtimes().join("fake-cuda/libcuda.so.1").exists());
}

fn a_folder_that_cannot_be_made(rig: &Rig) {
    // No user can create a folder in a file, not even root.
    fs::write(rig.runtimes(), "").unwrap();
    rig.refuses(&mut setup(rig), &["hip runtimes", "cannot be created", "--folder"]);
}

/// Without a version of HIP its tests are reported as skipped, with the reason, and never as passed.
fn what_cannot_be_set_up_is_skipped(rig: &Rig) {
    let hip = |require: &[&str]| {
        let mut command = rig.command();
        command.env("PATH", "/nonexistent").env_remove("HIP_RUNTIME_DEBS").args(require).arg("hip");
        let output = command.env("HIP_RUNTIME_MIRROR", "http://127.0.0.1:9/debian").output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, table) = hip(&[]);
    assert_eq!(status, Some(0), "{table}");
    assert!(table.contains("SKIPPED  NOT RUN: "), "{table}");
    assert!(table.contains("HIP_RUNTIME_DEBS"), "{table}");
    assert!(table.contains("nothing failed, but 1 of 1 could not be run"), "{table}");
    let (status, table) = hip(&["--require-hip"]);
    assert_eq!(status, Some(1), "{table}");
    assert!(table.contains("FAILED   NOT RUN: ") && table.ends_with("1 of 1 FAILED\n"), "{table}");
}

fn what_was_named_has_to_work(rig: &Rig) {
    fs::remove_file(rig.libc()).unwrap();
    let output = rig.command().arg("hip").output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert!(table.contains("HIP 9  FAILED   NOT RUN: ") && table.contains("libc6_2.99-1"), "{table}");
}
