//! Names of ports and addresses of the form `node/port`.

use std::fmt;
use std::str::FromStr;

/// The longest name of a port or a node, in bytes.
pub const NAME_BYTES_MAX: usize = 48;

/// The name of a port on its node: a number, or a name that begins with a letter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortName {
    /// A port known by its number.
    Number(u32),
    /// A port known by a name: letters, digits, `-`, `_` and `.`, beginning with a letter.
    Name(String),
}

/// The address of a port: `node/port`, as in `web1/7` or `localhost/render`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The node; `localhost` is always this one.
    pub node: String,
    /// The port on that node.
    pub port: PortName,
}

/// A text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The part before the slash is not a node's name.
    #[error("`{0}` is not a node's name: use letters, digits, `-`, `_` and `.`, 48 at most")]
    Node(String),
    /// The part after the slash is not a port.
    #[error("`{0}` is not a port: use a number up to 4294967295, or a name that begins with a letter")]
    Port(String),
}

impl Address {
    /// A port on this node.
    pub fn local(port: impl Into<PortName>) -> Self {
        Self { node: "localhost".to_owned(), port: port.into() }
    }
}

impl FromStr for PortName {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let bad = || AddressError::Port(text.chars().take(NAME_BYTES_MAX).collect());
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return text.parse().map(Self::Number).map_err(|_| bad());
        }
        if is_name(text) && text.starts_with(|first: char| first.is_ascii_alphabetic()) {
            return Ok(Self::Name(text.to_owned()));
        }
        Err(bad())
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (node, port) = text.split_once('/').unwrap_or(("localhost", text));
        if !is_name(node) {
            return Err(AddressError::Node(node.chars().take(NAME_BYTES_MAX).collect()));
        }
        Ok(Self { node: node.to_owned(), port: port.parse()? })
    }
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && !text.starts_with('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

impl From<u32> for PortName {
    fn from(number: u32) -> Self {
        Self::Number(number)
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Name(name) => name.fmt(formatter),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.node, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_they_are_written() {
        for text in ["web1/7", "localhost/render", "a.b-c_d/4294967295"] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
        assert_eq!("7".parse::<Address>(), Ok(Address::local(7)));
    }

    #[test]
    fn names_that_could_leave_the_runtime_directory_are_refused() {
        for text in
            ["", "a/", "/7", "a/..", "../7", "a/.x", "a/b/c", "a/-1", "a/4294967296", "a/x y", "a/\u{e9}"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        assert!("x".repeat(NAME_BYTES_MAX + 1).parse::<PortName>().is_err());
    }
}
