//! The layout, held by a test: which room may import which, what stands at the top level, and what no file says.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What each room of `src/` may import from its own crate. Longest prefix wins.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("ids.rs", &[]),
    ("time.rs", &[]),
    ("rules.rs", &[]),
    ("limits.rs", &["ids", "time"]),
    ("message.rs", &["ids", "time"]),
    ("wire.rs", &["ids", "time", "limits", "message"]),
    ("rate.rs", &["limits"]),
    ("memory.rs", &["ids", "message", "rules"]),
    ("witness/", &["ids", "time", "limits", "message", "rules", "rate", "memory"]),
    ("replica/", &["ids", "time", "limits", "message", "rules", "rate", "memory", "replica"]),
    ("names/", &["ids", "time", "limits", "message", "rate"]),
    ("fence/", &["ids", "time", "limits", "message", "edge", "fence"]),
    ("edge/", &["ids", "time", "limits", "message", "wire", "edge"]),
    ("config.rs", &["ids", "time", "limits", "edge"]),
    ("enrol/", &["ids", "limits", "wire", "edge", "config", "enrol"]),
    ("node/", &["ids", "time", "limits", "message", "wire", "rules", "witness", "edge", "config", "enrol"]),
    (
        "client/",
        &[
            "ids", "time", "limits", "message", "wire", "rules", "names", "replica", "edge", "config",
            "client",
        ],
    ),
    ("agent/", &["ids", "time", "limits", "message", "edge", "fence", "config", "client", "agent"]),
];

/// The pure core: no clock, no entropy, no device, no runtime.
const PURE: &[&str] = &[
    "ids.rs",
    "time.rs",
    "rules.rs",
    "limits.rs",
    "message.rs",
    "wire.rs",
    "rate.rs",
    "memory.rs",
    "witness/",
    "replica/",
    "names/",
    "agent/supervisor/",
];
const IMPURE_WORDS: &[&str] = &[
    "Instant::",
    "SystemTime",
    "tokio::",
    "quinn::",
    "rustls::",
    "rustix::",
    "std::fs",
    "std::net",
    "std::thread",
    "rand::",
];

const TOP_LEVEL: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "src",
    "certs",
    "tests",
    "deploy",
    "README.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "clippy.toml",
    "rustfmt.toml",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(under: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(under)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The rooms that a line of code names, whatever form the path has.
fn rooms_named(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or("");
    let mut rooms = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let names = match rest.strip_prefix('{') {
            Some(list) => list.split(',').map(str::trim).collect(),
            None => vec![rest],
        };
        for name in names {
            let room: String = name.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            if !room.is_empty() {
                rooms.push(room);
            }
        }
    }
    rooms
}

#[test]
fn a_room_imports_only_what_the_layout_allows() {
    let mut broken = Vec::new();
    for path in rust_files("src") {
        let name = path.strip_prefix(root().join("src")).expect("under src").display().to_string();
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(room, _)| name.starts_with(room)) else {
            assert!(
                name.starts_with("cli/") || name == "lib.rs" || name == "main.rs",
                "{name} is in no room of the layout: give it one in tests/tidy.rs"
            );
            continue;
        };
        // A file of tests may reach for more.
        if name.ends_with("tests.rs") || name.contains("/tests/") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
        for (number, line) in code.lines().enumerate() {
            for room in rooms_named(line) {
                if !allowed.contains(&room.as_str()) && room.starts_with(|c: char| c.is_lowercase()) {
                    broken.push(format!("src/{name}:{} imports {room}", number + 1));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_core_names_no_clock_no_entropy_and_no_device() {
    let mut broken = Vec::new();
    for path in rust_files("src") {
        let name = path.strip_prefix(root().join("src")).expect("under src").display().to_string();
        if !PURE.iter().any(|room| name.starts_with(room)) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            for word in IMPURE_WORDS.iter().filter(|word| code.contains(**word)) {
                broken.push(format!("src/{name}:{} says {word}", number + 1));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn only_the_wire_knows_the_codec_and_only_the_ledger_syncs() {
    let owners =
        BTreeMap::from([("bincode::", "wire.rs"), ("fdatasync", "edge/disk/"), ("quinn::", "edge/")]);
    let mut broken = Vec::new();
    for path in rust_files("src") {
        let name = path.strip_prefix(root().join("src")).expect("under src").display().to_string();
        let text = fs::read_to_string(&path).expect("a source file");
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            for (word, owner) in &owners {
                if code.contains(word) && !name.starts_with(owner) && !name.starts_with("cli/") {
                    broken.push(format!(
                        "src/{name}:{} says {word}, which is the business of {owner}",
                        number + 1
                    ));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_top_level_holds_nothing_else() {
    let Ok(listed) = Command::new("git").arg("ls-files").current_dir(root()).output() else {
        eprintln!("skipped: there is no git here");
        return;
    };
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for file in listed.lines() {
        let top = file.split('/').next().unwrap_or(file);
        assert!(
            TOP_LEVEL.contains(&top) || top.starts_with('.'),
            "{top} stands at the top level and does not belong there"
        );
    }
}

#[test]
fn nothing_is_left_unfinished() {
    // Spelled in halves, so that this file does not find itself.
    let words = [["to", "do!("], ["unimple", "mented!("], ["FIX", "ME"], ["XX", "X"], ["dbg", "!("]]
        .map(|[a, b]| a.to_owned() + b);
    for path in rust_files("src").into_iter().chain(rust_files("tests")) {
        let text = fs::read_to_string(&path).expect("a source file");
        for (number, line) in text.lines().enumerate() {
            for word in &words {
                assert!(!line.contains(word.as_str()), "{}:{} says {word}", path.display(), number + 1);
            }
        }
    }
}

#[test]
fn every_number_that_an_alert_watches_is_one_that_is_told() {
    let alerts = fs::read_to_string(root().join("deploy/prometheus/alerts.yml")).expect("the alerts");
    let sources: Vec<String> =
        rust_files("src").iter().map(|path| fs::read_to_string(path).expect("a source file")).collect();
    let mut watched = 0;
    for word in alerts.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let Some(name) = word.strip_prefix("tiebreak_") else { continue };
        watched += 1;
        // Counters may be registered without the ending that every counter has.
        let told = [name, name.trim_end_matches("_total")].map(|name| format!("\"{name}\""));
        let is_told = sources.iter().any(|text| told.iter().any(|name| text.contains(name)));
        assert!(is_told, "an alert watches tiebreak_{name}, which nobody tells");
    }
    assert!(watched > 0, "the alerts watch nothing");
}
