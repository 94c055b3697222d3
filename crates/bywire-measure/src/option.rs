//! What every option of a measurement is made of: its words, its value, and where it means something.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use bywire_results::shell;
use serde_json::Value;

/// One option of the command line.
pub struct Row<R: 'static> {
    /// Its name, without the hyphens before it.
    pub name: &'static str,
    /// What its value is called in help; empty for a flag.
    pub value: &'static str,
    /// What it does, in a sentence without its full stop.
    pub help: &'static str,
    /// What holds where it is not given; empty for a flag.
    pub default: &'static str,
    /// The heading that it stands under in help.
    pub group: &'static str,
    /// The words that it takes, where they are few.
    pub words: fn() -> Vec<&'static str>,
    /// Whether it means something in a request.
    pub means: fn(&R) -> bool,
    /// Whether cells name it among their parameters.
    pub is_parameter: bool,
    /// Whether the command line of one measurement has it.
    pub is_listed: bool,
    form: Form,
    reads: fn(&str) -> Result<String>,
    value_of: fn(&R) -> &dyn Setting,
    value_in: fn(&mut R) -> &mut dyn Setting,
}

/// What follows an option's name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A value.
    Value,
    /// `on` or `off`.
    Switch,
    /// Nothing: the option itself says so, or not so.
    Flag(bool),
}

/// The words of a switch.
const SWITCH: [&str; 2] = ["on", "off"];

impl<R> Row<R> {
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
            means: |_| true,
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

    /// It means something only in such requests.
    pub const fn only(self, means: fn(&R) -> bool) -> Self {
        Self { means, ..self }
    }

    /// The words that it takes.
    pub const fn words(self, words: fn() -> Vec<&'static str>) -> Self {
        Self { words, ..self }
    }

    /// How its text is read, where the type of its field does not say so.
    pub const fn reads(self, reads: fn(&str) -> Result<String>) -> Self {
        Self { reads, ..self }
    }

    /// Cells have their own field for it, or none.
    pub const fn apart(self) -> Self {
        Self { is_parameter: false, ..self }
    }

    /// No option of one measurement, but of a session.
    pub const fn unlisted(self) -> Self {
        Self { is_listed: false, ..self }
    }

    /// Whether it takes `on` or `off`.
    pub fn is_switch(&self) -> bool {
        self.form == Form::Switch
    }

    /// Whether something follows its name.
    pub fn takes_value(&self) -> bool {
        !matches!(self.form, Form::Flag(_))
    }

    /// Reads its text, and forgets what it says.
    ///
    /// # Errors
    /// As [`Row::set`].
    pub fn check(&self, text: &str) -> Result<()>
    where
        R: Default,
    {
        self.set(&mut R::default(), text)
    }

    /// Under this heading, for this field.
    pub(crate) const fn placed(
        self,
        group: &'static str,
        value_of: fn(&R) -> &dyn Setting,
        value_in: fn(&mut R) -> &mut dyn Setting,
    ) -> Self {
        Self { group, value_of, value_in, ..self }
    }

    /// Whether `request` has it.
    pub fn is_given(&self, request: &R) -> bool {
        let value = (self.value_of)(request).value();
        match self.form {
            Form::Flag(sets) => value == Some(Value::Bool(sets)),
            Form::Value | Form::Switch => value.is_some(),
        }
    }

    /// Gives it to `request`, a flag by any text.
    ///
    /// # Errors
    /// One line with what it takes.
    pub fn set(&self, request: &mut R, text: &str) -> Result<()> {
        let setting = (self.value_in)(request);
        match self.form {
            Form::Flag(sets) => setting.read(SWITCH[usize::from(!sets)]),
            Form::Value | Form::Switch => setting.read(&(self.reads)(text)?),
        }
    }

    /// Its value as a cell's parameter; nothing where `request` does not have it.
    pub fn parameter(&self, request: &R) -> Option<Value> {
        let value = (self.value_of)(request).value().filter(|_| self.is_given(request))?;
        Some(match (self.form, value) {
            (Form::Switch, Value::Bool(on)) => SWITCH[usize::from(!on)].into(),
            (Form::Flag(_), _) => true.into(),
            (_, value) => value,
        })
    }

    /// Its words on a shell's command line that asks for the same as `request`.
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
    /// What it is set to; a list of two is written with a comma.
    fn value(&self) -> Option<Value>;

    /// Sets it.
    ///
    /// # Errors
    /// No value of its type has that text.
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
        *self = Some(pair.ok_or_else(|| anyhow!("`{text}` is no pair of cores: write it like 0,1"))?);
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
