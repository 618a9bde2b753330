//! The configuration file, logs, completions and manual pages.

use crate::common::{Bed, program, shape};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Output, Stdio},
};

fn run(arguments: &[&str]) -> Output {
    Command::new(program())
        .args(arguments)
        .env_remove("STEADFAST_CLUSTER")
        .env_remove("STEADFAST_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_example_checks_and_mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("steadfast.toml");
    let path = file.to_str().unwrap();
    let example = run(&["config", "example"]);
    fs::write(&file, &example.stdout).unwrap();
    let checked = run(&["config", "check", path]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    fs::write(&file, "[client]\nclustre = \"a:1\"\n[node]\nsweep_s = 0\n").unwrap();
    for arguments in [&["config", "check", path][..], &["--config", path, "ls"], &["ls", "--config", path]] {
        let refused = run(arguments);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(":2: unknown key `clustre` in [client]; did you mean `cluster`?"), "{said}");
        assert!(
            said.contains(":4: `sweep_s` in [node] is 0; allowed: a whole number from 1 to 86400"),
            "{said}"
        );
    }
    let missing = run(&["--config", "/nowhere/at/all.toml", "ls"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("/nowhere/at/all.toml"));
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let bed = Bed::start(&shape(1, 1));
    let file = bed.dir.path().join("steadfast.toml");
    let right = bed.cluster.address().to_owned();
    let ls = |in_file: &str, in_environment: Option<&str>, flag: Option<&str>| {
        fs::write(&file, format!("[client]\ncluster = \"{in_file}\"\n")).unwrap();
        let mut command = Command::new(program());
        command.args(["ls", "--config"]).arg(&file).env_remove("STEADFAST_CLUSTER");
        command.envs(in_environment.map(|cluster| ("STEADFAST_CLUSTER", cluster)));
        command.args(flag.map(|cluster| format!("--cluster={cluster}")));
        command.output().unwrap().status.code()
    };
    // Nobody listens on the port of a service that was never widely used.
    let wrong = "127.0.0.1:1";
    assert_eq!(ls(&right, None, None), Some(0));
    assert_eq!(ls(wrong, Some(&right), None), Some(0));
    assert_eq!(ls(wrong, Some(wrong), Some(&right)), Some(0));
    assert_eq!(ls(&right, Some(wrong), None), Some(4));
}

/// What `config check` lets pass is not refused by the first command that reads it.
#[test]
fn what_a_flag_would_refuse_is_refused_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("steadfast.toml");
    let path = file.to_str().unwrap();
    for (wrong, said) in [
        (
            "[node]\ncapacity = 2000000000000000000\n",
            "`capacity` in [node] is 2000000000000000000; allowed: ",
        ),
        ("[log]\nfilter = \"steadfast=loud\"\n", "`filter` in [log] is \"steadfast=loud\"; allowed: a level"),
    ] {
        fs::write(&file, wrong).unwrap();
        for arguments in [&["config", "check", path][..], &["--config", path, "lab", "list"]] {
            let refused = run(arguments);
            assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
            let stderr = text(&refused.stderr);
            assert!(stderr.contains(&format!("{path}:2: {said}")), "{stderr}");
        }
    }
    fs::write(
        &file,
        "[node]\ncapacity = 1000000000000000000\n[log]\nfilter = \"info,steadfast_node=debug\"\n",
    )
    .unwrap();
    assert!(run(&["--config", path, "lab", "list"]).status.success());
}

#[test]
fn a_variable_that_is_set_to_nothing_names_no_file() {
    let list = |arguments: &[&str]| {
        let mut command = Command::new(program());
        command.args(arguments).env("STEADFAST_CONFIG", "").output().unwrap()
    };
    let listed = list(&["lab", "list"]);
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    // A flag with nothing behind it is a mistake.
    assert_eq!(list(&["--config", "", "lab", "list"]).status.code(), Some(2));
    assert_eq!(list(&["--config=", "lab", "list"]).status.code(), Some(2));
}

/// What helps to mend a file does not need it.
#[test]
fn a_broken_file_is_in_nobodys_way_who_mends_it() {
    let dir = tempfile::tempdir().unwrap();
    let [broken, good] = ["broken.toml", "good.toml"].map(|name| dir.path().join(name));
    fs::write(&broken, "[client]\nclustre = 3\n").unwrap();
    fs::write(&good, "[client]\ncluster = \"here:1\"\n").unwrap();
    let code = |arguments: &[&str]| {
        let mut command = Command::new(program());
        command.args(arguments).env("STEADFAST_CONFIG", &broken).output().unwrap().status.code()
    };
    let good = good.to_str().unwrap();
    for arguments in [&["--help"][..], &["config", "example"], &["config", "check", good], &["man"]] {
        assert_eq!(code(arguments), Some(0), "{arguments:?}");
    }
    assert_eq!(code(&["completions", "bash"]), Some(0));
    assert_eq!(code(&["lab", "list"]), Some(2), "it may speak of that");
    assert_eq!(code(&["config", "check", broken.to_str().unwrap()]), Some(2));
}

#[test]
fn a_whole_capacity_is_taken_only_where_one_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("thick.toml");
    fs::write(&file, "[node]\nthick = true\n").unwrap();
    let device = dir.path().join("device");
    let node =
        ["node", "--meta", "127.0.0.1:9", "--listen", "127.0.0.1:0", "--dir", device.to_str().unwrap()];
    let refused = run(&[&["--config", file.to_str().unwrap()], &node[..]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--capacity"), "{}", text(&refused.stderr));
    assert!(!device.exists());
}

#[test]
fn an_error_that_nobody_reads_has_its_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(program());
    let status = command.args(["--log", "steadfast=loud", "lab", "list"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn servers_log_one_object_a_line() {
    let environment = vec![("STEADFAST_LOG_FORMAT".to_owned(), "json".to_owned())];
    let bed = Bed::start(&steadfast_lab::cluster::Shape { environment, ..shape(1, 1) });
    let log = fs::read_to_string(bed.cluster.dir().join("logs/node-00.log")).unwrap();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let serving =
        events.iter().find(|event| event["message"] == "serving").expect("a server says that it serves");
    assert!(serving["node"].is_string() && serving["level"] == "INFO", "{serving}");
    assert!(events.iter().any(|event| event["device"].is_string()), "{log}");
    let refused = run(&["--log", "steadfast=loud", "lab", "list"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let help = text(&run(&["--help"]).stdout);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() > 15 && commands.contains(&"top"), "{commands:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&run(&["completions", shell]).stdout);
        // As words: `ls` is in `else`, `up` in many others.
        let words: BTreeSet<&str> =
            script.split(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c)).collect();
        for command in &commands {
            assert!(words.contains(command), "{shell} does not know {command}");
        }
        let flag = if shell == "fish" { "-l cluster" } else { "--cluster" };
        assert!(script.contains(flag), "{shell} does not know {flag}");
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(run(&["man", dir.path().to_str().unwrap()]).status.success());
    let page = text(&run(&["man"]).stdout);
    for command in commands.iter().filter(|command| **command != "help") {
        assert!(page.contains(&format!("steadfast\\-{command}")), "the page does not name {command}");
        let own = fs::read_to_string(dir.path().join(format!("steadfast-{command}.1"))).unwrap();
        assert!(own.contains(".SH SYNOPSIS"), "{command}: {own}");
    }
}
