//! The report in a browser, at two widths, light and dark, each once: no error, nothing from a network, every plot
//! drawn, no overlapping labels, cut tables that say so, the picture as PNG, usable by keyboard. Needs Chromium. A soak
//! has each with each, with a picture of the page.

mod devtools;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywire_report as report;
use serde_json::Value;

use crate::generated;
use devtools::Browser;

/// Everything is drawn within this time.
const TIMEOUT: Duration = Duration::from_secs(20);

const TAB: (&str, u32) = ("Tab", 9);
const ENTER: (&str, u32) = ("Enter", 13);

/// Everything that Tab should reach, in the order of the page. Each has a unique name.
const REACHABLE: &str = "(() => { const seen = [...document.querySelectorAll('a[href], button, summary, [tabindex=\"0\"]')] \
     .filter(node => node.checkVisibility()); seen.forEach((node, index) => node.dataset.place = index); return seen.length; })()";

/// The element with the focus, and whether the focus is visible.
const FOCUS: &str = "(() => { const node = document.activeElement, style = getComputedStyle(node); \
     return [Number(node.dataset.place ?? -1), node.matches(':focus-visible'), parseFloat(style.outlineWidth), \
     node.tagName + ' ' + (node.textContent || '').slice(0, 40)]; })()";

/// Plots that have only grid lines and labels, and the number of all plots.
const UNDRAWN: &str = "(() => { const boxes = [...document.querySelectorAll('[data-plot]')]; \
     const empty = boxes.filter(box => { const seen = [...box.querySelectorAll('svg')].filter(svg => svg.checkVisibility()); \
     if (seen.length !== 1) return true; const svg = seen[0]; \
     const marks = [...svg.querySelectorAll('[data-series] path')].filter(mark => { const size = mark.getBoundingClientRect(); \
     return size.width > 2 || size.height > 2; }); return marks.length < 1 || svg.getBoundingClientRect().width < 100; }); \
     return [boxes.length, empty.map(box => box.dataset.plot)]; })()";

#[test]
fn the_page_works_at_every_width_in_light_and_dark() {
    let Some(mut browser) = Browser::open() else { return };
    let (page, count) = page();
    // Each width and each scheme once, or all pairs of them and their pictures.
    let is_soak = std::env::var("BYWIRE_TESTS").is_ok_and(|tier| tier == "soak");
    let pairs = [(1280, "light"), (390, "dark"), (1280, "dark"), (390, "light")];
    for (width, scheme) in pairs.into_iter().take(if is_soak { 4 } else { 2 }) {
        let what = format!("{width} px, {scheme}");
        browser.show(&page, width, scheme);
        drawn(&mut browser, count, &what);
        let overflow = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
        assert_eq!(overflow, 0, "{what}: the page scrolls sideways");
        let dark = browser.evaluate("getComputedStyle(document.body).backgroundColor");
        assert_eq!(
            dark.as_str().is_some_and(|colour| colour.starts_with("rgb(251")),
            scheme == "light",
            "{dark}"
        );
        if is_soak {
            let name = format!("report-{width}-{scheme}.png");
            browser.picture(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        }
        assert_eq!(complaints(&browser.events), Vec::<String>::new(), "{what}");
    }
}

/// Pairs of overlapping labels of one plot.
const OVERLAPS: &str = "(() => [...document.querySelectorAll('[data-plot]')].flatMap(box => { \
     const labels = [...box.querySelectorAll('svg text')].map(node => [node.textContent, node.getBoundingClientRect()]) \
     .filter(label => label[0].trim() && label[1].width); \
     return labels.flatMap(([text, one], index) => labels.slice(index + 1).filter(([, other]) => \
     Math.min(one.right, other.right) - Math.max(one.left, other.left) > 3 && \
     Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 5) \
     .map(([other]) => box.dataset.plot + ': ' + text + ' / ' + other)); }))()";

#[test]
fn labels_do_not_overlap_at_any_page_width() {
    let Some(mut browser) = Browser::open() else { return };
    let mut session = generated::generated_session();
    for cell in session.cells.iter_mut().filter(|cell| ["tcp", "udp"].contains(&cell.level.as_str())) {
        cell.link = Some("two-processes".to_owned());
        cell.between = "namespaces of the machine at the other end".to_owned();
        cell.parameters.insert("machine".to_owned(), "a machine whose name is long".into());
    }
    let count = report::drawings(&session).len();
    let page = written("labels", &report::render(&session));
    for width in [1280, 390] {
        browser.show(&page, width, "light");
        drawn(&mut browser, count, &format!("{width} px"));
        assert_eq!(browser.evaluate(OVERLAPS), Value::Array(Vec::new()), "{width} px");
    }
}

#[test]
fn everything_is_reachable_by_keyboard_in_order_with_visible_focus() {
    let Some(mut browser) = Browser::open() else { return };
    let (page, count) = page();
    browser.show(&page, 1280, "light");
    drawn(&mut browser, count, "keyboard");
    let places = browser.evaluate(REACHABLE).as_i64().unwrap();
    assert!(places > 20, "{places}");
    for place in 0..places {
        browser.press_down(TAB.0, TAB.1);
        let focus = browser.evaluate(FOCUS);
        assert_eq!(focus[0], place, "{focus}");
        assert!(focus[1] == true && focus[2].as_f64() > Some(0.0), "the focus does not show: {focus}");
    }
    // A legend's button hides its curve by keyboard too.
    let pressed = "document.activeElement.getAttribute('aria-pressed')";
    browser.evaluate("document.querySelector('.legend button').focus()");
    let marks = "[...document.querySelectorAll('[data-plot=\"ladder-half-rtt\"] svg [data-series] path')] \
                 .filter(mark => getComputedStyle(mark.closest('[data-series]')).display !== 'none').length";
    let before = (browser.evaluate(pressed), browser.evaluate(marks).as_u64());
    browser.press(ENTER.0, ENTER.1);
    let after = awaited(&mut browser, pressed, |pressed| pressed == "false");
    assert_eq!((before.0, after), ("true".into(), "false".into()));
    let left = awaited(&mut browser, marks, |left| left.as_u64() < before.1);
    assert!(left.as_u64() < before.1, "nothing was hidden");
    assert_eq!(complaints(&browser.events), Vec::<String>::new());
}

/// Tables that are wider than the page and do not say so, and the number of those that do.
const CUT: &str = "(() => { const cut = [...document.querySelectorAll('.scroll')].filter(table => table.checkVisibility() && \
     table.scrollWidth > table.clientWidth + 1); return [cut.length, \
     cut.filter(table => !table.nextElementSibling.checkVisibility()).length]; })()";

#[test]
fn a_table_wider_than_the_page_shows_that_it_scrolls() {
    let Some(mut browser) = Browser::open() else { return };
    let (page, _) = page();
    browser.show(&page, 390, "light");
    browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)");
    let cut = awaited(&mut browser, CUT, |cut| cut[0].as_u64() > Some(2) && cut[1] == 0);
    assert!(cut[0].as_u64() > Some(2) && cut[1] == 0, "{cut}");
    browser.show(&page, 1280, "light");
    let hint =
        "[...document.querySelectorAll('#answer > .sideways')].filter(hint => hint.checkVisibility()).length";
    assert_eq!(awaited(&mut browser, hint, |shown| shown == 0), 0, "it fits here");
}

#[test]
fn the_picture_is_saved_as_png_and_hidden_series_are_shown_on_demand() {
    let Some(mut browser) = Browser::open() else { return };
    let (page, _) = page();
    browser.show(&page, 1280, "light");
    let png = "(async () => { const blob = await asPng('picture'); const map = await createImageBitmap(blob); \
               return [blob.type, map.width, map.height]; })()";
    assert_eq!(browser.evaluate(png), serde_json::json!(["image/png", 1200, 630]));
    let shown = "[...document.querySelectorAll('[data-plot=\"half-rtt\"] svg.wide.usual [data-series]')] \
                 .filter(series => getComputedStyle(series).display !== 'none').length";
    let before = browser.evaluate(shown);
    browser.evaluate("document.querySelector('[data-all=\"half-rtt\"]').click()");
    let after = awaited(&mut browser, shown, |after| after.as_u64() > before.as_u64());
    assert_eq!(before, 5);
    assert!(after.as_u64() > Some(5), "{after}");
    // On a narrow page the legend is as short as the plot is simple.
    browser.show(&page, 390, "light");
    let buttons = "[...document.querySelectorAll('[data-legend=\"half-rtt\"] [data-shows]')] \
                   .filter(button => button.checkVisibility()).length";
    assert_eq!(awaited(&mut browser, buttons, |buttons| buttons == 5), 5);
    browser.evaluate("document.querySelector('[data-all=\"half-rtt\"]').click()");
    assert!(awaited(&mut browser, buttons, |buttons| buttons.as_u64() > Some(5)).as_u64() > Some(5));
    assert_eq!(complaints(&browser.events), Vec::<String>::new());
}

/// The number of visible plots that are not empty.
const DRAWN: &str = "[...document.querySelectorAll('[data-plot]')] \
     .filter(box => box.checkVisibility() && box.querySelector('svg [data-series] path')).length";

#[test]
fn the_page_of_each_preset_opens_by_its_link_and_draws_its_plots() {
    let Some(mut browser) = Browser::open() else { return };
    let session = generated::generated_session();
    let other = bywire_results::cell::Session { preset: "gm".into(), ..session.clone() };
    let page = written("presets", &report::render_presets(&[session.clone(), other]));
    browser.show(&page, 1280, "dark");
    let visible = "[...document.querySelectorAll('.page')].filter(page => page.checkVisibility()).map(page => page.id).join()";
    assert_eq!(browser.evaluate(visible), "all");
    for place in ["p2", "p1"] {
        browser.evaluate(&format!("document.querySelector('.pages a[href=\"#{place}\"]').focus()"));
        browser.press(ENTER.0, ENTER.1);
        browser.evaluate("new Promise(done => setTimeout(() => done(1), 100))");
        assert_eq!(awaited(&mut browser, visible, |visible| visible == place), place);
        // The source documents have a page of their own.
        let is_measured = |name: &str| !name.starts_with("then-") && !name.starts_with("model-");
        let due = report::drawings(&session).iter().filter(|(name, _)| is_measured(name)).count();
        assert_eq!(awaited(&mut browser, DRAWN, |drawn| *drawn == due), due);
    }
    assert_eq!(complaints(&browser.events), Vec::<String>::new());
}

/// The generated report as a file, and its plots.
fn page() -> (PathBuf, usize) {
    let session = generated::generated_session();
    (written("single", &report::render(&session)), report::drawings(&session).len())
}

fn written(name: &str, text: &str) -> PathBuf {
    // Each test has its own file, because tests run at the same time: threads of one process, or processes.
    let thread = format!("{:?}", std::thread::current().id());
    let number: String = thread.chars().filter(char::is_ascii_digit).collect();
    let file = format!("browser-{name}-{}-{number}.html", std::process::id());
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    std::fs::write(&page, text).unwrap();
    page
}

fn drawn(browser: &mut Browser, count: usize, what: &str) {
    // Folded sections are drawn as well.
    browser.evaluate("document.querySelectorAll('details.history').forEach(part => part.open = true)");
    // Two frames later everything that was put in place has been drawn.
    browser.evaluate("new Promise(done => setTimeout(() => done(1), 300))");
    // On a busy machine frames may be slow.
    let undrawn = awaited(browser, UNDRAWN, |undrawn| {
        undrawn[0] == count && undrawn[1].as_array().is_some_and(Vec::is_empty)
    });
    assert_eq!(undrawn[0], count, "{what}");
    assert_eq!(undrawn[1], Value::Array(Vec::new()), "{what}: not drawn");
}

/// The value of an expression, as soon as it is the expected one or after a timeout.
fn awaited(browser: &mut Browser, expression: &str, is_due: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let found = browser.evaluate(expression);
        if is_due(&found) || started.elapsed() > TIMEOUT {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Errors of the page, and its requests to the network.
fn complaints(events: &[Value]) -> Vec<String> {
    let complaint = |event: &Value| {
        let said = event["params"].to_string();
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => Some(said),
            "Runtime.consoleAPICalled" if event["params"]["type"] != "log" => Some(said),
            "Log.entryAdded" => Some(said),
            "Network.requestWillBeSent" => {
                let url = event["params"]["request"]["url"].as_str().unwrap_or_default().to_owned();
                (!["file:", "data:", "blob:"].iter().any(|own| url.starts_with(own))).then_some(url)
            }
            _ => None,
        }
    };
    events.iter().filter_map(complaint).collect()
}
