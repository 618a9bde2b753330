//! Text that others chose, such as keys, as a person is shown it: a terminal is not to obey it.

use std::borrow::Cow;

/// The text with its control characters as they are written in quotes, line breaks among them.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = |symbol: char| match symbol.is_control() {
        true => symbol.escape_default().to_string(),
        false => symbol.to_string(),
    };
    Cow::Owned(text.chars().map(escaped).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_told_no_commands() {
        assert_eq!(harmless("über/\u{1b}[2J\n"), "über/\\u{1b}[2J\\n");
        assert_eq!(harmless("plain key"), "plain key");
    }
}
