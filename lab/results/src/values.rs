//! Named JSON values, in the order of their names.

/// Makes a type of such values, which is a map with methods of its own.
macro_rules! named_values {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $type(std::collections::BTreeMap<String, serde_json::Value>);

        impl $type {
            /// A text.
            pub fn text(&self, name: &str) -> Option<&str> {
                self.get(name)?.as_str()
            }
        }

        impl std::ops::Deref for $type {
            type Target = std::collections::BTreeMap<String, serde_json::Value>;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl std::ops::DerefMut for $type {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.0
            }
        }

        impl<const COUNT: usize> From<[(String, serde_json::Value); COUNT]> for $type {
            fn from(values: [(String, serde_json::Value); COUNT]) -> Self {
                values.into_iter().collect()
            }
        }

        impl FromIterator<(String, serde_json::Value)> for $type {
            fn from_iter<I: IntoIterator<Item = (String, serde_json::Value)>>(values: I) -> Self {
                Self(values.into_iter().collect())
            }
        }
    };
}

pub(crate) use named_values;
