//! Numbers with their words, as errors and commands tell them to a person.

use core::fmt::Display;

/// `1 device`, `3 devices`: of nouns whose plural ends in `s`.
pub fn counted(number: impl Display, noun: &str) -> String {
    let number = number.to_string();
    if number == "1" { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// As [`counted`], of a noun given in its plural.
pub(crate) fn counted_of(number: u32, nouns: &str) -> String {
    counted(number, nouns.strip_suffix('s').unwrap_or(nouns))
}

/// `1 device is`, `3 devices are`.
pub fn counted_are(number: impl Display, noun: &str) -> String {
    let counted = counted(number, noun);
    if counted.ends_with('s') { counted + " are" } else { counted + " is" }
}

/// `1 is`, `3 are`.
pub(crate) fn are(number: u32) -> String {
    if number == 1 { "1 is".to_owned() } else { format!("{number} are") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!(
            (counted(1, "key"), counted_are(1, "device")),
            ("1 key".to_owned(), "1 device is".to_owned())
        );
        for (number, said) in [(0, "0 blocks"), (2, "2 blocks"), (11, "11 blocks")] {
            assert_eq!(counted(number, "block"), said);
            assert_eq!(counted_are(number, "block"), format!("{said} are"));
        }
        assert_eq!(
            (counted_of(1, "nodes"), counted_of(2, "sites")),
            ("1 node".to_owned(), "2 sites".to_owned())
        );
        assert_eq!((are(1), are(2)), ("1 is".to_owned(), "2 are".to_owned()));
    }
}
