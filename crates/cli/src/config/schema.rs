//! Every key of the configuration file, once.

use std::fmt::Write;

/// A table of the file.
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) keys: &'static [Key],
}

/// A key of a table.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// The flag that says the same, as the command line names it inside.
    pub(crate) argument: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
    /// A value in TOML.
    pub(crate) example: &'static str,
}

/// What a key takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Text,
    /// `HOST:PORT`.
    Place,
    /// An address of this machine to listen on.
    Address,
    Path,
    Paths,
    /// The size of a device: a number of bytes, or text with a unit.
    Capacity,
    Whole(i64, i64),
    Switch,
    OneOf(&'static [&'static str]),
    /// How much a read asks for.
    Request,
    /// An emulation.
    Emulation,
    /// Which events are logged.
    Filter,
}

impl Kind {
    /// What is allowed, for a person.
    pub(crate) fn allowed(self) -> String {
        match self {
            Self::Text => "text in quotes".to_owned(),
            Self::Place => "\"HOST:PORT\"".to_owned(),
            Self::Address => "\"ADDRESS:PORT\" of this machine, for instance \"0.0.0.0:7000\"".to_owned(),
            Self::Path => "a path in quotes".to_owned(),
            Self::Paths => "a path in quotes, or a list of them".to_owned(),
            Self::Capacity => {
                "a number of bytes from 1 MiB up to 10^18, or text such as \"20GiB\"".to_owned()
            }
            Self::Whole(min, max) => format!("a whole number from {min} to {max}"),
            Self::Switch => "true or false".to_owned(),
            Self::OneOf(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                words.join(" or ")
            }
            Self::Request => crate::units::REQUEST_RULES.replace('`', "\""),
            Self::Filter => {
                "a level such as \"info\", or levels of parts such as \"info,steadfast_node=debug\""
                    .to_owned()
            }
            Self::Emulation => "an emulation such as \"rate=100MB,latency=5ms\", or \"off\"".to_owned(),
        }
    }
}

const LONGEST_S: i64 = 86_400;
/// As `AdmissionPolicy` reads them.
const ADMISSION: Kind = Kind::OneOf(&["capacity", "priority", "open"]);
const ADMISSION_HELP: &str =
    "Who may reserve bandwidth of the devices: first come, foreground before background, or nothing is kept";
const EMULATE_HELP: &str =
    "Emulate the devices' speed, or say whether they rotate, whatever the system says (rotational=no or yes)";

/// The whole file.
pub(crate) const SECTIONS: &[Section] = &[
    Section {
        name: "client",
        help: "Every command that talks to a cluster.",
        keys: &[
            Key {
                name: "cluster",
                argument: "cluster",
                kind: Kind::Place,
                help: "Address of the metadata server (--cluster, STEADFAST_CLUSTER)",
                example: "\"127.0.0.1:7000\"",
            },
            Key {
                name: "request",
                argument: "request",
                kind: Kind::Request,
                help: "How much `get` asks for (--request)",
                example: "\"adaptive\"",
            },
            Key {
                name: "patience_s",
                argument: "patience",
                kind: Kind::Whole(1, LONGEST_S),
                help: "Seconds that an access waits while nothing at all moves, 10 at least for a metadata server that \
                       went away (--patience, STEADFAST_PATIENCE)",
                example: "10",
            },
            Key {
                name: "threads",
                argument: "threads",
                kind: Kind::Whole(0, 1024),
                help: "Threads that decode; 0 for as many as the machine has (--threads, STEADFAST_THREADS)",
                example: "0",
            },
            Key {
                name: "ingest",
                argument: "ingest",
                kind: Kind::OneOf(&["client", "primary"]),
                help: "Who encodes the segments that are stored whole under the policy `parity` (--ingest, STEADFAST_INGEST)",
                example: "\"client\"",
            },
        ],
    },
    Section {
        name: "meta",
        help: "`steadfast meta`: a metadata server.",
        keys: &[
            Key {
                name: "dir",
                argument: "dir",
                kind: Kind::Path,
                help: "Where the metadata lies",
                example: "\"/var/lib/steadfast/meta\"",
            },
            Key {
                name: "listen",
                argument: "listen",
                kind: Kind::Address,
                help: "Where to listen",
                example: "\"0.0.0.0:7000\"",
            },
            Key {
                name: "admin",
                argument: "admin",
                kind: Kind::Address,
                help: "Where /metrics and /healthz are answered",
                example: "\"127.0.0.1:7001\"",
            },
            Key {
                name: "lease_s",
                argument: "lease",
                kind: Kind::Whole(1, LONGEST_S),
                help: "Seconds that a put may be silent before its space is taken back",
                example: "60",
            },
        ],
    },
    Section {
        name: "node",
        help: "`steadfast node`: a storage server.",
        keys: &[
            Key {
                name: "dirs",
                argument: "dir",
                kind: Kind::Paths,
                help: "One directory for each device",
                example: "[\"/disks/0\", \"/disks/1\"]",
            },
            Key {
                name: "meta",
                argument: "meta",
                kind: Kind::Place,
                help: "Address of the metadata server",
                example: "\"127.0.0.1:7000\"",
            },
            Key {
                name: "listen",
                argument: "listen",
                kind: Kind::Address,
                help: "Where to listen",
                example: "\"0.0.0.0:7010\"",
            },
            Key {
                name: "advertise",
                argument: "advertise",
                kind: Kind::Place,
                help: "Where others reach this server, where that is another address than it listens on",
                example: "\"10.0.0.2:7010\"",
            },
            Key {
                name: "admin",
                argument: "admin",
                kind: Kind::Address,
                help: "Where /metrics and /healthz are answered",
                example: "\"127.0.0.1:7011\"",
            },
            Key {
                name: "site",
                argument: "site",
                kind: Kind::Text,
                help: "Name of the place where this server stands, for buckets that spread over sites",
                example: "\"default\"",
            },
            Key {
                name: "capacity",
                argument: "capacity",
                kind: Kind::Capacity,
                help: "Bytes each new device may use",
                example: "\"20GiB\"",
            },
            Key {
                name: "thick",
                argument: "thick",
                kind: Kind::Switch,
                help: "Take each new device's whole capacity from its filesystem at once",
                example: "false",
            },
            Key {
                name: "admission",
                argument: "admission",
                kind: ADMISSION,
                help: ADMISSION_HELP,
                example: "\"capacity\"",
            },
            Key {
                name: "sweep_s",
                argument: "sweep",
                kind: Kind::Whole(1, LONGEST_S),
                help: "Seconds between two sweeps for what dead writers left",
                example: "30",
            },
            Key {
                name: "reserve_period_s",
                argument: "reserve_period",
                kind: Kind::Whole(0, LONGEST_S),
                help: "Seconds from one look at the space reserved for updates to the next; 0: it is never given back",
                example: "43200",
            },
            Key {
                name: "repair_period_s",
                argument: "repair_period",
                kind: Kind::Whole(0, LONGEST_S),
                help: "Seconds from one look for degraded segments to the next; 0: nobody looks",
                example: "10",
            },
            Key {
                name: "emulate",
                argument: "emulate",
                kind: Kind::Emulation,
                help: EMULATE_HELP,
                example: "\"off\"",
            },
        ],
    },
    Section {
        name: "up",
        help: "`steadfast up`: a local cluster in the foreground.",
        keys: &[
            Key {
                name: "dir",
                argument: "dir",
                kind: Kind::Path,
                help: "Where the cluster lives",
                example: "\"/var/lib/steadfast/local\"",
            },
            Key {
                name: "nodes",
                argument: "nodes",
                kind: Kind::Whole(1, 64),
                help: "Storage servers; when not set, as many as the cluster has, a new one 8",
                example: "8",
            },
            Key {
                name: "devices",
                argument: "devices",
                kind: Kind::Whole(1, 16),
                help: "Devices of each storage server; when not set, as many as the cluster has, a new one 2",
                example: "2",
            },
            Key {
                name: "listen",
                argument: "listen",
                kind: Kind::Address,
                help: "Where the metadata server listens",
                example: "\"127.0.0.1:7000\"",
            },
            Key {
                name: "capacity",
                argument: "capacity",
                kind: Kind::Capacity,
                help: "Bytes each new device may use",
                example: "\"20GiB\"",
            },
            Key {
                name: "thick",
                argument: "thick",
                kind: Kind::Switch,
                help: "Take each new device's whole capacity from its filesystem at once",
                example: "false",
            },
            Key {
                name: "admission",
                argument: "admission",
                kind: ADMISSION,
                help: ADMISSION_HELP,
                example: "\"capacity\"",
            },
            Key {
                name: "emulate",
                argument: "emulate",
                kind: Kind::Emulation,
                help: EMULATE_HELP,
                example: "\"off\"",
            },
        ],
    },
    Section {
        name: "log",
        help: "What every program says on standard error.",
        keys: &[
            Key {
                name: "format",
                argument: "log_format",
                kind: Kind::OneOf(&["text", "json"]),
                help: "One line an event: text for people, JSON for programs (--log-format)",
                example: "\"text\"",
            },
            Key {
                name: "filter",
                argument: "log",
                kind: Kind::Filter,
                help: "How much (--log, STEADFAST_LOG)",
                example: "\"info,steadfast_node=debug\"",
            },
        ],
    },
];

/// An example of the whole file: every key a comment, or, `live`, every key in force.
pub(crate) fn example(live: bool) -> String {
    let mut text = String::from(
        "# Steadfast's configuration, for `steadfast --config FILE ...` or STEADFAST_CONFIG=FILE.\n\
         # A flag wins over an environment variable, that over this file, this file over what is built in.\n\
         # Remove the `#` before a key to set it; `steadfast config check FILE` looks it over.\n",
    );
    for Section { name, help, keys } in SECTIONS {
        write!(text, "\n# {help}\n[{name}]\n").expect("a string takes all text");
        for key in *keys {
            let hash = if live { "" } else { "#" };
            let (help, allowed) = (key.help, key.kind.allowed());
            write!(text, "# {help}: {allowed}.\n{hash}{} = {}\n", key.name, key.example)
                .expect("a string takes all text");
        }
    }
    text
}
