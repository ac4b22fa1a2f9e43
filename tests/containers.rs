//! A region passes from one container to another: two processes that have no namespace in common but share a folder.
//!
//! The test needs the right to create namespaces, which a container or the system's settings can withhold, so it runs only on
//! request: `cargo test --test containers -- --ignored`.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use gpu_vmm::host::HostConfig;
use gpu_vmm::share::{Allowed, Channel, Exporter, ImportMethod, ImportOptions, Listener, Offer, Offered};
use gpu_vmm::{Backend, Bytes, Detail, DeviceId, Properties, Region, WaitFor};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);
const NAMESPACES: [&str; 6] = ["user", "mnt", "pid", "net", "ipc", "uts"];
/// Set in the processes in containers: `exporter`, `importer`, `later` in a time namespace, or `masked` without `/proc`.
const ROLE: &str = "CONTAINERS_ROLE";
/// The folder that both share.
const SHARED: &str = "CONTAINERS_FOLDER";

fn region<B: Backend>(backend: &B) -> Region<B> {
    let properties = Properties::on(DeviceId(0)).shareable();
    let mut region = Region::builder(backend).memory(properties).reserve(Bytes::mib(64)).build().unwrap();
    region.grow_to(Bytes::mib(4)).unwrap();
    region.write(Bytes(0), b"from the exporter").unwrap();
    region
}

/// Writes a file under another name first, so that the other process reads all of it.
fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let new = folder.join(format!("{name}.new"));
    fs::write(&new, bytes).unwrap();
    fs::rename(new, folder.join(name)).unwrap();
}

fn exporter(folder: &Path) {
    let backend = HostConfig::new().open().unwrap();
    let mut region = region(&backend);
    let offered = Offered::new(&region, ImportMethod::Process).unwrap();
    put(folder, "offer", &offered.offer().to_bytes().unwrap());
    let listener = Listener::bind(folder.join("socket")).unwrap();
    put(folder, "ready", b"");
    let channel = listener.accept(Allowed::same_user(), SOON).unwrap();
    assert_eq!(channel.peer().pid, 0, "the importer's process is invisible here");

    let mut exporter = Exporter::share(channel, &region).unwrap();
    exporter.wait_applied(SOON).unwrap();
    region.grow_to(Bytes::mib(8)).unwrap();
    exporter.publish(&region).unwrap();
    exporter.wait_applied(SOON).unwrap();
    exporter.request_release().unwrap();
    exporter.wait_released(SOON).unwrap();
    let mut answer = [0; 17];
    region.read(Bytes::mib(4), &mut answer).unwrap();
    assert_eq!(&answer, b"from the importer");
}

fn importer(folder: &Path) {
    let backend = HostConfig::new().open().unwrap();
    // The exporter has the number 1 in its container, which is this process here. An offer by process notices that: this process
    // started at another time, or, if not, has another file or none open there.
    let offer = Offer::from_bytes(&fs::read(folder.join("offer")).unwrap()).unwrap();
    let error = offer.import(&backend, &ImportOptions::new()).unwrap_err();
    assert!(matches!(error.detail(), Detail::Mismatch { .. }), "{error}");

    let channel = Channel::connect(folder.join("socket"), Allowed::same_user(), SOON).unwrap();
    let options = ImportOptions::new().reserve(Bytes::mib(64));
    let mut shared = options.receive(&backend, channel).unwrap();
    let mut text = [0; 17];
    shared.region().read(Bytes(0), &mut text).unwrap();
    assert_eq!(&text, b"from the exporter");
    shared.next(SOON).unwrap().unwrap();
    shared.apply(WaitFor::all_devices()).unwrap();
    shared.region_mut().write(Bytes::mib(4), b"from the importer").unwrap();
    shared.next(SOON).unwrap().unwrap();
    shared.release(WaitFor::all_devices()).unwrap();
}

/// Starts one side in namespaces of its own.
fn start(role: &str, folder: &Path) -> Child {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--uts"]);
    command.args(["--fork", "--kill-child", "--mount-proc"]).arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "a_region_passes_between_containers", "--nocapture"]);
    command.env(ROLE, role).env(SHARED, folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The numbers of this process's namespaces.
fn namespaces() -> Vec<String> {
    let link = |name| fs::read_link(format!("/proc/self/ns/{name}")).unwrap().to_string_lossy().into_owned();
    NAMESPACES.into_iter().map(link).collect()
}

#[test]
#[ignore = "needs the right to create namespaces"]
fn a_region_passes_between_containers() {
    if let Some(role) = std::env::var_os(ROLE) {
        let (role, folder) = (role.to_string_lossy(), PathBuf::from(std::env::var_os(SHARED).unwrap()));
        put(&folder, &format!("{role}.namespaces"), namespaces().join("\n").as_bytes());
        return if role == "exporter" { exporter(&folder) } else { importer(&folder) };
    }
    let folder = std::env::temp_dir().join(format!("gpu-vmm-containers-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let mut sides = vec![("exporter", start("exporter", &folder))];
    let is_ready = || folder.join("ready").exists();
    for _ in 0..3_000 {
        if is_ready() || sides[0].1.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    if is_ready() {
        sides.push(("importer", start("importer", &folder)));
    }
    let mut said = Vec::new();
    for (role, side) in sides {
        let ended = side.wait_with_output().unwrap();
        let output = [ended.stdout, ended.stderr].concat();
        said.push((role, ended.status, String::from_utf8_lossy(&output).into_owned()));
    }
    let read = |role: &str| fs::read_to_string(folder.join(format!("{role}.namespaces")));
    let (exporters, importers) = (read("exporter"), read("importer"));
    fs::remove_dir_all(&folder).unwrap();
    assert!(said.len() == 2 && said.iter().all(|(_, status, _)| status.success()), "{said:#?}");
    assert!(said.iter().all(|(.., output)| output.contains("1 passed")), "{said:#?}");
    let (exporters, importers, here) = (exporters.unwrap(), importers.unwrap(), namespaces());
    let all = here.iter().zip(exporters.lines()).zip(importers.lines());
    assert_eq!(all.clone().count(), NAMESPACES.len());
    assert!(
        all.clone()
            .all(|((here, exporter), importer)| here != exporter && here != importer && exporter != importer),
        "{exporters}\n{importers}\n{here:?}"
    );
}

/// A process whose clock differs, as a restored container has it, takes an offer by process.
#[test]
#[ignore = "needs the right to create namespaces"]
fn an_offer_passes_into_a_time_namespace() {
    if std::env::var_os(ROLE).is_some() {
        let folder = PathBuf::from(std::env::var_os(SHARED).unwrap());
        let offer = Offer::from_bytes(&fs::read(folder.join("offer")).unwrap()).unwrap();
        let shared = offer.import(&HostConfig::new().open().unwrap(), &ImportOptions::new()).unwrap();
        let mut text = [0; 17];
        shared.read(Bytes(0), &mut text).unwrap();
        assert_eq!(&text, b"from the exporter");
        return;
    }
    let folder = std::env::temp_dir().join(format!("gpu-vmm-later-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let backend = HostConfig::new().open().unwrap();
    let region = region(&backend);
    let offered = Offered::new(&region, ImportMethod::Process).unwrap();
    put(&folder, "offer", &offered.offer().to_bytes().unwrap());
    let mut command = Command::new("unshare");
    command.args(["--time", "--boottime", "100000", "--fork"]).arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "an_offer_passes_into_a_time_namespace", "--nocapture"]);
    let output = command.env(ROLE, "later").env(SHARED, &folder).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Memory passes over a socket in a sandbox that hides `/proc`.
#[test]
#[ignore = "needs the right to create namespaces"]
fn a_region_passes_without_proc() {
    if std::env::var_os(ROLE).is_some() {
        assert!(!Path::new("/proc/self").exists());
        let region = region(&HostConfig::new().open().unwrap());
        let (ours, theirs) = Channel::pair().unwrap();
        let importer = std::thread::spawn(move || {
            let backend = HostConfig::new().open().unwrap();
            let options = ImportOptions::new().reserve(Bytes::mib(64));
            let shared = options.receive(&backend, theirs).unwrap();
            let mut text = [0; 17];
            shared.region().read(Bytes(0), &mut text).unwrap();
            shared.release(WaitFor::all_devices()).unwrap();
            text
        });
        let mut exporter = Exporter::share(ours, &region).unwrap();
        exporter.wait_released(SOON).unwrap();
        assert_eq!(&importer.join().unwrap(), b"from the exporter");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", "mount -t tmpfs none /proc && exec \"$0\" \"$@\""]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "a_region_passes_without_proc", "--nocapture"]);
    let output = command.env(ROLE, "masked").output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
