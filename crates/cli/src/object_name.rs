//! BUCKET/KEY on the command line.

use std::{fmt, str::FromStr};

/// An object as named on the command line; the metadata server judges the names themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectName {
    pub(crate) bucket: String,
    pub(crate) key: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bucket, self.key)
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
