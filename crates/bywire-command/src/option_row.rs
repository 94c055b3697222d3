//! One row of a table of options: its name, its value, where it applies, and the environment variable that does as much. The
//! macro [`options`](crate::options) makes a table, and the struct that it sets.

use std::path::PathBuf;

use anyhow::{Result, anyhow, ensure};
use serde_json::Value;

use crate::shell;

/// Makes a struct with a field for each entry of a table, and the table, whose rows the entries have.
#[macro_export]
macro_rules! options {
    (
        $(#[$about:meta])*
        pub struct $name:ident { $($(#[$field_about:meta])* pub $other:ident: $other_type:ty,)* }
        $(#[$table_about:meta])*
        pub static $table:ident;
        $($group:literal { $($field:ident: $type:ty = $($row:expr),+;)+ })+
    ) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$field_about])* pub $other: $other_type,)*
            $($(
                #[doc = concat!("The option `", stringify!($field), "`.")]
                pub $field: $type,
            )+)+
        }

        $(#[$table_about])*
        pub static $table: &[$crate::option_row::OptionRow<$name>] = &[$($($(
            $row.placed(
                $group,
                |request| &request.$field as &dyn $crate::option_row::Setting,
                |request| &mut request.$field as &mut dyn $crate::option_row::Setting,
            ),
        )+)+)+];

        impl $crate::option_row::Table for $name {
            fn rows() -> &'static [$crate::option_row::OptionRow<Self>] {
                $table
            }
        }
    };
}

/// A struct that the options of one table set.
pub trait Table: Default + 'static {
    /// The table, in the order of its help.
    fn rows() -> &'static [OptionRow<Self>];
}

/// One option of the command line.
pub struct OptionRow<R: 'static> {
    /// Its name, without the hyphens before it.
    pub name: &'static str,
    /// The name of its value in help. Empty for a flag.
    pub value: &'static str,
    /// What it does: a sentence without a full stop.
    pub help: &'static str,
    /// The default. Empty if there is nothing to say about it.
    pub default: &'static str,
    /// Its heading in help. Empty for that of all options.
    pub group: &'static str,
    /// The permitted words, if they are few.
    pub words: fn() -> Vec<&'static str>,
    /// Whether it applies to a request.
    pub applies: fn(&R) -> bool,
    /// Whether it is a parameter of what the command yields.
    pub is_parameter: bool,
    /// Whether the command line has it.
    pub is_listed: bool,
    /// The option that it excludes.
    pub rival: Option<&'static str>,
    /// The environment variable that does as much, and what its values mean.
    pub variable: Option<(&'static str, &'static str)>,
    form: Form,
    reads: fn(&str) -> Result<String>,
    value_of: fn(&R) -> &dyn Setting,
    value_in: fn(&mut R) -> &mut dyn Setting,
}

/// The form of an option's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A value.
    Value,
    /// `on` or `off`.
    Switch,
    /// No value: the flag sets its field to this.
    Flag(bool),
}

/// The words of a switch.
const SWITCH: [&str; 2] = ["on", "off"];

impl<R> OptionRow<R> {
    /// An option with a value.
    pub const fn of(
        name: &'static str,
        value: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            value,
            help,
            default,
            group: "",
            words: Vec::new,
            applies: |_| true,
            is_parameter: true,
            is_listed: true,
            rival: None,
            variable: None,
            form: Form::Value,
            reads: |text| Ok(text.to_owned()),
            value_of: |_| &false,
            value_in: |_| unreachable!("the table puts the field's own function in this one's place"),
        }
    }

    /// An option that is `on` or `off`.
    pub const fn switch(name: &'static str, default: &'static str, help: &'static str) -> Self {
        Self { form: Form::Switch, words: || SWITCH.to_vec(), ..Self::of(name, "SWITCH", default, help) }
    }

    /// An option without a value, which sets its field to `sets`.
    pub const fn flag(name: &'static str, sets: bool, help: &'static str) -> Self {
        Self { form: Form::Flag(sets), ..Self::of(name, "", "", help) }
    }

    /// Restricts it to requests for which `applies` is true.
    pub const fn only(self, applies: fn(&R) -> bool) -> Self {
        Self { applies, ..self }
    }

    /// Sets the permitted words.
    pub const fn words(self, words: fn() -> Vec<&'static str>) -> Self {
        Self { words, ..self }
    }

    /// Sets the parser of its text, in place of that of its field's type.
    pub const fn reads(self, reads: fn(&str) -> Result<String>) -> Self {
        Self { reads, ..self }
    }

    /// States the default.
    pub const fn by_default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// Excludes the option `rival`.
    pub const fn excludes(self, rival: &'static str) -> Self {
        Self { rival: Some(rival), ..self }
    }

    /// A flag that the environment variable `name` sets too: to 1 or 0, as `meaning` says.
    pub const fn variable(self, name: &'static str, meaning: &'static str) -> Self {
        Self { variable: Some((name, meaning)), ..self }
    }

    /// Not a parameter: results have a field of their own for it, or none.
    pub const fn not_a_parameter(self) -> Self {
        Self { is_parameter: false, ..self }
    }

    /// Not on the command line: another subcommand sets it.
    pub const fn unlisted(self) -> Self {
        Self { is_listed: false, ..self }
    }

    /// Whether it takes `on` or `off`.
    pub fn is_switch(&self) -> bool {
        self.form == Form::Switch
    }

    /// Whether a value follows its name.
    pub fn takes_value(&self) -> bool {
        !matches!(self.form, Form::Flag(_))
    }

    /// Checks its text. Fails as [`OptionRow::set`].
    pub fn check(&self, text: &str) -> Result<()>
    where
        R: Default,
    {
        self.set(&mut R::default(), text)
    }

    /// Sets its heading and its field.
    #[must_use]
    pub const fn placed(
        self,
        group: &'static str,
        value_of: fn(&R) -> &dyn Setting,
        value_in: fn(&mut R) -> &mut dyn Setting,
    ) -> Self {
        Self { group, value_of, value_in, ..self }
    }

    /// True if `request` has it.
    pub fn is_given(&self, request: &R) -> bool {
        let value = (self.value_of)(request).value();
        match self.form {
            Form::Flag(sets) => value == Some(Value::Bool(sets)),
            Form::Value | Form::Switch => value.is_some(),
        }
    }

    /// Sets it in `request`. A flag is set by any text. Fails with one line about the permitted values.
    pub fn set(&self, request: &mut R, text: &str) -> Result<()> {
        let setting = (self.value_in)(request);
        match self.form {
            Form::Flag(sets) => setting.read(SWITCH[usize::from(!sets)]),
            Form::Value | Form::Switch => setting.read(&(self.reads)(text)?),
        }
    }

    /// Its value as a cell's parameter, if `request` has it.
    pub fn parameter(&self, request: &R) -> Option<Value> {
        let value = (self.value_of)(request).value().filter(|_| self.is_given(request))?;
        Some(match (self.form, value) {
            (Form::Switch, Value::Bool(on)) => SWITCH[usize::from(!on)].into(),
            (Form::Flag(_), _) => true.into(),
            (_, value) => value,
        })
    }

    /// The environment variable by which a flag of `request` reaches another program, and its value there.
    pub fn assignment(&self, request: &R) -> Option<(&'static str, &'static str)> {
        let (name, _) = self.variable.filter(|_| self.is_given(request))?;
        Some((name, self.word()?))
    }

    /// Checks its environment variable, because the program that reads it does not report an unknown word. Fails with
    /// one line about the values that there are.
    pub fn check_variable(&self) -> Result<()> {
        let Some((name, meaning)) = self.variable else { return Ok(()) };
        let word = std::env::var_os(name).unwrap_or_default();
        let is_known = ["", "0", "1"].iter().any(|known| word == *known);
        ensure!(is_known, "{name}={} is not valid: {meaning}", word.display());
        Ok(())
    }

    /// Its environment variable as a line of help.
    pub fn variable_help(&self) -> Option<String> {
        let (name, _) = self.variable?;
        let set = format!("{name}={}", self.word()?);
        Some(format!("  {set:<26} the same as --{}\n", self.name))
    }

    /// The word that a flag's environment variable is set to.
    fn word(&self) -> Option<&'static str> {
        match self.form {
            Form::Flag(sets) => Some(if sets { "1" } else { "0" }),
            Form::Value | Form::Switch => None,
        }
    }

    /// Its part of the command line of `request`, quoted for a shell.
    pub fn argument(&self, request: &R) -> Option<String> {
        Some(match (self.form, self.parameter(request)?) {
            (Form::Flag(_), _) => format!("--{}", self.name),
            (_, Value::String(text)) => format!("--{} {}", self.name, shell::quoted(&text)),
            (_, Value::Number(number)) if number.is_f64() => {
                format!("--{} {}", self.name, number.as_f64().unwrap_or_default())
            }
            (_, value) => format!("--{} {value}", self.name),
        })
    }
}

/// A field of a request that an option sets.
pub trait Setting {
    /// Its value. A pair is written with a comma.
    fn value(&self) -> Option<Value>;

    /// Sets it. Fails if the text is not a value of its type.
    fn read(&mut self, text: &str) -> Result<()>;
}

impl Setting for bool {
    fn value(&self) -> Option<Value> {
        self.then(|| true.into())
    }

    fn read(&mut self, text: &str) -> Result<()> {
        *self = on(text)?;
        Ok(())
    }
}

impl Setting for Option<bool> {
    fn value(&self) -> Option<Value> {
        self.map(Value::from)
    }

    fn read(&mut self, text: &str) -> Result<()> {
        *self = Some(on(text)?);
        Ok(())
    }
}

impl Setting for Option<(u32, u32)> {
    fn value(&self) -> Option<Value> {
        self.map(|(source, target)| format!("{source},{target}").into())
    }

    fn read(&mut self, text: &str) -> Result<()> {
        let pair = text.split_once(',');
        let pair = pair.and_then(|(one, other)| Some((one.trim().parse().ok()?, other.trim().parse().ok()?)));
        *self = Some(pair.ok_or_else(|| anyhow!("`{text}` is not a pair of cores: write it like 0,1"))?);
        Ok(())
    }
}

impl Setting for Option<PathBuf> {
    fn value(&self) -> Option<Value> {
        self.as_ref().map(|path| path.display().to_string().into())
    }

    fn read(&mut self, text: &str) -> Result<()> {
        *self = Some(text.into());
        Ok(())
    }
}

macro_rules! settings {
    ($($type:ty),+) => {
        $(impl Setting for Option<$type> {
            fn value(&self) -> Option<Value> {
                self.clone().map(Value::from)
            }

            fn read(&mut self, text: &str) -> Result<()> {
                *self = Some(text.parse()?);
                Ok(())
            }
        })+
    };
}

settings!(String, u32, u64, f64);

fn on(text: &str) -> Result<bool> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(anyhow!("`{text}` is neither on nor off")),
    }
}
