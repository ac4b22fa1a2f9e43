//! Errors of opening on machines without a usable driver. Runs anywhere: each case runs in a process of its own, with the
//! environment variable set to an unusable library.
#![allow(unsafe_code, clippy::unwrap_used)]

use gpu_vmm_cuda::CudaBackend;
use std::process::Command;

const VARIABLE: &str = "GPU_VMM_CUDA_LIBRARY";
const LIBRARIES: &str = "GPU_VMM_TEST_LIBRARIES";

/// Not a test: opens one library after the other and prints each result, for the tests below.
#[test]
#[ignore = "the other tests run it in a process of its own"]
fn says() {
    assert!(!CudaBackend::is_loaded());
    let libraries = std::env::var(LIBRARIES).unwrap_or_default();
    for library in libraries.split(';') {
        // SAFETY: this process runs this one test, and no other thread reads the environment meanwhile.
        unsafe { std::env::set_var(VARIABLE, library) };
        match CudaBackend::open() {
            Ok(backend) => println!("<opened {backend:?}>"),
            Err(error) => println!("<{:?}\n{error}>", error.detail()),
        }
    }
}

/// Returns the output of opening these libraries, one after the other in one process.
fn open(libraries: &[&str]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "says", "--nocapture", "--test-threads=1"])
        .env(LIBRARIES, libraries.join(";"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.matches('<').count(), libraries.len(), "not one answer a library: {text}");
    text
}

fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn missing_library_error_has_loaders_text() {
    let text = open(&["/nowhere/libcuda.so.1"]);
    assert_has(
        &text,
        &["<LibraryNotFound", "/nowhere/libcuda.so.1: ", "cannot open shared object file", VARIABLE],
    );
    // The variable names the only library: no other was tried.
    assert!(!text.contains("wsl"), "{text}");
}

#[test]
fn invalid_library_error_has_loaders_text() {
    let text = open(&["/etc/passwd"]);
    assert_has(&text, &["<LibraryNotFound", "/etc/passwd: ", "invalid ELF header"]);
}

#[test]
fn library_without_driver_symbols_is_refused() {
    let text = open(&["libm.so.6"]);
    assert_has(
        &text,
        &["<LibraryRefused", "cannot use libm.so.6", "11.4", "undefined symbol: cuDriverGetVersion"],
    );
}

/// `cargo test-all` runs it if it can get the library: the installed driver, on a machine without a GPU.
#[test]
#[ignore = "needs NVIDIA's own library in GPU_VMM_CUDA_LIBRARY, and no GPU"]
fn nvidias_library_reports_no_gpu() {
    let library = std::env::var(VARIABLE).unwrap();
    let text = open(&[&library, &library]);
    assert_eq!(text.matches("<NoDevice").count(), 2, "{text}");
    assert_has(
        &text,
        &[
            "the cuda backend has no device: cuInit answered CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device",
            "/proc/driver/nvidia is missing",
        ],
    );
}

#[test]
fn a_failed_opening_is_tried_again() {
    let text = open(&["/nowhere/libcuda.so.1", "libm.so.6", "/nowhere/libcuda.so.1"]);
    assert_eq!(text.matches("<LibraryNotFound").count(), 2, "{text}");
    assert_eq!(text.matches("<LibraryRefused").count(), 1, "{text}");
}

/// An empty variable is the same as none: the loader would take an empty name for this program.
#[test]
fn an_empty_variable_names_no_library() {
    let text = open(&[""]);
    let looked = ["<opened", "<NoDevice", "libcuda", "nvcuda"];
    assert!(looked.iter().any(|part| text.contains(part)) && !text.contains("cannot use :"), "{text}");
}
