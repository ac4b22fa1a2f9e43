//! The page of `gpu-vmm report` in a browser: it shows the pool's numbers and the details of each part, in all sizes
//! and colours, without console messages and without loading anything.

use crate::browser::Browser;
use crate::report::{EVIL, large, snapshot, write};
use crate::rig::{Folder, command, stderr};
use gpu_vmm::pool::PoolSnapshot;
use serde_json::Value;
use std::path::Path;
use std::time::Instant;

/// Opens the page of a pool snapshot; `None` if there is no browser.
fn opened(test: &str, folder: &Folder, snapshot: &PoolSnapshot) -> Option<Browser> {
    let mut browser = Browser::start(test, folder)?;
    let out = folder.file("out.html");
    let output = command(&["report", &write(folder, snapshot), "--html", &out]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    browser.look(1280, 900, false);
    browser.open(&out);
    Some(browser)
}

/// Checks that there were no errors, and that only the page was loaded.
fn assert_quiet(browser: &Browser) {
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
    let others: Vec<&str> = browser.loaded().into_iter().filter(|url| !url.starts_with("data:")).collect();
    assert!(matches!(others[..], [one] if one.starts_with("file://")), "{others:?}");
}

/// Returns the point of the window at a share of an element's width and `below` pixels under its upper edge.
fn point(browser: &mut Browser, element: &str, part: f64, below: f64) -> (f64, f64) {
    let found = format!("document.querySelector('{element}')");
    browser.ask(&format!("{found}.scrollIntoView({{ block: 'center' }})"));
    browser.drawn();
    let value =
        browser.ask(&format!("(box => [box.left, box.width, box.top])({found}.getBoundingClientRect())"));
    let number = |index: usize| value[index].as_f64().unwrap();
    (number(0) + number(1) * part, number(2) + below)
}

/// Returns the text of the tooltip at a point of an element.
fn told_at(browser: &mut Browser, element: &str, part: f64, below: f64) -> String {
    let (x, y) = point(browser, element, part, below);
    browser.mouse("mouseMoved", x, y);
    told(browser)
}

fn told(browser: &mut Browser) -> String {
    let lines = browser.ask("tip.hidden ? [] : [...tip.children].map(line => line.textContent)");
    let lines: Vec<&str> = lines.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    lines.join("\n")
}

/// Returns an expression for the pixels of a canvas.
fn pixels(canvas: &str) -> String {
    format!(
        "(canvas => {{ const copy = new OffscreenCanvas(canvas.width, canvas.height); \
         const on = copy.getContext('2d', {{ willReadFrequently: true }}); on.drawImage(canvas, 0, 0); \
         return new Uint32Array(on.getImageData(0, 0, copy.width, copy.height).data.buffer); \
         }})(document.querySelector('{canvas}'))"
    )
}

/// Returns the number of colours of a canvas.
fn colours(browser: &mut Browser, canvas: &str) -> u64 {
    browser.ask(&format!("new Set({}).size", pixels(canvas))).as_u64().unwrap()
}

/// Saves an image of the page for people, if the environment names a folder.
fn keep_picture(browser: &mut Browser, name: &str) {
    let Some(folder) = std::env::var_os("GPU_VMM_TEST_PICTURES") else { return };
    std::fs::write(Path::new(&folder).join(format!("{name}.png.base64")), browser.picture()).unwrap();
}

const WEIGHTS: &str = "[data-space=\"0\"] canvas.base";
const OTHER: &str = "[data-space=\"1\"] canvas.base";
const FRAMES: &str = "#frames canvas.base";

#[test]
fn page_shows_statistics_and_tables() {
    let folder = Folder::new("page-stats");
    let Some(mut browser) = opened("page", &folder, &snapshot()) else { return };
    for (id, expected) in [
        ("live", "85.3 MiB"),
        ("held", "130 MiB"),
        ("unused", "34.4 %"),
        ("cached", "6 MiB"),
        ("pending", "8 MiB"),
        ("kept", "24 MiB"),
        ("mapped", "138 MiB"),
        ("reserved", "192 GiB"),
        ("peak-live", "120 MiB"),
        ("allocations", "123456"),
        ("driver-calls", "189"),
    ] {
        assert_eq!(browser.text(&format!("document.getElementById('{id}').textContent")), expected, "{id}");
    }
    let device = browser.text("document.querySelector('header p').textContent");
    assert_eq!(device, "cuda 13.0, device 0: a <fast> GPU & [2Jmore");
    let cells =
        "[...document.querySelectorAll('#bins tbody td')].map(cell => cell.textContent.trim()).join('|')";
    assert_eq!(browser.text(cells), "1 KiB|3|61|3 KiB|5 %|64 KiB|12|4|768 KiB|75 %");
    let sizes = "[...document.querySelectorAll('#largest tbody td:first-child')].map(cell => cell.textContent).join()";
    assert_eq!(browser.text(sizes), "64 MiB,16 MiB,8 MiB,6 MiB,5 MiB,4 MiB,2 MiB");

    // A tag is always text and never markup.
    let shown: String = EVIL.chars().filter(|char| !char.is_control()).collect();
    assert_eq!(browser.text("document.querySelectorAll('h3')[1].textContent"), shown);
    assert_eq!(browser.text("data.spaces[1].tag"), EVIL);
    assert_eq!(browser.ask("document.querySelectorAll('#evil, body > b').length"), 0);
    assert_eq!(browser.ask("document.querySelectorAll('canvas.base').length"), 5);
    assert_quiet(&browser);
}

#[test]
fn parts_show_state_and_other_places() {
    let folder = Folder::new("page-parts");
    let Some(mut browser) = opened("page", &folder, &snapshot()) else { return };
    // The first range shows 96 MiB, and the second one 37.
    let block = told_at(&mut browser, WEIGHTS, 82.0 / 96.0, 20.0);
    assert_eq!(
        block,
        "16 MiB live, weights\noffset 80 MiB, address 0x700005000000\nstream 0x5eed0000\nframe #32–39"
    );
    assert!(told_at(&mut browser, WEIGHTS, 1.0 / 96.0, 20.0).contains("stream default\nframe #0–31"));
    assert!(
        told_at(&mut browser, OTHER, 10.0 / 37.0, 20.0).starts_with("8 MiB pending, </script><b id=evil>")
    );
    let free = told_at(&mut browser, WEIGHTS, 66.0 / 96.0, 52.0);
    assert!(free.starts_with("16 MiB, frame #40–47: free, mapped at 2 addresses\noffset 64 MiB"), "{free}");
    assert!(free.contains("mapped in weights at 64 MiB to 80 MiB, free\nmapped in </script>"), "{free}");
    // While the mouse points at it, it is highlighted in the other range too.
    let marks = format!("{}.some(one => one > 0)", pixels("[data-space=\"1\"] canvas.over"));
    assert_eq!(browser.ask(&marks), true);
    let frame = told_at(&mut browser, FRAMES, 42.0 / 68.0, 20.0);
    assert!(
        frame.starts_with("frame #40–47, 16 MiB\nmapped in weights at 64 MiB to 80 MiB, free\nmapped in <"),
        "{frame}"
    );
    assert_eq!(told_at(&mut browser, FRAMES, 66.0 / 68.0, 20.0), "frame #64–67, 8 MiB\nheld, not mapped");
    assert_eq!(told_at(&mut browser, FRAMES, 62.5 / 68.0, 20.0), "", "no such frame is held");
    let moment = told_at(&mut browser, "#timeline canvas.base", 0.5, 100.0);
    assert_eq!(moment, "4.000 s\nheld 110 MiB\nlive 10 MiB\npending 0 B");
    browser.mouse("mouseMoved", 1.0, 1.0);
    assert_eq!(told(&mut browser), "");
    assert_eq!(browser.ask(&marks), false);
    assert_quiet(&browser);
}

#[test]
fn replay_is_drawn_beside_the_recorded_allocator() {
    let folder = Folder::new("page-replay");
    let Some(mut browser) = Browser::start("page", &folder) else { return };
    let out = folder.file("out.html");
    let output = command(&["report", &crate::recorded::replayed(&folder), "--html", &out]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    browser.look(1280, 900, false);
    browser.open(&out);
    let moment = told_at(&mut browser, "#replay canvas.base", 0.999, 100.0);
    let last = "(one => [one[0].toFixed(3) + ' s', ...[one[2], one[3], one[1]].map(bytes)])(data.replay.moments.at(-1))";
    let last = browser.ask(last);
    let of = |index: usize| last[index].as_str().unwrap().to_owned();
    let expected = format!(
        "{}\nheld by the pool {}\nheld by PyTorch's allocator {}\nrequested {}",
        of(0),
        of(1),
        of(2),
        of(3)
    );
    assert_eq!(moment, expected);
    let legend = "[...document.querySelectorAll('#replay-legend li')].map(item => item.textContent).join()";
    assert_eq!(browser.text(legend), "held by the pool,held by PyTorch's allocator,requested");
    assert!(colours(&mut browser, "#replay canvas.base") > 4);
    keep_picture(&mut browser, "replay");
    assert_quiet(&browser);
}

#[test]
fn pictures_are_zoomed_and_moved() {
    let folder = Folder::new("page-zoom");
    let Some(mut browser) = opened("page", &folder, &snapshot()) else { return };
    let shown = |browser: &mut Browser| {
        let value = browser.ask(
            "(view => [view.low / 2 ** 20, view.high / 2 ** 20])(views.find(view => view.number === 0))",
        );
        (value[0].as_f64().unwrap(), value[1].as_f64().unwrap())
    };
    let is_about =
        |one: (f64, f64), other: (f64, f64)| (one.0 - other.0).abs() + (one.1 - other.1).abs() < 0.5;
    assert_eq!(shown(&mut browser), (0.0, 96.0));
    // The wheel with Ctrl keeps the point under the mouse in place.
    let (x, y) = point(&mut browser, WEIGHTS, 0.25, 20.0);
    browser.mouse("mouseWheel", x, y);
    let (low, high) = shown(&mut browser);
    assert!(high - low < 90.0 && is_about((low + (high - low) / 4.0, 0.0), (24.0, 0.0)), "{low} {high}");
    // A drag to the left moves the view to the right.
    let wide = browser.ask("views.find(view => view.number === 0).width").as_f64().unwrap();
    browser.mouse("mousePressed", x, y);
    browser.mouse("mouseMoved", x - 10.0, y);
    browser.mouse("mouseMoved", x - wide / 5.0, y);
    browser.mouse("mouseReleased", x - wide / 5.0, y);
    let by = (high - low) / 5.0;
    assert!(is_about(shown(&mut browser), (low + by, high + by)), "{:?}", shown(&mut browser));
    browser.ask("document.querySelector('[data-space=\"0\"] button:last-child').click()");
    assert_eq!(shown(&mut browser), (0.0, 96.0));

    browser.ask(&format!("document.querySelector('{WEIGHTS}').focus()"));
    browser.key("ArrowRight");
    assert!(told(&mut browser).starts_with("64 MiB live, weights\noffset 0 B"));
    browser.key("ArrowRight");
    assert!(told(&mut browser).starts_with("16 MiB free, weights\noffset 64 MiB"));
    browser.key("Enter");
    assert!(is_about(shown(&mut browser), (62.4, 81.6)), "{:?}", shown(&mut browser));
    browser.key("ArrowDown");
    assert!(told(&mut browser).starts_with("16 MiB, frame #40–47: free, mapped at 2 addresses"));
    browser.key("End");
    assert!(told(&mut browser).starts_with("16 MiB, frame #32–39: in use"));
    browser.key("Home");
    let (low, high) = shown(&mut browser);
    assert!(low < 32.0 && high > 32.0, "a part out of view is scrolled into view: {low} {high}");
    browser.key("0");
    browser.key("+");
    let (low, high) = shown(&mut browser);
    assert!((high - low - 48.0).abs() < 0.5, "{low} {high}");
    browser.key("Escape");
    assert_eq!(told(&mut browser), "");
    assert_quiet(&browser);
}

#[test]
fn every_width_and_colour_scheme_works() {
    let folder = Folder::new("page-widths");
    let Some(mut browser) = opened("page", &folder, &snapshot()) else { return };
    let mut grounds = Vec::new();
    for (name, width, dark) in [
        ("wide-light", 1280, false),
        ("wide-dark", 1280, true),
        ("narrow-dark", 360, true),
        ("narrow-light", 360, false),
    ] {
        browser.look(width, 2600, dark);
        let wide = browser.ask("document.documentElement.scrollWidth").as_u64().unwrap();
        assert!(wide <= u64::from(width), "{name}: the page is {wide} wide");
        for canvas in [WEIGHTS, OTHER, FRAMES, "#timeline canvas.base"] {
            assert!(colours(&mut browser, canvas) > 4, "{name}: {canvas} is empty");
        }
        grounds.push(browser.text("getComputedStyle(document.body).backgroundColor + colours.surface"));
        keep_picture(&mut browser, name);
    }
    assert_ne!(grounds[0], grounds[1]);
    assert_eq!((&grounds[0], &grounds[1]), (&grounds[3], &grounds[2]));
    assert_quiet(&browser);
}

#[test]
fn a_hundred_thousand_blocks_are_drawn() {
    let folder = Folder::new("page-large");
    let begin = Instant::now();
    let Some(mut browser) = opened("page", &folder, &large(100_000)) else { return };
    assert!(begin.elapsed().as_secs() < 100, "it took {:?}", begin.elapsed());
    assert!(colours(&mut browser, WEIGHTS) > 4);
    // A block has 12 of a million pixels, and is found nevertheless.
    let told = told_at(&mut browser, WEIGHTS, 0.5, 20.0);
    assert!(told.contains(", weights\noffset 195."), "{told}");
    let painting = "(view => { const begin = performance.now(); view.draw(view.base, on => view.paint(on, view.width)); \
                    return performance.now() - begin; })(views.find(view => view.number === 0))";
    let milliseconds = browser.ask(painting).as_f64().unwrap();
    assert!(milliseconds < 2000.0, "painting took {milliseconds} ms");
    keep_picture(&mut browser, "large");
    assert_quiet(&browser);
}

#[test]
fn an_empty_pool_has_a_page() {
    let folder = Folder::new("page-empty");
    let empty = PoolSnapshot { version: PoolSnapshot::VERSION, ..PoolSnapshot::default() };
    let Some(mut browser) = opened("page", &folder, &empty) else { return };
    let said = browser.text("[...document.querySelectorAll('.none')].map(one => one.textContent).join('|')");
    assert_eq!(said, "Nothing was recorded.|No addresses are reserved.|No memory is held.|None.|None.");
    assert_eq!(browser.text("document.getElementById('held').textContent"), "0 B");
    assert_quiet(&browser);
}

/// Checks that `assert_quiet` can fail: otherwise the other tests of this file would prove nothing.
#[test]
fn page_errors_are_detected() {
    let folder = Folder::new("page-loud");
    let Some(mut browser) = Browser::start("page", &folder) else { return };
    let loud = folder.file("loud.html");
    let page = "<img src='http://127.0.0.1:1/a.png'><script>console.warn('a'); none();</script>";
    std::fs::write(&loud, page).unwrap();
    browser.open(&loud);
    let methods: Vec<&str> = browser.complaints().iter().filter_map(|one| one["method"].as_str()).collect();
    assert!(methods.contains(&"Runtime.consoleAPICalled"), "{methods:?}");
    assert!(methods.contains(&"Runtime.exceptionThrown"), "{methods:?}");
    assert!(browser.loaded().contains(&"http://127.0.0.1:1/a.png"), "{:?}", browser.loaded());
}
