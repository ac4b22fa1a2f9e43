//! Tests of the backend on real devices, through its traits.
//!
//! If the driver cannot be opened, each test is reported as ignored, with the reason. If `GPU_VMM_REQUIRE_CUDA` is set, each fails
//! instead, so that a machine with a GPU cannot pass by not detecting it. Tests run one after the other, since some compare the
//! amount of free memory.
#![allow(clippy::unwrap_used, clippy::panic)]

mod children;
mod contexts;
mod cost;
mod exports;
mod fake_driver;
mod memory_types;
mod pattern;
mod share;
mod staging;
mod support;
mod views;

use gpu_vmm_core::{Backend, Error};
use gpu_vmm_cuda::CudaBackend;
use libtest_mimic::{Arguments, Completion, Trial};
use std::process::ExitCode;

/// A test and the number of devices it needs.
struct Case {
    name: &'static str,
    devices: usize,
    run: fn(&CudaBackend),
}

const fn case(name: &'static str, run: fn(&CudaBackend)) -> Case {
    Case { name, devices: 1, run }
}

const fn two_devices(name: &'static str, run: fn(&CudaBackend)) -> Case {
    Case { name, devices: 2, run }
}

const CASES: &[Case] = &[
    case("contexts::virtual_memory_needs_none", contexts::virtual_memory_needs_none),
    case("contexts::the_threads_own_stays_current", contexts::the_threads_own_stays_current),
    case("contexts::cudarcs_context_and_streams_are_used", contexts::cudarcs_context_and_streams_are_used),
    case("contexts::default_streams_are_waited_for", contexts::default_streams_are_waited_for),
    case("contexts::a_per_thread_stream_is_refused", contexts::a_per_thread_stream_is_refused),
    case("contexts::a_raw_context_is_used", contexts::a_raw_context_is_used),
    two_devices(
        "contexts::a_context_of_another_device_is_refused",
        contexts::a_context_of_another_device_is_refused,
    ),
    case("pattern::kernels_and_host_agree", pattern::kernels_and_host_agree),
    case("pattern::more_words_than_32_bits_count", pattern::more_words_than_32_bits_count),
    case("pattern::half_words_are_refused", pattern::half_words_are_refused),
    case("share::an_import_is_the_same_memory", share::an_import_is_the_same_memory),
    case("share::forked_child_fails_and_drops_nothing", share::forked_child_fails_and_drops_nothing),
    case(
        "memory_types::an_import_says_whether_it_is_compressible",
        memory_types::an_import_says_whether_it_is_compressible,
    ),
    case("memory_types::cpu_reads_and_writes_host_memory", memory_types::cpu_reads_and_writes_host_memory),
    case("memory_types::one_cpu_grant_spans_host_places", memory_types::one_cpu_grant_spans_host_places),
    case(
        "memory_types::impossible_memory_makes_no_driver_call",
        memory_types::impossible_memory_makes_no_driver_call,
    ),
    case("exports::import_has_the_stated_location", exports::import_has_the_stated_location),
    case("exports::memory_of_a_node_is_shared", exports::memory_of_a_node_is_shared),
    case("staging::queuing_waits_for_nothing", staging::queuing_waits_for_nothing),
    case("views::cudarc_copies_regions_vectors_and_blocks", views::cudarc_copies_regions_vectors_and_blocks),
    case("views::a_kernel_takes_views", views::a_kernel_takes_views),
    case("views::view_is_of_memory_with_access", views::view_is_of_memory_with_access),
    case("views::unordered_stream_is_refused", views::unordered_stream_is_refused),
    case("views::a_view_orders_streams", views::a_view_orders_streams),
    case("cost::calls_cost_what_the_drivers_own_cost", cost::calls_cost_what_the_drivers_own_cost),
];

fn main() -> ExitCode {
    if let Some(code) = children::run() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let required = std::env::var_os("GPU_VMM_REQUIRE_CUDA").is_some();
    let opened = CudaBackend::open();
    if let Err(error) = &opened {
        eprintln!("{error}");
    }
    let trials = CASES
        .iter()
        .map(|case| {
            let opened = opened.clone();
            Trial::ignorable_test(case.name, move || match opened {
                Err(error) if required => Err(error.to_string().into()),
                Err(error) => Ok(Completion::ignored_with(short(&error))),
                Ok(backend) if backend.devices().len() < case.devices => {
                    Ok(Completion::ignored_with(format!("needs {} devices", case.devices)))
                }
                Ok(backend) => {
                    let before = fake_driver::violations();
                    (case.run)(&backend);
                    if fake_driver::violations() != before {
                        return Err("the fake driver was called wrongly; it says above how".into());
                    }
                    let failures = backend.drop_log().count();
                    match backend.drop_log().take_last() {
                        Some(error) => {
                            Err(format!("{failures} failures in destructors, the last: {error}").into())
                        }
                        None => Ok(Completion::Completed),
                    }
                }
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Shortens the error for each test; the whole text is printed once.
fn short(error: &Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_end_matches("; looked for:").to_owned()
}
