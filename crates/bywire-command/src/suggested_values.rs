//! Values that a shell may complete. The laboratory checks which of them go together, and reports errors in one line.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};

/// Accepts any value, and suggests those that exist.
#[derive(Clone, Debug)]
pub struct SuggestedValues(Vec<&'static str>);

impl SuggestedValues {
    /// Of these words.
    pub fn of(words: impl IntoIterator<Item = &'static str>) -> Self {
        Self(words.into_iter().collect())
    }
}

impl TypedValueParser for SuggestedValues {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().copied().map(PossibleValue::new)))
    }
}
