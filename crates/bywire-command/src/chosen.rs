//! The options of a table on a command line.

use std::marker::PhantomData;

use anyhow::Result;
use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::exit_status::Misuse;
use crate::option_row::{OptionRow, Table};
use crate::suggested_values::SuggestedValues;

/// The options of a table, by name, as they were given.
#[derive(Debug)]
pub struct Chosen<R> {
    given: Vec<(&'static str, String)>,
    sets: PhantomData<fn(&mut R)>,
}

impl<R: Table> Chosen<R> {
    /// Sets them in `request`. Fails with a [`Misuse`] about the text that is not valid.
    pub fn set_in(&self, request: &mut R) -> Result<()> {
        let mut set = R::rows().iter().filter_map(|row| Some((row, self.text(row.name)?)));
        set.try_for_each(|(row, text)| row.set(request, text)).map_err(Misuse::of)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(given, _)| *given == name).map(|(_, text)| text.as_str())
    }
}

/// The rows that the command line has.
pub fn listed<R: Table>() -> impl Iterator<Item = &'static OptionRow<R>> {
    R::rows().iter().filter(|row| row.is_listed)
}

impl<R: Table> Args for Chosen<R> {
    fn augment_args(command: Command) -> Command {
        command.args(listed::<R>().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<R: Table> FromArgMatches for Chosen<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = listed::<R>().filter_map(|row| {
            let text = match row.takes_value() {
                true => matches.get_one::<String>(row.name)?.clone(),
                false => matches.get_flag(row.name).then(String::new)?,
            };
            Some((row.name, text))
        });
        Ok(Self { given: given.collect(), sets: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// An option of the table as the command line takes it.
fn argument<R: Table>(row: &'static OptionRow<R>) -> Arg {
    let default = if row.default.is_empty() { String::new() } else { format!(" [default: {}]", row.default) };
    let arg = Arg::new(row.name).long(row.name).help(format!("{}{default}", row.help));
    let arg = if row.group.is_empty() { arg } else { arg.help_heading(row.group) };
    if !row.takes_value() {
        return arg.action(ArgAction::SetTrue).conflicts_with_all(row.rival);
    }
    arg.value_name(row.value)
        .value_parser(value_parser(row))
        .hide_possible_values(!row.is_switch())
        .allow_negative_numbers(true)
}

/// Parses values as the table does. A shell completes them, and the program checks which of them go together.
fn value_parser<R: Table>(row: &'static OptionRow<R>) -> ValueParser {
    let words = (row.words)();
    if row.is_switch() {
        return PossibleValuesParser::new(words).into();
    }
    if !words.is_empty() {
        return SuggestedValues::of(words).into();
    }
    let read = move |text: &str| row.check(text).map(|()| text.to_owned());
    read.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::options! {
        /// How something is done.
        #[derive(Debug, Default, PartialEq)]
        pub struct Manner {}

        /// Its options.
        pub static OPTIONS;

        "" {
            spin: Option<bool> =
                OptionRow::flag("spin", true, "Spin").excludes("no-spin").variable("SPIN", "0 or 1"),
                OptionRow::flag("no-spin", false, "Sleep").by_default("spin").variable("SPIN", "0 or 1");
            count: Option<u32> = OptionRow::of("count", "N", "8", "How often");
        }
    }

    fn chosen(words: &[&str]) -> Result<Manner, clap::Error> {
        let command = Chosen::<Manner>::augment_args(Command::new("test").no_binary_name(true));
        let chosen = Chosen::<Manner>::from_arg_matches(&command.try_get_matches_from(words)?)?;
        let mut manner = Manner::default();
        chosen.set_in(&mut manner).expect("checked by the parser");
        Ok(manner)
    }

    #[test]
    fn one_row_makes_an_option_its_field_and_its_variable() {
        let manner = chosen(&["--no-spin", "--count", "3"]).expect("valid");
        assert_eq!(manner, Manner { spin: Some(false), count: Some(3) });
        let assignments: Vec<_> = OPTIONS.iter().filter_map(|row| row.assignment(&manner)).collect();
        assert_eq!(assignments, [("SPIN", "0")]);
        assert_eq!(chosen(&[]).expect("valid"), Manner::default());
        for wrong in [&["--count", "few"][..], &["--spin", "--no-spin"], &["--frobnicate"]] {
            assert!(chosen(wrong).is_err(), "{wrong:?}");
        }
        let help: String = OPTIONS.iter().filter_map(OptionRow::variable_help).collect();
        let lines = ["SPIN=1", "SPIN=0"].map(|set| format!("  {set:<26} the same as --"));
        assert_eq!(help, format!("{}spin\n{}no-spin\n", lines[0], lines[1]));
        let mut command = Chosen::<Manner>::augment_args(Command::new("test"));
        let printed = command.render_help().to_string();
        for text in ["--count <N>", "How often [default: 8]", "Sleep [default: spin]"] {
            assert!(printed.contains(text), "{printed}");
        }
    }
}
