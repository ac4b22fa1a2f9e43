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
mod memory;
mod memory_types;
mod pattern;
mod share;
mod staging;
mod support;
mod views;
mod walk;

use gpu_vmm_core::{Backend, Error};
use gpu_vmm_cuda::CudaBackend;
use libtest_mimic::{Arguments, Completion, Trial};
use std::process::ExitCode;

/// A test and the number of devices it needs.
struct Case {
    name: &'static str,
    devices: usize,
    /// Whether it makes invalid calls, to observe the driver's result.
    breaks_rules: bool,
    run: fn(&CudaBackend),
}

const fn case(name: &'static str, run: fn(&CudaBackend)) -> Case {
    Case { name, devices: 1, breaks_rules: false, run }
}

const fn two_devices(name: &'static str, run: fn(&CudaBackend)) -> Case {
    Case { name, devices: 2, breaks_rules: false, run }
}

const fn breaks_rules(name: &'static str, run: fn(&CudaBackend)) -> Case {
    Case { name, devices: 1, breaks_rules: true, run }
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
    case("memory::devices_are_described", memory::devices_are_described),
    case(
        "memory::capabilities_are_found_out_and_leave_nothing",
        memory::capabilities_are_found_out_and_leave_nothing,
    ),
    case("memory::a_whole_cycle", memory::a_whole_cycle),
    case("memory::access_is_what_was_set", memory::access_is_what_was_set),
    case("memory::growth_in_unequal_steps_keeps_the_bytes", memory::growth_in_unequal_steps_keeps_the_bytes),
    case("memory::aliases_are_one_memory", memory::aliases_are_one_memory),
    case(
        "memory::a_free_hint_is_honoured_and_a_taken_one_is_not",
        memory::a_free_hint_is_honoured_and_a_taken_one_is_not,
    ),
    case("memory::alignment_is_honoured", memory::alignment_is_honoured),
    breaks_rules("memory::a_map_past_the_end_can_be_undone", memory::a_map_past_the_end_can_be_undone),
    breaks_rules(
        "memory::failed_calls_change_and_leak_nothing",
        memory::failed_calls_change_and_leak_nothing,
    ),
    case("memory::too_much_is_an_error_with_numbers", memory::too_much_is_an_error_with_numbers),
    case("memory::threads_may_do_all_of_it_at_once", memory::threads_may_do_all_of_it_at_once),
    two_devices("memory::peers_read_and_write_what_they_may", memory::peers_read_and_write_what_they_may),
    case("pattern::kernels_and_host_agree", pattern::kernels_and_host_agree),
    case("pattern::each_wrong_word_is_counted", pattern::each_wrong_word_is_counted),
    case("pattern::more_words_than_32_bits_count", pattern::more_words_than_32_bits_count),
    case("pattern::half_words_are_refused", pattern::half_words_are_refused),
    case("pattern::plain_allocations_come_and_go", pattern::plain_allocations_come_and_go),
    case("share::an_import_is_the_same_memory", share::an_import_is_the_same_memory),
    case("share::what_cannot_be_exported_says_why", share::what_cannot_be_exported_says_why),
    case(
        "share::another_process_gets_the_memory_by_descriptor_zero",
        share::another_process_gets_the_memory_by_descriptor_zero,
    ),
    case(
        "share::a_forked_child_gets_errors_and_drops_nothing",
        share::a_forked_child_gets_errors_and_drops_nothing,
    ),
    case("share::a_fault_is_a_lost_device", share::a_fault_is_a_lost_device),
    case(
        "memory_types::each_kind_is_made_and_used_by_the_device",
        memory_types::each_kind_is_made_and_used_by_the_device,
    ),
    case(
        "memory_types::what_was_asked_to_be_compressible_says_whether_it_is",
        memory_types::what_was_asked_to_be_compressible_says_whether_it_is,
    ),
    case(
        "memory_types::an_import_says_whether_it_is_compressible",
        memory_types::an_import_says_whether_it_is_compressible,
    ),
    case(
        "memory_types::the_cpu_reads_and_writes_memory_of_the_host",
        memory_types::the_cpu_reads_and_writes_memory_of_the_host,
    ),
    case(
        "memory_types::one_grant_for_the_cpu_spans_places_of_the_host",
        memory_types::one_grant_for_the_cpu_spans_places_of_the_host,
    ),
    case(
        "memory_types::the_cpu_is_never_let_at_memory_of_a_device",
        memory_types::the_cpu_is_never_let_at_memory_of_a_device,
    ),
    case(
        "memory_types::what_cannot_be_is_refused_before_the_driver_is_asked",
        memory_types::what_cannot_be_is_refused_before_the_driver_is_asked,
    ),
    case(
        "memory_types::each_device_has_a_number_of_its_own",
        memory_types::each_device_has_a_number_of_its_own,
    ),
    case("exports::a_fabric_handle_is_the_same_memory", exports::a_fabric_handle_is_the_same_memory),
    case("exports::bytes_that_name_nothing_are_an_error", exports::bytes_that_name_nothing_are_an_error),
    case("exports::an_import_is_where_it_was_said_to_be", exports::an_import_is_where_it_was_said_to_be),
    case("exports::memory_of_a_node_is_shared", exports::memory_of_a_node_is_shared),
    case("exports::a_dma_buf_is_as_long_as_its_part", exports::a_dma_buf_is_as_long_as_its_part),
    case("staging::pinned_memory_is_as_large_as_asked", staging::pinned_memory_is_as_large_as_asked),
    case("staging::copy_streams_copy_both_ways", staging::copy_streams_copy_both_ways),
    case("staging::queuing_waits_for_nothing", staging::queuing_waits_for_nothing),
    case(
        "staging::a_copy_stream_waits_for_no_other_stream",
        staging::a_copy_stream_waits_for_no_other_stream,
    ),
    case("staging::copy_streams_work_at_once", staging::copy_streams_work_at_once),
    two_devices(
        "staging::copy_streams_of_two_devices_work_at_once",
        staging::copy_streams_of_two_devices_work_at_once,
    ),
    case("views::cudarc_copies_regions_vectors_and_blocks", views::cudarc_copies_regions_vectors_and_blocks),
    case("views::a_kernel_takes_views", views::a_kernel_takes_views),
    case(
        "views::a_view_is_of_what_the_streams_device_can_use",
        views::a_view_is_of_what_the_streams_device_can_use,
    ),
    case(
        "views::a_stream_that_nothing_waits_for_is_refused",
        views::a_stream_that_nothing_waits_for_is_refused,
    ),
    case("views::a_view_orders_streams", views::a_view_orders_streams),
    case("walk::lists_are_walked", walk::lists_are_walked),
    case(
        "walk::a_list_that_leaves_its_memory_loses_the_device",
        walk::a_list_that_leaves_its_memory_loses_the_device,
    ),
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
                    if !case.breaks_rules && fake_driver::violations() != before {
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
