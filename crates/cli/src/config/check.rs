//! Checks a configuration file against the schema; what is wrong is said with its line, its key and what is allowed.

use super::schema::{Key, Kind, SECTIONS, Section};
use crate::{logging, units};
use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A checked file: the values of its keys as flags would say them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings(BTreeMap<(&'static str, &'static str), Vec<String>>);

impl Settings {
    pub(crate) fn get(&self, section: &'static str, key: &'static str) -> Option<&[String]> {
        self.0.get(&(section, key)).map(Vec::as_slice)
    }

    /// How many keys are set.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Everything that is wrong with a file.
#[derive(Debug)]
pub(crate) struct Problems {
    path: PathBuf,
    /// Line, counted from 1 (0: the file as a whole), and what is wrong there.
    problems: Vec<(usize, String)>,
}

impl Problems {
    pub(crate) fn of_file(path: &Path, what: &str) -> Self {
        Self { path: path.to_owned(), problems: vec![(0, what.to_owned())] }
    }
}

impl std::error::Error for Problems {}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (line, what)) in self.problems.iter().enumerate() {
            let separator = if number == 0 { "" } else { "\n" };
            let path = self.path.display();
            match line {
                0 => write!(f, "{separator}{path}: {what}")?,
                line => write!(f, "{separator}{path}:{line}: {what}")?,
            }
        }
        Ok(())
    }
}

/// Checks the text of a file.
pub(crate) fn check(path: &Path, text: &str) -> Result<Settings, Problems> {
    let mut found = Found { text, settings: Settings::default(), problems: Vec::new() };
    match DeTable::parse(text) {
        Ok(table) => found.file(table.get_ref()),
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            found.note(at, error.message().trim().to_owned());
        }
    }
    found.problems.sort();
    let Found { settings, problems, .. } = found;
    if problems.is_empty() { Ok(settings) } else { Err(Problems { path: path.to_owned(), problems }) }
}

struct Found<'t> {
    text: &'t str,
    settings: Settings,
    problems: Vec<(usize, String)>,
}

impl Found<'_> {
    fn note(&mut self, at: usize, what: String) {
        let before = self.text.as_bytes().iter().take(at);
        self.problems.push((1 + before.filter(|&&byte| byte == b'\n').count(), what));
    }

    fn file(&mut self, table: &DeTable<'_>) {
        for (name, value) in table.iter() {
            let (at, name) = (name.span().start, name.get_ref().as_ref());
            match SECTIONS.iter().find(|section| section.name == name) {
                Some(section) => match value.get_ref().as_table() {
                    Some(table) => self.section(section, table),
                    None => {
                        self.note(at, format!("`{name}` is a table: write [{name}] on a line of its own"))
                    }
                },
                None => {
                    let home =
                        SECTIONS.iter().find(|section| section.keys.iter().any(|key| key.name == name));
                    let hint = match home {
                        Some(section) => format!("it belongs under [{}]", section.name),
                        None => nearest(name, SECTIONS.iter().map(|section| section.name), "tables"),
                    };
                    self.note(at, format!("unknown table or key `{name}`; {hint}"));
                }
            }
        }
    }

    fn section(&mut self, section: &'static Section, table: &DeTable<'_>) {
        for (name, value) in table.iter() {
            let (at, name) = (name.span().start, name.get_ref().as_ref());
            let Some(key) = section.keys.iter().find(|key| key.name == name) else {
                let hint = nearest(name, section.keys.iter().map(|key| key.name), "keys");
                self.note(at, format!("unknown key `{name}` in [{}]; {hint}", section.name));
                continue;
            };
            match values(key, value) {
                Ok(values) => drop(self.settings.0.insert((section.name, key.name), values)),
                Err(what) => {
                    let allowed = key.kind.allowed();
                    self.note(at, format!("`{name}` in [{}] {what}; allowed: {allowed}", section.name));
                }
            }
        }
    }
}

/// A key's value as its flag would have it, or what is wrong with it.
fn values(key: &Key, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    let value = value.get_ref();
    let wrong_type = || format!("is {}", called(value));
    let text = || value.as_str().ok_or_else(wrong_type);
    let whole = || {
        let found = value.as_integer().ok_or_else(wrong_type)?;
        i64::from_str_radix(found.as_str(), found.radix()).map_err(|_| format!("is out of range: {found}"))
    };
    let sound = |text: &str, sound: bool| {
        if sound { Ok(vec![text.to_owned()]) } else { Err(format!("is \"{text}\"")) }
    };
    match key.kind {
        Kind::Filter => {
            text().and_then(|text| sound(text, !text.is_empty() && logging::filter(text).is_ok()))
        }
        Kind::Text => text().and_then(|text| sound(text, !text.is_empty())),
        Kind::Path => text().and_then(|text| sound(text, !text.is_empty())),
        Kind::Place => text().and_then(|text| sound(text, units::place(text).is_ok())),
        Kind::Address => text().and_then(|text| sound(text, text.parse::<SocketAddr>().is_ok())),
        Kind::OneOf(words) => text().and_then(|text| sound(text, words.contains(&text))),
        Kind::Request => text().and_then(|text| sound(text, units::request_rule(text).is_ok())),
        Kind::Emulation => text().and_then(|text| match units::emulation(text) {
            Ok(spec) => Ok(vec![spec]),
            Err(why) => Err(format!("is wrong: {why}")),
        }),
        Kind::Switch => match value.as_bool() {
            Some(value) => Ok(vec![value.to_string()]),
            None => Err(wrong_type()),
        },
        Kind::Whole(min, max) => match whole()? {
            number if (min..=max).contains(&number) => Ok(vec![number.to_string()]),
            number => Err(format!("is {number}")),
        },
        Kind::Capacity => match value.as_str() {
            Some(text) => units::capacity(text)
                .map(|bytes| vec![bytes.to_string()])
                .map_err(|why| format!("is wrong: {why}")),
            None => match whole()? {
                // The flag reads it again, and must not be the first to refuse it.
                bytes if units::capacity(&bytes.to_string()).is_ok() => Ok(vec![bytes.to_string()]),
                bytes => Err(format!("is {bytes}")),
            },
        },
        Kind::Paths => match value.as_array() {
            None => text().and_then(|text| sound(text, !text.is_empty())),
            Some(list) => {
                let paths: Option<Vec<String>> =
                    list.iter().map(|path| path.get_ref().as_str().map(str::to_owned)).collect();
                match paths {
                    Some(paths) if !paths.is_empty() && paths.iter().all(|path| !path.is_empty()) => {
                        Ok(paths)
                    }
                    Some(_) => Err("is an empty list, or has an empty path".to_owned()),
                    None => Err("has something else than text in its list".to_owned()),
                }
            }
        },
    }
}

/// What a value is, for a person.
fn called(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// The known name that was probably meant, or all of them.
fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str> + Clone, what: &str) -> String {
    let closest = known.clone().min_by_key(|candidate| strsim::damerau_levenshtein(name, candidate));
    // A third of the letters may be wrong: more is another word.
    let likely = |candidate: &&str| {
        strsim::damerau_levenshtein(name, candidate) <= name.chars().count().max(candidate.len()) / 3
            || candidate.starts_with(name)
    };
    match closest.filter(likely) {
        Some(closest) => format!("did you mean `{closest}`?"),
        None => {
            let known: Vec<String> = known.map(|name| format!("`{name}`")).collect();
            format!("the {what} are {}", known.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::example;

    fn problems(text: &str) -> String {
        check(Path::new("s.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn the_example_is_a_configuration() {
        assert_eq!(check(Path::new("example"), &example(false)).unwrap(), Settings::default());
        let live = check(Path::new("example"), &example(true)).unwrap();
        assert_eq!(live.len(), SECTIONS.iter().map(|section| section.keys.len()).sum::<usize>());
        assert_eq!(live.get("node", "dirs").unwrap(), ["/disks/0", "/disks/1"]);
    }

    #[test]
    fn unknown_keys_are_named_with_the_nearest_known_one() {
        let said = problems("[client]\nclustr = \"a:1\"\n\n[node]\ncapacity_bytes = 3\nzzz = 1\n[nod]\n");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], "s.toml:2: unknown key `clustr` in [client]; did you mean `cluster`?");
        assert_eq!(lines[1].split(';').next(), Some("s.toml:5: unknown key `capacity_bytes` in [node]"));
        assert!(lines[2].starts_with("s.toml:6: unknown key `zzz` in [node]; the keys are `dirs`"), "{said}");
        assert_eq!(lines[3], "s.toml:7: unknown table or key `nod`; did you mean `node`?");
        assert!(problems("cluster = \"a:1\"").contains("it belongs under [client]"));
    }

    #[test]
    fn wrong_types_and_ranges_say_line_and_what_is_allowed() {
        for (text, said) in [
            (
                "[meta]\nlease_s = \"60\"",
                "s.toml:2: `lease_s` in [meta] is text; allowed: a whole number from 1 to 86400",
            ),
            (
                "[meta]\nlease_s = 0",
                "s.toml:2: `lease_s` in [meta] is 0; allowed: a whole number from 1 to 86400",
            ),
            (
                "[client]\ncluster = 7000",
                "s.toml:2: `cluster` in [client] is a whole number; allowed: \"HOST:PORT\"",
            ),
            (
                "[client]\ncluster = \"host\"",
                "s.toml:2: `cluster` in [client] is \"host\"; allowed: \"HOST:PORT\"",
            ),
            (
                "[log]\nformat = \"xml\"",
                "s.toml:2: `format` in [log] is \"xml\"; allowed: \"text\" or \"json\"",
            ),
            (
                "[up]\nadmission = \"first\"",
                "s.toml:2: `admission` in [up] is \"first\"; allowed: \"capacity\" or \"priority\" or \"open\"",
            ),
            ("[node]\nthick = 1", "s.toml:2: `thick` in [node] is a whole number; allowed: true or false"),
            ("client = 3", "s.toml:1: `client` is a table: write [client] on a line of its own"),
        ] {
            assert_eq!(problems(text), said);
        }
        for wrong in [
            "[node]\ndirs = []",
            "[node]\ndirs = [1]",
            "[node]\ncapacity = \"3XB\"",
            "[node]\ncapacity = -1",
            "[node]\ncapacity = 0",
            "[node]\ncapacity = 1048575",
            "[up]\ncapacity = \"1MB\"",
            "[node]\ncapacity = 2000000000000000000",
            "[log]\nfilter = \"steadfast=loud\"",
            "[node]\nemulate = \"rate=\"",
            "[client]\nrequest = \"some\"",
            "[meta]\nlease_s = 0xffffffffffffffffff",
        ] {
            assert!(problems(wrong).starts_with("s.toml:2: "), "{wrong}: {}", problems(wrong));
        }
    }

    #[test]
    fn an_emulation_is_judged_as_on_the_command_line() {
        let spec = "latency=1ms,rate=0MB";
        let said = problems(&format!("[node]\nemulate = \"{spec}\""));
        let why = units::emulation(spec).unwrap_err();
        let wrong = format!("s.toml:2: `emulate` in [node] is wrong: {why}; allowed: ");
        assert!(said.starts_with(&wrong) && said.contains("a rate is 1B a second or more"), "{said}");
    }

    #[test]
    fn what_is_no_toml_is_refused_with_its_line() {
        for text in [
            "[client]\ncluster = ",
            "[client]\n=\n",
            "[client\n",
            "[client]\nthreads = 1\nthreads = 2",
            "\0\0",
        ] {
            assert!(problems(text).starts_with("s.toml:"), "{text:?}");
        }
    }
}
