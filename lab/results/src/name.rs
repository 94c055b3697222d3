//! Enumerations whose values are words of the command line and of cells, and the suggestion for a mistyped word.

/// The error for a word that is not one of `all`, with the one that was probably meant.
pub fn unknown(what: &str, name: &str, all: &[&str]) -> String {
    let meant = nearest(name, all).map(|meant| format!(" (did you mean `{meant}`?)"));
    format!("unknown {what} `{name}`{}: choose one of {}", meant.unwrap_or_default(), all.join(", "))
}

/// The word that differs from `name` by one typing error, or by one more for each six letters.
fn nearest<'a>(name: &str, all: &[&'a str]) -> Option<&'a str> {
    let slips = |word: &str| strsim::damerau_levenshtein(name, word);
    let nearest = all.iter().copied().min_by_key(|word| slips(word))?;
    (slips(nearest) <= 1 + nearest.len() / 6 && slips(nearest) < nearest.len()).then_some(nearest)
}

/// Makes an enumeration of names: parsing that lists what exists, display, serde by the same names. A name may have a line
/// of help, which then also documents its variant.
#[macro_export]
macro_rules! names {
    ($(#[$doc:meta])* $type:ident, $what:literal { $($variant:ident = $name:literal: $about:literal,)+ }) => {
        $crate::names! { $(#[$doc])* $type, $what { $(#[doc = $about] $variant = $name,)+ } }

        impl $type {
            /// Every name with its line of help.
            pub fn rows() -> Vec<(&'static str, &'static str)> {
                vec![$(($name, $about),)+]
            }
        }
    };
    ($(#[$doc:meta])* $type:ident, $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $type { $($(#[$variant_doc])* #[serde(rename = $name)] $variant,)+ }

        impl $type {
            /// All, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word on the command line and in a cell.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = anyhow::Error;

            fn from_str(name: &str) -> anyhow::Result<Self> {
                match Self::ALL.iter().find(|known| known.name() == name) {
                    Some(known) => Ok(*known),
                    None => {
                        let all: Vec<&str> = Self::ALL.iter().map(|known| known.name()).collect();
                        Err(anyhow::anyhow!($crate::name::unknown($what, name, &all)))
                    }
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_gets_a_suggestion_and_another_word_does_not() {
        let all = ["tcp", "udp", "latency", "breakdown"];
        let meant = ["tpc", "latncy", "latencies", "brakedown", "lag", "x"].map(|name| nearest(name, &all));
        assert_eq!(meant, [Some("tcp"), Some("latency"), None, Some("breakdown"), None, None]);
        assert!(
            unknown("level", "tpc", &all)
                .starts_with("unknown level `tpc` (did you mean `tcp`?): choose one of tcp")
        );
    }
}
