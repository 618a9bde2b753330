//! The configuration file: what a command is not told by a flag or by the environment, it takes from there.
//!
//! The file is read before the command line, and its values become the defaults of the flags of the same meaning, so
//! that one order holds everywhere: flag, environment, file, built-in default. [`schema`] names every key once; the
//! check, the example and the defaults all come from it.

pub(crate) mod check;
pub(crate) mod schema;

pub(crate) use check::{Problems, Settings, check};

use clap::{Arg, Command};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The variable that names the file where no flag does.
pub(crate) const VARIABLE: &str = "STEADFAST_CONFIG";
/// No configuration is longer; a file of data given by mistake is refused, not read.
const BYTES_MAX: u64 = 1 << 20;

/// The file that the command line or the environment names.
pub(crate) fn named(arguments: impl IntoIterator<Item = OsString>) -> Option<PathBuf> {
    let mut arguments = arguments.into_iter().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            break;
        }
        if argument == "--config" {
            return arguments.next().map(PathBuf::from);
        }
        // A path need not be text.
        if let Some(path) = argument.as_bytes().strip_prefix(b"--config=") {
            return Some(PathBuf::from(OsStr::from_bytes(path)));
        }
    }
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Reads and checks a file.
pub(crate) fn read(path: &Path) -> Result<Settings, Problems> {
    let mut text = String::new();
    let unreadable = |error: std::io::Error| Problems::of_file(path, &error.to_string());
    let file = File::open(path).map_err(unreadable)?;
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(Problems::of_file(path, "it is longer than 1 MiB: no configuration file"));
    }
    check(path, &text)
}

/// Gives the flags of every command the file's values as defaults.
pub(crate) fn apply(command: Command, settings: &Settings) -> Command {
    let sections = sections_of(&command);
    let command = command.mut_args(|argument| with_default(&sections, argument, settings));
    command.mut_subcommands(|command| apply(command, settings))
}

/// The sections that speak of a command's flags.
fn sections_of(command: &Command) -> Vec<&'static schema::Section> {
    let is_client = command.get_arguments().any(|argument| argument.get_id() == "cluster");
    let is_root = command.get_arguments().any(|argument| argument.get_id() == "config");
    schema::SECTIONS
        .iter()
        .filter(|section| match section.name {
            "client" => is_client,
            "log" => is_root,
            name => name == command.get_name(),
        })
        .collect()
}

fn with_default(sections: &[&'static schema::Section], argument: Arg, settings: &Settings) -> Arg {
    let found = sections.iter().find_map(|section| {
        let key = section.keys.iter().find(|key| argument.get_id() == key.argument)?;
        settings.get(section.name, key.name)
    });
    match found {
        // The command line's description lives as long as the program, and so do these few words.
        Some(values) => {
            let values: Vec<&'static str> = values.iter().map(|value| &*value.clone().leak()).collect();
            argument.required(false).default_values(values)
        }
        None => argument,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command as Commands};
    use clap::{CommandFactory, FromArgMatches, builder::Resettable};
    use std::os::unix::ffi::OsStringExt;
    use steadfast_protocol::serve::AdmissionPolicy;

    fn parse(file: &str, arguments: &[&str]) -> Arguments {
        let settings = check(Path::new("test.toml"), file).unwrap();
        // What happens to be in the environment of who runs the tests wins over a file.
        let command = apply(without_environment(Arguments::command()), &settings);
        let matches = command.try_get_matches_from(arguments).unwrap();
        Arguments::from_arg_matches(&matches).unwrap()
    }

    fn without_environment(command: Command) -> Command {
        command.mut_args(|argument| argument.env(Resettable::Reset)).mut_subcommands(without_environment)
    }

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
        let example = check(Path::new("example.toml"), &schema::example(true)).unwrap();
        apply(Arguments::command(), &example).debug_assert();
    }

    #[test]
    fn every_key_has_its_flag() {
        fn flags(command: &Command, section: &str, into: &mut Vec<String>) {
            if sections_of(command).iter().any(|of| of.name == section) {
                into.extend(command.get_arguments().map(|argument| argument.get_id().to_string()));
            }
            command.get_subcommands().for_each(|command| flags(command, section, into));
        }
        for section in schema::SECTIONS {
            let mut found = Vec::new();
            flags(&Arguments::command(), section.name, &mut found);
            for key in section.keys {
                assert!(found.iter().any(|flag| flag == key.argument), "[{}] {}", section.name, key.name);
            }
        }
    }

    #[test]
    fn a_flag_wins_over_the_file() {
        let file = "[client]\ncluster = \"here:1\"\npatience_s = 3\n[node]\ndirs = [\"/a\", \"/b\"]\nmeta = \"here:1\"\n\
                    listen = \"0.0.0.0:7\"\nadvertise = \"out:8\"\ncapacity = \"20GiB\"\nthick = true\n";
        let Commands::Ls(list) = parse(file, &["steadfast", "ls"]).command else { panic!("not ls") };
        assert_eq!((list.cluster.cluster.as_str(), list.cluster.tuning.patience), ("here:1", Some(3)));
        let told = ["steadfast", "ls", "--cluster", "there:2", "--patience", "9"];
        let Commands::Ls(list) = parse(file, &told).command else { panic!("not ls") };
        assert_eq!((list.cluster.cluster.as_str(), list.cluster.tuning.patience), ("there:2", Some(9)));
        let Commands::Node(node) = parse(file, &["steadfast", "node"]).command else { panic!("not node") };
        assert_eq!(node.dir, [Path::new("/a"), Path::new("/b")]);
        assert_eq!(node.advertise.as_deref(), Some("out:8"));
        assert_eq!((node.capacity, node.thick), (Some(20 << 30), true));
        // One of the two in the file, the other as a flag.
        let room =
            "[node]\ndirs = [\"/a\"]\nmeta = \"here:1\"\nlisten = \"0.0.0.0:7\"\ncapacity = \"20GiB\"\n";
        let Commands::Node(node) = parse(room, &["steadfast", "node", "--thick"]).command else {
            panic!("not node")
        };
        assert_eq!((node.capacity, node.thick), (Some(20 << 30), true));
        let file = "[up]\ndir = \"/c\"\nnodes = 3\nadmission = \"open\"\n[node]\nadmission = \"priority\"\n";
        let Commands::Up(up) = parse(file, &["steadfast", "up"]).command else { panic!("not up") };
        assert_eq!((up.nodes, up.devices, up.admission), (Some(3), None, Some(AdmissionPolicy::Open)));
        let told = ["steadfast", "node", "--dir", "/a", "--meta", "m:1", "--listen", "0.0.0.0:7"];
        let Commands::Node(node) = parse(file, &told).command else { panic!("not node") };
        assert_eq!(node.admission, AdmissionPolicy::Priority);
    }

    #[test]
    fn the_file_is_found_where_it_is_named() {
        let named = |arguments: &[&str]| {
            named(core::iter::once("steadfast").chain(arguments.iter().copied()).map(OsString::from))
        };
        assert_eq!(named(&["ls", "--config", "a.toml"]), Some(PathBuf::from("a.toml")));
        assert_eq!(named(&["--config=b.toml", "ls"]), Some(PathBuf::from("b.toml")));
        let no_text = OsString::from_vec(b"--config=\xff.toml".to_vec());
        let found = super::named(["steadfast".into(), no_text, "ls".into()]);
        assert_eq!(found, Some(PathBuf::from(OsStr::from_bytes(b"\xff.toml"))));
        assert_eq!(named(&["ls", "--", "--config=b.toml"]), None);
    }
}
