//! Statistics of pools in the text format of Prometheus.

use crate::stats::PoolStats;
use std::fmt::Write;

/// A figure of a pool: its name, its kind, its help, and its value.
type Metric = (&'static str, &'static str, &'static str, fn(&PoolStats) -> u64);

const METRICS: &[Metric] = &[
    ("live_bytes", "gauge", "Requested sizes of all live blocks.", |stats| stats.live),
    ("live_blocks", "gauge", "Number of live blocks.", |stats| stats.live_blocks),
    ("cached_bytes", "gauge", "Memory in thread caches.", |stats| stats.cached),
    ("pending_bytes", "gauge", "Freed memory that waits for a stream or a fence.", |stats| stats.pending),
    ("kept_bytes", "gauge", "Physical memory that contains no block.", |stats| stats.kept),
    ("held_bytes", "gauge", "All physical memory of the pool.", |stats| stats.held),
    ("mapped_bytes", "gauge", "Addresses with memory mapped at them.", |stats| stats.mapped),
    ("reserved_bytes", "gauge", "Reserved addresses.", |stats| stats.reserved),
    ("peak_live_bytes", "gauge", "Most memory that blocks occupied at one time.", |stats| stats.peak_live),
    ("peak_held_bytes", "gauge", "Most physical memory that was held at one time.", |stats| stats.peak_held),
    ("allocations_total", "counter", "Blocks that were ever allocated.", |stats| stats.allocations),
];

type Call = (&'static str, fn(&PoolStats) -> u64);

const CALLS: &[Call] = &[
    ("create", |stats| stats.driver_calls.create),
    ("map", |stats| stats.driver_calls.map),
    ("unmap", |stats| stats.driver_calls.unmap),
    ("set_access", |stats| stats.driver_calls.set_access),
    ("other", |stats| stats.driver_calls.other),
];

/// Formats the statistics of pools as Prometheus reads them: the body of a response to a request for `/metrics`, whose content type is
/// `text/plain; version=0.0.4`. Each pool has a name, which must be different from the others' and becomes the label `pool`.
///
/// The metrics are called `gpu_vmm_pool_…`: `live_bytes`, `live_blocks`, `cached_bytes`, `pending_bytes`, `kept_bytes`, `held_bytes`,
/// `mapped_bytes`, `reserved_bytes`, `peak_live_bytes` and `peak_held_bytes` are gauges; `allocations_total` and `driver_calls_total`,
/// with the label `call`, are counters.
#[must_use]
pub fn prometheus(pools: &[(&str, PoolStats)]) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in METRICS {
        heading(&mut text, name, kind, help);
        for (pool, stats) in pools {
            line(&mut text, format_args!("{name}{{pool=\"{}\"}} {}", escaped(pool), value(stats)));
        }
    }
    heading(&mut text, "driver_calls_total", "counter", "Driver calls, by kind.");
    for (pool, stats) in pools {
        for (call, value) in CALLS {
            let pool = escaped(pool);
            line(
                &mut text,
                format_args!("driver_calls_total{{pool=\"{pool}\",call=\"{call}\"}} {}", value(stats)),
            );
        }
    }
    text
}

fn heading(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP gpu_vmm_pool_{name} {help}\n# TYPE gpu_vmm_pool_{name} {kind}");
}

fn line(text: &mut String, sample: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "gpu_vmm_pool_{sample}");
}

/// Escapes the value of a label.
fn escaped(label: &str) -> String {
    label.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::DriverCalls;

    #[test]
    fn metrics_have_one_heading_per_pools() {
        let calls = DriverCalls { create: 1, map: 2, unmap: 3, set_access: 4, other: 5 };
        let one =
            PoolStats { live: 10, held: 20, allocations: 30, driver_calls: calls, ..PoolStats::default() };
        let text = prometheus(&[("weights", one.clone()), ("a \"b\"\\\n", PoolStats { live: 7, ..one })]);
        let live = "# HELP gpu_vmm_pool_live_bytes Requested sizes of all live blocks.\n\
                    # TYPE gpu_vmm_pool_live_bytes gauge\n\
                    gpu_vmm_pool_live_bytes{pool=\"weights\"} 10\n\
                    gpu_vmm_pool_live_bytes{pool=\"a \\\"b\\\"\\\\\\n\"} 7\n# HELP";
        assert!(text.starts_with(live), "{text}");
        assert!(text.contains("\ngpu_vmm_pool_held_bytes{pool=\"weights\"} 20\n"), "{text}");
        for (call, count) in [("create", 1), ("map", 2), ("unmap", 3), ("set_access", 4), ("other", 5)] {
            let name = "\ngpu_vmm_pool_driver_calls_total";
            let sample = format!("{name}{{pool=\"weights\",call=\"{call}\"}} {count}\n");
            assert!(text.contains(&sample), "{text}");
        }
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples, 2 * (METRICS.len() + CALLS.len()));
        let mut names: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        assert!(names.iter().all(|line| line.contains("_total ") == line.ends_with("counter")), "{text}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len() + 1);
    }

    #[test]
    fn metric_has_figure_of_its_name() {
        let stats = PoolStats {
            live: 100,
            live_blocks: 101,
            cached: 102,
            pending: 103,
            kept: 104,
            held: 105,
            mapped: 106,
            reserved: 107,
            peak_live: 108,
            peak_held: 109,
            allocations: 110,
            driver_calls: DriverCalls::default(),
            bins: Vec::new(),
        };
        let text = prometheus(&[("one", stats)]);
        let names = "live_bytes live_blocks cached_bytes pending_bytes kept_bytes held_bytes mapped_bytes \
                     reserved_bytes peak_live_bytes peak_held_bytes allocations_total";
        for (name, figure) in names.split_whitespace().zip(100..) {
            let sample = format!("\ngpu_vmm_pool_{name}{{pool=\"one\"}} {figure}\n");
            assert!(text.contains(&sample), "{sample} is not in {text}");
        }
    }

    #[test]
    fn no_pool_is_no_sample() {
        assert!(prometheus(&[]).lines().all(|line| line.starts_with('#')));
    }
}
