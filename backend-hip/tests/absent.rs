//! If HIP is missing, or another library is in its place, opening returns an error with the places that were searched.
#![allow(unsafe_code)] // sets environment variables
#![allow(clippy::expect_used)] // a test may panic

use gpu_vmm_core::{Detail, Error, Vendor};
use gpu_vmm_hip::HipBackend;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

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

fn all_places_are_listed() -> Result<Completion, Failed> {
    let rocm = std::env::var_os("ROCM_PATH");
    // SAFETY: as above.
    unsafe { std::env::set_var("ROCM_PATH", "/nonexistent/rocm") };
    let error = match HipBackend::open().map_err(Error::into_detail) {
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
    assert_eq!(names[..3], ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"]);
    let folders = names[3..].iter().map(|name| name.rsplit_once('/'));
    let expected = ["/nonexistent/rocm/lib", "/opt/rocm/lib"].into_iter().flat_map(|folder| {
        ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"].map(|name| Some((folder, name)))
    });
    assert!(folders.eq(expected), "{names:?}");
    assert!(!names.iter().any(|name| name.contains(".so.5")), "{names:?}");
    assert!(tried.iter().all(|one| one.answer.contains(&one.library)), "the loader's own text: {tried:?}");
    assert!(HipBackend::open().is_err(), "the second call fails too");
    match rocm {
        // SAFETY: as above.
        Some(path) => unsafe { std::env::set_var("ROCM_PATH", path) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var("ROCM_PATH") },
    }
    Ok(Completion::Completed)
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tests = vec![
        Trial::ignorable_test("a_missing_file_is_named", a_missing_file_is_named),
        Trial::ignorable_test("another_library_is_refused", another_library_is_refused),
        Trial::ignorable_test("all_places_are_listed", all_places_are_listed),
        // The last one, since it opens HIP where HIP is.
        Trial::ignorable_test("an_empty_variable_names_no_library", an_empty_variable_names_no_library),
    ];
    libtest_mimic::run(&arguments, tests).exit();
}
