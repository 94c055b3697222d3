//! Words that a shell may complete; which of them make sense together says the laboratory, in its own line.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};

/// Takes any word, and knows those that there are.
#[derive(Clone, Debug)]
pub struct Words(Vec<&'static str>);

impl Words {
    /// Of these words.
    pub fn of(words: impl IntoIterator<Item = &'static str>) -> Self {
        Self(words.into_iter().collect())
    }
}

impl TypedValueParser for Words {
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
