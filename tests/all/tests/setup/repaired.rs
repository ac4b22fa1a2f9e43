//! Correct packages, and errors that the program repairs.

use crate::rig::Rig;
use std::fs;

crate::tests!(
    a_version_is_set_up_once,
    a_damaged_runtime_is_set_up_again,
    other_packages_replace_it,
    one_of_two
);

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn a_version_is_set_up_once(rig: &Rig) {
    let first = rig.set_up();
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(text(&first.stdout).contains("HIP 9.1.2 is in "), "{}", text(&first.stdout));
    assert!(text(&first.stderr).contains("unpacking HIP 9.1.2 (2 packages)"), "{}", text(&first.stderr));
    assert_eq!(rig.runtimes_left(), ["9.1.2"]);
    assert!(rig.libraries().join("libamdhip64.so.9").exists());
    assert!(rig.libraries().parent().unwrap().join("lib/libamdhip64.so.9").exists(), "as libLLVM looks");
    let second = rig.set_up();
    assert!(second.status.success());
    assert_eq!((text(&second.stderr), &second.stdout), ("", &first.stdout), "there was nothing to do");
}

fn a_damaged_runtime_is_set_up_again(rig: &Rig) {
    assert!(rig.set_up().status.success());
    let libc = rig.libraries().join("libc.so.6");
    fs::remove_file(&libc).unwrap();
    // An earlier run that was killed leaves such a folder.
    fs::create_dir(rig.runtimes().join("9.1.2.incomplete")).unwrap();
    assert!(rig.set_up().status.success());
    assert!(libc.exists());
    assert_eq!(rig.runtimes_left(), ["9.1.2"]);
}

fn other_packages_replace_it(rig: &Rig) {
    assert!(rig.set_up().status.success());
    let newer = "libc6_2.99-2_amd64.deb";
    fs::rename(rig.libc(), rig.debs().join(newer)).unwrap();
    rig.list(&[rig.hip().file_name().unwrap().to_str().unwrap(), newer]);
    let again = rig.set_up();
    assert!(again.status.success() && text(&again.stderr).contains("unpacking"), "{}", text(&again.stderr));
    let names = fs::read_to_string(rig.runtimes().join("9.1.2/packages.list")).unwrap();
    assert!(names.contains(newer), "{names}");
}

/// A version that cannot be set up does not prevent another one, but is still a failure.
fn one_of_two(rig: &Rig) {
    fs::write(rig.debs().join("8.list"), "libamdhip64-8_8.0.1-1_amd64.deb\n").unwrap();
    let output = rig.set_up();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("HIP 9.1.2 is in "), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("error: HIP 8: "), "{}", text(&output.stderr));
    assert_eq!(rig.runtimes_left(), ["9.1.2"]);
}
