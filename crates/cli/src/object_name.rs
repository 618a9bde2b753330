//! BUCKET/KEY on the command line.

use crate::harmless::harmless;
use std::{fmt, str::FromStr};

/// An object as named on the command line; the metadata server judges the names themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectName {
    pub(crate) bucket: String,
    pub(crate) key: String,
}

/// For people: whoever chose the key tells their terminal nothing.
impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", harmless(&self.bucket), harmless(&self.key))
    }
}

impl FromStr for ObjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((bucket, key)) if !bucket.is_empty() && !key.is_empty() => {
                Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
            }
            _ => Err(format!("`{text}` names no object: write BUCKET/KEY")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_a_terminal_no_commands() {
        let object: ObjectName = "photos/\u{1b}[2Ja\n".parse().unwrap();
        assert_eq!(object.key, "\u{1b}[2Ja\n");
        assert_eq!(object.to_string(), "photos/\\u{1b}[2Ja\\n");
    }
}
