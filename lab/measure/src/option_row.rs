//! One row of the table of options: its name, its value, and where it applies. The table is [`crate::options`].

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use bywire_results::shell;
use serde_json::Value;

/// One option of the command line.
pub struct OptionRow<R: 'static> {
    /// Its name, without the hyphens before it.
    pub name: &'static str,
    /// The name of its value in help. Empty for a flag.
    pub value: &'static str,
    /// What it does: a sentence without a full stop.
    pub help: &'static str,
    /// The default. Empty for a flag.
    pub default: &'static str,
    /// Its heading in help.
    pub group: &'static str,
    /// The permitted words, if they are few.
    pub words: fn() -> Vec<&'static str>,
    /// Whether it applies to a request.
    pub applies: fn(&R) -> bool,
    /// Whether it is a parameter of cells.
    pub is_parameter: bool,
    /// Whether `bywire measure` has it.
    pub is_listed: bool,
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

    /// Not a parameter: cells have a field of their own for it, or none.
    pub const fn not_a_parameter(self) -> Self {
        Self { is_parameter: false, ..self }
    }

    /// Not an option of `bywire measure`, but of `bywire bench`.
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

    /// Checks its text.
    ///
    /// # Errors
    /// As [`OptionRow::set`].
    pub fn check(&self, text: &str) -> Result<()>
    where
        R: Default,
    {
        self.set(&mut R::default(), text)
    }

    /// Sets its heading and its field.
    pub(crate) const fn placed(
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

    /// Sets it in `request`. A flag is set by any text.
    ///
    /// # Errors
    /// One line with the permitted values.
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

    /// Sets it.
    ///
    /// # Errors
    /// The text is not a value of its type.
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
