//! If HIP is missing, or another library is in its place, opening returns an error with the places that were searched.
#![allow(unsafe_code)] // sets environment variables
#![allow(clippy::expect_used)] // a test may panic

use gpu_vmm_core::{Detail, Error, Vendor};
use gpu_vmm_hip::HipBackend;
#[cfg(target_os = "linux")]
use gpu_vmm_testkit::forked::Child;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicBool, Ordering};

const OVERRIDE: &str = "GPU_VMM_HIP_LIBRARY";

fn with_override(path: &str) -> Error {
    // SAFETY: one test runs at a time, on the main thread, and nothing else reads the environment meanwhile.
    unsafe { std::env::set_var(OVERRIDE, path) };
    let error = HipBackend::open().expect_err("the named library is not HIP");
    // SAFETY: as above.
    unsafe { std::env::remove_var(OVERRIDE) };
    error
}

fn a_missing_file_is_named() -> Result<Completion, Failed> {
    let path = "/nonexistent/libamdhip64.so.7";
    let error = with_override(path);
    let Detail::LibraryNotFound { vendor: Vendor::Hip, tried, .. } = error.detail() else {
        return Err(format!("{error:?}").into());
    };
    assert_eq!(tried.len(), 1, "an explicitly named library is the only one that is tried: {tried:?}");
    assert_eq!(tried[0].library, path);
    assert!(tried[0].answer.contains("No such file"), "the loader's own text: {}", tried[0].answer);
    assert!(error.to_string().contains(path) && error.to_string().contains("GPU_VMM_HIP_LIBRARY"), "{error}");
    Ok(Completion::Completed)
}

fn another_library_is_refused() -> Result<Completion, Failed> {
    let error = with_override("libm.so.6");
    let Detail::LibraryRefused { library, reason, .. } = error.detail() else {
        return Err(format!("{error:?}").into());
    };
    assert_eq!(library, "libm.so.6");
    assert!(reason.starts_with("it lacks the function hip"), "the missing function is named: {reason}");
    Ok(Completion::Completed)
}

/// An empty variable is the same as none.
fn an_empty_variable_names_no_library() -> Result<Completion, Failed> {
    // SAFETY: as above.
    unsafe { std::env::set_var(OVERRIDE, "") };
    let opened = HipBackend::open();
    // SAFETY: as above.
    unsafe { std::env::remove_var(OVERRIDE) };
    match opened.map_err(Error::into_detail) {
        Err(Detail::LibraryNotFound { tried, .. }) => assert!(tried.len() > 3, "{tried:?}"),
        Err(Detail::LibraryRefused { library, .. }) => assert!(!library.is_empty(), "it is this program"),
        _ => {}
    }
    Ok(Completion::Completed)
}

/// A child that is forked while another thread of its parent is inside [`HipBackend::open`] does not wait for that thread, which it
/// does not have.
#[cfg(target_os = "linux")]
fn forked_children_open_beside_their_parent() -> Result<Completion, Failed> {
    let (path, ended) = ("/nonexistent/libamdhip64.so.7", AtomicBool::new(false));
    with_variables(&[(OVERRIDE, Some(path))], || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    HipBackend::open().map(drop).expect_err("the named library is missing");
                }
            });
            let _ends = Ends(&ended);
            for _ in 0..100 {
                Child::fork(|| {
                    let error = HipBackend::open().map(drop).expect_err("the named library is missing");
                    assert!(matches!(error.detail(), Detail::LibraryNotFound { .. }), "{error}");
                })
                .finish();
            }
        });
    });
    Ok(Completion::Completed)
}

/// Tells a thread to end, also in a panic.
#[cfg(target_os = "linux")]
struct Ends<'a>(&'a AtomicBool);

#[cfg(target_os = "linux")]
impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sets variables, or removes those without a value, while `work` runs.
fn with_variables<T>(variables: &[(&str, Option<&str>)], work: impl FnOnce() -> T) -> T {
    let set = |name: &str, value: Option<&std::ffi::OsStr>| match value {
        // SAFETY: one test runs at a time, on the main thread, and nothing else reads the environment meanwhile.
        Some(value) => unsafe { std::env::set_var(name, value) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var(name) },
    };
    let before: Vec<_> = variables.iter().map(|(name, _)| std::env::var_os(name)).collect();
    variables.iter().for_each(|(name, value)| set(name, value.map(AsRef::as_ref)));
    let done = work();
    variables.iter().zip(before).for_each(|((name, _), value)| set(name, value.as_deref()));
    done
}

fn all_places_are_listed() -> Result<Completion, Failed> {
    let variables = [
        ("GPU_VMM_HIP_FOLDER", Some("/nonexistent/first")),
        ("ROCM_PATH", Some("/nonexistent/rocm")),
        ("VIRTUAL_ENV", Some("/nonexistent/venv")),
        ("CONDA_PREFIX", None),
    ];
    let opened = with_variables(&variables, || [HipBackend::open(), HipBackend::open()]);
    let [error, again] = opened.map(|opened| opened.map_err(Error::into_detail));
    let error = match error {
        Ok(backend) => return Ok(Completion::ignored_with(format!("HIP is here: {backend:?}"))),
        Err(Detail::NoDevice { reason, .. }) => {
            return Ok(Completion::ignored_with(format!("HIP is here, without a device: {reason}")));
        }
        Err(error) => error,
    };
    let Detail::LibraryNotFound { tried, what, .. } = &error else {
        return Err(format!("{error:?}").into());
    };
    assert_eq!(*what, "AMD's HIP runtime, 6.1 or later");
    let names: Vec<_> = tried.iter().map(|one| one.library.as_str()).collect();
    let expected = [
        "/nonexistent/first/libamdhip64.so*",
        "libamdhip64.so.8",
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "/nonexistent/rocm/lib/libamdhip64.so*",
        "/nonexistent/venv/lib/python*/site-packages/_rocm_sdk_core/lib/libamdhip64.so*",
        "/opt/rocm/lib/libamdhip64.so*",
        "/opt/rocm/core/lib/libamdhip64.so*",
        "/opt/rocm/core-*/lib/libamdhip64.so*",
        "libamdhip64.so",
    ];
    assert_eq!(names, expected);
    for one in tried {
        let expected = if one.library.contains('*') { "no such file" } else { &one.library };
        assert!(one.answer.contains(expected), "a reason: {one:?}");
    }
    assert!(again.is_err(), "the second call fails too");
    Ok(Completion::Completed)
}

/// The path of the C library.
fn c_library() -> &'static str {
    // SAFETY: the function has an address in the library, which is never unloaded; the loader writes one structure.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        assert!(
            libc::dladdr(libc::getpid as *const libc::c_void, &raw mut info) != 0,
            "the C library has a path"
        );
        std::ffi::CStr::from_ptr(info.dli_fname).to_str().expect("a path")
    }
}

/// A library that was refused stays loaded, and the next call searches again. One that the program has loaded is taken, whatever its
/// version.
fn only_the_programs_libraries_count_as_loaded() -> Result<Completion, Failed> {
    let folder = std::env::temp_dir().join(format!("gpu-vmm-hip-loaded-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    // Any library that can be loaded a second time.
    let library = std::path::Path::new(c_library()).with_file_name("libm.so.6");
    let (tried, loaded) = (folder.join("libamdhip64.so.9"), folder.join("libamdhip64.so.10"));
    std::fs::copy(&library, &tried).expect("a copy");
    let variables = [("GPU_VMM_HIP_FOLDER", folder.to_str())];
    let opened = with_variables(&variables, HipBackend::open);
    if !matches!(opened.as_ref().map_err(Error::detail), Err(Detail::LibraryNotFound { .. })) {
        std::fs::remove_dir_all(&folder).expect("the temporary folder");
        return Ok(Completion::ignored_with(format!("HIP is here: {opened:?}")));
    }
    assert!(!HipBackend::is_loaded(), "a refused library counts as loaded");
    let again = HipBackend::open().map_err(Error::into_detail);
    assert!(matches!(again, Err(Detail::LibraryNotFound { .. })), "{again:?}");

    std::fs::copy(&library, &loaded).expect("a copy");
    let name = std::ffi::CString::new(loaded.to_str().expect("a path")).expect("a path");
    // SAFETY: the initializers of the mathematical library require nothing.
    assert!(!unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null());
    assert!(HipBackend::is_loaded());
    let refused = HipBackend::open().map_err(Error::into_detail);
    std::fs::remove_dir_all(&folder).expect("the temporary folder");
    let Err(Detail::LibraryRefused { library, .. }) = refused else {
        return Err(format!("{refused:?}").into());
    };
    assert_eq!(std::path::Path::new(&library), loaded);
    Ok(Completion::Completed)
}

/// Libraries of another architecture, of a broken file, and without HIP's functions are recorded with the reason; the search
/// goes on.
fn unusable_libraries_do_not_end_the_search() -> Result<Completion, Failed> {
    let folder = std::env::temp_dir().join(format!("gpu-vmm-hip-absent-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let program = std::fs::read("/proc/self/exe").expect("this program");
    let mut other = program[..64].to_vec();
    // The ELF header's machine: none has this number.
    other[18..20].copy_from_slice(&0xfefe_u16.to_ne_bytes());
    std::fs::write(folder.join("libamdhip64.so.9"), &other).expect("a file");
    std::fs::write(folder.join("libamdhip64.so.8"), "broken").expect("a file");
    std::os::unix::fs::symlink(c_library(), folder.join("libamdhip64.so.7")).expect("a link");
    let variables = [("GPU_VMM_HIP_FOLDER", folder.to_str())];
    let opened = with_variables(&variables, HipBackend::open);
    std::fs::remove_dir_all(&folder).expect("the temporary folder");
    let tried = match opened.map_err(Error::into_detail) {
        Err(Detail::LibraryNotFound { tried, .. }) => tried,
        other => return Ok(Completion::ignored_with(format!("HIP is here: {other:?}"))),
    };
    let expected = [
        ("libamdhip64.so.9", "it is for another processor"),
        ("libamdhip64.so.8", "file too short"),
        ("libamdhip64.so.7", "it lacks the function hip"),
    ];
    for ((name, reason), one) in expected.into_iter().zip(&tried) {
        assert_eq!(one.library, folder.join(name).display().to_string());
        assert!(one.answer.contains(reason), "{one:?}");
    }
    assert!(tried.len() > 8, "the search ended early: {tried:?}");
    Ok(Completion::Completed)
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tests = vec![
        Trial::ignorable_test("a_missing_file_is_named", a_missing_file_is_named),
        Trial::ignorable_test("another_library_is_refused", another_library_is_refused),
        Trial::ignorable_test("all_places_are_listed", all_places_are_listed),
        Trial::ignorable_test(
            "unusable_libraries_do_not_end_the_search",
            unusable_libraries_do_not_end_the_search,
        ),
        #[cfg(target_os = "linux")]
        Trial::ignorable_test(
            "forked_children_open_beside_their_parent",
            forked_children_open_beside_their_parent,
        ),
        // The last ones: the first loads a library for good, the second opens HIP where HIP is.
        Trial::ignorable_test(
            "only_the_programs_libraries_count_as_loaded",
            only_the_programs_libraries_count_as_loaded,
        ),
        Trial::ignorable_test("an_empty_variable_names_no_library", an_empty_variable_names_no_library),
    ];
    libtest_mimic::run(&arguments, tests).exit();
}
