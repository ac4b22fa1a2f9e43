//! Arguments that are valid, that contradict each other, and that are left out.

use super::*;

fn parsed(line: &str) -> Command {
    Arguments::try_parse_from(line.split(' ')).unwrap().command
}

/// Returns the contradiction between arguments that are valid alone.
fn contradiction(line: &str) -> Option<String> {
    match parsed(line) {
        Command::Grow(options) => options.contradiction(),
        Command::Conformance(options) => options.contradiction(),
        Command::Replay(options) => options.contradiction(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn clap_finds_nothing_wrong_with_the_arguments() {
    Arguments::command().debug_assert();
}

#[test]
fn addresses_are_read_in_both_notations() {
    for text in ["0x1a00", "0X1A00", "6656"] {
        assert_eq!(address(text), Ok(Address(0x1a00)), "{text}");
    }
    for bad in ["", "0x", "1000h", "-1", "0x10000000000000000"] {
        assert!(address(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn each_choice_names_its_vendor() {
    for (name, vendor) in [
        ("any", None),
        ("cuda", Some(Vendor::Cuda)),
        ("hip", Some(Vendor::Hip)),
        ("host", Some(Vendor::Host)),
    ] {
        let choice = BackendChoice::from_str(name, false).unwrap();
        let target = TargetChoice::from_str(name, false).unwrap();
        assert_eq!((choice.vendor(), target.vendor()), (vendor, vendor), "{name}");
    }
    assert_eq!(TargetChoice::All.vendor(), None);
}

#[test]
fn what_is_left_out_has_its_default() {
    let Command::Grow(grow) = parsed("gpu-vmm grow") else { panic!() };
    assert_eq!((grow.from, grow.to, grow.by), (Bytes::mib(2), Bytes::gib(1), Increment::Double));
    assert_eq!((grow.on.backend, grow.on.device), (BackendChoice::Any, None));
    let Command::Replay(replay) = parsed("gpu-vmm replay x") else { panic!() };
    assert_eq!((replay.threads, replay.rounds, replay.allocator), (1, 2, AllocatorChoice::Pool));
    let Command::Check(check) = parsed("gpu-vmm check") else { panic!() };
    assert_eq!((check.time, check.soak, check.plan), (Duration::from_secs(600), false, false));
    let Command::Conformance(suite) = parsed("gpu-vmm conformance") else { panic!() };
    assert_eq!((suite.backend, suite.format, suite.verbose), (TargetChoice::Any, Format::Text, false));
}

#[test]
fn numbers_keep_the_limits_of_help() {
    for (line, is_valid) in [
        ("replay x --threads 1024", true),
        ("replay x --threads 1025", false),
        ("replay x --rounds 10000", true),
        ("replay x --rounds 10001", false),
        ("bench --samples 100000", true),
        ("bench --samples 100001", false),
        ("bench --turns 7", true),
    ] {
        let words = ["gpu-vmm"].into_iter().chain(line.split(' '));
        assert_eq!(Arguments::try_parse_from(words).is_ok(), is_valid, "{line}");
    }
}

#[test]
fn growth_of_zero_is_no_contradiction() {
    assert_eq!(contradiction("gpu-vmm grow --from 4MiB --to 4MiB"), None);
    assert_eq!(contradiction("gpu-vmm grow --reserve 4MiB --to 8MiB --extend-by 2MiB"), None);
    let text = contradiction("gpu-vmm grow --reserve 9MiB --to 8MiB --extend-by 2MiB");
    assert_eq!(
        text.as_deref(),
        Some("--extend-by has no effect: --reserve 9 MiB is large enough for --to 8 MiB")
    );
}

#[test]
fn pool_options_are_refused_for_driver() {
    let of = |rest: &str| contradiction(&format!("gpu-vmm replay x {rest}"));
    assert_eq!(of("--page 2MiB --snapshot y"), None);
    assert_eq!(of("--allocator driver"), None);
    assert_eq!(
        of("--allocator driver --page 2MiB").as_deref(),
        Some("--page is for --allocator pool: the driver chooses its own")
    );
    assert_eq!(of("--host-memory 1GiB --backend host"), None);
    assert_eq!(
        of("--host-memory 1GiB --backend cuda").as_deref(),
        Some("--host-memory is for --backend host")
    );
}

#[test]
fn formats_without_effect_are_refused() {
    let of = |rest: &str| contradiction(&format!("gpu-vmm conformance {rest}"));
    for format in ["json", "junit"] {
        let text = of(&format!("--compare a b --format {format}"));
        assert_eq!(text.as_deref(), Some("--compare reads JSON and writes text or markdown"));
        assert!(of(&format!("--format {format} --verbose")).is_some_and(|text| text.contains("no effect")));
        // With --out, the text is printed as well.
        assert_eq!(of(&format!("--format {format} --verbose --out x")), None);
        assert_eq!(of(&format!("--format {format}")), None);
    }
    assert_eq!(of("--compare a b --format markdown"), None);
    assert_eq!(of("--compare a b --verbose"), None);
    assert_eq!(of("--verbose"), None);
    assert_eq!(of("--format markdown").as_deref(), Some("--format markdown is for --compare"));
}

#[test]
fn refusal_shows_usage_of_its_subcommand() {
    for (subcommand, usage) in [("grow", "gpu-vmm grow"), ("nothing", "gpu-vmm <COMMAND>")] {
        let text = refusal(subcommand, "it makes no sense".to_owned()).render().to_string();
        assert!(text.starts_with("error: it makes no sense") && text.contains(usage), "{text}");
    }
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    let list =
        ["--backend host", "--device 0", "--time 9s", "--format json", "--out x", "--compare x", "--verbose"];
    let of_list = list.map(|other| format!("conformance --list {other}"));
    let compare = ["--backend host", "--device 0", "--time 9s"];
    let of_compare = compare.map(|other| format!("conformance --compare x {other}"));
    let names = [
        "--backend host",
        "--device 0",
        "--samples 3",
        "--torch x",
        "--json",
        "--markdown",
        "--out x",
        "--plot x",
        "--show x",
    ];
    let of_names = names.map(|other| format!("bench --list {other}"));
    let show = ["--backend host", "--device 0", "--filter x", "--samples 3", "--torch x", "--out x"];
    let of_show = show.map(|other| format!("bench --show x {other}"));
    let others = ["bench --json --markdown", "report x --html y --perfetto z"].map(str::to_owned);
    let all = of_list.into_iter().chain(of_compare).chain(of_names).chain(of_show).chain(others);
    for line in all {
        let words = ["gpu-vmm"].into_iter().chain(line.split(' '));
        let refused = Arguments::try_parse_from(words).map(drop).map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::ArgumentConflict), "{line}");
    }
    for line in [
        "conformance --list --filter x",
        "bench --list --filter x",
        "bench --show x --show y --markdown --plot z",
    ] {
        parsed(&format!("gpu-vmm {line}"));
    }
}
