//! Rules for bucket names and keys.
//!
//! A bucket name has 3 to 63 lower-case letters, digits, `-` and `.`, and begins and ends with a letter or digit (it
//! may become a host name). A key is 1 to 1024 bytes of UTF-8 without NUL, and reads as a relative path: no empty
//! component, none that is `.` or `..`. So a key neither begins nor ends with `/`: a mounted bucket then has exactly one
//! path for each key, and `a` and `a/` cannot both exist.

use crate::{
    message::{BUCKET_BYTES_MAX, KEY_BYTES_MAX, MetaFault},
    words::counted,
};

const BUCKET_BYTES_MIN: usize = 3;
/// How much of a refused name an error repeats.
const SHOWN_CHARS: usize = 64;

/// Whether `name` may name a bucket.
///
/// # Errors
/// [`MetaFault::BadName`] with the rule it breaks.
pub fn check_bucket(name: &str) -> Result<(), MetaFault> {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let broken = if name.len() < BUCKET_BYTES_MIN || name.len() > BUCKET_BYTES_MAX {
        Some(format!(
            "it has {}, {BUCKET_BYTES_MIN} to {BUCKET_BYTES_MAX} are allowed",
            counted(name.len(), "byte")
        ))
    } else if !name.bytes().all(inner) {
        Some("only lower-case letters, digits, `-` and `.` are allowed".to_owned())
    } else if !edge(name.bytes().next()) || !edge(name.bytes().last()) {
        Some("it must begin and end with a letter or digit".to_owned())
    } else {
        None
    };
    refuse("bucket name", name, broken)
}

/// Whether `key` may name an object.
///
/// # Errors
/// [`MetaFault::BadName`] with the rule it breaks.
pub fn check_key(key: &str) -> Result<(), MetaFault> {
    let broken = if key.is_empty() || key.len() > KEY_BYTES_MAX {
        Some(format!("it has {}, 1 to {KEY_BYTES_MAX} are allowed", counted(key.len(), "byte")))
    } else if key.contains('\0') {
        Some("it holds a NUL byte".to_owned())
    } else if key.split('/').any(str::is_empty) {
        Some("it must not begin or end with `/` or hold `//`".to_owned())
    } else if key.split('/').any(|part| part == "." || part == "..") {
        Some("`.` and `..` are not allowed as parts".to_owned())
    } else {
        None
    };
    refuse("key", key, broken)
}

fn refuse(what: &str, name: &str, broken: Option<String>) -> Result<(), MetaFault> {
    match broken {
        None => Ok(()),
        Some(reason) => Err(MetaFault::BadName {
            what: what.to_owned(),
            name: name.chars().take(SHOWN_CHARS).collect(),
            reason,
        }),
    }
}
