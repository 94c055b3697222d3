//! Enumerations whose values are words of the command line and of cells.

/// Makes an enumeration of names: parsing that lists what exists, display, serde by the same names.
macro_rules! names {
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
                        anyhow::bail!("unknown {} `{name}`: choose one of {}", $what, all.join(", "))
                    }
                }
            }
        }
    };
}

pub(crate) use names;
