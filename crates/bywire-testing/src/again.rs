//! The program of tests, started once more for one test of it, which then plays a role.

use std::process::Command;
use std::sync::OnceLock;

/// The options by which this program runs one test alone and prints what that says. The test's module may be left out.
///
/// # Panics
///
/// When not exactly one test of this program has the name.
pub fn alone(test: &str) -> [String; 3] {
    static LISTED: OnceLock<String> = OnceLock::new();
    let listed = LISTED.get_or_init(|| {
        let mut list = Command::new(std::env::current_exe().expect("this program"));
        let listed = list.arg("--list").env_remove("LD_PRELOAD").output().expect("this program once more");
        assert!(listed.status.success(), "{listed:?}");
        String::from_utf8(listed.stdout).expect("names")
    });
    ["--exact".to_owned(), full_name(listed, test).to_owned(), "--nocapture".to_owned()]
}

fn full_name<'a>(listed: &'a str, test: &str) -> &'a str {
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let found = names.filter(|name| {
        name.strip_suffix(test).is_some_and(|module| module.is_empty() || module.ends_with("::"))
    });
    match *found.collect::<Vec<_>>() {
        [name] => name,
        ref found => panic!("{} tests are named {test}: {found:?}", found.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::{alone, full_name};

    #[test]
    fn a_test_is_found_without_its_module() {
        let [_, name, _] = alone("a_test_is_found_without_its_module");
        assert_eq!(name, "again::tests::a_test_is_found_without_its_module");
        assert_eq!(
            full_name("one::dies: test\ntwo::it_dies: test\n\n2 tests, 0 benchmarks\n", "dies"),
            "one::dies"
        );
    }

    #[test]
    #[should_panic(expected = "2 tests are named dies")]
    fn a_name_of_two_tests_is_refused() {
        full_name("one::dies: test\ntwo::dies: test\n", "dies");
    }

    #[test]
    #[should_panic(expected = "0 tests are named lives")]
    fn a_name_of_no_test_is_refused() {
        full_name("one::dies: test\n", "lives");
    }
}
